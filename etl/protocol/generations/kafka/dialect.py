"""Kafka 0.11 to 4.x as a generation: which request each question becomes on a broker that speaks these versions. No I/O.

It knows the versions that the broker told at the handshake. What the bytes are belongs to the modules beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from etl.model.logs import BrokerPartition, Isolation, OpenTransaction, Retention
from etl.protocol.generations.dialect import Dialect, Generation, Greeting, Reply, Request
from etl.protocol.generations.kafka import committed, configs, errors, groups, produce, small_messages, transactions, versions
from etl.protocol.generations.kafka.fetch import encode_fetch, parse_fetch
from etl.protocol.generations.kafka.versions import Api, ApiVersions
from etl.protocol.messages import (
    ClusterMetadata, CommittedOffsets, Fetch, FetchAnswer, ListedOffset, ToldCoordinator, ToldEpochEnds, ToldMembers,
)
from etl.protocol.refusal import Refusal

Answer = TypeVar("Answer")
HANDSHAKE_CORRELATION_ID = 0x0D0A0D0A
r"""Its bytes read \r\n\r\n: a server of a line protocol (HTTP) sees the end of a request in our first frame and
answers at once, where it would else wait for more as we wait for it."""


class Kafka(Generation):
    """Brokers that answer ApiVersions (KIP-35), which is every one from 0.10 on."""

    names = ("kafka",)
    is_told = False

    def greeting(self, client_id: str, address: str, name: str | None = None) -> Greeting:
        def dialect(answer: memoryview) -> Dialect:
            response = small_messages.decode(Api.API_VERSIONS, 0, answer, broker=address)
            return KafkaDialect(small_messages.parse_api_versions(response), client_id, address)

        frame = small_messages.encode(Api.API_VERSIONS, 0, correlation_id=HANDSHAKE_CORRELATION_ID, client_id=client_id, fields={})
        return Greeting("ApiVersions", frame, lambda answer: _number(answer) == HANDSHAKE_CORRELATION_ID, dialect)


class KafkaDialect(Dialect):
    """What one broker understands, by the versions that it told."""

    def __init__(self, spoken: ApiVersions, client_id: str, address: str) -> None:
        self._spoken, self._client_id, self._address = spoken, client_id, address

    def introduction(self) -> str:
        fetch = versions.choose_version(Api.FETCH, self._spoken, broker=self._address)
        return f"Kafka {versions.release(self._spoken)} by what it speaks, Fetch v{fetch}"

    def number_of(self, start: memoryview) -> int | None:
        return _number(start)

    def metadata(self, topics: Collection[str] | None) -> Request[ClusterMetadata]:
        return self._request(Api.METADATA, small_messages.metadata_fields(topics), small_messages.parse_metadata)

    def list_offsets(self, times: Mapping[BrokerPartition, int], isolation: Isolation,
                     epochs: Mapping[BrokerPartition, int | None]) -> Request[dict[BrokerPartition, ListedOffset]]:
        fields = small_messages.list_offsets_fields(times, isolation, epochs)
        return self._request(Api.LIST_OFFSETS, fields, small_messages.parse_list_offsets)

    def fetch(self, fetch: Fetch) -> Request[FetchAnswer]:
        version = versions.choose_version(Api.FETCH, self._spoken, broker=self._address)

        def frame(number: int) -> bytes:
            return encode_fetch(version, fetch.wanted, correlation_id=number, client_id=self._client_id, max_wait_ms=fetch.max_wait_ms,
                                min_bytes=fetch.min_bytes, max_bytes=fetch.max_bytes, isolation=fetch.isolation)

        def read(answer: memoryview) -> Reply[FetchAnswer]:
            found = parse_fetch(version, answer[4:], broker=self._address)
            return Reply(found, found.throttle_ms)

        return Request(frame, read)

    @property
    def tells_epoch_ends(self) -> bool:
        return versions.is_spoken(Api.OFFSET_FOR_LEADER_EPOCH, self._spoken)

    def epoch_ends(self, epochs: Mapping[BrokerPartition, int], current: Mapping[BrokerPartition, int | None]) -> Request[ToldEpochEnds]:
        fields = small_messages.epoch_ends_fields(epochs, current)
        return self._request(Api.OFFSET_FOR_LEADER_EPOCH, fields, small_messages.parse_epoch_ends)

    def log_sizes(self, logs: Collection[BrokerPartition]) -> Request[dict[BrokerPartition, int]]:
        return self._request(Api.DESCRIBE_LOG_DIRS, small_messages.log_dirs_fields(logs), small_messages.parse_log_dirs)

    def retention(self, topics: Collection[str]) -> Request[dict[str, Retention]]:
        return self._request(Api.DESCRIBE_CONFIGS, configs.configs_fields(topics), configs.parse_retention)

    def open_transactions(self, logs: Collection[BrokerPartition]) -> Request[dict[BrokerPartition, OpenTransaction]]:
        return self._request(Api.DESCRIBE_PRODUCERS, transactions.producers_fields(logs), transactions.parse_open_transactions)

    def transactional_ids(self, producer_ids: Collection[int]) -> Request[list[str]]:
        fields = transactions.list_transactions_fields(producer_ids)
        return self._request(Api.LIST_TRANSACTIONS, fields, transactions.parse_transactional_ids)

    def transactions(self, transactional_ids: Collection[str]) -> Request[dict[int, tuple[str, int | None]]]:
        fields = transactions.describe_transactions_fields(transactional_ids)
        return self._request(Api.DESCRIBE_TRANSACTIONS, fields, transactions.parse_transactions)

    def coordinator(self, group: str) -> Request[ToldCoordinator]:
        return self._request(Api.FIND_COORDINATOR, committed.coordinator_fields(group), committed.parse_coordinator)

    def members_of(self, group: str) -> Request[ToldMembers]:
        return self._request(Api.DESCRIBE_GROUPS, groups.groups_fields(group),
                             lambda response: groups.parse_group(response, broker=self._address, group=group))

    def commit_offsets(self, group: str, offsets: Mapping[BrokerPartition, int]) -> Request[dict[BrokerPartition, Refusal | None]]:
        return self._request(Api.OFFSET_COMMIT, committed.commit_fields(group, offsets), committed.parse_commit)

    def committed_offsets(self, group: str, logs: Collection[BrokerPartition]) -> Request[CommittedOffsets]:
        return self._request(Api.OFFSET_FETCH, committed.offset_fetch_fields(group, logs), committed.parse_offset_fetch)

    def append(self, log: BrokerPartition, records: bytes | Sequence[tuple[bytes | None, bytes | None]], *, timestamp_ms: int,
               timeout_ms: int) -> Request[int | Refusal | None]:
        batch = records if isinstance(records, bytes) else produce.encode_records(records, timestamp_ms=timestamp_ms)
        return self._request(Api.PRODUCE, produce.produce_fields(log, batch, timeout_ms),
                             lambda response: produce.parse_produce(response).get(log, errors.UNKNOWN_SERVER_ERROR))

    def _request(self, api: Api, fields: Mapping[str, Any], parse: Callable[[Any], Answer]) -> Request[Answer]:
        version = versions.choose_version(api, self._spoken, broker=self._address)

        def frame(number: int) -> bytes:
            return small_messages.encode(api, version, correlation_id=number, client_id=self._client_id, fields=fields)

        def read(answer: memoryview) -> Reply[Answer]:
            response = small_messages.decode(api, version, answer, broker=self._address)
            return Reply(parse(response), getattr(response, "throttle_time_ms", 0) or 0)

        return Request(frame, read)


def _number(answer: memoryview) -> int:
    return int.from_bytes(answer[:4], "big", signed=True)
