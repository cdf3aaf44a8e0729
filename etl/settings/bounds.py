"""`--from-time`, `--until-time` and `--run-key` of a command line to what a run is asked for.

2026-01-31T00:00:00+00:00, ...Z   the first record at or after that time; without an offset from UTC
it is refused 1769817600000                     the same in milliseconds since the epoch
-90s -15m -1h -7d                 so long before now
-10000                            so many offsets before the end of each partition; a first run does not begin by it
since-last-success                where the pipeline is: what any run begins with, so it is a start
alone
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from etl.errors import NotYetReadable, SettingsError
from etl.model.plans import Bound, Bounds, Request
from etl.settings.sections import Settings
from etl.settings.source import parse_timestamp, timestamp_of

SINCE_LAST = "since-last-success"
RUN_KEY_MAX = 200
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FORMS = f"2026-01-31T00:00:00+00:00, milliseconds since the epoch, -1h (before now), -10000 (offsets before the end), {SINCE_LAST}"


def request_of(
    settings: Settings,
    *,
    run_key: str | None,
    from_time: str | None,
    until_time: str | None,
    now_ms: int,
) -> Request | None:
    """What was asked for; None: nothing. Raises SettingsError, and NotYetReadable for a key whose
    interval is not over.
    """
    start = parse_bound(from_time, now_ms, key="--from-time") if from_time is not None else None
    until = parse_bound(until_time, now_ms, key="--until-time") if until_time is not None else None
    key = _run_key(run_key) if run_key is not None else None
    _refuse_no_interval(start, until)
    if settings.source.is_physical and (start or until):
        what = "Jafka and Kafka 0.7 keep no time of a message, and count bytes instead of messages"
        check = (
            "what they can do instead: --run-key alone (what is there when it is first asked for), and limits.max_bytes_per_run for how "
            "much one run reads"
        )
        raise SettingsError(what, key="--from-time" if start else "--until-time", check=check)
    if key and until and until.at_ms is not None and until.at_ms > now_ms:
        what = f"{until.said} is in the future by {(until.at_ms - now_ms) / 1000:,.0f} s, by the clock of this machine"
        check = "run it once the interval is over: under its key nothing would be loaded that comes until then"
        raise NotYetReadable(what, key="--until-time", check=check)
    return Request(key, Bounds(start, until)) if key or start or until else None


def parse_bound(text: str, now_ms: int, *, key: str) -> Bound:
    """One end. Raises SettingsError."""
    said = text.strip()
    if said == SINCE_LAST:
        if key != "--from-time":
            raise SettingsError(
                f"{SINCE_LAST} is where a run begins, and no end", key=key, check=_FORMS
            )
        return Bound(SINCE_LAST)
    if found := re.fullmatch(r"-([0-9]{1,9})([smhd])", said, re.ASCII):
        return Bound(
            said, at_ms=_moment(now_ms - int(found[1]) * _SECONDS[found[2]] * 1000, text, key)
        )
    if found := re.fullmatch(r"-([0-9]{1,18})", said, re.ASCII):
        return Bound(said, back=int(found[1]))
    if re.fullmatch(r"[0-9]{1,18}", said, re.ASCII):
        return _at(int(said), text, key)
    try:
        return _at(parse_timestamp(said).ms, text, key)
    except ValueError as error:
        what = f"{text!r} is no time, and no form of a relative one: {error}"
        raise SettingsError(what, key=key, check=f"one of: {_FORMS}") from error


def starting_by(settings: Settings, request: Request | None) -> Settings:
    """The settings with which a pipeline that has no plan yet begins at the request's start: later
    nobody asks for `source.start`.

    A start by offsets is refused where the first plan is made (`run_keys`).
    """
    start = request.bounds.start if request else None
    if start is None or start.at_ms is None:
        return settings
    return settings.model_copy(
        update={"source": settings.source.model_copy(update={"start": timestamp_of(start.at_ms)})}
    )


def _at(ms: int, text: str, key: str) -> Bound:
    moment = datetime.fromtimestamp(_moment(ms, text, key) / 1000, UTC)
    return Bound(
        moment.isoformat(timespec="milliseconds" if ms % 1000 else "seconds").replace(
            "+00:00", "Z"
        ),
        at_ms=ms,
    )


def _moment(ms: int, text: str, key: str) -> int:
    if not 0 <= ms < 253_402_300_800_000:  # the year 10000
        raise SettingsError(
            f"{text!r} lies outside the years 1970 to 9999", key=key, check=f"one of: {_FORMS}"
        )
    return ms


def _run_key(text: str) -> str:
    if not text.strip() or len(text) > RUN_KEY_MAX or not text.isprintable():
        what = f"a run key is text of 1 to {RUN_KEY_MAX} printable characters"
        raise SettingsError(
            what,
            key="--run-key",
            check="what the scheduler calls this run, the same in each of its retries",
        )
    return text.strip()


def _refuse_no_interval(start: Bound | None, until: Bound | None) -> None:
    """Refuse an interval that is empty or runs backwards, as far as words tell. Raises
    SettingsError.
    """
    if start is None or until is None:
        return
    if start.at_ms is not None and until.at_ms is not None and start.at_ms >= until.at_ms:
        how = "is empty" if start.at_ms == until.at_ms else "runs backwards"
        what = f"the interval from {start.said} until {until.said} {how}"
        check = "the schedule: Airflow 3 gives a plain cron string empty intervals, CronDataIntervalTimetable gives whole ones"
        raise SettingsError(what, key="--until-time", check=check)
    if start.back is not None and until.back is not None and start.back <= until.back:
        what = f"the interval from {start.said} until {until.said} " + (
            "is empty" if start.back == until.back else "runs backwards"
        )
        raise SettingsError(
            what, key="--until-time", check="-10000 lies before -5000: both count from the end"
        )
