"""What a scheduler's run asks of the toolkit: its interval, the arguments of its command, and what
an exit code means to it. Pure.

A scheduler has several ways to start a run, and not each of them says which stretch of time it is
for. Of Airflow 2.11 and 3.3:

| how a run starts | what it has |
| --- | --- |
| by a schedule of data intervals, or `airflow backfill create` over one | its data interval |
| by a plain cron string, which in Airflow 3 is a moment | a data interval that is empty |
| by hand, by an asset, or by the REST API without a logical date | none |
| by `airflow dags trigger` with a logical date | another interval than that date's, in some versions: the last one before now |
| with the params `from_time` and `until_time` | those |

So the interval comes from both params, else from a data interval that is not empty, and never from
the logical date: where that lies before the data interval, somebody named a date and got another
interval than that date's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum

from etl.decisions.times.time_intervals import TimeInterval, interval_between
from etl.errors import EtlError, SettingsError, family

HOW_TO_SAY = (
    "how the run was started: give both params, from_time and until_time; or by the REST API a logical date with data_interval_start and "
    "data_interval_end; or leave it to the schedule, and old intervals to `airflow backfill create`"
)
DOCUMENT_FILE = "ETL_DOCUMENT_FILE"
"""The variable that names a file which a command writes its document to as well. Whoever starts a
command through something that mixes its standard output with other lines, as spark-submit does
under a scheduler, reads it there."""


def interval_of_run(
    from_time: object,
    until_time: object,
    data_interval: tuple[object, object] = (None, None),
    logical_date: datetime | None = None,
) -> TimeInterval:
    """The interval that a run is for: that of its params, else its data interval. None or an empty
    text is a param that was not given.

    Raises SettingsError where there is none, where only one of the params is given, where the data
    interval is not the logical date's, and as `interval_between`.
    """
    given = [told for told in (from_time, until_time) if told not in (None, "")]
    if len(given) == 1:
        raise SettingsError(
            f"of from_time and until_time only one is given: {given[0]}", check=HOW_TO_SAY
        )
    start, end = (from_time, until_time) if given else data_interval
    if start is None or end is None:
        raise SettingsError(
            "the run has no interval: nothing says which stretch of time it is for",
            check=HOW_TO_SAY,
        )
    if not given and start == end:
        raise SettingsError(
            f"the run's data interval is empty: it begins and ends at {start}",
            check=f"the schedule: a plain cron string is a moment, CronDataIntervalTimetable has intervals; else {HOW_TO_SAY}",
        )
    found = interval_between(start, end)
    if not given and logical_date is not None and logical_date < found.start:
        raise SettingsError(
            f"the run's data interval is not that of its logical date {logical_date.isoformat()}: it is {found.start.isoformat()} to "
            f"{found.end.isoformat()}",
            check=HOW_TO_SAY,
        )
    return found


def run_arguments(conf: str, interval: TimeInterval, *, is_physical: bool) -> list[str]:
    """Those of `etl run` that go on up to the end of the interval, once. The logs of Jafka and
    Kafka 0.7 have no times: up to their ends.

    The interval's start is not among them: a run goes on where the ledger is, so an interval that
    failed is made good by the next one.
    """
    until = [] if is_physical else ["--until-time", interval.end.isoformat()]
    return [conf, "--run-key", interval.run_key, *until, "--json"]


def range_arguments(params: Mapping[str, object]) -> list[str]:
    """`--topic`, `--partition`, `--from` and `--until`, of the params of these names; what is not
    given is left out.
    """
    given = {
        name: str(params[name]).strip()
        for name in ("topic", "partition", "from", "until")
        if params.get(name) is not None
    }
    return [word for name, told in given.items() if told for word in (f"--{name}", told)]


def backfill_arguments(conf: str, params: Mapping[str, object]) -> list[str]:
    """Those of `etl backfill`. The same name in each retry: it goes on where the one before ended."""
    missing = ["--missing"] if params.get("missing") else []
    return [conf, "--name", str(params["name"]), *range_arguments(params), *missing, "--json"]


class Verdict(str, Enum):
    """What a scheduler does with a run that ended."""

    DONE = "done"
    RETRY = "retry"
    FAIL = "fail"
    """At once: a retry would end in the same way."""


_RETRIABLE = {kind.exit_code for kind in family(EtlError) if kind.retriable}
_OF_OURS = {kind.exit_code for kind in family(EtlError)}
_NOT_STARTED = (126, 127)
"""A shell's: the command is not there, or may not be executed."""


def verdict_of(exit_code: int | None, document: Mapping[str, object] | None) -> Verdict:
    """By the exit code of the command, and by the document that it left; None: nobody knows it, or
    it left none.

    Whoever is between the two (spark-submit) may end otherwise than the command, so what its
    document says comes first. A command that was killed, or Spark that did not come up, left none:
    it is tried again, which for the same run key is safe at any moment.
    """
    told = document.get("exit_code") if document else None
    if exit_code == 0 and told in (0, None):
        return Verdict.DONE
    if isinstance(told, int) and told:
        return Verdict.RETRY if told in _RETRIABLE else Verdict.FAIL
    is_final = exit_code in _NOT_STARTED or exit_code in _OF_OURS - _RETRIABLE - {
        EtlError.exit_code
    }  # 1 is spark-submit's own, too
    return Verdict.FAIL if is_final and told is None else Verdict.RETRY
