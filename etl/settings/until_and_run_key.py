"""How do `--until` and `--run-key` of a command become a request of a run?

Lives here: parsing of both, and their rejection: messages without timestamps, an unusable key, an
end in the future (exit 8).
Not here: what a request means for the next plan (etl/decide/run_requests.py).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from etl.errors import NotReady, SettingsError
from etl.model.plans import Bound, Bounds, Request
from etl.settings.sections import Settings
from etl.settings.source import parse_timestamp

RUN_KEY_MAX = 200
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FORMS = "2026-01-31T13:00Z, or -1h (before now)"


def request_of(
    settings: Settings, *, run_key: str | None, until: str | None, now_ms: int
) -> Request | None:
    """Return the request; None without one. Raises SettingsError, and NotReady for a key
    whose end is in the future.
    """
    end = None
    if until is not None:
        end = parse_bound(until, now_ms, key="--until")
    key = None
    if run_key is not None:
        key = _run_key(run_key)
    if settings.source.is_physical and end:
        raise SettingsError(
            "Messages of Jafka and Kafka 0.7 have no timestamps",
            key="--until",
            action="Pass --run-key alone: it loads the messages that exist at the first try. Set "
            "limits.max_bytes_per_plan to limit what one run reads",
        )
    if key and end and end.at_ms is not None and end.at_ms > now_ms:
        ahead_s = (end.at_ms - now_ms) / 1000
        raise NotReady(
            f"{end.said} is in the future by {ahead_s:,.0f} s, by the clock of this machine",
            key="--until",
            action="Run it when the interval is over: a key that is done loads no later record",
        )
    if not key and not end:
        return None
    return Request(key, Bounds(None, end))


def parse_bound(text: str, now_ms: int, *, key: str) -> Bound:
    """Parse a TIME as a bound: ISO 8601 with a UTC offset, or `-1h` (before now). Raises
    SettingsError.
    """
    stripped = text.strip()
    relative = re.fullmatch(r"-([0-9]{1,9})([smhd])", stripped, re.ASCII)
    if relative:
        ms = now_ms - int(relative[1]) * _SECONDS[relative[2]] * 1000
        _reject_unusual_year(ms, text, key)
        return Bound(stripped, at_ms=ms)
    try:
        ms = parse_timestamp(stripped).ms
    except ValueError as error:
        message = f"{text!r} is not a time: {error}"
        raise SettingsError(message, key=key, action=f"Write {_FORMS}") from error
    _reject_unusual_year(ms, text, key)
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    timespec = "milliseconds" if ms % 1000 else "seconds"
    return Bound(moment.isoformat(timespec=timespec).replace("+00:00", "Z"), at_ms=ms)


def _reject_unusual_year(ms: int, text: str, key: str) -> None:
    if not 0 <= ms < 253_402_300_800_000:  # the year 10000
        raise SettingsError(
            f"{text!r} is outside the years 1970 to 9999", key=key, action=f"Write {_FORMS}"
        )


def _run_key(text: str) -> str:
    if not text.strip() or len(text) > RUN_KEY_MAX or not text.isprintable():
        raise SettingsError(
            f"A run key has 1 to {RUN_KEY_MAX} printable characters",
            key="--run-key",
            action="Pass the scheduler's name of this run, the same in each retry",
        )
    return text.strip()
