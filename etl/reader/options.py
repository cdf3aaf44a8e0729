"""The options of the data source, text to values. No I/O.

It owns the names of the options, ours and those of Spark's own Kafka source, and what each may hold. What they come to on the logs that
there are is decided in `ranges`; `alone` asks the brokers and packs the ranges into tasks.

Spark hands a source its options in small letters, so names are compared without regard to case.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from etl.errors import SettingsError, TopicMissing
from etl.model.logs import BrokerPartition, Isolation
from etl.model.plans import OffsetRange
from etl.model.raw_table import raw_columns
from etl.settings import fetch_sizes
from etl.settings.address import split_address

T = TypeVar("T")
SIZES: Mapping[str, int] = {
    "fetch_max_bytes": fetch_sizes.FETCH_MAX_BYTES, "fetch_limit_bytes": fetch_sizes.FETCH_LIMIT_BYTES,
    "max_record_bytes": fetch_sizes.MAX_RECORD_BYTES, "target_task_bytes": fetch_sizes.TARGET_TASK_BYTES}
"""Options that are a number of bytes, and their defaults."""
_MOST: Mapping[str, int] = {
    "fetch_max_bytes": fetch_sizes.FETCH_MAX_BYTES_MOST, "fetch_limit_bytes": fetch_sizes.FETCH_LIMIT_BYTES_MOST,
    "max_record_bytes": fetch_sizes.MAX_RECORD_BYTES_MOST}
_MOST_OF_ANYTHING = 2**62
_LONGEST_TIMEOUT_S = 86_400.0
INTERNAL = ("tasks", "tasks_file")
"""How a run hands over the tasks that it has planned."""

SAME_AS = {
    "kafka.bootstrap.servers": "bootstrap", "subscribe": "topics", "kafka.isolation.level": "isolation",
}
"""Spark's name -> ours, where both mean the same."""
OURS = ("bootstrap", "topics", "ranges", "isolation", "compacted_topics", "columns", *SIZES, "timeout_s")
OF_SPARK = (
    *SAME_AS, "subscribePattern", "assign", "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "failOnDataLoss",
    "minPartitions", "maxRecordsPerPartition", "includeHeaders",
)
WITHOUT_EFFECT = (
    "groupIdPrefix", "kafka.group.id", "kafka.group.instance.id", "kafka.client.id", "kafka.client.rack", "kafka.client.dns.lookup",
    "kafka.auto.offset.reset", "kafka.enable.auto.commit", "kafka.auto.commit.interval.ms", "kafka.check.crcs",
    "kafka.allow.auto.create.topics", "kafka.partition.assignment.strategy", "kafka.metric.reporters",
    "kafka.fetch.min.bytes", "kafka.fetch.max.wait.ms", "kafka.fetch.max.bytes", "kafka.max.partition.fetch.bytes",
    "kafka.max.poll.records", "kafka.max.poll.interval.ms", "kafka.receive.buffer.bytes", "kafka.send.buffer.bytes",
    "kafka.request.timeout.ms", "kafka.default.api.timeout.ms", "kafka.session.timeout.ms", "kafka.heartbeat.interval.ms",
    "kafka.metadata.max.age.ms", "kafka.connections.max.idle.ms", "kafka.retry.backoff.ms", "kafka.retry.backoff.max.ms",
    "kafka.reconnect.backoff.ms", "kafka.reconnect.backoff.max.ms", "kafka.socket.connection.setup.timeout.ms",
    "kafka.socket.connection.setup.timeout.max.ms",
    "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
)
"""Options of Spark's source that tune its Java consumer, or streams: taken, because they change no row of a batch query there either."""
_SPELLED = {name.lower(): name for name in (*OURS, *OF_SPARK, *INTERNAL)}
_NO_ENCRYPTION = ("kafka.security.protocol", "PLAINTEXT")
_WHAT = ("topics", "subscribepattern", "assign", "ranges", *INTERNAL)
"""Exactly one of these says what to read."""
_RANGES_FORM = '[{"topic": "clicks", "partition": 0, "from": 10, "until": 20}]'
_OFFSETS_FORM = '{"clicks": {"0": 23, "1": -2}}, -2 for the first offset and -1 for the end'
_TIMES_FORM = '{"clicks": {"0": 1700000000000}}, milliseconds since 1970'
_LATEST, _EARLIEST = -1, -2
"""How Spark's JSON writes the two ends of a log."""
_GREATEST = 2**63 - 1


