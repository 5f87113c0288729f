"""Import everything once, then start programs by forking: a fraction of a second each instead of eight.

Every program is a process in its own session, with files as stdout and stderr; it receives real signals and ends as
any Python program does, except for the two seconds in which Python tears down torch's modules.
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
    """Do once what every program starts with: imports, the command line's parser, a check of a config and the templates
    of the report; disable torch's finalizers at exit."""
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
    """Answer requests until stdin is closed; in a forked program return its request."""
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
    """Return the exit status of a program, negative for a signal; None if it has not ended in time."""
    end = time.monotonic() + seconds
    while True:
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
        if ended_pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.005)


def become(request: dict[str, Any]) -> None:
    """Become the requested program."""
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


def run_program(request: dict[str, Any]) -> int:
    """Run the program to its end; return its exit status."""
    try:
        become(request)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
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
    own_request = serve(channel)
    if own_request is not None:
        channel.close()
        status = run_program(own_request)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status)
    os._exit(0)
