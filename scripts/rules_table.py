"""Write the table of planning rules into docs/planning.md: ``python scripts/rules_table.py``."""

from __future__ import annotations

from pathlib import Path

from opabinia.training.autoconfig.rules import rules_table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "planning.md"


def main() -> None:
    """Replace all lines of tables after the heading of the rules."""
    before, heading, after = PAGE.read_text(encoding="utf-8").partition("## Rules\n")
    prose = [line for line in after.splitlines() if not line.startswith("|")]
    PAGE.write_text(before + heading + "\n".join(prose).rstrip() + "\n\n" + rules_table() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
