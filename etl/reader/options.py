"""The options of the data source, text to values. No I/O.

It owns what each option may hold; their names are in `option_names`. What they come to on the logs that there are is decided in `ranges`;
`alone` asks the brokers and packs the ranges into tasks.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from etl.errors import SettingsError
from etl.model.logs import BrokerPartition, Isolation
from etl.model.plans import OffsetRange
from etl.model.raw_table import raw_columns
from etl.reader.option_names import INTERNAL, SIZES, SPELLED, under_our_names
from etl.reader.reading import Bound, Bounds, Chosen, FirstAt, LogEnd, Reading
from etl.settings import fetch_sizes
from etl.settings.address import split_address

T = TypeVar("T")
_MOST: Mapping[str, int] = {
    "fetch_max_bytes": fetch_sizes.FETCH_MAX_BYTES_MOST, "fetch_limit_bytes": fetch_sizes.FETCH_LIMIT_BYTES_MOST,
    "max_record_bytes": fetch_sizes.MAX_RECORD_BYTES_MOST}
_MOST_OF_ANYTHING = 2**62
_LONGEST_TIMEOUT_S = 86_400.0
_WHAT = ("topics", "subscribepattern", "assign", "ranges", *INTERNAL)
"""Exactly one of these says what to read."""
_RANGES_FORM = '[{"topic": "clicks", "partition": 0, "from": 10, "until": 20}]'
_OFFSETS_FORM = '{"clicks": {"0": 23, "1": -2}}, -2 for the first offset and -1 for the end'
_TIMES_FORM = '{"clicks": {"0": 1700000000000}}, milliseconds since 1970'
_LATEST, _EARLIEST = -1, -2
"""How Spark's JSON writes the two ends of a log."""
_GREATEST = 2**63 - 1


def parse_options(given: Mapping[str, str]) -> Reading:
    """The options as values. Raises SettingsError naming the option."""
    options = under_our_names(given)
    _refuse_other_than_one(options)
    sizes = {name: _positive(options, name, default, "bytes") for name, default in SIZES.items()}
    starting, ending = _bounds(options, "starting", LogEnd.EARLIEST), _bounds(options, "ending", LogEnd.LATEST)
    most = _positive(options, "maxrecordsperpartition", 0, "records") if "maxrecordsperpartition" in options else None
    return Reading(
        _bootstrap(options.get("bootstrap", "")), _isolation(options), _columns(options), **sizes, timeout_s=_seconds(options, "timeout_s"),
        chosen=_chosen(options), ranges=parse_ranges(options["ranges"]) if "ranges" in options else None,
        starting=_refused(starting, LogEnd.LATEST), ending=_refused(ending, LogEnd.EARLIEST),
        late_start_is_latest=_one_of(options, "startingoffsetsbytimestampstrategy", ("error", "latest")) == "latest",
        compacted=frozenset(names_in(options.get("compacted_topics", ""))),
        fails_on_data_loss=_one_of(options, "failondataloss", ("true", "false")) == "true",
        least_tasks=_positive(options, "minpartitions", 1, "Spark partitions"), most_offsets=most)


def parse_ranges(text: str) -> tuple[OffsetRange, ...]:
    """The option `ranges`. Raises SettingsError, also where two of them overlap: rows would be double."""
    ranges = _from_json(text, "ranges", _RANGES_FORM, lambda found: tuple(
        OffsetRange(
            BrokerPartition(str(one["topic"]), _below(2**31, one["partition"])), _below(2**63, one["from"]), _below(2**63, one["until"]))
        for one in found))
    _refuse_overlaps(ranges)
    return ranges


def _refuse_overlaps(ranges: Iterable[OffsetRange]) -> None:
    """Two ranges with an offset in common are a mistake of who made the list: which of them is meant nobody knows."""
    reaching: dict[BrokerPartition, OffsetRange] = {}
    for r in sorted((r for r in ranges if r.size), key=lambda r: (r.log, r.from_offset)):
        before = reaching.setdefault(r.log, r)
        if before is not r and r.from_offset < before.until_offset:
            what = f"the ranges {before.from_offset} to {before.until_offset} and {r.from_offset} to {r.until_offset} overlap"
            check = "the list: rows of offsets that two ranges name would be double"
            raise SettingsError(what, option="ranges", **r.log.place, check=check)
        reaching[r.log] = r


def _below(bound: int, said: Any) -> int:
    """A number as Kafka's protocol can carry it. Raises ValueError."""
    number = int(said)
    if isinstance(said, (bool, float)) or not 0 <= number < bound:
        raise ValueError(f"{said!r} is no whole number from 0 to {bound - 1}")
    return number


def _refuse_other_than_one(options: Mapping[str, str]) -> None:
    if sum(name in options for name in _WHAT) != 1:
        what = "exactly one of the options topics (or subscribe), subscribePattern, assign and ranges must say what to read"
        raise SettingsError(what, check="the options")
    bounded = next((name for name in options if name.startswith(("startingoffsets", "startingtime", "endingo", "endingt"))), None)
    if "ranges" in options and bounded:
        what = f"ranges says where to start and to stop, and so does {SPELLED[bounded]}"
        raise SettingsError(what, option=SPELLED[bounded], check="leave one of the two out")


