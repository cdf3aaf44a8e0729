"""Logs, ranges and bounds as JSON text names them in the options of the data source. No I/O.

A log is `"clicks": 0`; where offsets are byte positions it is on one broker only, `"clicks": "1-0"`
(partition 0 of broker 1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from etl.errors import SettingsError
from etl.model.partitions import BrokerPartition, parse_partition_key
from etl.model.plans import OffsetRange
from etl.reader.reading import Bound, FirstAt, LogEnd

T = TypeVar("T")
_RANGES_FORM = '[{"topic": "clicks", "partition": 0, "from": 10, "until": 20}]'
_PHYSICAL_RANGES_FORM = (
    '[{"topic": "clicks", "broker": 1, "partition": 0, "from": 36, "until": 972}]'
)
_LOGS_FORM, _PHYSICAL_LOGS_FORM = '{"clicks": [0, 1]}', '{"clicks": ["1-0", "1-1"]}'
_OFFSETS_FORM = '{"clicks": {"0": 23, "1": -2}}, -2 for the first offset and -1 for the end'
_PHYSICAL_OFFSETS_FORM = (
    '{"clicks": {"1-0": 36, "1-1": -2}}, -2 for the first offset and -1 for the end'
)
_TIMES_FORM = '{"clicks": {"0": 1700000000000}}, milliseconds since 1970'
_LATEST, _EARLIEST = -1, -2
"""How Spark's JSON writes the two ends of a log."""
_GREATEST = 2**63 - 1


def parse_ranges(text: str, *, physical: bool = False) -> tuple[OffsetRange, ...]:
    """The option `ranges`. Raises SettingsError, also where two of them overlap: rows would be
    double.
    """
    ranges = _from_json(
        text,
        "ranges",
        _PHYSICAL_RANGES_FORM if physical else _RANGES_FORM,
        lambda found: tuple(
            OffsetRange(
                _log_of_range(one, physical),
                _below(2**63, one["from"]),
                _below(2**63, one["until"]),
            )
            for one in found
        ),
    )
    _refuse_overlaps(ranges)
    return ranges


def parse_logs(text: str, *, physical: bool) -> tuple[BrokerPartition, ...]:
    """The option `assign`. Raises SettingsError."""
    return _from_json(
        text,
        "assign",
        _PHYSICAL_LOGS_FORM if physical else _LOGS_FORM,
        lambda found: tuple(
            dict.fromkeys(
                _log(topic, key, physical) for topic, keys in found.items() for key in keys
            )
        ),
    )


def parse_offsets(text: str, name: str, *, physical: bool) -> dict[BrokerPartition, Bound]:
    """A bound for each log, by offset. Raises SettingsError."""
    return _by_log(
        text, name, _PHYSICAL_OFFSETS_FORM if physical else _OFFSETS_FORM, _bound, physical
    )


def parse_times(text: str, name: str) -> dict[BrokerPartition, Bound]:
    """A bound for each log, by time. Raises SettingsError."""
    return _by_log(text, name, _TIMES_FORM, FirstAt, False)


def _refuse_overlaps(ranges: Iterable[OffsetRange]) -> None:
    """Two ranges with an offset in common are a mistake of who made the list: which of them is
    meant nobody knows.
    """
    reaching: dict[BrokerPartition, OffsetRange] = {}
    for r in sorted((r for r in ranges if r.size), key=lambda r: (r.log, r.from_offset)):
        before = reaching.setdefault(r.log, r)
        if before is not r and r.from_offset < before.until_offset:
            what = f"the ranges {before.from_offset} to {before.until_offset} and {r.from_offset} to {r.until_offset} overlap"
            check = "the list: rows of offsets that two ranges name would be double"
            raise SettingsError(what, option="ranges", **r.log.place, check=check)
        reaching[r.log] = r


def _log_of_range(one: Mapping[str, Any], physical: bool) -> BrokerPartition:
    """Raises ValueError where a broker is named and logs have none, or the other way round."""
    if physical is not ("broker" in one):
        raise ValueError("a broker is named" if "broker" in one else "no broker is named")
    return BrokerPartition(
        str(one["topic"]),
        _below(2**31, one["partition"]),
        _below(2**31, one["broker"]) if physical else None,
    )


def _log(topic: Any, key: Any, physical: bool) -> BrokerPartition:
    """`0`, and where a log is on one broker only `1-0`. Raises ValueError."""
    if not physical:
        return BrokerPartition(str(topic), _below(2**31, key))
    found = parse_partition_key(str(topic), str(key))
    if found is None or not found.is_physical:
        raise ValueError(
            f"{key!r} is no broker and partition; write 1-0 for partition 0 of broker 1"
        )
    return found


def _below(bound: int, said: Any) -> int:
    """A number as Kafka's protocol can carry it. Raises ValueError."""
    number = int(said)
    if isinstance(said, (bool, float)) or not 0 <= number < bound:
        raise ValueError(f"{said!r} is no whole number from 0 to {bound - 1}")
    return number


def _by_log(
    text: str, name: str, form: str, make: Callable[[int], Bound], physical: bool
) -> dict[BrokerPartition, Bound]:
    return _from_json(
        text,
        name,
        form,
        lambda found: {
            _log(topic, key, physical): make(parse_number(number, name))
            for topic, keys in found.items()
            for key, number in keys.items()
        },
    )


def _bound(number: int) -> Bound:
    return {_LATEST: LogEnd.LATEST, _EARLIEST: LogEnd.EARLIEST}.get(number, number)


def parse_number(said: object, name: str) -> int:
    """An offset, or the two ends of a log; a time for an option that takes one. Raises
    SettingsError.
    """
    least = _EARLIEST if name.endswith("Offsets") else 0
    text = str(said).strip()
    if not re.fullmatch(r"-?\d{1,19}", text, re.ASCII) or not least <= int(text) <= _GREATEST:
        kind = "offset" if least else "time in milliseconds since 1970"
        raise SettingsError(
            f"{text[:30]!r} is no {kind}",
            option=name,
            check=f"the form is {_OFFSETS_FORM if least else _TIMES_FORM}",
        )
    return int(text)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises ValueError for a name that is there twice: of two lists for one topic nobody knows
    which is meant.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(
            f"{next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))!r} is named twice"
        )
    return found


def _from_json(text: str, option: str, form: str, build: Callable[[Any], T]) -> T:
    """What `build` makes of a JSON text. Raises SettingsError with the form."""
    try:
        return build(json.loads(text, object_pairs_hook=_each_once))
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise SettingsError(
            f"the option cannot be read: {error!r}"[:200],
            option=option,
            check=f"the form is {form}",
        ) from error
