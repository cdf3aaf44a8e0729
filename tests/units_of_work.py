"""Which tests stay on one worker of CI (a file, or a release of the brokers), and which come first
on which worker.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
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
            "set_offsets",
            "time_zones",
        )
    ),
    "tests/networks/test_secured_runs.py",
)
"""What takes half a minute or longer is begun first."""
_ROOT = Path(__file__).parents[1]
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


@functools.cache
def starts_spark(unit: str) -> bool:
    """Return True if a test of the unit may use the Spark session of its worker."""
    if unit.startswith(("tests/unit/", "tests/wire/")):
        return False
    file = _ROOT / unit
    if not file.is_file():
        return True
    text = file.read_text()
    names_session = "spark: SparkSession" in text or 'usefixtures("spark")' in text
    return names_session or "pytestmark = pytest.mark.without_spark" not in text


def by_units(config: pytest.Config, log: Any, dist: str, unit: Callable[[str], str]) -> Any:
    """xdist's scheduler with these units for `dist`; None: its own.

    The last worker begins with the units without Spark and the others with the rest, so that it
    starts no session, or a late one: a session costs 20 seconds of processor time.
    """
    if config.getoption("dist") != dist:
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByUnits(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            is_last = node is list(self.nodes)[-1]
            for waiting in self.workqueue:
                if starts_spark(waiting) is not is_last:
                    self.workqueue.move_to_end(waiting, last=False)
                    break
            super()._assign_work_unit(node)

    return ByUnits(config, log)
