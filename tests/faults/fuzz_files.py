"""Runs seeded cases of a fuzzer in a forked process, which is watched: crashes, hangs and memory are problems, too."""

import argparse
import json
import os
import resource
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

Case = Callable[[Random, Path], str]
"""Run one case: draw it, with a folder for its files; return the problem, or an empty text."""

SECONDS = 10.0
MEMORY = 2**30
"""Bytes above those at the start."""


def run_cases(module: str, case: Case, seed: int, first: int, count: int) -> list[str]:
    """Run cases ``first`` to ``first + count - 1`` of a seed; return a text for each problem, which ends with the
    command that repeats it."""
    problems, start = [], first
    while start < first + count:
        for number, problem in _watched(case, seed, start, first + count):
            start = number + 1
            if problem:
                command = f"python -m {module} --seed {seed} --first {number} --count 1"
                problems.append(f"case {number}: {problem}; repeat it with: {command}")
    return problems


def _watched(case: Case, seed: int, first: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield number and problem of each case, up to one that ends or blocks the process."""
    with TemporaryDirectory() as folder:
        receive, send = os.pipe()
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            os.close(receive)
            _run(case, seed, range(first, end), Path(folder), send)
        os.close(send)
        try:
            with os.fdopen(receive, "rb", buffering=0) as results:
                yield from _read(results, first, end)
        finally:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _read(results: Any, first: int, end: int) -> Iterator[tuple[int, str]]:
    pending = b""
    for number in range(first, end):
        while b"\n" not in pending:
            ready, _, _ = select.select([results], [], [], SECONDS)
            content = os.read(results.fileno(), 65536) if ready else b""
            if not content:
                yield number, "the process crashed" if ready else f"no end after {SECONDS:g} s"
                return
            pending += content
        line, _, pending = pending.partition(b"\n")
        problem = json.loads(line)
        yield number, problem
        if problem.startswith("memory"):
            return  # the process keeps its maximum


def _run(case: Case, seed: int, numbers: Sequence[int], folder: Path, send: int) -> None:
    """Run cases in this process, which then ends."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # messages of libtiff
        warnings.simplefilter("ignore")
        start = _peak()
        for number in numbers:
            try:
                problem = case(Random(f"{seed} {number}"), folder)
            except Exception as error:
                problem = f"{type(error).__name__}: {str(error)[:300]}"
            if not problem and _peak() > start + MEMORY:
                problem = f"memory: {(_peak() - start) / 2**20:.0f} MiB above the start"
            os.write(send, json.dumps(problem).encode() + b"\n")
    finally:
        os._exit(0)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def failure_of(action: Callable[[], Any], name: str) -> tuple[Any, str]:
    """Return the result of an action and an empty text, or None and the problem with its error: only a ValueError of
    one line that names the file is none."""
    try:
        return action(), ""
    except ValueError as error:
        text = str(error)
        if name in text and "\n" not in text:
            return None, ""
        return None, f"an error that does not name the file on one line: {text[:300]!r}"


# --- damage to bytes --------------------------------------------------------------------------------------------------

_VALUES = (0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 127, 128, 255)
_WIDE_VALUES = (0, 1, 255, 256, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1)


def mutated(content: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Return content with one to four changes of random kinds, half of them in its first 256 bytes."""
    raw = bytearray(content)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        at = random.randrange(min(len(raw), 256) if random.random() < 0.5 else len(raw)) if raw else 0
        length = random.choice([1, 2, 4, 16, 256])
        match random.randrange(9):
            case 0 | 1:
                raw[at : at + 1] = bytes([random.randrange(256)])
            case 2:
                raw[at : at + 1] = bytes([random.choice(_VALUES)])
            case 3:
                wide = random.choice(_WIDE_VALUES).to_bytes(4, random.choice(["little", "big"]))
                raw[at : at + 4] = wide
            case 4:
                raw[at : at + 2] = random.choice(_WIDE_VALUES[:6]).to_bytes(2, random.choice(["little", "big"]))
            case 5:
                del raw[at : at + (length if random.random() < 0.7 else len(raw))]
            case 6:
                raw[at:at] = random.randbytes(length)
            case 7:
                raw[at:at] = raw[at : at + length]
            case _:
                other = random.choice(others)
                start = random.randrange(len(other))
                raw[at:] = other[start:]
    return bytes(raw)


def main(module: str, case: Case) -> None:
    """Run cases from the command line, and print their problems."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=500, help="number of cases")
    options = parser.parse_args()
    problems = run_cases(module, case, options.seed, options.first, options.count)
    print("\n".join(problems) or f"{options.count} cases, no problem")
    sys.exit(bool(problems))
