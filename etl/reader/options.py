"""Which options does the data source have?

Options are those of Spark's Kafka source and some of this one alone, compared without regard to
case. In JSON, a partition is `"clicks": 0`, on Jafka `"clicks": "1-0"` (partition 0 of broker 1).

Lives here: parsing option texts to values, without I/O; rewording errors for data source options.
Not here: what options mean for the partitions that exist (etl/reader/query_ranges.py).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from etl.decide.recreated_or_truncated import accept_command
from etl.errors import (
    DataLoss,
    EtlError,
    PartitionTruncated,
    RanOutBeforeUntil,
    RecordTooLarge,
    SettingsError,
    TopicRecreated,
)
from etl.ledger.topic_filters import NotTranslated, java_pattern
from etl.model.columns import raw_columns, types_of
from etl.model.partitions import BrokerFamily, Isolation, TopicPartition, parse_partition_key
from etl.model.plans import OffsetRange
from etl.model.security import OPEN, OPEN_ZOOKEEPER, Access, Security
from etl.reader.fetch_options import FetchOptions
from etl.reader.query_ranges import Bound, Bounds, FirstAt, LogEnd, ReadOptions, TopicSelection
from etl.settings import choices
from etl.settings.choices import split_address, split_connect

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


T = TypeVar("T")
_RANGES_FORM = '[{"topic": "clicks", "partition": 0, "from": 10, "until": 20}]'
_PHYSICAL_RANGES_FORM = (
    '[{"topic": "clicks", "broker": 1, "partition": 0, "from": 36, "until": 972}]'
)
_LOGS_FORM = '{"clicks": [0, 1]}'
_PHYSICAL_LOGS_FORM = '{"clicks": ["1-0", "1-1"]}'
_OFFSETS_FORM = '{"clicks": {"0": 23, "1": -2}}, -2 for the first offset and -1 for the end'
_PHYSICAL_OFFSETS_FORM = (
    '{"clicks": {"1-0": 36, "1-1": -2}}, -2 for the first offset and -1 for the end'
)
_TIMES_FORM = '{"clicks": {"0": 1700000000000}}, milliseconds since 1970'
_TIME_FORM = "1700000000000, milliseconds since 1970"
_LATEST = -1
_EARLIEST = -2
"""The end and the start of a partition in Spark's JSON."""
_GREATEST = 2**63 - 1


def parse_ranges(text: str, *, physical: bool = False) -> tuple[OffsetRange, ...]:
    """Parse the option `ranges`.

    Raises SettingsError, also if two ranges overlap: their rows would be double.
    """

    def build(entries: Any) -> tuple[OffsetRange, ...]:
        return tuple(_range_of(entry, physical) for entry in entries)

    form = _PHYSICAL_RANGES_FORM if physical else _RANGES_FORM
    ranges = _from_json(text, "ranges", form, build)
    _reject_overlaps(ranges)
    return ranges


def parse_partitions(text: str, *, physical: bool) -> tuple[TopicPartition, ...]:
    """Parse the option `assign`, without duplicates. Raises SettingsError."""

    def build(keys_by_topic: Any) -> tuple[TopicPartition, ...]:
        partitions: dict[TopicPartition, None] = {}
        for topic, keys in keys_by_topic.items():
            for key in keys:
                partitions[_log(topic, key, physical)] = None
        return tuple(partitions)

    form = _PHYSICAL_LOGS_FORM if physical else _LOGS_FORM
    return _from_json(text, "assign", form, build)


def parse_offsets(text: str, name: str, *, physical: bool) -> dict[TopicPartition, Bound]:
    """Parse a bound by offset for each partition. Raises SettingsError."""
    by_partition = _PHYSICAL_OFFSETS_FORM if physical else _OFFSETS_FORM
    end = LogEnd.EARLIEST if name.startswith("starting") else LogEnd.LATEST
    return _by_partition(text, name, f"{end.value}, or {by_partition}", _bound, physical)


def parse_times(text: str, name: str) -> dict[TopicPartition, Bound]:
    """Parse a bound by time for each partition. Raises SettingsError."""
    return _by_partition(text, name, _TIMES_FORM, FirstAt, False)


