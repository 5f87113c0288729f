"""Run every benchmark, one after the other, and keep what they print: ``python benchmarks/all.py`` or ``make bench``.

RESULTS.md is written when the last has ended; a benchmark that fails leaves the old one as it is. Names given on the
command line run only these and print, without writing.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
SHARED = "steps.py"
"""What benchmarks import."""
LIBRARIES = ("torch", "torchvision", "timm", "numpy", "pydantic")
# Absolute times depend on the machine and its other work; ratios are taken between both sides in one run.
PREFACE = """\
# Measured

Written by `make bench`. Both sides of each comparison ran in turn in one run; compare the ratios, not the times.

"""


def machine() -> str:
    import torch

    model = next((line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")), "unknown")
    devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return (
        f"- {datetime.date.today().isoformat()}\n"
        f"- {model}, {len(os.sched_getaffinity(0))} cores; {', '.join(devices) or 'no GPU'}; {platform.platform()}\n"
        f"- Python {platform.python_version()}, {libraries}\n\n"
    )


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def measured(script: Path) -> str:
    done = subprocess.run([sys.executable, str(script)], check=True, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    claim = (script.read_text().split('"""')[1]).split("\n\n")[0].strip()
    return f"## {script.stem}\n\n{claim}\n\n```\n{done.stdout.rstrip()}\n```\n"


def main() -> None:
    scripts = sorted(path for path in HERE.glob("*.py") if path.name not in (Path(__file__).name, SHARED))
    if sys.argv[1:]:
        scripts = [HERE / f"{name}.py" for name in sys.argv[1:]]
    sections = [measured(script) for script in scripts]
    if not sys.argv[1:]:
        RESULTS.write_text(PREFACE + machine() + "\n".join(sections))


if __name__ == "__main__":
    main()
