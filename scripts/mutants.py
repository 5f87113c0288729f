"""Measure what the tests protect: change one place of the package at a time, and see whether a test fails.

A mutant has another comparison, operator, constant or condition, or lacks a call or a returned value. It is tested with
the fast tests named after its module, then those that mention its function, class or module, most mentions first, then
those of its folder: at most ``MAX_FILES`` files, so the share is a lower bound of what ``make test`` kills. With
``--like``, only functions that are the same in another checkout are changed: the same seed then chooses the same
mutants in both, and their shares compare two states of the tests. Each mutant runs in a copy of the checkout and in a
process of its own.

Example, before and after a change of tests::

    git worktree add ../before HEAD~1
    python scripts/mutants.py --like ../before
    (cd ../before && python ../here/scripts/mutants.py --like ../here)
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import accumulate, compress
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

import pytest

MAX_FILES = 12
SECONDS = 600
"""A mutant whose tests take longer is killed: it does not end."""

SWAPS: dict[type[ast.AST], Any] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.Add, ast.Pow: ast.Mult},
}


class Mutant(NamedTuple):
    """One changed place.

    Args:
        file: path of the module, relative to the checkout.
        function: qualified name of the function.
        line: line of the place, from 1.
        start, end: the place, in bytes of the file.
        text: what stands there instead.
    """

    file: str
    function: str
    line: int
    start: int
    end: int
    text: str


def changed(node: ast.AST) -> ast.AST | None:
    """Return the node that replaces ``node``; None if it is of no kind that is changed."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            return ast.Compare(node.left, [SWAPS[type(op)]()], node.comparators)
        case ast.BoolOp():
            return ast.BoolOp(SWAPS[type(node.op)](), node.values)
        case ast.BinOp() if type(node.op) in SWAPS and not isinstance(node.left, ast.JoinedStr | ast.List | ast.Tuple):
            return ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
        case ast.UnaryOp(op=ast.Not()):
            return node.operand
        case ast.Constant(value=bool() as value):
            return ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            return ast.Constant(value + 1)
        case ast.If() | ast.IfExp() | ast.While() if not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            return ast.UnaryOp(ast.Not(), node.test)
        case ast.Expr(value=ast.Call()):
            return ast.Pass()
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            return ast.Return(ast.Constant(None))
    return None