def _reject_overlaps(ranges: Iterable[OffsetRange]) -> None:
    """Raise SettingsError if two ranges overlap: it is unknown which is meant."""
    last: dict[TopicPartition, OffsetRange] = {}
    not_empty = [r for r in ranges if r.size]
    for r in sorted(not_empty, key=lambda r: (r.partition, r.from_offset)):
        before = last.get(r.partition)
        if before is not None and r.from_offset < before.until_offset:
            message = (
                f"The ranges {before.from_offset} to {before.until_offset}"
                f" and {r.from_offset} to {r.until_offset} overlap"
            )
            action = "Check the list: rows of offsets that two ranges name would be double"
            raise SettingsError(message, option="ranges", **r.partition.place, action=action)
        last[r.partition] = r


def _range_of(entry: Mapping[str, Any], physical: bool) -> OffsetRange:
    partition = _partition_of_range(entry, physical)
    return OffsetRange(partition, _below(2**63, entry["from"]), _below(2**63, entry["until"]))


def _partition_of_range(entry: Mapping[str, Any], physical: bool) -> TopicPartition:
    """Return the partition of a range.

    Raises ValueError if a broker is named and partitions have none, or the other way round.
    """
    has_broker = "broker" in entry
    if has_broker and not physical:
        raise ValueError("a broker is named")
    if physical and not has_broker:
        raise ValueError("no broker is named")
    topic = str(entry["topic"])
    partition = _below(2**31, entry["partition"])
    broker_id = _below(2**31, entry["broker"]) if physical else None
    return TopicPartition(topic, partition, broker_id)


def _log(topic: Any, key: Any, physical: bool) -> TopicPartition:
    """Return the partition of a key: `0`, or `1-0` on brokers of Jafka. Raises ValueError."""
    if not physical:
        return TopicPartition(str(topic), _below(2**31, key))
    found = parse_partition_key(str(topic), str(key))
    if found is None or not found.is_physical:
        raise ValueError(
            f"{key!r} is no broker and partition; write 1-0 for partition 0 of broker 1"
        )
    return found


def _below(bound: int, value: Any) -> int:
    """Return a number from 0 below the bound: Kafka's protocol carries no other.

    Raises ValueError.
    """
    number = int(value)
    if isinstance(value, (bool, float)) or not 0 <= number < bound:
        raise ValueError(f"{value!r} is no whole number from 0 to {bound - 1}")
    return number


def _by_partition(
    text: str, name: str, form: str, make: Callable[[int], Bound], physical: bool
) -> dict[TopicPartition, Bound]:
    def build(numbers_by_topic: Any) -> dict[TopicPartition, Bound]:
        bounds: dict[TopicPartition, Bound] = {}
        for topic, numbers in numbers_by_topic.items():
            for key, number in numbers.items():
                bounds[_log(topic, key, physical)] = make(_number(number, name, form))
        return bounds

    return _from_json(text, name, form, build)


def _bound(number: int) -> Bound:
    if number == _LATEST:
        return LogEnd.LATEST
    if number == _EARLIEST:
        return LogEnd.EARLIEST
    return number


def _number(value: object, name: str, form: str) -> int:
    """Parse an offset (-2: start of the partition, -1: its end) or a time in ms.

    `name` is the option, which decides which of both it is; `form` is how it is written. Raises
    SettingsError.
    """
    is_offset = name.endswith("Offsets")
    least = _EARLIEST if is_offset else 0
    text = str(value).strip()
    if not re.fullmatch(r"-?\d{1,19}", text, re.ASCII) or not least <= int(text) <= _GREATEST:
        kind = "offset" if is_offset else "time in milliseconds since 1970"
        raise SettingsError(
            f"{text[:30]!r} is no {kind}",
            option=name,
            action=f"Write it in the form {form}",
        )
    return int(text)


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object's members. Raises ValueError for a duplicate name."""
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"{name!r} is named twice")
        members[name] = value
    return members


def _from_json(text: str, option: str, form: str, build: Callable[[Any], T]) -> T:
    """Parse a JSON option and convert it by `build`.

    Raises SettingsError with the expected form.
    """
    try:
        return build(json.loads(text, object_pairs_hook=_unique_names))
    except (json.JSONDecodeError, RecursionError) as error:
        message = f"{text[:60]!r} is not JSON: {error}"
        failure: Exception = error
    except (ValueError, OverflowError) as error:
        message = f"{text[:60]!r} has an invalid value: {error}"
        failure = error
    except (TypeError, KeyError, AttributeError) as error:
        # `build` reads it as the expected form, and found another type or no such member
        message = f"{text[:60]!r} is JSON of another form"
        failure = error
    raise SettingsError(message, option=option, action=f"Write it in the form {form}") from failure


