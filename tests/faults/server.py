"""Imports everything once and then starts programs by forking: a fraction of a second each instead of eight.

Every program is a process of its own in a session of its own, with files as stdout and stderr; real signals reach it
and it ends as any Python program does, but for the two seconds in which Python takes torch's modules apart.
Requests and answers are lines of JSON on stdin and stdout.
"""

import atexit
import gc
import importlib
import json
import os
import sys
import threading
import time
import traceback
import weakref
from functools import cache
from typing import Any

import typer.main

WARM = (
    *("opabinia.cli", "opabinia.training.launch", "torch.utils.tensorboard.writer", "rich.live", "sklearn.datasets"),
    *("opabinia.cli.report", "opabinia.visualization.report.page", "tests.faults.parts"),
)


def warm() -> None:
    """Do once what every program would begin with: the imports, the command line's parser, a check of a config and the
    templates of the report; and leave out what torch does at exit."""
    for module in WARM:
        importlib.import_module(module)
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    typer.main.get_command = cache(typer.main.get_command)
    from opabinia.cli.commands import app
    from opabinia.config import catalog, check, compose
    from opabinia.visualization.report.templating import template

    typer.main.get_command(app)
    check(compose("classification/digits"), catalog())
    page = template("page.html")
    for name in ("base.html", "blocks.html"):
        page.environment.get_template(name)


def serve(answers: Any) -> dict[str, Any] | None:
    """Answer requests to the end; in a forked program return its request."""
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = wait(request["wait"], request["seconds"])
        else:
            answer = os.fork()
            if answer == 0:
                return request
        print(json.dumps(answer), file=answers, flush=True)
    return None


def wait(pid: int, seconds: float) -> int | None:
    """The exit status of a program, negative for a signal; None if it has not ended in time."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.005)


def become(request: dict[str, Any]) -> None:
    """Go on as the program that was asked for."""
    os.setsid()
    for number, path in enumerate(("/dev/null", request["stdout"], request["stderr"])):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOCTTY | (os.O_APPEND if number else 0))
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    for name in request["first"]:
        call(name)
    if request["function"]:
        call(request["function"])
        return
    if request["code"]:
        sys.argv = ["-c", *request["arguments"]]
        exec(compile(request["code"], "<code>", "exec"), {"__name__": "__main__"})
        return
    from opabinia.cli import main

    sys.argv = ["opabinia", *request["arguments"]]
    main()


def call(name: str) -> None:
    module, function = name.split(":")
    getattr(importlib.import_module(module), function)()


def ended(request: dict[str, Any]) -> int:
    """Run the program to its end; its exit status."""
    try:
        become(request)
    except SystemExit as left:
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.path[0] = os.getcwd()
    warm()
    assert threading.active_count() == 1, "a fork would lose the other threads"
    gc.collect()
    gc.freeze()  # a collection in a program need not copy the memory it shares
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=channel, flush=True)
    mine = serve(channel)
    if mine is not None:
        channel.close()
        status = ended(mine)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status)
    os._exit(0)
