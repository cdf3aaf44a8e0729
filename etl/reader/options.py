"""Which options does the data source have?

Text to values, no I/O: our options and those of Spark's Kafka source, compared without regard to
case; JSON of partitions, ranges and bounds; encryption and login, as references.

A partition is `"clicks": 0`, on Jafka `"clicks": "1-0"` (partition 0 of broker 1).

Not here: what options mean for the partitions that exist (etl/reader/reading.py).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from etl.decide.partition_identity import accept_command
from etl.errors import (
    DataLoss,
    EtlError,
    MessageTooLarge,
    PartitionTruncated,
    RanOutBeforeUntil,
    RecordTooLarge,
    SettingsError,
    TopicRecreated,
)
from etl.ledger.topic_filters import NotTranslated, java_pattern
from etl.model.columns import raw_columns, types_of
from etl.model.partitions import BrokerFamily, BrokerPartition, Isolation, parse_partition_key
from etl.model.plans import OffsetRange
from etl.model.security import OPEN, OPEN_ZOOKEEPER, Access, Security
from etl.reader.reading import Bound, Bounds, Chosen, FirstAt, LogEnd, Reading
from etl.settings import choices
from etl.settings.choices import split_address, split_connect

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


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
    _reject_overlaps(ranges)
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


def _reject_overlaps(ranges: Iterable[OffsetRange]) -> None:
    """Reject overlapping ranges: it is unknown which is meant."""
    reaching: dict[BrokerPartition, OffsetRange] = {}
    for r in sorted((r for r in ranges if r.size), key=lambda r: (r.log, r.from_offset)):
        before = reaching.setdefault(r.log, r)
        if before is not r and r.from_offset < before.until_offset:
            message = f"The ranges {before.from_offset} to {before.until_offset} and {r.from_offset} to {r.until_offset} overlap"
            action = "Check the list: rows of offsets that two ranges name would be double"
            raise SettingsError(message, option="ranges", **r.log.place, action=action)
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


def _below(bound: int, value: Any) -> int:
    """A number as Kafka's protocol can carry it. Raises ValueError."""
    number = int(value)
    if isinstance(value, (bool, float)) or not 0 <= number < bound:
        raise ValueError(f"{value!r} is no whole number from 0 to {bound - 1}")
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


def parse_number(value: object, name: str) -> int:
    """An offset, or the two ends of a log; a time for an option that takes one. Raises
    SettingsError.
    """
    least = _EARLIEST if name.endswith("Offsets") else 0
    text = str(value).strip()
    if not re.fullmatch(r"-?\d{1,19}", text, re.ASCII) or not least <= int(text) <= _GREATEST:
        kind = "offset" if least else "time in milliseconds since 1970"
        raise SettingsError(
            f"{text[:30]!r} is no {kind}",
            option=name,
            action=f"Write it in the form {_OFFSETS_FORM if least else _TIMES_FORM}",
        )
    return int(text)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises ValueError for a duplicate name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(
            f"{next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))!r} is named twice"
        )
    return found


def _from_json(text: str, option: str, form: str, build: Callable[[Any], T]) -> T:
    """Parse a JSON option by `build`. Raises SettingsError with the expected form."""
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
            action=f"Write it in the form {form}",
        ) from error


SIZES: Mapping[str, int] = {
    "fetch_max_bytes": choices.FETCH_MAX_BYTES,
    "max_batch_bytes": choices.MAX_BATCH_BYTES,
    "max_record_bytes": choices.MAX_RECORD_BYTES,
    "target_task_bytes": choices.TARGET_TASK_BYTES,
}
"""Options that are a number of bytes, and their defaults."""

SECURITY: Mapping[str, tuple[str, ...]] = {
    "listener": ("listener",),
    "security_protocol": ("protocol",),
    **{
        f"tls_{name}": ("tls", name)
        for name in ("ca_file", "cert_file", "key_file", "key_password")
    },
    **{
        f"sasl_{name}": ("sasl", name)
        for name in ("mechanism", "username", "password", "token", "service")
    },
}
"""Options of encryption and login, and which key of `source.security` each is."""
ZOOKEEPER_SECURITY: Mapping[str, tuple[str, ...]] = {
    "zookeeper_tls": ("tls", "enabled"),
    **{
        f"zookeeper_tls_{name}": ("tls", name)
        for name in ("ca_file", "cert_file", "key_file", "key_password")
    },
    **{f"zookeeper_auth_{name}": ("auth", name) for name in ("scheme", "username", "password")},
}
"""The same for ZooKeeper's keys; `zookeeper_tls` is true or false."""