SIZES: Mapping[str, int] = {
    "fetch_max_bytes": choices.FETCH_MAX_BYTES,
    "max_batch_bytes": choices.MAX_BATCH_BYTES,
    "max_record_bytes": choices.MAX_RECORD_BYTES,
    "target_task_bytes": choices.TARGET_TASK_BYTES,
}
"""Options with a number of bytes, and their defaults."""


def _options_of(prefix: str, section: str, keys: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the option of each key of a section of the conf, with section and key."""
    return {f"{prefix}_{key}": (section, key) for key in keys}


_TLS_KEYS = ("ca_file", "cert_file", "key_file", "key_password")

SECURITY: Mapping[str, tuple[str, ...]] = {
    "listener": ("listener",),
    "kafka.security.protocol": ("protocol",),
    **_options_of("tls", "tls", _TLS_KEYS),
    "kafka.sasl.mechanism": ("sasl", "mechanism"),
    **_options_of("sasl", "sasl", ("username", "password", "token")),
    "kafka.sasl.kerberos.service.name": ("sasl", "kerberos_service_name"),
}
"""Options of encryption and authentication, and the key of `source.security` for each."""

ZOOKEEPER_SECURITY: Mapping[str, tuple[str, ...]] = {
    "zookeeper_tls": ("tls", "enabled"),
    **_options_of("zookeeper_tls", "tls", _TLS_KEYS),
    **_options_of("zookeeper_auth", "auth", ("scheme", "username", "password")),
}
"""The same for the keys of `zookeeper`; `zookeeper_tls` is true or false."""

PHYSICAL_REFUSED = {
    "kafka.bootstrap.servers": (
        "such a broker reports neither its id nor its topics; "
        "give zookeeper, where the brokers are registered"
    ),
    "broker_version": "these brokers have one protocol version",
    "kafka.isolation.level": "there are no transactions",
    "assume_compacted": "there is no compaction",
    "startingtimestamp": "messages have no timestamps",
    "startingoffsetsbytimestamp": "messages have no timestamps",
    "endingtimestamp": "messages have no timestamps",
    "endingoffsetsbytimestamp": "messages have no timestamps",
    "maxrecordsperpartition": "no records can be counted from byte positions",
    **dict.fromkeys(
        SECURITY,
        "these brokers support neither encryption nor authentication, and have one listener",
    ),
    "minpartitions": (
        "a partition can be split only where its segments begin, whatever number of tasks is set"
    ),
}
"""Options without meaning for byte offsets (Jafka, Kafka 0.7), and why."""

OURS = (
    "broker_type",
    "broker_version",
    "zookeeper",
    "ranges",
    "columns",
    "assume_compacted",
    *SIZES,
    "request_timeout_s",
    *(name for name in SECURITY if not name.startswith("kafka.")),
    *ZOOKEEPER_SECURITY,
)
OF_SPARK = (
    "kafka.bootstrap.servers",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "kafka.isolation.level",
    *(name for name in SECURITY if name.startswith("kafka.")),
)
WITHOUT_EFFECT = (
    "groupIdPrefix",
    "kafka.group.id",
    "kafka.group.instance.id",
    "kafka.client.id",
    "kafka.client.rack",
    "kafka.client.dns.lookup",
    "kafka.auto.offset.reset",
    "kafka.enable.auto.commit",
    "kafka.auto.commit.interval.ms",
    "kafka.check.crcs",
    "kafka.allow.auto.create.topics",
    "kafka.partition.assignment.strategy",
    "kafka.metric.reporters",
    "kafka.fetch.min.bytes",
    "kafka.fetch.max.wait.ms",
    "kafka.fetch.max.bytes",
    "kafka.max.partition.fetch.bytes",
    "kafka.max.poll.records",
    "kafka.max.poll.interval.ms",
    "kafka.receive.buffer.bytes",
    "kafka.send.buffer.bytes",
    "kafka.request.timeout.ms",
    "kafka.default.api.timeout.ms",
    "kafka.session.timeout.ms",
    "kafka.heartbeat.interval.ms",
    "kafka.metadata.max.age.ms",
    "kafka.connections.max.idle.ms",
    "kafka.retry.backoff.ms",
    "kafka.retry.backoff.max.ms",
    "kafka.reconnect.backoff.ms",
    "kafka.reconnect.backoff.max.ms",
    "kafka.socket.connection.setup.timeout.ms",
    "kafka.socket.connection.setup.timeout.max.ms",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
"""Options that tune the Java consumer of Spark's source, or its streams.

They are accepted and ignored: in Spark's source, too, they change no row of a batch query.
"""

SPELLED = {name.lower(): name for name in (*OURS, *OF_SPARK)}
"""Name in lower case -> its usual spelling."""

_INSTEAD = (
    (
        r"kafka\.sasl\.jaas\.config",
        "Set sasl_username and sasl_password, which is a reference: ${env:NAME} or ${file:/path}",
    ),
    (
        r"kafka\.sasl\.(login\..*|oauthbearer\..*|client\.callback.*)",
        "Set sasl_token: module:function, aws-msk:REGION or a reference",
    ),
    (r"kafka\.ssl\.truststore\..*", "Set tls_ca_file, in PEM"),
    (r"kafka\.ssl\.key.*", "Set tls_cert_file, tls_key_file and tls_key_password, in PEM"),
    (
        r"kafka\.(security|sasl|ssl)\..*",
        "Leave the option out: host names are always verified, and Java's own tuning"
        " has no counterpart here",
    ),
)
"""Security options of Java's consumer, and the option to use for each."""


_OF_TABLE = "option."
"""Prefix of the options of a table (`CREATE TABLE ... USING`) among its properties."""


def by_lower_case(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options with their names in lower case, without those that have no effect.

    Raises SettingsError for unknown options, and for one with two values.
    """
    ignored = {name.lower() for name in WITHOUT_EFFECT}
    options: dict[str, str] = {}
    for option, value in sorted(_without_table_properties(given).items()):
        name = option.lower()
        if name in ignored:
            continue
        if name not in SPELLED:
            raise _unknown(option)
        if options.setdefault(name, value) != value:
            raise SettingsError(
                f"{SPELLED[name]} is set twice, with different values",
                option=option,
                action="Leave one of the two out",
            )
    return options


def _without_table_properties(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options of a table without its other properties.

    Spark passes all properties of a table, such as `provider` and `owner`: each option of OPTIONS
    with and without the prefix. One without it, from a query, is the later one.
    """
    of_table: dict[str, str] = {}
    others: dict[str, str] = {}
    for option, value in given.items():
        name = option.lower()
        if name.startswith(_OF_TABLE):
            of_table[name.removeprefix(_OF_TABLE)] = value
        elif name in SPELLED:
            others[name] = value
    return {**of_table, **others} if of_table else given


def _unknown(name: str) -> SettingsError:
    for form, instead in _INSTEAD:
        if re.fullmatch(form, name.lower()):
            return SettingsError(
                "This option of Java's consumer has another name here",
                option=name,
                action=instead,
            )
    return SettingsError(
        f"There is no option {name!r}",
        option=name,
        action=f"Use the options {', '.join((*OF_SPARK, *OURS))}",
    )


SEE_SUPERSEDE = "Or see `etl plans supersede --help`"


def with_pipeline_advice(error: EtlError) -> EtlError:
    """Return the error, with the settings and commands of a pipeline that help in its action."""
    if isinstance(error, DataLoss):
        return _add_advice(error, "Check source.on_data_loss, too")
    if isinstance(error, RecordTooLarge):
        return _add_advice(error, SEE_SUPERSEDE)
    if isinstance(error, TopicRecreated):
        command = accept_command([error.where["topic"]])
        advice = f"The next run reports the same, then continue with the new topic: {command}"
        return _add_advice(error, advice)
    return error


def with_option_advice(error: EtlError) -> EtlError:
    """Return the error, with the data source options that help in its action.

    Keys of a conf are replaced by options. The action of PartitionTruncated is replaced, as it
    names commands of a pipeline; advice is appended to the actions of other errors.
    """
    renamed = name_options(error)
    if renamed is not error:
        return renamed
    if isinstance(error, PartitionTruncated):
        action = (
            "Check whether an unclean leader was elected, or a broker lost its disk."
            " A new DataFrame reads the partition as it is now"
        )
        return type(error)(error.message, action=action, **error.where)
    if isinstance(error, DataLoss | RanOutBeforeUntil) and "failOnDataLoss" not in error.action:
        return _add_advice(error, "Set failOnDataLoss: false to read what the partition has")
    if isinstance(error, RecordTooLarge):
        return _add_advice(
            error,
            "Skip the record: set startingOffsets and endingOffsets, or ranges, so that they leave"
            " it out",
        )
    if isinstance(error, TopicRecreated):
        return _add_advice(error, "A new DataFrame reads the new topic")
    return error


_OPTIONS_OF_SECTIONS = {
    "source.security.sasl": "sasl_*",
    "source.security.tls": "tls_*",
    "source.security": "kafka.security.protocol",
    "zookeeper.auth": "zookeeper_auth_*",
    "zookeeper.connect": "zookeeper",
}
"""Section or key of a conf -> the options for it; after the keys of `SECURITY`."""

_OPTION_OF_KEY = {
    "source.bootstrap_servers": "kafka.bootstrap.servers",
    "source.broker_type": "broker_type",
    "source.broker_version": "broker_version",
    "source.fetch_max_bytes": "fetch_max_bytes",
    "source.isolation_level": "kafka.isolation.level",
    "source.listener": "listener",
    "source.max_batch_bytes": "max_batch_bytes",
    "source.request_timeout_s": "request_timeout_s",
    "source.starting_offsets": "startingOffsets",
    "source.topics": "subscribe",
}
"""Key of a conf -> the option for it; without `SECURITY` and `ZOOKEEPER_SECURITY`."""
_KEYS = (*_OPTION_OF_KEY, "source.security", "zookeeper.tls", "zookeeper.auth", "zookeeper.connect")


def name_options(error: EtlError) -> EtlError:
    """Return the error with option names instead of a conf's keys.

    The error itself if it names no key that is an option.
    """
    if not _names_keys(error):
        return error
    option_of_key = dict(_OPTION_OF_KEY)
    for option, key in SECURITY.items():
        option_of_key[f"source.security.{'.'.join(key)}"] = option
    for option, key in ZOOKEEPER_SECURITY.items():
        option_of_key[f"zookeeper.{'.'.join(key)}"] = option

    def reword(text: str) -> str:
        for key in sorted(option_of_key, key=len, reverse=True):
            text = text.replace(key, option_of_key[key])
        for section, options in _OPTIONS_OF_SECTIONS.items():
            text = text.replace(section, options)
        return text

    place: dict[str, Any] = {}
    for name, value in error.where.items():
        if isinstance(value, str):
            value = reword(value)
        if name == "key":
            name = "option"
        place[name] = value
    return type(error)(reword(error.message), action=reword(error.action), **place)


def _names_keys(error: EtlError) -> bool:
    """True if the error names a key of a conf that is an option, too."""
    text = f"{error.where.get('key', '')} {error.action}"
    return any(key in text for key in _KEYS)


def _add_advice(error: EtlError, advice: str) -> EtlError:
    """Return the error with this sentence at the end of its action."""
    action = f"{error.action}. {advice}" if error.action else advice
    return type(error)(error.message, action=action, **error.where)


def _security(options: Mapping[str, str]) -> Security:
    """Return encryption and authentication of the brokers.

    Raises SettingsError with the option.
    """
    keys = _conf_keys(options, SECURITY)
    if not keys:
        return OPEN
    if "listener" in keys and "zookeeper" not in options:
        raise SettingsError(
            "listener selects one of the addresses that brokers register in ZooKeeper,"
            " and zookeeper is not set",
            option="listener",
            action="Leave the option out, or give zookeeper in place of kafka.bootstrap.servers",
        )
    if "protocol" in keys:
        keys["protocol"] = keys["protocol"].strip().upper()
    from etl.settings.load import security_of

    try:
        return security_of(keys)
    except SettingsError as error:
        raise name_options(error) from None


def _zookeeper_access(options: Mapping[str, str]) -> Access:
    """Return encryption and authentication of ZooKeeper. Raises SettingsError with the option."""
    named = next((name for name in ZOOKEEPER_SECURITY if name in options), None)
    if named is None:
        return OPEN_ZOOKEEPER
    if "zookeeper" not in options:
        raise SettingsError(
            f"{named} is an option of the ZooKeeper connection, and zookeeper is not set",
            option=named,
            action="Leave the option out, or give zookeeper in place of kafka.bootstrap.servers",
        )
    keys = _conf_keys(options, ZOOKEEPER_SECURITY)
    if "zookeeper_tls" in options:
        enabled = options["zookeeper_tls"]
        keys["tls"]["enabled"] = {"true": True, "false": False}.get(
            enabled.strip().lower(), enabled
        )
    from etl.settings.load import access_of

    try:
        return access_of(keys)
    except SettingsError as error:
        raise name_options(error) from None


def _conf_keys(options: Mapping[str, str], keys: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return the options as a conf's section, nested by the keys."""
    section: dict[str, Any] = {}
    for name, (*parents, key) in keys.items():
        if name not in options:
            continue
        target = section
        for parent in parents:
            target = target.setdefault(parent, {})
        target[key] = options[name]
    return section


_MAX_VALUES: Mapping[str, int] = {
    "fetch_max_bytes": choices.FETCH_MAX_BYTES_MOST,
    "max_batch_bytes": choices.MAX_BATCH_BYTES_MOST,
    "max_record_bytes": choices.MAX_RECORD_BYTES_MOST,
}
_MAX_NUMBER = 2**62
_MAX_TIMEOUT_S = 86_400.0
_TYPES_IN_SPARK = {"timestamp_ltz": "timestamp"}
_COLLATION = re.compile(r" collate \w+")
"""Collation of the session, which changes nothing that is read."""
_SELECTIONS = ("subscribe", "subscribepattern", "assign", "ranges")
"""Options that select partitions: exactly one of them is required."""


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options. Raises SettingsError with the option."""
    options = by_lower_case(given)
    _require_one_selection(options)
    families = tuple(member.value for member in BrokerFamily)
    physical = _one_of(options, "broker_type", families) == BrokerFamily.JAFKA.value
    if physical:
        _reject_kafka_only(options)

    bootstrap, zookeeper = _brokers_or_zookeeper(options)

    selection = _topic_selection(options, physical)
    ranges = None
    if "ranges" in options:
        ranges = parse_ranges(options["ranges"], physical=physical)
    starting = _bounds(options, "starting", LogEnd.EARLIEST, physical)
    starting = _reject_end(starting, LogEnd.LATEST)
    ending = _bounds(options, "ending", LogEnd.LATEST, physical)
    ending = _reject_end(ending, LogEnd.EARLIEST)
    late_start = _one_of(options, "startingoffsetsbytimestampstrategy", ("error", "latest"))

    fails = _one_of(options, "failondataloss", ("true", "false"))
    compacted = frozenset(names_in(options.get("assume_compacted", "")))
    sizes = {name: _positive(options, name, default, "bytes") for name, default in SIZES.items()}
    min_partitions = _positive(options, "minpartitions", 1, "Spark partitions")
    max_records = None
    if "maxrecordsperpartition" in options:
        max_records = _positive(options, "maxrecordsperpartition", 0, "records")

    return ReadOptions(
        fetch=FetchOptions(
            isolation=_isolation(options, physical),
            bootstrap=bootstrap,
            broker_type=_broker_release(options),
            security=_security(options),
            timeout_s=_seconds(options, "request_timeout_s"),
            fails_on_data_loss=fails == "true",
            fetch_max_bytes=sizes["fetch_max_bytes"],
            max_batch_bytes=sizes["max_batch_bytes"],
            max_record_bytes=sizes["max_record_bytes"],
        ),
        zookeeper=zookeeper,
        physical=physical,
        access=_zookeeper_access(options),
        columns=_columns(options, physical),
        selection=selection,
        ranges=ranges,
        starting=starting,
        ending=ending,
        late_start_is_latest=late_start == "latest",
        compacted=compacted,
        min_partitions=min_partitions,
        max_records_per_partition=max_records,
        target_task_bytes=sizes["target_task_bytes"],
    )


def _broker_release(options: Mapping[str, str]) -> str | None:
    """Return the broker release of `broker_version`. None: ask the brokers."""
    if "broker_version" not in options:
        return None
    from etl.kafka.broker_types import release_name

    return release_name(options["broker_version"], option="broker_version")


def _reject_kafka_only(options: Mapping[str, str]) -> None:
    """Raise SettingsError for an option without meaning if offsets are byte positions."""
    for name in options:
        if name in PHYSICAL_REFUSED:
            message = (
                f"{SPELLED[name]} cannot be used with broker_type {BrokerFamily.JAFKA.value}:"
                f" {PHYSICAL_REFUSED[name]}"
            )
            raise SettingsError(message, option=SPELLED[name], action="Leave the option out")


def _require_one_selection(options: Mapping[str, str]) -> None:
    """Raise SettingsError if not exactly one option selects what to read."""
    if sum(name in options for name in _SELECTIONS) != 1:
        message = (
            "Exactly one of the options subscribe, subscribePattern, assign and ranges must be set"
        )
        raise SettingsError(message, action="Check the options")
    if "ranges" not in options:
        return
    for name in options:
        if name.startswith(("startingoffsets", "startingtime", "endingo", "endingt")):
            message = f"ranges sets the start and the end of reading, and so does {SPELLED[name]}"
            raise SettingsError(message, option=SPELLED[name], action="Leave one of the two out")


def _topic_selection(options: Mapping[str, str], physical: bool) -> TopicSelection:
    if "subscribepattern" in options:
        return TopicSelection(pattern=_pattern(options["subscribepattern"]))
    if "assign" in options:
        return TopicSelection(partitions=parse_partitions(options["assign"], physical=physical))
    topics = tuple(names_in(options.get("subscribe", "")))
    if "subscribe" in options and not topics:
        raise SettingsError(
            "No topic is named",
            option="subscribe",
            action="Check subscribe: names, separated by commas",
        )
    return TopicSelection(topics=topics)


def _pattern(text: str) -> str:
    """Return the pattern.

    Raises SettingsError if it is no regular expression of Java, or if this source cannot
    translate it.
    """
    pattern = text.strip()
    if not pattern:
        raise SettingsError(
            "An empty expression matches the name of every topic",
            option="subscribePattern",
            action="Write .* for all",
        )
    try:
        java_pattern(pattern)
    except NotTranslated as error:
        message = f"The regular expression {pattern!r} is not supported: {error}"
        action = "Use a simpler expression, or topics by name (subscribe)"
        raise SettingsError(message, option="subscribePattern", action=action) from error
    return pattern


def _bounds(options: Mapping[str, str], side: str, default: LogEnd, physical: bool) -> Bounds:
    """Return the bounds of one side. If several options set them, the order here is Spark's."""
    if f"{side}timestamp" in options:
        name = f"{side}Timestamp"
        return Bounds(FirstAt(_number(options[name.lower()], name, _TIME_FORM)), option=name)
    if f"{side}offsetsbytimestamp" in options:
        name = f"{side}OffsetsByTimestamp"
        return Bounds(by_partition=parse_times(options[name.lower()], name), option=name)
    name = f"{side}Offsets"
    value = options.get(name.lower(), default.value).strip()
    if value.lower() in tuple(LogEnd):
        return Bounds(LogEnd(value.lower()), option=name)
    return Bounds(by_partition=parse_offsets(value, name, physical=physical), option=name)


def _reject_end(bounds: Bounds, end: LogEnd) -> Bounds:
    """Return the bounds. Raises SettingsError if one of them is this end, as Spark's source does.

    A batch cannot start at the end of a partition, or stop at its start.
    """
    if end in (bounds.everywhere, *bounds.by_partition.values()):
        raise SettingsError(
            f"{bounds.option} cannot be {end.value}: nothing would be read",
            option=bounds.option,
            action="Check the option",
        )
    return bounds


def _columns(options: Mapping[str, str], physical: bool) -> tuple[str, ...]:
    names = names_in(options["columns"]) if "columns" in options else None
    columns = raw_columns(names, physical=physical)
    if not columns:
        raise SettingsError(
            "No column is chosen",
            option="columns",
            action="Name at least one, or leave the option out",
        )
    if "includeheaders" not in options:
        return tuple(columns)
    if _one_of(options, "includeheaders", ("true", "false")) == "true":
        return tuple(columns)
    return tuple(name for name in columns if name != "headers")


def columns_of_schema(schema: StructType, reading: ReadOptions) -> tuple[str, ...]:
    """Return the columns of the schema that a query passes by `.schema(...)`, in its order.

    Raises SettingsError for a column that is not among the chosen ones, or has another type.
    """
    types = types_of(physical=reading.physical)
    for field in schema.fields:
        if field.name not in reading.columns:
            action = (
                f"Check the schema; the columns that can be read are {', '.join(reading.columns)}"
            )
            raise SettingsError(
                f"There is no column {field.name!r} to read", column=field.name, action=action
            )
        expected = _TYPES_IN_SPARK.get(types[field.name], types[field.name])
        given = field.dataType.simpleString()
        if _COLLATION.sub("", given) != expected or not field.nullable:
            if not field.nullable:
                given = f"{given} NOT NULL"
            message = f"The schema says that {field.name} is {given}, it is {types[field.name]}"
            raise SettingsError(
                message,
                column=field.name,
                action="Check the schema: a column is read as it is, and the query may cast it",
            )
    return tuple(field.name for field in schema.fields)


def names_in(text: str) -> list[str]:
    """Return the names of a comma-separated list."""
    parts = (part.strip() for part in text.split(","))
    return [name for name in parts if name]


def _brokers_or_zookeeper(
    options: Mapping[str, str],
) -> tuple[tuple[tuple[str, int], ...], str | None]:
    """Return the bootstrap servers, or the connection string of the brokers' ZooKeeper.

    Raises SettingsError.
    """
    if "zookeeper" not in options:
        return _bootstrap(options.get("kafka.bootstrap.servers", "")), None
    if "kafka.bootstrap.servers" in options:
        raise SettingsError(
            "kafka.bootstrap.servers and zookeeper both say where the brokers are",
            option="zookeeper",
            action="Leave one of the two out",
        )
    connect = options["zookeeper"].strip()
    try:
        split_connect(connect)
    except ValueError as error:
        message = f"The connection string is wrong: {error}"
        raise SettingsError(
            message, option="zookeeper", action="Write it in the form host:port,host:port/chroot"
        ) from error
    return (), connect


def _bootstrap(text: str) -> tuple[tuple[str, int], ...]:
    form = "Write it in the form host:port,host:port"
    try:
        addresses = [split_address(address) for address in names_in(text)]
    except ValueError as error:
        raise SettingsError(
            f"A broker's address is wrong: {error}", option="kafka.bootstrap.servers", action=form
        ) from error
    if not addresses:
        action = f"{form}, with one or more brokers; or pass zookeeper, where they are registered"
        raise SettingsError("No broker is named", option="kafka.bootstrap.servers", action=action)
    return tuple(addresses)


def _isolation(options: Mapping[str, str], physical: bool) -> Isolation:
    if physical:
        return Isolation.READ_UNCOMMITTED
    levels = tuple(member.value for member in Isolation)
    return Isolation(_one_of(options, "kafka.isolation.level", levels))


def _one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """Return the option's value, by default the first allowed one."""
    value = options.get(name, allowed[0])
    if value.lower() not in allowed:
        raise SettingsError(
            f"{value!r} is no value of {SPELLED[name]}",
            option=SPELLED[name],
            action=f"Use {' or '.join(allowed)}",
        )
    return value.lower()


def _positive(options: Mapping[str, str], name: str, default: int, unit: str) -> int:
    """Return a number above 0. Raises SettingsError."""
    value = options.get(name, str(default))
    greatest = _MAX_VALUES.get(name, _MAX_NUMBER)
    is_number = value.isascii() and value.isdecimal() and len(value) <= 18
    if not is_number or not 0 < int(value) <= greatest:
        raise SettingsError(
            f"{value!r} is no number of {unit}",
            option=SPELLED[name],
            action=f"Pass a whole number from 1 to {greatest}",
        )
    return int(value)


def _seconds(options: Mapping[str, str], name: str) -> float:
    value = options.get(name, str(choices.TIMEOUT_S))
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _MAX_TIMEOUT_S:  # also false for NaN
        action = f"Pass a number above 0, {_MAX_TIMEOUT_S:.0f} at most"
        raise SettingsError(f"{value!r} is no number of seconds", option=name, action=action)
    return seconds