def places(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function that may be changed: no annotations, texts, raised errors or inner functions."""
    stack: list[ast.AST] = [*reversed(function.body)]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.FunctionDef | ast.ClassDef | ast.Assert):
            continue
        yield node
        children = [getattr(node, name, None) for name in node._fields if name != "annotation"]
        for child in reversed(children):
            stack += [
                item for item in reversed(child if isinstance(child, list) else [child]) if isinstance(item, ast.AST)
            ]


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield functions and methods with their qualified names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{item.name}", item) for item in node.body if isinstance(item, ast.FunctionDef))


def mutants_of(source: str, other: str, file: str) -> Iterator[Mutant]:
    """Yield the mutants of the functions of a module that are equal in both texts."""
    equal = {(name, ast.dump(node)) for name, node in functions(ast.parse(other))}
    starts = [0, *accumulate(map(len, source.encode().splitlines(keepends=True)))]
    for name, function in functions(ast.parse(source)):
        for node in places(function) if (name, ast.dump(function)) in equal else ():
            if (new := changed(node)) is not None:
                old = node.test if isinstance(node, ast.If | ast.IfExp | ast.While) else node
                assert isinstance(old, ast.expr | ast.stmt), ast.dump(old)
                begin = starts[old.lineno - 1] + old.col_offset
                end = starts[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
                text = ast.unparse(new) if isinstance(new, ast.stmt) else f"({ast.unparse(new)})"
                yield Mutant(file, name, old.lineno, begin, end, text)


def mutants(checkout: Path, like: Path) -> list[Mutant]:
    """Return all mutants of the functions that are equal in both checkouts, in an order that is the same in both."""
    all_mutants: list[Mutant] = []
    for path in sorted((checkout / "opabinia").rglob("*.py")):
        file = path.relative_to(checkout)
        if (like / file).is_file():
            other = (like / file).read_text(encoding="utf-8")
            all_mutants += mutants_of(path.read_text(encoding="utf-8"), other, file.as_posix())
    return all_mutants


def tests_of(checkout: Path, mutant: Mutant) -> list[str]:
    """Return the test files to run for a mutant: of its module's name, then most mentions of its function or class."""
    parts = Path(mutant.file).with_suffix("").parts
    words = [re.compile(rf"\b{re.escape(word)}\b") for word in {*mutant.function.split("."), ".".join(parts)}]
    rated = []
    for path in sorted((checkout / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        mentions = sum(len(word.findall(text)) for word in words) + 1000 * (path.stem == f"test_{parts[-1]}")
        file = path.relative_to(checkout)
        nearness = len([pair for pair in zip(file.parts[1:], parts[1:], strict=False) if pair[0] == pair[1]])
        if mentions or nearness:
            rated.append((-mentions, -nearness, str(file)))
    return [file for *_, file in sorted(rated)[:MAX_FILES]]


def run_tests(checkout: Path, files: Sequence[str], without: Sequence[str] = ()) -> str:
    """Run tests, some of them omitted, in a process forked from this one; return the first that failed, or ``""``."""
    report = checkout / "failed.txt"
    report.write_text("", encoding="utf-8")
    if (child := os.fork()) == 0:
        try:
            os.setsid()
            os.chdir(checkout)
            os.environ["PYTHONPATH"] = str(checkout)
            sys.path.insert(0, str(checkout))
            with report.open("w", encoding="utf-8") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                options = "-n 0 -x -q -p no:cacheprovider --tb=no -rfE -W ignore::pytest.PytestAssertRewriteWarning"
                omitted = [word for test in without for word in ("--deselect", test)]
                code = int(pytest.main([*options.split(), "-m", "not slow", *omitted, *files]))
                sys.stdout.flush()
            os._exit(code)
        except BaseException:
            traceback.print_exc()
            os._exit(3)
    deadline = time.monotonic() + SECONDS
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if ended[0] == 0:
        os.waitpid(child, 0)
        return "no end"
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", report.read_text(encoding="utf-8"), re.MULTILINE)
    return (failed or ["no collection"])[0] if os.waitstatus_to_exitcode(ended[1]) else ""


def copy_of(checkout: Path, folder: Path) -> Path:
    """Copy what git knows of a checkout."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=checkout, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return folder


def main() -> None:
    """Run mutants, print each with the test that killed it, and the share of killed ones by folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--like", type=Path, default=Path())
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    chosen = mutants(Path(), arguments.like)
    random.Random(arguments.seed).shuffle(chosen)
    chosen = chosen[: arguments.count]
    import timm  # noqa: F401  (once, before the processes are forked)

    with ExitStack() as stack:
        copies: Queue[Path] = Queue()
        for _ in range(arguments.jobs):
            copies.put(copy_of(Path(), Path(stack.enter_context(tempfile.TemporaryDirectory()))))

        def run(mutant: Mutant | None, files: Sequence[str], without: Sequence[str] = ()) -> str:
            copy = copies.get()
            path = copy / (mutant or chosen[0]).file
            source = path.read_bytes()
            try:
                if mutant:
                    path.write_bytes(source[: mutant.start] + mutant.text.encode() + source[mutant.end :])
                return run_tests(copy, files, without)
            finally:
                path.write_bytes(source)
                copies.put(copy)

        def is_killed_by_tests(mutant: Mutant) -> bool:
            files, others = tests_of(Path(), mutant), list[str]()
            # A test that fails without the change, too, has not killed it.
            while "::" in (failed := run(mutant, files, others)) and run(None, [failed]):
                others.append(failed)
            print("killed  " if failed else "SURVIVED", *mutant[:3], repr(mutant.text[:80]), failed, flush=True)
            return bool(failed)

        with ThreadPoolExecutor(arguments.jobs) as pool:
            killed = list(pool.map(is_killed_by_tests, chosen))
    folders = [Path(mutant.file).parts[1] for mutant in chosen]
    for folder, count in sorted(Counter(folders).items()):
        print(f"{folder:15} {sum(compress(killed, map(folder.__eq__, folders))):4} of {count}")
    print(f"{'all':15} {sum(killed):4} of {len(killed)}, {sum(killed) / len(killed):.1%}")


if __name__ == "__main__":
    main()
