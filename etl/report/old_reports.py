"""Which files in the folder of reports are a pipeline's, and which are old enough to go."""

from __future__ import annotations

import re
from collections.abc import Iterable


def run_ids(names: Iterable[str], ours_called: str) -> list[str]:
    """The runs that have a report in the folder under the pipeline's name there
    (`Settings.name_in_files`), oldest first.
    """
    ours = re.compile(re.escape(ours_called) + r"-(\d{8}T\d{6}-[0-9a-f]{6})\.json")
    return sorted(found[1] for name in names if (found := ours.fullmatch(name)))


def outdated(names: Iterable[str], ours_called: str, keep: int) -> list[str]:
    """Of the files in the folder of reports those of this pipeline's oldest runs, their pages and
    logs, beyond the newest `keep` reports.

    A run's name begins with its start in UTC, so their order is that of time.
    """
    ours = re.compile(
        re.escape(ours_called)
        + r"-(\d{8}T\d{6}-[0-9a-f]{6})(?:-verify|-maintain|-into)?(\.json|\.html|\.spark\.log)"
    )
    runs = {name: (found[1], found[2]) for name in names if (found := ours.fullmatch(name))}
    kept = sorted(run_id for run_id, kind in runs.values() if kind == ".json")[-keep:]
    return sorted(name for name, (run_id, _) in runs.items() if kept and run_id < kept[0])
