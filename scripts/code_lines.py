"""Count code lines, without blanks, comments and docstrings: ``python scripts/code_lines.py [FOLDER ...]``."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

NOT_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
)


def code_lines(source: str) -> int:
    """Return the number of lines of a module that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def main(folders: list[Path]) -> None:
    """Print the count of each folder and of all."""
    total = 0
    for folder in folders:
        count = sum(code_lines(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py")))
        total += count
        print(f"{count:7,} {folder}")
    print(f"{total:7,} in all")


if __name__ == "__main__":
    default = sorted(path.parent for path in Path("opabinia").glob("*/__init__.py"))
    main([Path(word) for word in sys.argv[1:]] or default)
