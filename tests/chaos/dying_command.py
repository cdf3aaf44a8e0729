"""`python -m tests.chaos.dying_command MODULE:NAME etl-words...`: the command `etl`, which SIGKILLs
itself when it first calls NAME.

NAME is a function of the module, or `Class.method`. With `after:MODULE:NAME` it dies when the call
has returned.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

from etl.cli import main


def kill_at(place: str) -> None:
    """Replace the named function by one that ends this process, before its first call or after it."""
    when, _, named = place.partition(":") if place.startswith("after:") else ("", "", place)
    owner, function_name, as_it_is = function_at(named)

    def dying(*given: Any, **named_too: Any) -> Any:
        if when:
            as_it_is(*given, **named_too)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, function_name, dying)


def function_at(named: str) -> tuple[Any, str, Any]:
    """The module or class of MODULE:NAME, the last part of NAME, and the function."""
    module_name, _, name = named.partition(":")
    owner: Any = importlib.import_module(module_name)
    *classes, function_name = name.split(".")
    for one in classes:
        owner = getattr(owner, one)
    return owner, function_name, getattr(owner, function_name)


if __name__ == "__main__":
    kill_at(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
