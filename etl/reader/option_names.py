"""The names of the data source's options: ours, those of Spark's own Kafka source, and which of
those change no row.

Spark hands a source its options in small letters, so names are compared without regard to case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from etl.errors import SettingsError
from etl.settings import choices

SIZES: Mapping[str, int] = {
    "fetch_max_bytes": choices.FETCH_MAX_BYTES,
    "fetch_limit_bytes": choices.FETCH_LIMIT_BYTES,
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
"""The same of ZooKeeper, of keys of `zookeeper`; `zookeeper_tls` is true or false."""

PHYSICAL_REFUSED = {
    "bootstrap": "such a broker tells neither its id nor its topics; give zookeeper, where the brokers are registered",
    "broker_version": "these brokers have one way of being spoken to",
    "isolation": "there are no transactions",
    "compacted_topics": "there is no compaction",
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
"""What has no meaning where offsets are byte positions (Jafka, Kafka 0.7), and why."""

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
    "compacted_topics",
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
        "sasl_username and sasl_password, which is a reference: ${env:NAME} or ${file:/path}",
    ),
    (
        r"kafka\.sasl\.(login\..*|oauthbearer\..*|client\.callback.*)",
        "sasl_token: module:function, aws-msk:REGION or a reference",
    ),
    (r"kafka\.ssl\.truststore\..*", "tls_ca_file, in PEM"),
    (r"kafka\.ssl\.key.*", "tls_cert_file, tls_key_file and tls_key_password, in PEM"),
    (
        r"kafka\.(security|sasl|ssl)\..*",
        "what is set is left out: host names are checked, and Java's own tuning has no counterpart",
    ),
)
"""Options of Java's consumer that say something of security, and by which of ours that is said."""


def under_our_names(given: Mapping[str, str]) -> dict[str, str]:
    """The options under our names, in small letters. Raises SettingsError for an unknown one, and
    for one that is said twice.
    """
    options: dict[str, str] = {}
    for said, value in sorted(given.items()):
        name = said.lower()
        if name in (idle.lower() for idle in WITHOUT_EFFECT):
            continue
        if name not in SPELLED:
            raise _unknown(said)
        name = SAME_AS.get(name, name)
        if options.setdefault(name, value) != value:
            raise SettingsError(
                f"{said} and its other name say different things",
                option=said,
                check="leave one of the two out",
            )
    return options


def _unknown(said: str) -> SettingsError:
    for form, instead in _INSTEAD:
        if re.fullmatch(form, said.lower()):
            return SettingsError(
                "this option of Java's consumer is said otherwise here", option=said, check=instead
            )
    return SettingsError(
        f"there is no option {said!r}",
        option=said,
        check=f"the options are {', '.join((*OURS, *OF_SPARK))}",
    )
