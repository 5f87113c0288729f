"""Run a command of Opabinia on the pretended CUDA device, and print where the host waited.

    python -m tests.device train classification/digits train.device=cuda train.length=3it data.num_workers=0

The device refuses what CUDA refuses. ``--no-float64`` refuses float64 as well, as MPS does.
"""

from __future__ import annotations

import sys

from opabinia.cli import main as run_command
from tests.device.installation import install
from tests.device.phases import record_phases
from tests.device.records import RECORD


def main() -> None:
    """Run the command line."""
    if "--no-float64" in sys.argv:
        sys.argv.remove("--no-float64")
        RECORD.forbid_float64 = True
    install()
    record_phases()
    try:
        run_command()
    finally:
        print(RECORD.table(), file=sys.stderr)


if __name__ == "__main__":
    main()
