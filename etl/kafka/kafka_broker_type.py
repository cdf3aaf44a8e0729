"""The requests of Kafka 0.8 to 4.x.

Lives here: the handshake, and for each operation the request, its version and its parser. Not here:
the bytes (kafka_python_messages.py, many_partition_messages.py, group_messages.py,
fetch_messages.py) and the tables of versions and errors (versions.py).

Versions are those that the broker reported in the handshake, else those of its release. Brokers
from 0.10 on answer ApiVersions (KIP-35). On that request, 0.8.2.2 closes the connection and 0.9.0.1
does not answer, though the 0.9 of some distributors closes it. All of them answer ListOffsets v0,
which without partitions is the smallest request that every broker before 4.0 accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

from etl.errors import BrokerRefusal, EtlError, OtherRelease, SettingsError
from etl.kafka import fetch_messages as produce
from etl.kafka import kafka_python_messages, many_partition_messages, versions
from etl.kafka.broker_type_interface import (
    BrokerProtocol,
    BrokerType,
    Greeting,
    GroupRequests,
    OlderBrokers,
    Reply,
    Request,
)
from etl.kafka.fetch_messages import (
    FIRST_WITH_A_LIMIT,
    FIRST_WITH_TOPIC_IDS,
    encode_fetch,
    limit_targets,
    names_all_by_id,
    parse_fetch,
)
from etl.kafka.kafka_group_requests import KafkaGroupRequests
from etl.kafka.request_values import (
    INSTEAD_OF_A_TIME,
    ClusterMetadata,
    EpochEndsResponse,
    Fetch,
    FetchAnswer,
    ListedOffset,
)
from etl.kafka.versions import Api, ApiVersions
from etl.model.partitions import (
    INTERNAL_TOPICS,
    Isolation,
    OpenTransaction,
    Retention,
    TopicPartition,
)

Answer = TypeVar("Answer")
HANDSHAKE_CORRELATION_ID = 0x0D0A0D0A
r"""Its bytes are \r\n\r\n, which end a request of a line protocol (HTTP).

A server of such a protocol answers the first frame at once. It would else wait for more bytes while
this client waits for a response.
"""
_OLDER_CORRELATION_ID = 0x0A0D0A0D
HANDSHAKE_PATIENCE_S = 1.0
"""How long to wait for a response to ApiVersions before an older release is tested for.

A wrong value costs only time.
"""
_DETECTED = "kafka"
"""The name of brokers that reported their versions."""
_FIRST_WITH_LARGEST_TIMES = 7
"""The version of ListOffsets with MAX_TIMESTAMP (KIP-734).

