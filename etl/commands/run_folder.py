"""`etl run FOLDER`: a run of each conf in it, one after the other; what fails stops none of the
others, and what stops one stops all.

How one of them is started is the caller's (`etl.cli.folder`): here is which confs there are, and
what came of all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etl.errors import EtlError, SettingsError, Stopped, worst_of
from etl.report.describe import counted
from etl.settings.conf_file import confs_in
from etl.settings.load import Change, load_settings


@dataclass(frozen=True, slots=True)
class ConfRun:
    """What came of one conf."""

    conf: str
    report: Mapping[str, Any] | None = None
    """As `etl run --json` prints it; None where there is none."""
    error: EtlError | None = None

    @property
    def exit_code(self) -> int:
        """Of a run of this conf alone."""
        return self.error.exit_code if self.error else 0

    def as_json(self) -> dict[str, Any]:
        """Its part of the document."""
        error = self.error.as_json() if self.error else None
        return {
            "conf": self.conf,
            "exit_code": self.exit_code,
            "report": self.report,
            "error": error,
        }


@dataclass(frozen=True, slots=True)
class FolderRun:
    """What came of all, in the order of their names."""

    folder: str
    runs: tuple[ConfRun, ...]

    @property
    def worst(self) -> EtlError | None:
        """What the whole ends with; None where every run did what was asked. A stop is that of all."""
        failed = {run.conf: run.error for run in self.runs if run.error}
        stopped = next((error for error in failed.values() if isinstance(error, Stopped)), None)
        worst = stopped or worst_of(failed.values())
        if worst is None:
            return None
        what = f"{len(failed)} of {counted(len(self.runs), 'pipeline')} failed, the worst by {_name(failed, worst)}: {worst.what}"
        return type(worst)(what, check=worst.check, **worst.where)

    def as_json(self) -> dict[str, Any]:
        """The document of `etl run FOLDER --json`."""
        return {
            "folder": self.folder,
            "exit_code": self.worst.exit_code if self.worst else 0,
            "runs": [run.as_json() for run in self.runs],
        }


def _name(failed: Mapping[str, EtlError], worst: EtlError) -> str:
    return next(conf for conf, error in failed.items() if error is worst)


def run_each(
    folder: Path,
    start: Callable[[Path], ConfRun],
    told: Callable[[ConfRun], object],
    changes: Sequence[Change] = (),
) -> FolderRun:
    """Run each conf of the folder. `start` runs one and raises KeyboardInterrupt where it was
    stopped; `told` hears of each as it ends.

    Raises SettingsError for a folder without a conf.
    """
    confs = confs_in(folder)
    twice = _same_pipeline(confs, changes)
    runs: list[ConfRun] = []
    for conf in confs:
        try:
            runs.append(ConfRun(str(conf), error=twice[conf]) if conf in twice else start(conf))
        except KeyboardInterrupt:
            runs.append(
                ConfRun(
                    str(conf),
                    error=Stopped(
                        "stopped; nothing is lost, the next run goes on from what is stored"
                    ),
                )
            )
        told(runs[-1])
        if isinstance(runs[-1].error, Stopped):
            break
    runs += [
        ConfRun(str(left), error=Stopped("not begun: the runs were stopped"))
        for left in confs[len(runs) :]
    ]
    return FolderRun(str(folder), tuple(runs))


def _same_pipeline(confs: Sequence[Path], changes: Sequence[Change]) -> dict[Path, SettingsError]:
    """Confs that are one pipeline, as a copy is of which nobody changed the name: each would go on
    where the other ended.
    """
    by_name: dict[tuple[str, str, str], list[Path]] = {}
    for conf in confs:
        with contextlib.suppress(SettingsError):  # told when it is run
            found = load_settings(conf, changes)
            by_name.setdefault((found.zookeeper.connect, found.group, found.pipeline), []).append(
                conf
            )
    refused = {}
    for (_, group, name), same in by_name.items():
        for conf in same if len(same) > 1 else ():
            what = f"these confs are one pipeline, {group}/{name}: {', '.join(map(str, same))}"
            check = "a pipeline of its own in each conf of the folder; none of these was run"
            refused[conf] = SettingsError(what, key="pipeline", path=conf, check=check)
    return refused
