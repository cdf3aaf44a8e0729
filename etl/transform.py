"""The transform of a pipeline: somebody else's function, found by its name and tried with care.

Whatever it raises is about the transform, and is told with the line where it failed.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from etl.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def apply_transform(name: str, rows: DataFrame) -> DataFrame:
    """What the transform of this name makes of `rows`. Raises SettingsError with the line where it failed."""
    from pyspark.sql import DataFrame

    function = load_transform(name)
    check = "the function, on rows of spark.read.format('offset_ranges')"
    try:
        transformed = function(rows)
    except Exception as error:  # it is somebody else's code: whatever it raises is about the transform
        said = str(error).strip().split("\n", 1)[0]
        line = next((f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[1:]), None)
        raise SettingsError(f"the transform failed: {type(error).__name__}: {said}", key="transform", line=line, check=check) from error
    if not isinstance(transformed, DataFrame):
        raise SettingsError(f"the transform gave {type(transformed).__name__}, no DataFrame", key="transform", check=check)
    return transformed


def load_transform(name: str) -> Callable[[DataFrame], DataFrame]:
    """The function `package.module:function`, from the Python path or the current folder. Raises SettingsError."""
    module, _, function = name.partition(":")
    sys.path[:] = sys.path if "" in sys.path else [*sys.path, ""]
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # importing runs the module: whatever it raises is about the transform
        what = f"the transform cannot be imported: {type(error).__name__}: {error}"
        raise SettingsError(what, key="transform", check="its spelling, and that its module is installed or in this folder") from error
    if not callable(found):
        raise SettingsError(f"{name} is no function", key="transform", check="package.module:function")
    transform: Callable[[DataFrame], DataFrame] = found
    return transform