A broker before Kafka 3.0 takes that for a time before all others.
"""


def _releases_without_isolation() -> tuple[str, ...]:
    names = []
    for release, api_versions in versions.releases().items():
        if not versions.has_isolation(api_versions):
            names.append(f"{_DETECTED}-{release}")
    return tuple(names)


class Kafka(BrokerType):
    """Brokers of Kafka 0.8 and later.

    The name `kafka` is of brokers that reported their versions. `kafka-0.9` and the like are
    releases, configured or detected.
    """

    names = (_DETECTED, *(f"{_DETECTED}-{release}" for release in versions.releases()))
    releases = names[1:]
    without_isolation = _releases_without_isolation()
    is_told = False

    @staticmethod
    def name_of(release: str) -> str:
        """Return the broker type name of a release of `versions.releases`."""
        return f"{_DETECTED}-{release}"

    def greeting(self, client_id: str, address: str, name: str | None = None) -> Greeting:
        if name not in (None, _DETECTED):
            release = name.removeprefix(f"{_DETECTED}-")
            return _handshake_of_release(release, client_id, address)

        def parse_versions(answer: memoryview) -> BrokerProtocol:
            response = kafka_python_messages.decode(Api.API_VERSIONS, 0, answer, broker=address)
            return KafkaProtocol(
                kafka_python_messages.parse_api_versions(response), client_id, address
            )

        frame = kafka_python_messages.encode(
            Api.API_VERSIONS,
            0,
            correlation_id=HANDSHAKE_CORRELATION_ID,
            client_id=client_id,
            fields={},
        )
        older = None
        if name is None:
            older = _older_brokers(client_id, address)
        return Greeting(
            "ApiVersions",
            frame,
            lambda answer: _number(answer) == HANDSHAKE_CORRELATION_ID,
            parse_versions,
            older=older,
        )


def _older_brokers(client_id: str, address: str) -> OlderBrokers:
    """Return how to recognise brokers that have no ApiVersions.

    A broker must not be taken for an older one than it is: it would return records in an older
    format, without headers and timestamps, and no error. A newer broker that closes the connection
    may only be starting, and one that does not answer may only be overloaded.
    """
    of_0_8 = partial(KafkaProtocol.of_release, "0.8", client_id, address)
    of_0_9 = partial(KafkaProtocol.of_release, "0.9", client_id, address)
    oldest = _empty_list_offsets(0, client_id)
    return OlderBrokers(
        oldest,
        lambda answer: _number(answer) == _OLDER_CORRELATION_ID,
        HANDSHAKE_PATIENCE_S,
        unanswering=of_0_9,
        hanging_up=((_empty_describe_groups(client_id), of_0_9), (oldest, of_0_8)),
    )


def _handshake_of_release(release: str, client_id: str, address: str) -> Greeting:
    """Return a handshake without versions, which only proves that the port speaks Kafka."""
    protocol = KafkaProtocol.of_release(release, client_id, address)
    frame = _empty_list_offsets(protocol.version_of(Api.LIST_OFFSETS), client_id)
    return Greeting(
        "ListOffsets",
        frame,
        lambda answer: _number(answer) == _OLDER_CORRELATION_ID,
        lambda answer: protocol,
        check_if_truncated=(
            f"Check that the broker supports Kafka {release}, the release that broker_version "
            "names or that the broker had when the run began, "
            "and whether the port is a TLS listener or needs a login"
        ),
    )


@lru_cache(maxsize=16)  # the same for all brokers
def _empty_list_offsets(version: int, client_id: str) -> bytes:
    return kafka_python_messages.encode(
        Api.LIST_OFFSETS,
        version,
        correlation_id=_OLDER_CORRELATION_ID,
        client_id=client_id,
        fields=kafka_python_messages.list_offsets_fields({}, Isolation.READ_UNCOMMITTED, {}),
    )


@lru_cache(maxsize=16)
def _empty_describe_groups(client_id: str) -> bytes:
    """Return a request that brokers before 0.9 do not support."""
    return kafka_python_messages.encode(
        Api.DESCRIBE_GROUPS,
        0,
        correlation_id=_OLDER_CORRELATION_ID,
        client_id=client_id,
        fields={"groups": []},
    )


class KafkaProtocol(BrokerProtocol):
    """Requests to one broker, in the versions that it reported, else those of its release."""

    def __init__(
        self, api_versions: ApiVersions, client_id: str, address: str, broker_type: str = _DETECTED
    ) -> None:
        self.api_versions = api_versions
        self._client_id = client_id
        self.address = address
        self._broker_type = broker_type

    @classmethod
    def of_release(cls, release: str, client_id: str, address: str) -> KafkaProtocol:
        """Return the requests in the versions of a release of `versions.releases`."""
        return cls(versions.releases()[release], client_id, address, Kafka.name_of(release))

    def version_of(self, api: Api, *, least: int = 0, most: int | None = None) -> int:
        """Return the version of a request; see `versions.choose_version`."""
        return versions.choose_version(
            api, self.api_versions, least=least, most=most, broker=self.address
        )

    @property
    def broker_type(self) -> str | None:
        return self._broker_type

    def release_mismatch(
        self, reported: str, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> OtherRelease | None:
        configured = reported.removeprefix(f"{_DETECTED}-")
        configured_versions = versions.releases().get(configured, {})
        finding = (
            f"The broker is treated as Kafka {configured}, and answers like Kafka {self.release}"
        )
        action = (
            "Check that key, or the data source's option broker_version: "
            f"'{self.release}' fits this broker. "
            "Without it, brokers are asked for their API versions. "
            "If it is not set, the broker had another release when the run began: run again"
        )
        place = {"key": "source.broker_version", "broker": self.address}

        missing = versions.unsupported_requests(configured_versions, self.api_versions)
        if missing:
            return OtherRelease(f"{finding}, which has no {missing[0]}", action=action, **place)

        # In a version from before transactions a broker returns uncommitted records, and no error.
        returns_uncommitted = versions.has_isolation(
            self.api_versions
        ) and not versions.has_isolation(configured_versions)
        if isolation is Isolation.READ_COMMITTED and returns_uncommitted:
            return OtherRelease(
                f"{finding}: to requests of Kafka {configured} it also returns records of "
                "transactions that were aborted or are still open",
                action=(
                    f"{action}. To load such records, set source.isolation_level: read_uncommitted"
                ),
                **place,
            )
        return None

    @property
    def release(self) -> str:
        """The release of the broker: the configured one, else by its API versions."""
        if self._broker_type == _DETECTED:
            return versions.release(self.api_versions)
        return self._broker_type.removeprefix(f"{_DETECTED}-")

    def introduction(self) -> str:
        fetch = self.version_of(Api.FETCH)
        if self._broker_type == _DETECTED:
            return f"Kafka {self.release} by its API versions, Fetch v{fetch}"
        return f"Kafka, treated as {self.release}, Fetch v{fetch}"

    @property
    def groups(self) -> GroupRequests:
        return KafkaGroupRequests(self)

    def number_of(self, start: memoryview) -> int | None:
        return _number(start)

    def metadata(self, topics: Collection[str] | None) -> Request[ClusterMetadata]:
        # Before version 4 (Kafka 0.11) a broker may create a topic that a request names, so the
        # request is for all topics. Internal topics are created in any version, whatever the
        # request says about creating topics (seen on 1.1).
        version = self.version_of(Api.METADATA)
        is_internal = not INTERNAL_TOPICS.isdisjoint(topics or ())
        if version >= kafka_python_messages.METADATA_CREATES_NOTHING and not is_internal:
            fields = kafka_python_messages.metadata_fields(topics)
            chosen = None
        else:
            fields = kafka_python_messages.metadata_fields(None)
            chosen = topics

        if version < many_partition_messages.FIRST_CLUSTER:
            return self.request(
                Api.METADATA,
                fields,
                lambda response: kafka_python_messages.parse_metadata(response, chosen),
            )
        return self._request_by_partition(
            version,
            partial(kafka_python_messages.encode, Api.METADATA, fields=fields),
            partial(many_partition_messages.parse_cluster, chosen=chosen),
        )

    def list_offsets(
        self,
        times: Mapping[TopicPartition, int],
        isolation: Isolation,
        epochs: Mapping[TopicPartition, int | None],
    ) -> Request[dict[TopicPartition, ListedOffset]]:
        version = self.version_of(Api.LIST_OFFSETS)
        if version == 0 and any(when >= 0 for when in times.values()):
            raise SettingsError(
                "Brokers before 0.10.1 cannot find the record of a time: "
                "they only know when whole segments were written",
                action=(
                    f"{INSTEAD_OF_A_TIME}. For a run, pass --run-key without --until: "
                    "set source.broker_version, and Airflow's DAGs do so"
                ),
                broker=self.address,
            )
        if version < many_partition_messages.FIRST_LISTED:
            fields = kafka_python_messages.list_offsets_fields(times, isolation, epochs)
            return self.request(Api.LIST_OFFSETS, fields, kafka_python_messages.parse_list_offsets)
        is_stable = isolation is Isolation.READ_COMMITTED and version >= 2
        return self._request_by_partition(
            version,
            partial(
                many_partition_messages.encode_list_offsets,
                times=times,
                isolation=isolation,
                epochs=epochs,
            ),
            partial(
                many_partition_messages.parse_offsets, requested=times, is_last_stable=is_stable
            ),
        )

    @property
    def has_max_timestamps(self) -> bool:
        return versions.newest_of(Api.LIST_OFFSETS, self.api_versions) >= _FIRST_WITH_LARGEST_TIMES

    def max_timestamps(
        self,
        partitions: Collection[TopicPartition],
        epochs: Mapping[TopicPartition, int | None],
    ) -> Request[dict[TopicPartition, ListedOffset]]:
        times = dict.fromkeys(partitions, kafka_python_messages.MAX_TIMESTAMP)
        return self._request_by_partition(
            self.version_of(Api.LIST_OFFSETS, least=_FIRST_WITH_LARGEST_TIMES),
            partial(
                many_partition_messages.encode_list_offsets,
                times=times,
                isolation=Isolation.READ_UNCOMMITTED,
                epochs=epochs,
            ),
            partial(many_partition_messages.parse_offsets, requested=times),
        )

    def segment_start_before(
        self, partition: TopicPartition, time_ms: int
    ) -> Request[tuple[int, ...] | BrokerRefusal]:
        # Version 0, which brokers before 4.0 support, finds segments only.
        fields = kafka_python_messages.list_offsets_fields(
            {partition: time_ms}, Isolation.READ_UNCOMMITTED, {}
        )
        return self.request(
            Api.LIST_OFFSETS,
            fields,
            lambda response: kafka_python_messages.parse_offsets_before(response, 1),
            most=0,
        )

    def offsets_before(
        self, partition: TopicPartition, time_ms: int, most: int
    ) -> Request[tuple[int, ...] | BrokerRefusal]:
        # All versions answer this; version 0 finds the segments of a time, later ones a record.
        fields = kafka_python_messages.list_offsets_fields(
            {partition: time_ms}, Isolation.READ_UNCOMMITTED, {}, most
        )
        return self.request(
            Api.LIST_OFFSETS,
            fields,
            lambda response: kafka_python_messages.parse_offsets_before(response, most),
        )

    def fetch(self, fetch: Fetch) -> Request[FetchAnswer]:
        if names_all_by_id(fetch.wanted):
            version = self.version_of(Api.FETCH)
        else:
            version = self.version_of(Api.FETCH, most=FIRST_WITH_TOPIC_IDS - 1)

        wanted = fetch.wanted
        if version < FIRST_WITH_A_LIMIT:
            wanted = limit_targets(fetch.wanted, fetch.max_bytes)

        def frame(number: int) -> bytes:
            return encode_fetch(
                version,
                wanted,
                correlation_id=number,
                client_id=self._client_id,
                max_wait_ms=fetch.max_wait_ms,
                min_bytes=fetch.min_bytes,
                max_bytes=fetch.max_bytes,
                isolation=fetch.isolation,
            )

        def read(answer: memoryview) -> Reply[FetchAnswer]:
            fetched = parse_fetch(version, answer[4:], wanted, broker=self.address)
            return Reply(fetched, fetched.throttle_ms)

        def read_arrived(arrived: memoryview, cut: EtlError) -> Reply[FetchAnswer]:
            fetched = parse_fetch(version, arrived[4:], wanted, cut=cut, broker=self.address)
            return Reply(fetched, fetched.throttle_ms)

        return Request(frame, read, read_arrived=read_arrived)

    @property
    def has_describe_configs(self) -> bool:
        return Api.DESCRIBE_CONFIGS.key in self.api_versions

    @property
    def has_leader_epochs(self) -> bool:
        return versions.is_supported(Api.OFFSET_FOR_LEADER_EPOCH, self.api_versions)

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], current: Mapping[TopicPartition, int | None]
    ) -> Request[EpochEndsResponse]:
        return self._request_by_partition(
            self.version_of(Api.OFFSET_FOR_LEADER_EPOCH),
            partial(many_partition_messages.encode_epoch_ends, epochs=epochs, current=current),
            partial(many_partition_messages.parse_epoch_ends, requested=epochs),
        )

    def log_sizes(
        self, partitions: Collection[TopicPartition]
    ) -> Request[dict[TopicPartition, int]]:
        version = self.version_of(Api.DESCRIBE_LOG_DIRS)
        return self._request_by_partition(
            version,
            partial(many_partition_messages.encode_log_dirs, partitions=partitions),
            partial(many_partition_messages.parse_log_dirs, requested=partitions),
        )

    def retention(self, topics: Collection[str]) -> Request[dict[str, Retention]]:
        return self.request(
            Api.DESCRIBE_CONFIGS,
            kafka_python_messages.configs_fields(topics),
            kafka_python_messages.parse_retention,
        )

    def open_transactions(
        self, partitions: Collection[TopicPartition]
    ) -> Request[dict[TopicPartition, OpenTransaction]]:
        return self.request(
            Api.DESCRIBE_PRODUCERS,
            kafka_python_messages.producers_fields(partitions),
            kafka_python_messages.parse_open_transactions,
        )

    def transactional_ids(self, producer_ids: Collection[int]) -> Request[list[str]]:
        fields = kafka_python_messages.list_transactions_fields(producer_ids)
        return self.request(
            Api.LIST_TRANSACTIONS, fields, kafka_python_messages.parse_transactional_ids
        )

    def transactions(
        self, transactional_ids: Collection[str]
    ) -> Request[dict[int, tuple[str, int | None]]]:
        fields = kafka_python_messages.describe_transactions_fields(transactional_ids)
        return self.request(
            Api.DESCRIBE_TRANSACTIONS, fields, kafka_python_messages.parse_transactions
        )

    def append(
        self,
        partition: TopicPartition,
        records: bytes | Sequence[tuple[bytes | None, bytes | None]],
        *,
        timestamp_ms: int,
        timeout_ms: int,
    ) -> Request[int | BrokerRefusal | None]:
        if isinstance(records, bytes):
            encoded = records
        else:
            magic = produce.magic_of(self.version_of(Api.PRODUCE))
            encoded = produce.encode_records(records, timestamp_ms=timestamp_ms, magic=magic)
        return self.request(
            Api.PRODUCE,
            produce.produce_fields(partition, encoded, timeout_ms),
            lambda response: produce.parse_produce(response).get(
                partition, versions.UNKNOWN_SERVER_ERROR
            ),
        )

    def _request_by_partition(
        self,
        version: int,
        encode: Callable[..., bytes],
        parse: Callable[..., many_partition_messages.ThrottledAnswer[Answer]],
    ) -> Request[Answer]:
        def frame(number: int) -> bytes:
            return encode(version, correlation_id=number, client_id=self._client_id)

        def read(answer: memoryview) -> Reply[Answer]:
            return Reply(*parse(version, answer, broker=self.address))

        return Request(frame, read)

    def request(
        self,
        api: Api,
        fields: Mapping[str, Any],
        parse: Callable[[Any], Answer],
        *,
        least: int = 0,
        most: int | None = None,
    ) -> Request[Answer]:
        """Return a request whose fields and response kafka-python encodes and decodes."""
        version = self.version_of(api, least=least, most=most)

        def frame(number: int) -> bytes:
            return kafka_python_messages.encode(
                api, version, correlation_id=number, client_id=self._client_id, fields=fields
            )

        def read(answer: memoryview) -> Reply[Answer]:
            response = kafka_python_messages.decode(api, version, answer, broker=self.address)
            return Reply(parse(response), getattr(response, "throttle_time_ms", 0) or 0)

        return Request(frame, read)


def _number(answer: memoryview) -> int:
    return int.from_bytes(answer[:4], "big", signed=True)
