"""A function of the user's, found by its name `package.module:function`; what goes wrong in such
code is told as a matter of the conf.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from typing import Any

from etl.errors import SettingsError

OF_KEYS = {"transform": "the transform", "arrow_transform": "the Arrow transform"}
"""Key of the conf -> what it names, as a sentence calls it."""


def load_function(name: str, key: str) -> Callable[[Any], Any]:
    """The function `package.module:function`, from the Python path or the current folder. Raises
    SettingsError.
    """
    module, _, function = name.partition(":")
    sys.path[:] = sys.path if "" in sys.path else [*sys.path, ""]
    try:
        found = getattr(importlib.import_module(module), function)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # importing runs the module: whatever it raises (SystemExit, too) is about the transform
        what = f"{OF_KEYS[key]} cannot be imported: {said_by(error)}"
        check = (
            "its spelling, and that its module is installed or in this folder, also where tasks run"
        )
        raise SettingsError(what, key=key, check=check) from error
    if not callable(found):
        raise SettingsError(f"{name} is no function", key=key, check="package.module:function")
    wanted: Callable[[Any], Any] = found
    return wanted


def said_by(error: BaseException) -> str:
    """The exception's name and the first line of what it says; of a module or function that ends
    the process, with what.
    """
    if isinstance(error, SystemExit):
        return f"it ends the process (sys.exit, with {error.code!r})"
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}".removesuffix(
        ": "
    )


def line_of(error: BaseException) -> str | None:
    """Where in the user's code, which whoever caught the error had called, it was raised: the
    outermost line of it.
    """
    return next(
        (
            f"{frame.filename}:{frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)[1:]
        ),
        None,
    )
