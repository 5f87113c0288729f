"""The command line: one file per command; what a command does is in the packages below. Imports are lazy."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from opabinia.cli.command_line import with_resume_value, without_dashes


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 success, 1 crash, 2 wrong config, arguments or data, 130 or 143 stopped and saved."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:2] == ["completion", "--line"] and len(given) == 3:
        from opabinia.cli.completions import from_cache

        if (candidates := from_cache(given[2])) is not None:
            print("\n".join(candidates))
            raise SystemExit(0)
    _run(given)


def _run(given: Sequence[str]) -> None:
    from opabinia.cli.commands import app
    from opabinia.runtime.elastic_agent import begin_worker
    from opabinia.runtime.quiet import warnings_once
    from opabinia.runtime.signals import exit_on_signals

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="backslashreplace")  # names of files need not be valid UTF-8
    exit_on_signals()
    begin_worker()
    # Before torch is imported: its C++ warnings when another rank ends help nobody.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _LoadingNotice())
    # Plug-ins may be in the working directory, as with python -m; last, so that they shadow nothing.
    sys.path.append(os.getcwd())
    try:
        with warnings_once():
            app(args=with_resume_value([without_dashes(word) for word in given]))
    except KeyboardInterrupt:
        raise SystemExit(130) from None


class _LoadingNotice:
    """An import hook that shows ``loading PyTorch`` on a terminal, where the next output overwrites it: it takes
    seconds."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Find nothing; print the notice when ``torch`` is imported."""
        if name == "torch":
            from opabinia.runtime.quiet import is_quiet
            from opabinia.runtime.slurm import launched_rank

            sys.meta_path.remove(self)
            if sys.stderr.isatty() and not is_quiet() and not launched_rank(os.environ):
                print("loading PyTorch", end="\r", file=sys.stderr, flush=True)
