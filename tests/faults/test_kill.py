"""SIGKILL at any moment: the run that is resumed ends as if nothing had happened."""

import random
from pathlib import Path

from tests.faults.programs import Program


def in_a_step(program: Program, folder: Path) -> None:
    step = random.randrange(30)
    program.until(lambda: program.trace[-1:] == [f"after_backward {step}"])