def _chosen(options: Mapping[str, str]) -> Chosen:
    if "subscribepattern" in options:
        return Chosen(pattern=_pattern(options["subscribepattern"]))
    if "assign" in options:
        form = '{"clicks": [0, 1]}'
        return Chosen(logs=_from_json(options["assign"], "assign", form, lambda found: tuple(dict.fromkeys(
            BrokerPartition(str(topic), _below(2**31, p)) for topic, partitions in found.items() for p in partitions))))
    topics = tuple(names_in(options.get("topics", "")))
    if "topics" in options and not topics:
        raise SettingsError("no topic is named", option="topics", check="topics (or subscribe): names, separated by commas")
    return Chosen(topics=topics)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise SettingsError(f"{text!r} is no regular expression: {error}", option="subscribePattern", check="its syntax") from error
    if not text.strip():
        raise SettingsError("an empty expression is found in the name of every topic", option="subscribePattern", check="write .* for all")
    return text.strip()


def _bounds(options: Mapping[str, str], side: str, default: LogEnd) -> Bounds:
    """The bounds of one side; of several options Spark follows the first of these."""
    if f"{side}timestamp" in options:
        name = f"{side}Timestamp"
        return Bounds(FirstAt(_number(options[name.lower()], name)), option=name)
    if f"{side}offsetsbytimestamp" in options:
        name = f"{side}OffsetsByTimestamp"
        return Bounds(by_log=_by_log(options[name.lower()], name, _TIMES_FORM, FirstAt), option=name)
    name = f"{side}Offsets"
    said = options.get(name.lower(), default.value).strip()
    if said.lower() in tuple(LogEnd):
        return Bounds(LogEnd(said.lower()), option=name)
    return Bounds(by_log=_by_log(said, name, _OFFSETS_FORM, _bound), option=name)


def _bound(number: int) -> Bound:
    return {_LATEST: LogEnd.LATEST, _EARLIEST: LogEnd.EARLIEST}.get(number, number)


def _by_log(text: str, name: str, form: str, make: Callable[[int], Bound]) -> dict[BrokerPartition, Bound]:
    return _from_json(text, name, form, lambda found: {
        BrokerPartition(str(topic), _below(2**31, partition)): make(_number(number, name))
        for topic, partitions in found.items() for partition, number in partitions.items()})


def _number(said: object, name: str) -> int:
    least = _EARLIEST if name.endswith("Offsets") else 0
    text = str(said).strip()
    if not re.fullmatch(r"-?\d{1,19}", text, re.ASCII) or not least <= int(text) <= _GREATEST:
        kind = "offset" if least else "time in milliseconds since 1970"
        raise SettingsError(f"{text[:30]!r} is no {kind}", option=name, check=f"the form is {_OFFSETS_FORM if least else _TIMES_FORM}")
    return int(text)


def _refused(bounds: Bounds, end: LogEnd) -> Bounds:
    """A batch cannot start at the end, or stop at the start. Raises SettingsError, as Spark's source does."""
    if end in (bounds.everywhere, *bounds.by_log.values()):
        raise SettingsError(f"{bounds.option} cannot be {end.value}: nothing would be read", option=bounds.option, check="the option")
    return bounds


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    columns = raw_columns(names_in(options["columns"]) if "columns" in options else None)
    if not columns:
        raise SettingsError("no column is chosen", option="columns", check="name at least one, or leave the option out")
    without_headers = "includeheaders" in options and _one_of(options, "includeheaders", ("true", "false")) == "false"
    return tuple(name for name in columns if name != "headers" or not without_headers)


def names_in(text: str) -> list[str]:
    """The names in a list with commas."""
    return [name for name in (part.strip() for part in text.split(",")) if name]


def _bootstrap(text: str) -> tuple[tuple[str, int], ...]:
    form = "the form is host:port,host:port"
    try:
        addresses = [split_address(address) for address in names_in(text)]
    except ValueError as error:
        raise SettingsError(f"a broker's address is wrong: {error}", option="bootstrap", check=form) from error
    if not addresses:
        raise SettingsError("no broker is named", option="bootstrap", check=f"give one or more brokers; {form}")
    return tuple(addresses)


def _isolation(options: Mapping[str, str]) -> Isolation:
    return Isolation(_one_of(options, "isolation", tuple(member.value for member in Isolation)))


def _one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """What is said, else the first of what is allowed."""
    said = options.get(name, allowed[0])
    if said.lower() not in allowed:
        raise SettingsError(f"{said!r} is no value of {SPELLED[name]}", option=SPELLED[name], check=f"it is {' or '.join(allowed)}")
    return said.lower()


def _positive(options: Mapping[str, str], name: str, default: int, what: str) -> int:
    said, most = options.get(name, str(default)), _MOST.get(name, _MOST_OF_ANYTHING)
    if not (said.isascii() and said.isdecimal()) or len(said) > 18 or not 0 < int(said) <= most:
        raise SettingsError(f"{said!r} is no number of {what}", option=SPELLED[name], check=f"a whole number from 1 to {most}")
    return int(said)


def _seconds(options: Mapping[str, str], name: str) -> float:
    said = options.get(name, str(fetch_sizes.TIMEOUT_S))
    try:
        seconds = float(said)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _LONGEST_TIMEOUT_S:  # neither is what is no number
        check = f"a number above 0, {_LONGEST_TIMEOUT_S:.0f} at most"
        raise SettingsError(f"{said!r} is no number of seconds", option=name, check=check)
    return seconds


def _from_json(text: str, option: str, form: str, build: Callable[[Any], T]) -> T:
    """What `build` makes of a JSON text. Raises SettingsError with the form."""
    try:
        return build(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise SettingsError(f"the option cannot be read: {error!r}"[:200], option=option, check=f"the form is {form}") from error
