"""Run benchmarks and record their output: ``make bench`` runs all but the longest, and only some are run by
``python benchmarks/all.py loader ema``.

Each has a section in RESULTS.md, written when it has finished: claim, machine and output. Notes below the output are
kept. If a benchmark fails, its section is not changed, and the exit status is 1.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
SHARED = ("in_memory.py", "every_other.py", "gpu_sections.py", "serve_other.py")
"""Modules that benchmarks import or start."""
HOURS = ("peers.py", "planning.py")
"""Modules that take many hours: they run only if they are named."""
LIBRARIES = ("torch", "torchvision", "timm", "numpy", "pydantic")
# Absolute times depend on the machine and its other work; ratios are taken between both sides in one run.
PREFACE = """\
# Measured

Written by `make bench`, but for the notes below an output. Both sides of each comparison ran in turn in one run;
compare the ratios, not the times.
"""


def machine() -> str:
    import torch

    model = next((line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")), "unknown")
    devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return (
        f"- {datetime.date.today().isoformat()}\n"
        f"- {model}, {len(os.sched_getaffinity(0))} cores; {', '.join(devices) or 'no GPU'}; {platform.platform()}\n"
        f"- Python {platform.python_version()}, {libraries}\n"
    )


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def measured(script: Path) -> str | None:
    """Run a benchmark and return its section, or None if it fails."""
    result = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    print(result.stdout, flush=True)
    if result.returncode:
        return None
    claim = (script.read_text().split('"""')[1]).split("\n\n")[0].strip()
    return f"## {script.stem}\n\n{claim}\n\n{machine()}\n```\n{result.stdout.rstrip()}\n```\n"


def with_section(text: str, section: str) -> str:
    """Return the results with a section added, or replaced except for its notes; sections are sorted by name."""
    sections = {part.split("\n", 1)[0]: part for part in re.split(r"(?m)^(?=## )", text)[1:]}
    title = section.split("\n", 1)[0]
    _, _, notes = sections.get(title, "").partition("\n```\n\n")
    sections[title] = f"{section}\n{notes}" if notes else section
    return "\n".join([PREFACE, *(sections[name].rstrip() + "\n" for name in sorted(sections))])


def main() -> int:
    left_out = (Path(__file__).name, *SHARED, *HOURS)
    scripts = sorted(path for path in HERE.glob("*.py") if path.name not in left_out)
    failed = []
    for script in [HERE / f"{name}.py" for name in sys.argv[1:]] or scripts:
        section = measured(script)
        if section is None:
            failed.append(script.stem)
        else:
            RESULTS.write_text(with_section(RESULTS.read_text() if RESULTS.exists() else "", section))
    if failed:
        print(f"failed, and not written: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