class LogEnd(str, Enum):
    """One of the two ends of a log."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class FirstAt:
    """The first record at that time or later."""

    ms: int


Bound = LogEnd | FirstAt | int
"""Where reading a log starts or stops: one of its ends, a time, or an offset."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """One bound for every log, or one for each of those that are named."""

    everywhere: Bound | None = None
    by_log: Mapping[BrokerPartition, Bound] = field(default_factory=dict)
    option: str = ""
    """Which option said so."""

    def of(self, log: BrokerPartition) -> Bound:
        """The bound of one log. Raises SettingsError where logs are named and this one is not."""
        if self.everywhere is not None:
            return self.everywhere
        if log not in self.by_log:
            check = "name every partition that is read: -2 is its first offset, -1 its end"
            raise SettingsError("a partition is not named", option=self.option, topic=log.topic, partition=log.partition, check=check)
        return self.by_log[log]

    def times(self, logs: Iterable[BrokerPartition]) -> dict[BrokerPartition, int]:
        """Milliseconds since 1970 of those logs whose bound is a time."""
        return {log: bound.ms for log in logs if isinstance(bound := self.of(log), FirstAt)}


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which logs to read: topics by name, by a pattern that is somewhere in their name (as Spark's source has it), or partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    logs: tuple[BrokerPartition, ...] = ()

    @property
    def asked(self) -> list[str] | None:
        """Topics to ask the brokers for; None: all."""
        return None if self.pattern is not None else sorted({*self.topics, *(log.topic for log in self.logs)})

    def among(self, there: Iterable[BrokerPartition]) -> list[BrokerPartition]:
        """The chosen ones of the logs that there are, in order. Raises TopicMissing for one that is named and not there."""
        known = sorted(there)
        names = {log.topic for log in known}
        if self.pattern is not None:
            found = [log for log in known if re.search(self.pattern, log.topic)]
            if not found:
                check = "the expression, and that this is the right cluster"
                raise TopicMissing("no topic matches subscribePattern", pattern=self.pattern, check=check)
            return found
        for topic in (*self.topics, *(log.topic for log in self.logs)):
            if topic not in names:
                raise TopicMissing("the topic is not there", topic=topic, check="its name, and that this is the right cluster")
        refuse_missing_partitions(self.logs, known)
        return list(self.logs) or [log for log in known if log.topic in self.topics]


@dataclass(frozen=True, slots=True)
class Reading:
    """The options, parsed."""

    bootstrap: tuple[tuple[str, int], ...]
    isolation: Isolation
    columns: tuple[str, ...]
    fetch_max_bytes: int
    fetch_limit_bytes: int
    max_record_bytes: int
    target_task_bytes: int
    timeout_s: float
    chosen: Chosen = Chosen()
    ranges: tuple[OffsetRange, ...] | None = None
    """Exact ranges; None: `chosen` from `starting` to `ending`."""
    starting: Bounds = Bounds(LogEnd.EARLIEST)
    ending: Bounds = Bounds(LogEnd.LATEST)
    late_start_is_latest: bool = False
    """Where no record is as late as a starting time: start at the end instead of failing."""
    compacted: frozenset[str] = frozenset()
    """Topics whose missing offsets are compaction's, whatever the brokers tell."""
    fails_on_data_loss: bool = True
    least_tasks: int = 1
    most_offsets: int | None = None
    """In one Spark partition."""


def parse_options(given: Mapping[str, str]) -> Reading:
    """The options as values. Raises SettingsError naming the option."""
    options = _known(given)
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
            raise SettingsError(what, option="ranges", topic=r.log.topic, partition=r.log.partition, check=check)
        reaching[r.log] = r


def _below(bound: int, said: Any) -> int:
    """A number as Kafka's protocol can carry it. Raises ValueError."""
    number = int(said)
    if isinstance(said, (bool, float)) or not 0 <= number < bound:
        raise ValueError(f"{said!r} is no whole number from 0 to {bound - 1}")
    return number


def refuse_missing_partitions(named: Iterable[BrokerPartition], there: Iterable[BrokerPartition]) -> None:
    """Raises TopicMissing for the first partition that is named and not there."""
    known = set(there)
    for log in named:
        if log not in known:
            count = sum(other.topic == log.topic for other in known)
            what = f"the topic has {count} partitions, numbered from 0, and not this one" if count else "the topic is not there"
            raise TopicMissing(what, topic=log.topic, partition=log.partition, check="the option, and that this is the right cluster")


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """The options under our names, in small letters. Raises SettingsError for an unknown one, and for one that is said twice."""
    options: dict[str, str] = {}
    for said, value in sorted(given.items()):
        name = said.lower()
        if name in (idle.lower() for idle in WITHOUT_EFFECT) or (name, value.strip().upper()) == _NO_ENCRYPTION:
            continue
        if name not in _SPELLED:
            raise _unknown(said)
        name = SAME_AS.get(name, name)
        if options.setdefault(name, value) != value:
            raise SettingsError(f"{said} and its other name say different things", option=said, check="leave one of the two out")
    return options


def _unknown(said: str) -> SettingsError:
    if re.match(r"(?i)kafka\.(security|sasl|ssl)\.", said):
        return SettingsError("this version speaks to brokers without login and encryption", option=said, check="a PLAINTEXT listener")
    return SettingsError(f"there is no option {said!r}", option=said, check=f"the options are {', '.join((*OURS, *OF_SPARK))}")


def _refuse_other_than_one(options: Mapping[str, str]) -> None:
    if sum(name in options for name in _WHAT) != 1:
        what = "exactly one of the options topics (or subscribe), subscribePattern, assign and ranges must say what to read"
        raise SettingsError(what, check="the options")
    bounded = next((name for name in options if name.startswith(("startingoffsets", "startingtime", "endingo", "endingt"))), None)
    if "ranges" in options and bounded:
        what = f"ranges says where to start and to stop, and so does {_SPELLED[bounded]}"
        raise SettingsError(what, option=_SPELLED[bounded], check="leave one of the two out")


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
        raise SettingsError(f"{said!r} is no value of {_SPELLED[name]}", option=_SPELLED[name], check=f"it is {' or '.join(allowed)}")
    return said.lower()


def _positive(options: Mapping[str, str], name: str, default: int, what: str) -> int:
    said, most = options.get(name, str(default)), _MOST.get(name, _MOST_OF_ANYTHING)
    if not (said.isascii() and said.isdecimal()) or len(said) > 18 or not 0 < int(said) <= most:
        raise SettingsError(f"{said!r} is no number of {what}", option=_SPELLED[name], check=f"a whole number from 1 to {most}")
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