PHYSICAL_REFUSED = {
    "bootstrap": "such a broker tells neither its id nor its topics; give zookeeper, where the brokers are registered",
    "broker_version": "these brokers have one way of being spoken to",
    "isolation": "there are no transactions",
    "assume_compacted": "there is no compaction",
    "startingtimestamp": "messages have no timestamps",
    "startingoffsetsbytimestamp": "messages have no timestamps",
    "endingtimestamp": "messages have no timestamps",
    "endingoffsetsbytimestamp": "messages have no timestamps",
    "maxrecordsperpartition": "no records can be counted from byte positions",
    **{
        name: "these brokers know neither encryption nor logins, and have one listener"
        for name in SECURITY
    },
    "minpartitions": "a log can be cut only where its segments begin, however many tasks are asked for",
}
"""Options without meaning for byte offsets (Jafka, Kafka 0.7), and why."""

SAME_AS = {
    "kafka.bootstrap.servers": "bootstrap",
    "subscribe": "topics",
    "kafka.isolation.level": "isolation",
    "kafka.security.protocol": "security_protocol",
    "kafka.sasl.mechanism": "sasl_mechanism",
    "kafka.sasl.kerberos.service.name": "sasl_service",
}
"""Spark's name -> ours, where both mean the same."""
OURS = (
    "dialect",
    "bootstrap",
    "zookeeper",
    "broker_version",
    "topics",
    "ranges",
    "isolation",
    "assume_compacted",
    "columns",
    *SIZES,
    "timeout_s",
    *SECURITY,
    *ZOOKEEPER_SECURITY,
)
OF_SPARK = (
    *SAME_AS,
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
"""Options of Spark's source that tune its Java consumer, or streams: taken, because they change no
row of a batch query there either.
"""
SPELLED = {name.lower(): name for name in (*OURS, *OF_SPARK)}
"""In small letters -> as it is written."""
_INSTEAD = (
    (
        r"kafka\.sasl\.jaas\.config",
        "Set sasl_username and sasl_password, which is a reference: ${env:NAME} or ${file:/path}",
    ),
    (
        r"kafka\.sasl\.(login\..*|oauthbearer\..*|client\.callback.*)",
        "sasl_token: module:function, aws-msk:REGION or a reference",
    ),
    (r"kafka\.ssl\.truststore\..*", "Set tls_ca_file, in PEM"),
    (r"kafka\.ssl\.key.*", "tls_cert_file, tls_key_file and tls_key_password, in PEM"),
    (
        r"kafka\.(security|sasl|ssl)\..*",
        "what is set is left out: host names are checked, and Java's own tuning has no counterpart",
    ),
)
"""Security options of Java's consumer, and our option for each."""


def under_our_names(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options under our names, in lower case. Raises SettingsError for unknown and
    duplicate options.
    """
    options: dict[str, str] = {}
    for option, value in sorted(given.items()):
        name = option.lower()
        if name in (idle.lower() for idle in WITHOUT_EFFECT):
            continue
        if name not in SPELLED:
            raise _unknown(option)
        name = SAME_AS.get(name, name)
        if options.setdefault(name, value) != value:
            raise SettingsError(
                f"{option} and its other name say different things",
                option=option,
                action="Leave one of the two out",
            )
    return options


def _unknown(name: str) -> SettingsError:
    for form, instead in _INSTEAD:
        if re.fullmatch(form, name.lower()):
            return SettingsError(
                "This option of Java's consumer is said otherwise here", option=name, action=instead
            )
    return SettingsError(
        f"There is no option {name!r}",
        option=name,
        action=f"Use the options {', '.join((*OURS, *OF_SPARK))}",
    )


def for_a_pipeline(error: EtlError) -> EtlError:
    """Return the error with the settings and commands of a pipeline that help."""
    if isinstance(error, DataLoss):
        return _with(error, "and source.on_data_loss")
    if isinstance(error, MessageTooLarge):
        return _with(error, "raise source.max_batch_bytes")
    if isinstance(error, RecordTooLarge):
        return _with(error, "or `etl plans supersede --help`")
    if isinstance(error, TopicRecreated):
        return _with(
            error,
            f"the next run says so too, then go on with the new one: {accept_command([error.where['topic']])}",
        )
    return error


def for_options(error: EtlError) -> EtlError:
    """Return the error with the data source options that help."""
    if _is_of_the_way_in(error):
        return in_options(error)
    if isinstance(error, PartitionTruncated):
        action = "Check whether an unclean leader was elected, or a broker lost its disk; a DataFrame that is made anew goes by the log of now"
        return type(error)(error.message, action=action, **error.where)
    if isinstance(error, DataLoss | RanOutBeforeUntil) and "failOnDataLoss" not in error.action:
        return _with(error, "Set failOnDataLoss: false to read what the partition has")
    if isinstance(error, MessageTooLarge):
        return _with(error, "Raise the option max_batch_bytes")
    if isinstance(error, RecordTooLarge):
        return _with(error, "Select what is read with startingOffsets and endingOffsets, or ranges")
    if isinstance(error, TopicRecreated):
        return _with(error, "A new DataFrame reads the new topic")
    return error


_SECTIONS = {
    "source.security.sasl": "sasl_*",
    "source.security.tls": "tls_*",
    "source.security": "security_protocol",
    "zookeeper.auth": "zookeeper_auth_*",
    "zookeeper.connect": "zookeeper",
}


_KEYS = (
    "source.security",
    "source.listener",
    "zookeeper.tls",
    "zookeeper.auth",
    "zookeeper.connect",
)


def in_options(error: EtlError) -> EtlError:
    """Return the error with option names instead of a conf's security keys."""
    if not _is_of_the_way_in(error):
        return error
    words = {
        **{f"source.security.{'.'.join(key)}": option for option, key in SECURITY.items()},
        "source.listener": "listener",
        **{f"zookeeper.{'.'.join(key)}": option for option, key in ZOOKEEPER_SECURITY.items()},
    }

    def said(text: str) -> str:
        for key in sorted(words, key=len, reverse=True):
            text = text.replace(key, words[key])
        for key, options in _SECTIONS.items():
            text = text.replace(key, options)
        return text

    place = {
        "option" if name == "key" else name: said(value) if isinstance(value, str) else value
        for name, value in error.where.items()
    }
    return type(error)(said(error.message), action=said(error.action), **place)


def _is_of_the_way_in(error: EtlError) -> bool:
    return any(key in f"{error.where.get('key', '')} {error.action}" for key in _KEYS)


def _with(error: EtlError, advice: str) -> EtlError:
    return type(error)(
        error.message, action=f"{error.action}. {advice}" if error.action else advice, **error.where
    )


def security_said(options: Mapping[str, str]) -> Security:
    """Encryption and login, by the keys of a conf. Raises SettingsError that names the option."""
    keys = _said(options, SECURITY)
    if not keys:
        return OPEN
    if "listener" in keys and "zookeeper" not in options:
        raise SettingsError(
            "Listener chooses among the addresses that brokers register in ZooKeeper",
            option="listener",
            action="Leave the option out, or give zookeeper in the place of bootstrap",
        )
    if "protocol" in keys:
        keys["protocol"] = keys["protocol"].strip().upper()
    from etl.settings.load import security_of

    try:
        return security_of(keys)
    except SettingsError as error:
        raise in_options(error) from None


def zookeeper_access_said(options: Mapping[str, str]) -> Access:
    """Return the same for ZooKeeper. Raises SettingsError with the option."""
    named = next((name for name in ZOOKEEPER_SECURITY if name in options), None)
    if named is None:
        return OPEN_ZOOKEEPER
    if "zookeeper" not in options:
        raise SettingsError(
            f"{named} says how ZooKeeper is entered, and none is given",
            option=named,
            action="Leave the option out, or give zookeeper in the place of bootstrap",
        )
    keys = _said(options, ZOOKEEPER_SECURITY)
    if "zookeeper_tls" in options:
        keys["tls"]["enabled"] = {"true": True, "false": False}.get(
            options["zookeeper_tls"].strip().lower(), options["zookeeper_tls"]
        )
    from etl.settings.load import access_of

    try:
        return access_of(keys)
    except SettingsError as error:
        raise in_options(error) from None


def _said(options: Mapping[str, str], keys: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    found_keys: dict[str, Any] = {}
    for name, (*section, key) in keys.items():
        if name in options:
            (found_keys.setdefault(section[0], {}) if section else found_keys)[key] = options[name]
    return found_keys


_MOST: Mapping[str, int] = {
    "fetch_max_bytes": choices.FETCH_MAX_BYTES_MOST,
    "max_batch_bytes": choices.MAX_BATCH_BYTES_MOST,
    "max_record_bytes": choices.MAX_RECORD_BYTES_MOST,
}
_MOST_OF_ANYTHING = 2**62
_LONGEST_TIMEOUT_S = 86_400.0
_AS_SPARK_SAYS = {"timestamp_ltz": "timestamp"}
_COLLATION = re.compile(r" collate \w+")
"""Collation of the session, which changes nothing that is read."""
_WHAT = ("topics", "subscribepattern", "assign", "ranges")
"""Exactly one of these selects what is read."""


def parse_options(given: Mapping[str, str]) -> Reading:
    """The options as values. Raises SettingsError naming the option."""
    options = under_our_names(given)
    _reject_other_than_one(options)
    physical = (
        _one_of(options, "dialect", tuple(member.value for member in BrokerFamily))
        == BrokerFamily.JAFKA.value
    )
    if physical:
        _reject_unfit(options)
    sizes = {name: _positive(options, name, default, "bytes") for name, default in SIZES.items()}
    starting = _bounds(options, "starting", LogEnd.EARLIEST, physical)
    ending = _bounds(options, "ending", LogEnd.LATEST, physical)
    bootstrap, zookeeper = _where(options)
    most = (
        _positive(options, "maxrecordsperpartition", 0, "records")
        if "maxrecordsperpartition" in options
        else None
    )
    return Reading(
        bootstrap,
        _isolation(options, physical),
        _columns(options, physical),
        **sizes,
        timeout_s=_seconds(options, "timeout_s"),
        zookeeper=zookeeper,
        physical=physical,
        chosen=_chosen(options, physical),
        ranges=parse_ranges(options["ranges"], physical=physical) if "ranges" in options else None,
        starting=_refused(starting, LogEnd.LATEST),
        ending=_refused(ending, LogEnd.EARLIEST),
        late_start_is_latest=_one_of(
            options, "startingoffsetsbytimestampstrategy", ("error", "latest")
        )
        == "latest",
        compacted=frozenset(names_in(options.get("assume_compacted", ""))),
        fails_on_data_loss=_one_of(options, "failondataloss", ("true", "false")) == "true",
        least_tasks=_positive(options, "minpartitions", 1, "Spark partitions"),
        most_offsets=most,
        generation=_generation(options),
        security=security_said(options),
        access=zookeeper_access_said(options),
        transform=None,
    )


def _generation(options: Mapping[str, str]) -> str | None:
    if "broker_version" not in options:
        return None
    from etl.kafka.families import of_broker_version

    return of_broker_version(options["broker_version"], option="broker_version")


def _reject_unfit(options: Mapping[str, str]) -> None:
    """Raises SettingsError for an option that has no meaning where offsets are byte positions."""
    for name in options:
        if name in PHYSICAL_REFUSED:
            message = f"{SPELLED[name]} cannot be used with dialect {BrokerFamily.JAFKA.value}: {PHYSICAL_REFUSED[name]}"
            raise SettingsError(message, option=SPELLED[name], action="Leave the option out")


def _reject_other_than_one(options: Mapping[str, str]) -> None:
    if sum(name in options for name in _WHAT) != 1:
        message = "Exactly one of the options topics (or subscribe), subscribePattern, assign and ranges must say what to read"
        raise SettingsError(message, action="Check the options")
    bounded = next(
        (
            name
            for name in options
            if name.startswith(("startingoffsets", "startingtime", "endingo", "endingt"))
        ),
        None,
    )
    if "ranges" in options and bounded:
        message = f"Ranges says where to start and to stop, and so does {SPELLED[bounded]}"
        raise SettingsError(message, option=SPELLED[bounded], action="Leave one of the two out")


def _chosen(options: Mapping[str, str], physical: bool) -> Chosen:
    if "subscribepattern" in options:
        return Chosen(pattern=_pattern(options["subscribepattern"]))
    if "assign" in options:
        return Chosen(logs=parse_logs(options["assign"], physical=physical))
    topics = tuple(names_in(options.get("topics", "")))
    if "topics" in options and not topics:
        raise SettingsError(
            "No topic is named",
            option="topics",
            action="Check topics (or subscribe): names, separated by commas",
        )
    return Chosen(topics=topics)


def _pattern(text: str) -> str:
    """Raises SettingsError for a pattern that is none of Java's, or that this source does not
    translate.
    """
    pattern = text.strip()
    if not pattern:
        raise SettingsError(
            "An empty expression is found in the name of every topic",
            option="subscribePattern",
            action="Write .* for all",
        )
    try:
        java_pattern(pattern)
    except NotTranslated as error:
        message = f"The regular expression {pattern!r} is not supported: {error}"
        raise SettingsError(
            message,
            option="subscribePattern",
            action="Use a simpler expression, or topics by name (topics)",
        ) from error
    return pattern


def _bounds(options: Mapping[str, str], side: str, default: LogEnd, physical: bool) -> Bounds:
    """The bounds of one side; of several options Spark follows the first of these."""
    if f"{side}timestamp" in options:
        name = f"{side}Timestamp"
        return Bounds(FirstAt(parse_number(options[name.lower()], name)), option=name)
    if f"{side}offsetsbytimestamp" in options:
        name = f"{side}OffsetsByTimestamp"
        return Bounds(by_log=parse_times(options[name.lower()], name), option=name)
    name = f"{side}Offsets"
    value = options.get(name.lower(), default.value).strip()
    if value.lower() in tuple(LogEnd):
        return Bounds(LogEnd(value.lower()), option=name)
    return Bounds(by_log=parse_offsets(value, name, physical=physical), option=name)


def _refused(bounds: Bounds, end: LogEnd) -> Bounds:
    """A batch cannot start at the end, or stop at the start. Raises SettingsError, as Spark's
    source does.
    """
    if end in (bounds.everywhere, *bounds.by_log.values()):
        raise SettingsError(
            f"{bounds.option} cannot be {end.value}: nothing would be read",
            option=bounds.option,
            action="Check the option",
        )
    return bounds


def _columns(options: Mapping[str, str], physical: bool) -> tuple[str, ...]:
    columns = raw_columns(
        names_in(options["columns"]) if "columns" in options else None, physical=physical
    )
    if not columns:
        raise SettingsError(
            "No column is chosen",
            option="columns",
            action="Name at least one, or leave the option out",
        )
    without_headers = (
        "includeheaders" in options
        and _one_of(options, "includeheaders", ("true", "false")) == "false"
    )
    return tuple(name for name in columns if name != "headers" or not without_headers)


def columns_of_schema(schema: StructType, reading: Reading) -> tuple[str, ...]:
    """The columns that a query's author named by `.schema(...)`, in its order; by default it is the
    one of the chosen columns.

    Raises SettingsError for a column that is not among the chosen ones, or is of another kind.
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
        kind = _AS_SPARK_SAYS.get(types[field.name], types[field.name])
        if (_COLLATION.sub("", field.dataType.simpleString()), field.nullable) != (kind, True):
            written = f"{field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
            message = f"The schema says that {field.name} is {written}, it is {types[field.name]}"
            raise SettingsError(
                message,
                column=field.name,
                action="Check the schema: a column is read as it is, and the query may cast it",
            )
    return tuple(field.name for field in schema.fields)


def names_in(text: str) -> list[str]:
    """The names in a list with commas."""
    return [name for name in (part.strip() for part in text.split(",")) if name]


def _where(options: Mapping[str, str]) -> tuple[tuple[tuple[str, int], ...], str | None]:
    """Brokers to ask first, or the ZooKeeper that they are registered in. Raises SettingsError."""
    if "zookeeper" not in options:
        return _bootstrap(options.get("bootstrap", "")), None
    if "bootstrap" in options:
        raise SettingsError(
            "Bootstrap and zookeeper both say where the brokers are",
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
            f"A broker's address is wrong: {error}", option="bootstrap", action=form
        ) from error
    if not addresses:
        action = f"{form}, with one or more brokers; or pass zookeeper, where they are registered"
        raise SettingsError("No broker is named", option="bootstrap", action=action)
    return tuple(addresses)


def _isolation(options: Mapping[str, str], physical: bool) -> Isolation:
    if physical:
        return Isolation.READ_UNCOMMITTED
    return Isolation(_one_of(options, "isolation", tuple(member.value for member in Isolation)))


def _one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """Return the option's value, by default the first allowed one."""
    value = options.get(name, allowed[0])
    if value.lower() not in allowed:
        raise SettingsError(
            f"{value!r} is no value of {SPELLED[name]}",
            option=SPELLED[name],
            action=f"It is {' or '.join(allowed)}",
        )
    return value.lower()


def _positive(options: Mapping[str, str], name: str, default: int, unit: str) -> int:
    value, most = options.get(name, str(default)), _MOST.get(name, _MOST_OF_ANYTHING)
    if not (value.isascii() and value.isdecimal()) or len(value) > 18 or not 0 < int(value) <= most:
        raise SettingsError(
            f"{value!r} is no number of {unit}",
            option=SPELLED[name],
            action=f"Pass a whole number from 1 to {most}",
        )
    return int(value)


def _seconds(options: Mapping[str, str], name: str) -> float:
    value = options.get(name, str(choices.TIMEOUT_S))
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _LONGEST_TIMEOUT_S:  # neither is what is no number
        action = f"Pass a number above 0, {_LONGEST_TIMEOUT_S:.0f} at most"
        raise SettingsError(f"{value!r} is no number of seconds", option=name, action=action)
    return seconds
