"""`SimpleConsumer`: one blocking connection to one broker, one request at a time, one deadline per call.

It owns the agreement on versions, reconnecting once, and the two buffers that fetches are received into. What the
bytes are belongs to `protocol.generations.kafka`; asking several brokers to `cluster`; walking a range to `cursor` and
`fetch`. Nothing here retries on an error code: answers carry them, the short forms raise them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from etl.edges.brokers.connection import (
    HANDSHAKE_CORRELATION_ID, Connection, ConnectionBroken, Dropping, ImpossibleSize, absurd, hung_up, not_kafka, outsized, unanswered,
)
from etl.errors import BrokerUnreachable, CorruptData
from etl.model.logs import Broker, BrokerPartition, Isolation, OpenTransaction, Retention
from etl.protocol.generations.kafka import committed, configs, errors, groups, produce, small_messages, transactions, versions
from etl.protocol.generations.kafka.fetch import encode_fetch, in_wire_order, parse_fetch
from etl.protocol.generations.kafka.versions import Api, ApiVersions
from etl.protocol.messages import (
    EARLIEST, LATEST, ClusterMetadata, FetchAnswer, FetchedPartition, FetchTarget, ListedOffset, Refusal, ToldEpochEnds, ToldMembers,
)

MIB = 1 << 20
_MAX_CORRELATION_ID = 0x7FFFFFFF
_LOGS_NAMED = 5
_MAX_HANDSHAKE_BYTES = 64 << 10
"""A real answer to ApiVersions is below 1 KiB; what is not Kafka may claim anything."""


@dataclass(frozen=True, slots=True)
class _Fetch:
    """A fetch as it was asked for, so that it can be sent again on a new connection."""

    wanted: tuple[FetchTarget, ...]
    isolation: Isolation
    max_bytes: int
    max_wait_ms: int
    min_bytes: int

    @property
    def place(self) -> dict[str, object]:
        """What an error names that cannot know which of the logs it was."""
        first = self.wanted[0]
        if len(self.wanted) == 1:
            return {"topic": first.log.topic, "partition": first.log.partition, "offset": first.offset}
        named = ", ".join(f"{each.log.topic} {each.log.partition}" for each in self.wanted[:_LOGS_NAMED])
        return {"one_of": named + (f" and {len(self.wanted) - _LOGS_NAMED} more" if len(self.wanted) > _LOGS_NAMED else "")}


class SimpleConsumer:
    """Asks one broker, and nobody else.

    host, port            where the broker listens
    connect_timeout_s     how long a connect may take
    timeout_s             how long a call may take, the connect and the handshake included; a fetch may take
                          `max_wait_ms` longer, and so may what follows an answer that says it was throttled
    max_response_bytes    a larger answer is refused before a byte of memory is taken for it

    Connects with the first call. A connection that broke before any byte of an answer came is made anew once per
    call (brokers close idle connections); `send` is the exception, because it may have happened.

    Every call may raise BrokerUnreachable, NotKafka (the port answers in another protocol), SettingsError (the broker
    is older than Kafka 0.11) and CorruptData (what came is not the protocol), a fetch also MessageTooLarge (a record batch
    larger than `max_response_bytes`). Not for several threads at a time.
    """

    def __init__(self, host: str, port: int, *, client_id: str = "offset-range-etl", connect_timeout_s: float = 10.0,
                 timeout_s: float = 30.0, max_response_bytes: int = 320 * MIB) -> None:
        self.host = host
        self.port = port
        self._client_id = client_id
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._max_response_bytes = max_response_bytes
        self._connection: Connection | None = None
        self._spoken: ApiVersions = {}
        self._correlation_id = 0
        self._throttled_until = 0.0
        self._under_way: _Fetch | None = None
        self._sent: tuple[int, int] | None = None
        self._buffers = [bytearray(), bytearray()]
        self._turn = 0

    @property
    def address(self) -> str:
        """host:port, as errors name it."""
        return f"{self.host}:{self.port}"

    def close(self) -> None:
        """Hang up; the next call would connect again. A fetch under way is forgotten."""
        self._under_way = self._sent = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> SimpleConsumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # Records

    def fetch(self, topic: str, partition: int, offset: int, *, max_bytes: int = 16 * MIB,
              isolation: Isolation = Isolation.READ_COMMITTED, max_wait_ms: int = 500) -> FetchedPartition:
        """Records of one log from `offset` on; raises what the broker's error code means.

        `records` is valid until the second next fetch answer of this consumer is received.
        """
        wanted, deadline = [FetchTarget(BrokerPartition(topic, partition), offset, max_bytes)], self._deadline()
        while not (answer := self.multifetch(wanted, isolation=isolation, max_bytes=max_bytes, max_wait_ms=max_wait_ms)).partitions:
            if time.monotonic() > deadline:
                raise BrokerUnreachable("the broker throttles us and gives nothing", broker=self.address, check="the quota of our client")
        fetched = answer.partitions[0]
        if fetched.refusal:
            raise fetched.refusal.error("fetch", topic=topic, partition=partition, offset=offset, broker=self.address)
        return fetched

    def multifetch(self, wanted: Sequence[FetchTarget], *, isolation: Isolation = Isolation.READ_COMMITTED,
                   max_bytes: int = 16 * MIB, max_wait_ms: int = 500, min_bytes: int = 1) -> FetchAnswer:
        """Records of several logs in one request; each partition of the answer carries its own error code.

        An answer that says it was throttled may name no partition at all (KIP-219): then ask again.
        """
        self.begin_fetch(wanted, isolation=isolation, max_bytes=max_bytes, max_wait_ms=max_wait_ms, min_bytes=min_bytes)
        return self.end_fetch()

    def begin_fetch(self, wanted: Sequence[FetchTarget], *, isolation: Isolation = Isolation.READ_COMMITTED,
                    max_bytes: int = 16 * MIB, max_wait_ms: int = 500, min_bytes: int = 1) -> None:
        """Send a fetch and do not wait: the broker reads while the answer before is decoded. `end_fetch` must follow.

        max_bytes bounds the whole answer, each `FetchTarget.max_bytes` its part. The first log with records gets its
        first record batch whole even if that is larger (KIP-74).
        Raises ValueError when a log is named twice or another fetch is under way.
        """
        self._refuse_while_fetching()
        fetch = _Fetch(tuple(in_wire_order(wanted)), isolation, max_bytes, max_wait_ms, min_bytes)
        deadline = self._deadline()
        try:
            self._send_fetch(fetch, deadline)
        except ConnectionBroken:
            self._send_fetch_anew(fetch, deadline)
        self._under_way = fetch

    def end_fetch(self) -> FetchAnswer:
        """The answer to the fetch under way, its partitions in the order they were served.

        Two buffers take turns: the records of this answer are valid until the second next answer is received.
        Raises ValueError when no fetch is under way.
        """
        fetch, self._under_way = self._under_way, None
        if fetch is None:
            raise ValueError("no fetch is under way")
        deadline = self._deadline() + fetch.max_wait_ms / 1000
        try:
            body, version = self._receive_fetch(deadline, fetch)
        except ConnectionBroken as broken:
            if broken.answered:
                raise self._cut(broken) from None
            self._send_fetch_anew(fetch, deadline)
            try:
                body, version = self._receive_fetch(deadline, fetch)
            except ConnectionBroken as again:
                raise self._cut(again) from None
        answer = self._parsed(version, body, fetch)
        self._note_throttle(answer.throttle_ms)
        return self._checked(answer, fetch)

    def _send_fetch_anew(self, fetch: _Fetch, deadline: float) -> None:
        try:
            self._send_fetch(fetch, deadline)
        except ConnectionBroken as broken:
            raise self._cut(broken) from None

    def _send_fetch(self, fetch: _Fetch, deadline: float) -> None:
        connection = self._connected(deadline)
        version = versions.choose_version(Api.FETCH, self._spoken, broker=self.address)
        correlation_id = self._next_correlation_id()
        frame = encode_fetch(version, fetch.wanted, correlation_id=correlation_id, client_id=self._client_id,
                             max_wait_ms=fetch.max_wait_ms, min_bytes=fetch.min_bytes, max_bytes=fetch.max_bytes,
                             isolation=fetch.isolation)
        with self._dropping():
            connection.send(frame, deadline)
        self._sent = (correlation_id, version)

    def _receive_fetch(self, deadline: float, fetch: _Fetch) -> tuple[memoryview, int]:
        if self._connection is None or self._sent is None:
            raise ConnectionBroken("no connection any more", answered=False)
        correlation_id, version = self._sent
        try:
            return self._receive(self._connection, correlation_id, deadline, self._next_buffer)[4:], version
        except ImpossibleSize as size:
            raise outsized(self.address, size, correlation_id, self._max_response_bytes, fetch.place) from None

    def _next_buffer(self, size: int) -> memoryview:
        # A bytearray with views cannot grow, and the views of an earlier answer must stay what they are: a new one.
        self._turn ^= 1
        if len(self._buffers[self._turn]) < size:
            self._buffers[self._turn] = bytearray(min(size + size // 4, max(size, self._max_response_bytes)))
        return memoryview(self._buffers[self._turn])[:size]

    def _parsed(self, version: int, body: memoryview, fetch: _Fetch) -> FetchAnswer:
        try:
            return parse_fetch(version, body, broker=self.address)
        except CorruptData as corrupt:
            asked = {(each.log.topic, each.log.partition): each.offset for each in fetch.wanted}
            offset = asked.get((corrupt.where.get("topic", ""), corrupt.where.get("partition", -1)))
            raise CorruptData(corrupt.what, check=corrupt.check, **{**corrupt.where, "offset": offset}) from None

    def _checked(self, answer: FetchAnswer, fetch: _Fetch) -> FetchAnswer:
        if answer.refusal:
            raise answer.refusal.error("fetch", broker=self.address)
        if answer.throttle_ms > 0 and not answer.partitions:
            return answer
        asked = {(each.log.topic, each.log.partition) for each in fetch.wanted}
        got = [(each.topic, each.partition) for each in answer.partitions]
        if len(got) != len(asked) or set(got) != asked:
            raise CorruptData("the answer to a fetch names other partitions than were asked for", broker=self.address,
                              asked=sorted(asked), got=got)
        return answer

    # Offsets

    def list_offsets(self, times: Mapping[BrokerPartition, int], *, isolation: Isolation = Isolation.READ_COMMITTED,
                     epochs: Mapping[BrokerPartition, int | None] | None = None) -> dict[BrokerPartition, ListedOffset]:
        """One request for many logs: LATEST, EARLIEST, or the first record at or after milliseconds since 1970.

        Under read_committed LATEST is the last stable offset (KIP-98). Each answer carries its own error code.
        """
        listed = small_messages.parse_list_offsets(self._ask(Api.LIST_OFFSETS, small_messages.list_offsets_fields(
            times, isolation, epochs or {})))
        if set(listed) != set(times):
            raise CorruptData("the answer to ListOffsets names other partitions than were asked for", broker=self.address)
        return listed

    def offsets_before(self, topic: str, partition: int, time: int, max_offsets: int = 1) -> tuple[int, ...]:
        """Offsets for a time, newest first, at most `max_offsets`.

        Brokers of this dialect name one at most, and search by record timestamps: the first record at or after
        `time`; none where no record is that late. (The 0.7 family names segment starts *before* it.)
        """
        log = BrokerPartition(topic, partition)
        listed = self.list_offsets({log: time}, isolation=Isolation.READ_UNCOMMITTED)[log]
        if listed.refusal:
            raise listed.refusal.error("list offsets", topic=topic, partition=partition, broker=self.address)
        return () if listed.offset is None or max_offsets < 1 else (listed.offset,)

    def earliest_or_latest_offset(self, topic: str, partition: int, time: int) -> int:
        """The log start offset (`EARLIEST`) or the high watermark (`LATEST`). ValueError for another time."""
        if time not in (EARLIEST, LATEST):
            raise ValueError(f"{time} is neither EARLIEST ({EARLIEST}) nor LATEST ({LATEST})")
        found = self.offsets_before(topic, partition, time)
        if not found:
            raise CorruptData("the broker names no offset for a log's end", topic=topic, partition=partition, broker=self.address)
        return found[0]

    def epoch_ends(
        self, epochs: Mapping[BrokerPartition, int], current: Mapping[BrokerPartition, int | None],
    ) -> ToldEpochEnds:
        """Where the records up to a leader epoch end in each log (KIP-320); nothing for a broker before 2.1. One request for many logs."""
        api, fields = Api.OFFSET_FOR_LEADER_EPOCH, small_messages.epoch_ends_fields(epochs, current)
        return small_messages.parse_epoch_ends(self._ask(api, fields)) if versions.is_spoken(api, self.api_versions()) else {}

    # The cluster, as this broker knows it

    def api_versions(self) -> ApiVersions:
        """Which requests the broker speaks: api key -> lowest and highest version, as told at the handshake."""
        self._refuse_while_fetching()
        self._connected(self._deadline())
        return dict(self._spoken)

    def topic_metadata(self, topics: Collection[str] | None = None) -> ClusterMetadata:
        """Brokers, topics and leaders; None: of all topics. Never creates a topic."""
        return small_messages.parse_metadata(self._ask(Api.METADATA, small_messages.metadata_fields(topics)))

    def log_sizes(self, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, int]:
        """Bytes of the segments that this broker holds of each log (KIP-113); a log it does not hold is left out.

        Also left out is everything when we may not ask (it takes Describe on the cluster).
        """
        return small_messages.parse_log_dirs(self._ask(Api.DESCRIBE_LOG_DIRS, small_messages.log_dirs_fields(logs)))

    def retention(self, topics: Collection[str]) -> dict[str, Retention]:
        """How long the brokers keep each topic, and how they clean it up (KIP-133); one that we may not describe is left out.

        Raises SettingsError for a broker before 1.0.
        """
        return configs.parse_retention(self._ask(Api.DESCRIBE_CONFIGS, configs.configs_fields(topics)))

    def open_transactions(self, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, OpenTransaction]:
        """The open transaction that began first in each log that this broker leads (KIP-664). Raises SettingsError before 2.8."""
        return transactions.parse_open_transactions(self._ask(Api.DESCRIBE_PRODUCERS, transactions.producers_fields(logs)))

    def transactions_of(self, producer_ids: Collection[int]) -> dict[int, tuple[str, int | None]]:
        """Producer id -> transactional id and the start of its transaction, of those that this broker coordinates and we may see.

        Raises SettingsError before 3.0.
        """
        known = transactions.parse_transactional_ids(self._ask(Api.LIST_TRANSACTIONS, transactions.list_transactions_fields(
            producer_ids)))
        if not known:
            return {}
        return transactions.parse_transactions(self._ask(Api.DESCRIBE_TRANSACTIONS, transactions.describe_transactions_fields(known)))

    # A group's offsets that the brokers keep (the pipeline's own are in ZooKeeper)

    def find_coordinator(self, group: str) -> Broker:
        """The broker to ask for the offsets of `group`. Raises BrokerError while there is none yet."""
        found = committed.parse_coordinator(self._ask(Api.FIND_COORDINATOR, committed.coordinator_fields(group)))
        if found.refusal:
            raise found.refusal.error(f"name the coordinator of group {group}", broker=self.address)
        return found.broker

    def members_of(self, group: str) -> ToldMembers:
        """Who is in Kafka's group with the logs that each reads; only the group's coordinator knows."""
        return groups.parse_group(self._ask(Api.DESCRIBE_GROUPS, groups.groups_fields(group)), broker=self.address, group=group)

    def commit_offsets(self, group: str, offsets: Mapping[BrokerPartition, int]) -> None:
        """Store next offsets; this broker must be the group's coordinator. Raises for the first log refused."""
        refusals = committed.parse_commit(self._ask(Api.OFFSET_COMMIT, committed.commit_fields(group, offsets)))
        for log in sorted(offsets):
            if refusal := refusals.get(log):
                raise refusal.error(f"commit an offset of group {group}", topic=log.topic, partition=log.partition,
                                    offset=offsets[log], broker=self.address)

    def fetch_offsets(self, group: str, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, int | None]:
        """Next offsets as stored; None where none is. This broker must be the group's coordinator."""
        found = committed.parse_offset_fetch(self._ask(Api.OFFSET_FETCH, committed.offset_fetch_fields(group, logs)))
        if found.refusal:
            raise found.refusal.error(f"tell the offsets of group {group}", broker=self.address)
        for log, told in found.offsets.items():
            if told.refusal:
                raise told.refusal.error(f"tell an offset of group {group}", topic=log.topic, partition=log.partition, broker=self.address)
        return {log: told.offset for log, told in found.offsets.items()}

    def send(self, topic: str, partition: int, records: bytes | Sequence[tuple[bytes | None, bytes | None]]) -> int:
        """Append one encoded record batch, or keys and values, to a log that this broker leads: the first one's offset.

        Waits for all in-sync replicas. Never sent twice: BrokerUnreachable may mean that it was appended.
        """
        log = BrokerPartition(topic, partition)
        batch = records if isinstance(records, bytes) else produce.encode_records(records, timestamp_ms=int(time.time() * 1000))
        fields = produce.produce_fields(log, batch, int(self._timeout_s * 1000))
        appended = produce.parse_produce(self._ask(Api.PRODUCE, fields, may_repeat=False)).get(log, errors.CODES[-1])
        if isinstance(appended, Refusal):
            raise appended.error("append", topic=topic, partition=partition, broker=self.address)
        return appended

    # One question, one answer

    def _ask(self, api: Api, fields: Mapping[str, Any], *, may_repeat: bool = True) -> Any:
        self._refuse_while_fetching()
        deadline = self._deadline()
        try:
            response = self._ask_once(api, fields, deadline)
        except ConnectionBroken as broken:
            if broken.answered or not may_repeat:
                raise self._cut(broken) from None
            try:
                response = self._ask_once(api, fields, deadline)
            except ConnectionBroken as again:
                raise self._cut(again) from None
        self._note_throttle(getattr(response, "throttle_time_ms", 0) or 0)
        return response

    def _ask_once(self, api: Api, fields: Mapping[str, Any], deadline: float) -> Any:
        connection = self._connected(deadline)
        version = versions.choose_version(api, self._spoken, broker=self.address)
        correlation_id = self._next_correlation_id()
        frame = small_messages.encode(api, version, correlation_id=correlation_id, client_id=self._client_id, fields=fields)
        with self._dropping():
            connection.send(frame, deadline)
        try:
            response = self._receive(connection, correlation_id, deadline, _fresh)
        except ImpossibleSize as size:
            raise absurd(self.address, size) from None
        return small_messages.decode(api, version, response, broker=self.address)

    def _receive(self, connection: Connection, correlation_id: int, deadline: float, room: Any) -> memoryview:
        with self._dropping():
            response = connection.receive(deadline, room, max_bytes=self._max_response_bytes)
            found = int.from_bytes(response[:4], "big", signed=True)
            if found != correlation_id:
                raise CorruptData(f"an answer to request {found} came where {correlation_id} was asked", broker=self.address)
            return response

    def _connected(self, deadline: float) -> Connection:
        if self._connection is None:
            try:
                self._connection, self._spoken = self._shake_hands(deadline)
            except ConnectionBroken:
                # A broker that is being restarted may do this once; a port of something else does it again.
                try:
                    self._connection, self._spoken = self._shake_hands(deadline)
                except ConnectionBroken as again:
                    raise hung_up(self.address, str(again)) from None
        return self._connection

    def _shake_hands(self, deadline: float) -> tuple[Connection, ApiVersions]:
        """Connect and ask for versions (KIP-35), with the question that every broker from 0.10 on answers."""
        connection = Connection(self.host, self.port, min(deadline, time.monotonic() + self._connect_timeout_s))
        try:
            frame = small_messages.encode(
                Api.API_VERSIONS, 0, correlation_id=HANDSHAKE_CORRELATION_ID, client_id=self._client_id, fields={})
            connection.send(frame, deadline)
            response = self._first_answer(connection, deadline)
            spoken = small_messages.parse_api_versions(small_messages.decode(Api.API_VERSIONS, 0, response, broker=self.address))
            return connection, spoken
        except BaseException:
            connection.close()
            raise

    def _first_answer(self, connection: Connection, deadline: float) -> memoryview:
        try:
            response = connection.receive(deadline, _fresh, max_bytes=_MAX_HANDSHAKE_BYTES)
        except ImpossibleSize as size:
            raise not_kafka(self.address, size.first) from None
        except BrokerUnreachable as late:
            raise unanswered(late) from None
        first = bytes(response[:4])
        if int.from_bytes(first, "big") != HANDSHAKE_CORRELATION_ID:
            raise not_kafka(self.address, first)
        return response

    def _dropping(self) -> Dropping:
        return Dropping(self.close)

    def _deadline(self) -> float:
        # A broker that throttled us reads the next request only when that time is over (KIP-219).
        return max(time.monotonic(), self._throttled_until) + self._timeout_s

    def _note_throttle(self, throttle_ms: int) -> None:
        self._throttled_until = time.monotonic() + max(throttle_ms, 0) / 1000

    def _next_correlation_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & _MAX_CORRELATION_ID
        return self._correlation_id

    def _refuse_while_fetching(self) -> None:
        if self._under_way is not None:
            raise ValueError("a fetch is under way on this connection: end_fetch first")

    def _cut(self, broken: ConnectionBroken) -> BrokerUnreachable:
        return BrokerUnreachable(f"the connection broke {broken}", broker=self.address,
                                 check="the broker's log; a listener that wants a login (SASL) also hangs up like this")


def _fresh(size: int) -> memoryview:
    return memoryview(bytearray(size))
