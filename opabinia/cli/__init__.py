"""The command line. What a command does not need is not imported: shells wait for completion at every key."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from opabinia.cli.command_line import with_resume_value, without_dashes


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 a crash, 2 something given is wrong, 130 or 143 stopped after saving."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:2] == ["completion", "--line"] and len(given) == 3:
        from opabinia.cli.completions import from_kept

        if (found := from_kept(given[2])) is not None:
            print("\n".join(found))
            raise SystemExit(0)
    _run(given)


def _run(given: Sequence[str]) -> None:
    from opabinia.cli.commands import app
    from opabinia.runtime.elastic_agent import end_with_agent
    from opabinia.runtime.signals import end_at_once

    end_at_once()
    end_with_agent()
    # Before torch is imported: what its C++ warns of when another process ends, people can neither read nor mend.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Plug-ins may lie in the folder one works in, as with python -m; at the end, so that they shadow nothing.
    sys.path.append(os.getcwd())
    try:
        app(args=with_resume_value([without_dashes(word) for word in given]))
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def __getattr__(name: str) -> Any:
    """``app``, imported when it is first used."""
    if name == "app":
        from opabinia.cli.commands import app

        return app
    raise AttributeError(f"module 'opabinia.cli' has no attribute {name!r}")
