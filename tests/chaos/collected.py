"""Every case there is: the `CASES` of each `cases_*` module of this package, in the order of the
matrix.
"""

from __future__ import annotations

import importlib
import pkgutil

import tests.chaos
from tests.chaos.stage import Case

ALL: list[Case] = sorted(
    (
        case
        for module in pkgutil.iter_modules(tests.chaos.__path__)
        if module.name.startswith("cases_")
        for case in importlib.import_module(f"tests.chaos.{module.name}").CASES
    ),
    key=lambda case: case.row,
)
