"""Which tests stay on one worker of CI (a file, or a release of the brokers), and which come first."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from etl.testkit.brokers import RELEASES

LONGEST = (
    *(
        f"tests/system/test_{name}.py"
        for name in (
            "crashes",
            "pages",
            "stopped_runs",
            "maintenance",
            "arrow_runs",
            "tables_with_rows",
            "backfills",
            "set_offsets",
            "time_zones",
        )
    ),
    "tests/networks/test_secured_runs.py",
)
"""What takes half a minute or longer is begun first."""
_RELEASE = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, RELEASES))})(?![\w.])")


def unit_of(test: str) -> str:
    """A file; for `tests/brokers` a release, which is among the parameters."""
    file, _, named = test.partition("::")
    release = (
        _RELEASE.search(named.partition("[")[2]) if file.startswith("tests/brokers/") else None
    )
    return f"tests/brokers on {release[1]}" if release else file


def turn_of(test: str) -> int:
    """Tests without servers first, then the longest."""
    file = test.partition("::")[0]
    if file.startswith(("tests/unit/", "tests/wire/")):
        return 0
    if file in LONGEST:
        return 1
    return 2


def by_units(config: pytest.Config, log: Any, dist: str, unit: Callable[[str], str]) -> Any:
    """xdist's scheduler with these units for `dist`; None: its own."""
    if config.getoption("dist") != dist:
        return None
    from xdist.scheduler import LoadScopeScheduling

    scheduling = LoadScopeScheduling(config, log)
    scheduling._split_scope = unit
    return scheduling
