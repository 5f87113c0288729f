"""SIGKILL at any moment: the run that is resumed ends as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.parts_names import SLOW
from tests.faults.programs import ROOT, TRACE, Program, Server
from tests.faults.runs import Outcome, assert_same, metrics


def in_a_step(program: Program, folder: Path) -> None:
    step = random.randrange(30)
    program.until(lambda: program.trace[-1:] == [f"after_backward {step}"])
