"""A small correct broker on a real socket: it keeps logs, speaks the modern protocol, and
misbehaves on request.

Requests are decoded and responses encoded with kafka-python, so that our own codec is checked by
another one. Several brokers may share one `World`: then a request for a partition of another leader
gets code 6, as it should.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from etl.kafka.kafka_python_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tests.fakes.sockets import exactly

(
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    FIND_COORDINATOR,
    API_VERSIONS,
    LOG_DIRS,
) = 0, 1, 2, 3, 8, 9, 10, 18, 35
CONFIGS, LEADER_EPOCHS, PRODUCERS, TRANSACTIONS, TRANSACTION_LIST, GROUPS, CONSUMER_GROUPS = (
    32,
    23,
    61,
    65,
    66,
    15,
    69,
)
KAFKA_3_9 = {
    PRODUCE: (0, 11),
    FETCH: (0, 17),
    LIST_OFFSETS: (0, 9),
    METADATA: (0, 12),
    OFFSET_COMMIT: (0, 9),
    OFFSET_FETCH: (0, 9),
    FIND_COORDINATOR: (0, 6),
    GROUPS: (0, 5),
    API_VERSIONS: (0, 4),
    LEADER_EPOCHS: (2, 4),
    CONFIGS: (1, 4),
    LOG_DIRS: (0, 4),
    PRODUCERS: (0, 0),
    TRANSACTIONS: (0, 0),
    TRANSACTION_LIST: (0, 1),
}

FIRST_BY_ID = 10
"""The version of OffsetCommit and OffsetFetch that names topics by their ids alone (Kafka 4.1)."""
_LARGEST_TIME = -3
"""Instead of a time: the record with the largest one (KIP-734)."""
_MAGIC_AT = 16
_SMALLEST_REQUEST = 10
"""Key, version, correlation id, client id: a real broker hangs up on less."""

Act = Callable[[socket.socket, bytes], None]
"""How to deliver one framed response; an act that ends with the socket closed ends the connection.
"""


@dataclass
class FakeLog:
    """One log: encoded record batches or older messages, and what a broker knows of it."""

    leader_id: int
    batches: list[bytes] = field(default_factory=list)
    log_start: int = 0
    high_watermark: int | None = None
    """None: all there is."""
    last_stable: int | None = None
    aborted: list[tuple[int, int]] = field(default_factory=list)
    open: tuple[int, int] | None = None
    """The open transaction: its producer's id, and its first offset here."""
    leader_epoch: int = 0
    epoch_starts: dict[int, int] = field(default_factory=dict)
    """The first offset of each epoch; by default the current one at the log start."""
    finds_no_time: bool = False
    """As if the one searched segment has records without timestamps."""
    segments: list[tuple[int, int]] | None = None
    """First offset and last write of each segment, of a format that has no times."""
    withheld: int = 0
    """Fetches without records although there are some, as from a slow remote storage (KIP-405)."""
    refusals: deque[int] = field(default_factory=deque)
    """Error codes for the next fetches of this log, one each."""

    @property
    def log_end(self) -> int:
        return _last_offset(self.batches[-1]) + 1 if self.batches else self.log_start

    @property
    def high(self) -> int:
        return self.log_end if self.high_watermark is None else self.high_watermark

    @property
    def stable(self) -> int:
        return self.high if self.last_stable is None else self.last_stable

    def elect(self, epoch: int) -> None:
        """A leader of this epoch begins at the log's end; what comes later is its own."""
        self.epoch_starts = {
            **(self.epoch_starts or {self.leader_epoch: self.log_start}),
            epoch: self.log_end,
        }
        self.leader_epoch = epoch

    def end_of_epoch(self, wanted: int) -> tuple[int, int]:
        """The largest epoch at or below the requested one, and the start of the next one."""
        starts = self.epoch_starts or {self.leader_epoch: self.log_start}
        if wanted == self.leader_epoch:
            return wanted, self.log_end
        above = [epoch for epoch in starts if epoch > wanted]
        if above:
            return (max((e for e in starts if e <= wanted), default=wanted), starts[min(above)])
        return (-1, -1)

    def fences(self, epoch: int | None) -> int:
        """The error code for a client that knows this leader epoch; 0 if it is the current one."""
        if epoch is None or epoch in (-1, self.leader_epoch):
            return 0
        return 74 if epoch < self.leader_epoch else 75

    def readable_end(self, isolation: int) -> int:
        return self.stable if isolation else self.high


class World:
    """What the brokers of one cluster share."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], FakeLog] = {}
        self.addresses: dict[int, tuple[str, int]] = {}
        self.committed: dict[tuple[str, str, int], tuple[int, str]] = {}
        self.topic_ids: dict[str, UUID] = {}
        self.internal: set[str] = set()
        self.refused_leaders: dict[tuple[str, int], int] = {}
        """Partitions without a leader in Metadata, with their error codes."""
        self.kept_from_us: set[str] = set()
        """Topics that our ACLs do not let us describe."""
        self.configs: dict[str, dict[str, str]] = {}
        """Of topics; one that is not here may not be described."""
        self.transactions: dict[int, tuple[str, int]] = {}
        """Producer id -> transactional id and start; every broker coordinates all of them."""
        self.coordinator: int | None = None
        """Of all groups; None: no members, as long as there never was a group."""
        self.committed_epochs: dict[tuple[str, str, int], int] = {}
        self.untold_logs: dict[tuple[str | None, int], int] = {}
        """Error codes of logs in answers to OffsetFetch."""
        self.refused_logs: dict[tuple[str | None, int], int] = {}
        """Partitions without a stored offset, with their error codes."""
        self.generation: int | None = None
        """Of all groups that have members; None: no group has any."""
        self.group_error = 0
        self.group_refusals: defaultdict[int, deque[int]] = defaultdict(deque)
        """Api key -> error codes for the next questions about a group's offsets, one each."""
        self.group_state, self.group_type = "Stable", "consumer"
        self.members: dict[str, bytes] = {}
        """Id and assignment of each member, for any requested group."""
        self.consumer_members: dict[str, tuple[list[tuple[str, int]], list[tuple[str, int]]]] = {}
        """Assignments of each member of any group of the consumer protocol, if not empty."""
        self.no_consumer_group = 69
        """The code of the answer where there is none."""
        self.changed = threading.Condition()

    def fences(self, request: Any) -> int:
        """A group with members takes commits of its members and generation alone."""
        if self.generation is None:
            return 0 if request.generation_id_or_member_epoch < 0 else 25
        if request.member_id not in self.members:
            return 25
        return 0 if request.generation_id_or_member_epoch == self.generation else 22

    def name_of(self, topic_id: UUID) -> str | None:
        return next((name for name, known in self.topic_ids.items() if known == topic_id), None)


class FakeBroker:
    """`with FakeBroker() as broker:` listens on 127.0.0.1 at `broker.port`.

    requests   (api key, version) of every request that came, in order
    fetched    the logs that each fetch named, in order; None for the topic of an id that none has
    wanted     offset and bytes that each fetch wanted of its first log
    script     api key -> acts for the next responses; without one a response is sent as it is
    throttle   milliseconds to answer the next fetches with, which then name no partition
    """

    cuts_first_batch = False
    """Whether a fetch with a small limit has a part of the first batch, as before 0.10.1."""

    def __init__(
        self,
        world: World | None = None,
        *,
        broker_id: int = 1,
        versions: dict[int, tuple[int, int]] | None = None,
    ) -> None:
        self.world = world or World()
        self.broker_id = broker_id
        self.versions = {**KAFKA_3_9, **(versions or {})}
        self.requests: list[tuple[int, int]] = []
        self.fetched: list[list[tuple[str | None, int]]] = []
        self.wanted: list[tuple[int, int]] = []
        self.connections = 0
        self.script: dict[int, deque[Act]] = defaultdict(deque)
        self.throttle: deque[int] = deque()
        self.closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        self.world.addresses[broker_id] = (self.host, self.port)
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def log(self, topic: str, partition: int = 0) -> FakeLog:
        """The log, made with this broker as its leader when it is new."""
        return self.world.logs.setdefault((topic, partition), FakeLog(self.broker_id))

    def append(self, topic: str, partition: int, *batches: bytes) -> None:
        with self.world.changed:
            self.log(topic, partition).batches.extend(batches)
            self.world.changed.notify_all()

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closing.set()
        with self.world.changed:
            self.world.changed.notify_all()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up_on_everybody()
        for thread in self._threads:
            thread.join(5)

    def hang_up_on_everybody(self) -> None:
        """Close open connections, as a broker does with idle ones."""
        for connection in self._sockets:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def open_connections(self) -> int:
        """How many clients have not hung up."""
        return sum(thread.is_alive() for thread in self._threads) - 1

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        has_asked = False
        with connection:
            try:
                while connection.fileno() >= 0:
                    request = exactly(connection, int.from_bytes(exactly(connection, 4), "big"))
                    if len(request) < _SMALLEST_REQUEST:
                        return
                    self.connections += (
                        not has_asked
                    )  # a connection without a request comes from a search for a free port
                    has_asked = True
                    key, version = struct.unpack_from(">hh", request)
                    self.requests.append((key, version))
                    response = self._answer(key, version, request)
                    act = self.script[key].popleft() if self.script[key] else as_it_is
                    act(connection, response)
            except (OSError, EOFError):
                return

    def _answer(self, key: int, version: int, request: bytes) -> bytes:
        """The response. Raises EOFError for an unknown request, on which a broker hangs up."""
        if key not in _ANSWERS:
            raise EOFError(f"request {key} is unknown")
        kind, answer = _ANSWERS[key]
        decoded = kind.decode(request, version=version, header=True)
        response = getattr(self, answer.__name__)(decoded, version)  # a subclass may have its own
        response.API_VERSION = version
        response.with_header(int.from_bytes(request[4:8], "big"))
        return bytes(response.encode(header=True, framed=True))

    # What each request is answered with

    def _api_versions(self, request: Any, version: int) -> Any:
        kind = ApiVersionsResponse.ApiVersion
        return ApiVersionsResponse(
            error_code=0,
            throttle_time_ms=0,
            api_keys=[
                kind(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in self.versions.items()
            ],
        )

    def _metadata(self, request: Any, version: int) -> Any:
        known = sorted({topic for topic, _ in self.world.logs} - self.world.kept_from_us)
        named = known if request.topics is None else [each.name for each in request.topics]
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=number, host=host, port=port, rack=None)
            for number, (host, port) in self.world.addresses.items()
        ]
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=brokers,
            cluster_id="fake-cluster",
            controller_id=self.broker_id,
            topics=[self._topic(name, name in known) for name in named],
        )

    def _topic(self, name: str, known: bool) -> Any:
        kind = MetadataResponse.MetadataResponseTopic
        partitions = sorted(
            (partition, topic_partition)
            for (topic, partition), topic_partition in self.world.logs.items()
            if topic == name
        )
        topic_id = self.world.topic_ids.get(name, UUID(int=0))
        if name in self.world.kept_from_us:
            code = 29
        elif known:
            code = 0
        else:
            code = 3 if re.fullmatch(r"[\w.-]+", name, re.ASCII) else 17
        return kind(
            error_code=code,
            name=name,
            topic_id=topic_id,
            is_internal=name in self.world.internal,
            partitions=[
                kind.MetadataResponsePartition(
                    error_code=self.world.refused_leaders.get(
                        (name, partition),
                        0 if topic_partition.leader_id in self.world.addresses else 5,
                    ),
                    partition_index=partition,
                    leader_id=-1
                    if (name, partition) in self.world.refused_leaders
                    else topic_partition.leader_id,
                    leader_epoch=topic_partition.leader_epoch,
                    replica_nodes=[topic_partition.leader_id],
                    isr_nodes=[topic_partition.leader_id],
                    offline_replicas=[],
                )
                for partition, topic_partition in partitions
            ],
        )

    def _led(self, topic: str, partition: int) -> tuple[FakeLog | None, int]:
        found = self.world.logs.get((topic, partition))
        if found is None:
            return None, 3
        return found, 0 if found.leader_id == self.broker_id else 6

    def _list_offsets(self, request: Any, version: int) -> Any:
        kind = ListOffsetsResponse.ListOffsetsTopicResponse
        topics = []
        for topic in request.topics:
            partitions = [
                self._listed(topic.name, each, request.isolation_level, version)
                for each in topic.partitions
            ]
            topics.append(kind(name=topic.name, partitions=partitions))
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    def _listed(self, topic: str, each: Any, isolation: int, version: int) -> Any:
        kind = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
        partition, code = self._led(topic, each.partition_index)
        is_largest = each.timestamp == _LARGEST_TIME
        if partition and not code:
            is_by_time = is_largest or each.timestamp >= 0
            has_segments_only = partition.segments is not None and version > 0
            has_no_times = any(batch[_MAGIC_AT] == 0 for batch in partition.batches)
            if is_by_time and has_segments_only or is_largest and has_no_times:
                code = 43
        if partition is None or code:
            return kind(
                partition_index=each.partition_index,
                error_code=code,
                timestamp=-1,
                offset=-1,
                old_style_offsets=[],
                leader_epoch=-1,
            )
        timestamp, offset = -1, _offset_at(partition, each.timestamp, isolation)
        if is_largest:
            assert version >= 7, "a broker before 3.0 takes it for a time before all others"
            times = {_time_of(batch): _base_offset(batch) for batch in reversed(partition.batches)}
            timestamp = max(times, default=-1)
            offset = times.get(timestamp, -1)
        before = _segments_before(partition, each.timestamp, offset)
        return kind(
            partition_index=each.partition_index,
            error_code=0,
            timestamp=timestamp,
            offset=offset,
            old_style_offsets=before[: each.max_num_offsets],
            leader_epoch=-1 if version < 4 else partition.leader_epoch,
        )

    def _leader_epochs(self, request: Any, version: int) -> Any:
        kind = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        topics = []
        for topic in request.topics:
            partitions = []
            for each in topic.partitions:
                partition, code = self._led(topic.topic, each.partition)
                epoch, end = -1, -1
                if partition and not code:
                    code = partition.fences(each.current_leader_epoch)
                if partition and not code:
                    epoch, end = partition.end_of_epoch(each.leader_epoch)
                partitions.append(
                    kind.EpochEndOffset(
                        error_code=code,
                        partition=each.partition,
                        leader_epoch=epoch,
                        end_offset=end,
                    )
                )
            topics.append(kind(topic=topic.topic, partitions=partitions))
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)

    def _fetch(self, request: Any, version: int) -> Any:
        for topic in request.topics if version >= 13 else ():
            topic.topic = self.world.name_of(topic.topic_id)
        names = [
            (topic.topic, each.partition) for topic in request.topics for each in topic.partitions
        ]
        assert len(set(names)) == len(names), (
            "a broker refuses a fetch that names a partition twice"
        )
        self.fetched.append(names)
        first = request.topics[0].partitions[0]
        self.wanted.append((first.fetch_offset, first.partition_max_bytes))
        if self.throttle:  # KIP-219: at once, and without naming any partition
            return FetchResponse(
                throttle_time_ms=self.throttle.popleft(), error_code=0, session_id=0, responses=[]
            )
        deadline = time.monotonic() + request.max_wait_ms / 1000
        while True:
            with self.world.changed:
                response, found = self._read(request)
                left = deadline - time.monotonic()
                if found or left <= 0 or self.closing.is_set():
                    return response
                self.world.changed.wait(left)

    def _read(self, request: Any) -> tuple[Any, bool]:
        """The answer, and whether it is sent at once: with records, or with an error."""
        kind = FetchResponse.FetchableTopicResponse
        left, has_records, is_refused, topics = request.max_bytes, False, False, []
        for topic in request.topics:
            partitions = []
            for each in topic.partitions:
                limit = min(each.partition_max_bytes, max(left, 0))
                read = self._read_partition(
                    topic.topic, each, request.isolation_level, limit, whole=not has_records
                )
                partitions.append(read)
                left -= len(read.records)
                has_records = has_records or bool(read.records)
                is_refused = is_refused or bool(read.error_code)
            topics.append(kind(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions))
        answer = FetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=topics)
        return answer, has_records or is_refused

    def _read_partition(
        self, topic: str | None, each: Any, isolation: int, limit: int, *, whole: bool
    ) -> Any:
        kind = FetchResponse.FetchableTopicResponse.PartitionData
        partition, code = self._led(topic, each.partition) if topic else (None, 100)
        if partition and partition.refusals:
            code = partition.refusals.popleft()
        if partition and not code:
            code = partition.fences(each.current_leader_epoch)
        if partition and not code:
            is_inside = partition.log_start <= each.fetch_offset <= partition.log_end
            code = 0 if is_inside else 1
        if partition is None or code:
            return kind(
                partition_index=each.partition,
                error_code=code,
                high_watermark=-1,
                last_stable_offset=-1,
                log_start_offset=-1,
                aborted_transactions=None,
                preferred_read_replica=-1,
                records=b"",
            )
        records = b""
        if partition.withheld:
            partition.withheld -= 1
        else:
            cuts = self.cuts_first_batch
            records = _read_log(
                partition, each.fetch_offset, isolation, limit, whole=whole, cuts=cuts
            )
        aborted = [
            kind.AbortedTransaction(producer_id=who, first_offset=at)
            for who, at in partition.aborted
        ]
        return kind(
            partition_index=each.partition,
            error_code=0,
            high_watermark=partition.high,
            last_stable_offset=partition.stable,
            log_start_offset=partition.log_start,
            aborted_transactions=aborted if isolation else None,
            preferred_read_replica=-1,
            records=records,
        )

    def _produce(self, request: Any, version: int) -> Any:
        topic_kind = ProduceResponse.TopicProduceResponse
        topics = []
        for topic in request.topic_data:
            partitions = []
            for each in topic.partition_data:
                partition, code = self._led(topic.name, each.index)
                base = -1 if partition is None or code else partition.log_end
                if not code:
                    self.append(
                        topic.name, each.index, struct.pack(">q", base) + bytes(each.records)[8:]
                    )
                partitions.append(
                    topic_kind.PartitionProduceResponse(
                        index=each.index,
                        error_code=code,
                        base_offset=base,
                        log_append_time_ms=-1,
                        log_start_offset=0,
                    )
                )
            topics.append(topic_kind(name=topic.name, partition_responses=partitions))
        return ProduceResponse(responses=topics, throttle_time_ms=0)

    def _find_coordinator(self, request: Any, version: int) -> Any:
        code, broker_id = self._refusal(FIND_COORDINATOR), self.world.coordinator or self.broker_id
        host, port = ("", -1) if code else self.world.addresses[broker_id]
        return FindCoordinatorResponse(
            throttle_time_ms=0,
            error_code=code,
            error_message=None,
            node_id=-1 if code else broker_id,
            host=host,
            port=port,
        )

    def _refusal(self, key: int) -> int:
        codes = self.world.group_refusals[key]
        return codes.popleft() if codes else 0

    def _groups(self, request: Any, version: int) -> Any:
        kind = DescribeGroupsResponse.DescribedGroup
        code = self.world.group_error if self.world.coordinator == self.broker_id else 16
        members = [
            kind.DescribedGroupMember(
                member_id=name,
                group_instance_id=None,
                client_id="c",
                client_host="/10.0.0.7",
                member_metadata=b"",
                member_assignment=assignment,
            )
            for name, assignment in self.world.members.items()
        ]
        groups = [
            kind(
                error_code=code,
                group_id=name,
                group_state="" if code else self.world.group_state,
                protocol_type="" if code else self.world.group_type,
                protocol_data="",
                members=[] if code else members,
            )
            for name in request.groups
        ]
        return DescribeGroupsResponse(throttle_time_ms=0, groups=groups)

    def _fences(self, request: Any) -> int:
        return self.world.fences(request)

    def _consumer_groups(self, request: Any, version: int) -> Any:
        kind = ConsumerGroupDescribeResponse.DescribedGroup
        now, target = kind.Member.Assignment, kind.Member.TargetAssignment

        def grouped(place: Any, partitions: list[tuple[str, int]]) -> list[Any]:
            return [
                place(topic_id=UUID(int=7), topic_name=topic, partitions=[number])
                for topic, number in partitions
            ]

        members = self.world.consumer_members if self.world.coordinator == self.broker_id else {}
        return ConsumerGroupDescribeResponse(
            throttle_time_ms=0,
            groups=[
                kind(
                    error_code=0 if members else self.world.no_consumer_group,
                    error_message=None,
                    group_id=request.group_ids[0],
                    group_state=self.world.group_state,
                    group_epoch=1,
                    assignment_epoch=1,
                    assignor_name="uniform",
                    members=[
                        kind.Member(
                            member_id=name,
                            instance_id=None,
                            rack_id=None,
                            member_epoch=1,
                            client_id="c",
                            client_host="/10.0.0.7",
                            subscribed_topic_names=[],
                            subscribed_topic_regex=None,
                            member_type=1,
                            assignment=now(topic_partitions=grouped(now.TopicPartitions, has)),
                            target_assignment=target(
                                target_partitions=grouped(target.TargetPartitions, gets)
                            ),
                        )
                        for name, (has, gets) in members.items()
                    ],
                )
            ],
        )

    def _offset_commit(self, request: Any, version: int) -> Any:
        kind = OffsetCommitResponse.OffsetCommitResponseTopic
        code = self._refusal(OFFSET_COMMIT) or self._fences(request)
        topics = []
        for topic in request.topics:
            name = topic.name if version < FIRST_BY_ID else self.world.name_of(topic.topic_id)
            partitions = []
            for each in topic.partitions:
                refused = (
                    code
                    or self.world.refused_logs.get((name, each.partition_index), 0)
                    or (100 if name is None else 0)
                )
                if not refused and name is not None:
                    self.world.committed[request.group_id, name, each.partition_index] = (
                        each.committed_offset,
                        each.committed_metadata,
                    )
                    self.world.committed_epochs[request.group_id, name, each.partition_index] = (
                        each.committed_leader_epoch
                    )
                partitions.append(
                    kind.OffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=refused
                    )
                )
            topics.append(kind(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
        return OffsetCommitResponse(throttle_time_ms=0, topics=topics)

    def _offset_fetch(self, request: Any, version: int) -> Any:
        several = OffsetFetchResponse.OffsetFetchResponseGroup
        kind, code = OffsetFetchResponse.OffsetFetchResponseTopic, self._refusal(OFFSET_FETCH)
        if version < 8:
            found = self._stored(
                request.group_id, request.topics, kind, kind.OffsetFetchResponsePartition, version
            )
            return OffsetFetchResponse(throttle_time_ms=0, error_code=code, topics=found)
        kind = several.OffsetFetchResponseTopics
        return OffsetFetchResponse(
            throttle_time_ms=0,
            groups=[
                several(
                    group_id=group.group_id,
                    error_code=code,
                    topics=[]
                    if code
                    else self._stored(
                        group.group_id,
                        group.topics,
                        kind,
                        kind.OffsetFetchResponsePartitions,
                        version,
                    ),
                )
                for group in request.groups
            ],
        )

    def _stored(
        self, group: str, topics: Any, kind: Any, partition: Any, version: int
    ) -> list[Any]:
        found = []
        for topic in topics:
            name = topic.name if version < FIRST_BY_ID else self.world.name_of(topic.topic_id)
            reported = {
                number: (
                    self.world.committed.get((group, name or "", number), (-1, "")),
                    self.world.committed_epochs.get((group, name or "", number), -1),
                )
                for number in topic.partition_indexes
            }
            by_id = {"topic_id": topic.topic_id} if version >= FIRST_BY_ID else {}
            found.append(
                kind(
                    name=topic.name,
                    **by_id,
                    partitions=[
                        partition(
                            partition_index=number,
                            committed_offset=offset,
                            committed_leader_epoch=epoch,
                            metadata=metadata,
                            error_code=100
                            if name is None
                            else self.world.untold_logs.get((name, number), 0),
                        )
                        for number, ((offset, metadata), epoch) in reported.items()
                    ],
                )
            )
        return found

    def _configs(self, request: Any, version: int) -> Any:
        kind = DescribeConfigsResponse.DescribeConfigsResult
        results = []
        for one in request.resources:
            reported = self.world.configs.get(one.resource_name)
            configs = [
                kind.DescribeConfigsResourceResult(
                    name=name,
                    value=value,
                    read_only=False,
                    config_source=1,
                    is_default=False,
                    is_sensitive=False,
                    synonyms=[],
                    config_type=0,
                    documentation=None,
                )
                for name, value in (reported or {}).items()
            ]
            results.append(
                kind(
                    error_code=0 if reported is not None else 29,
                    error_message=None,
                    resource_type=one.resource_type,
                    resource_name=one.resource_name,
                    configs=configs,
                )
            )
        return DescribeConfigsResponse(throttle_time_ms=0, results=results)

    def _producers(self, request: Any, version: int) -> Any:
        topic_kind = DescribeProducersResponse.TopicResponse
        kind = topic_kind.PartitionResponse
        return DescribeProducersResponse(
            throttle_time_ms=0,
            topics=[
                topic_kind(
                    name=topic.name,
                    partitions=[
                        kind(
                            partition_index=number,
                            error_code=0,
                            error_message=None,
                            active_producers=[
                                kind.ProducerState(
                                    producer_id=who,
                                    producer_epoch=0,
                                    last_sequence=0,
                                    last_timestamp=0,
                                    coordinator_epoch=0,
                                    current_txn_start_offset=first,
                                )
                                for who, first in (
                                    (99, -1),
                                    self.world.logs[topic.name, number].open or (98, -1),
                                )
                            ],
                        )
                        for number in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ],
        )

    def _transaction_list(self, request: Any, version: int) -> Any:
        kind = ListTransactionsResponse.TransactionState
        return ListTransactionsResponse(
            throttle_time_ms=0,
            error_code=0,
            unknown_state_filters=[],
            transaction_states=[
                kind(transactional_id=name, producer_id=who, transaction_state="Ongoing")
                for who, (name, _) in self.world.transactions.items()
                if who in request.producer_id_filters
            ],
        )

    def _transactions(self, request: Any, version: int) -> Any:
        kind = DescribeTransactionsResponse.TransactionState
        return DescribeTransactionsResponse(
            throttle_time_ms=0,
            transaction_states=[
                kind(
                    error_code=0,
                    transactional_id=name,
                    transaction_state="Ongoing",
                    transaction_timeout_ms=60_000,
                    transaction_start_time_ms=began,
                    producer_id=who,
                    producer_epoch=0,
                    topics=[],
                )
                for who, (name, began) in self.world.transactions.items()
                if name in request.transactional_ids
            ],
        )

    def _log_dirs(self, request: Any, version: int) -> Any:
        folder_kind = DescribeLogDirsResponse.DescribeLogDirsResult
        kind = folder_kind.DescribeLogDirsTopic
        topics = [
            kind(
                name=topic.topic,
                partitions=[
                    kind.DescribeLogDirsPartition(
                        partition_index=number,
                        partition_size=sum(map(len, self.world.logs[topic.topic, number].batches)),
                        offset_lag=0,
                        is_future_key=False,
                    )
                    for number in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return DescribeLogDirsResponse(
            throttle_time_ms=0,
            error_code=0,
            results=[
                folder_kind(
                    error_code=0, log_dir="/logs", topics=topics, total_bytes=-1, usable_bytes=-1
                )
            ],
        )


_ANSWERS: dict[int, tuple[Any, Callable[[FakeBroker, Any, int], Any]]] = {
    PRODUCE: (ProduceRequest, FakeBroker._produce),
    FETCH: (FetchRequest, FakeBroker._fetch),
    LIST_OFFSETS: (ListOffsetsRequest, FakeBroker._list_offsets),
    METADATA: (MetadataRequest, FakeBroker._metadata),
    OFFSET_COMMIT: (OffsetCommitRequest, FakeBroker._offset_commit),
    OFFSET_FETCH: (OffsetFetchRequest, FakeBroker._offset_fetch),
    FIND_COORDINATOR: (FindCoordinatorRequest, FakeBroker._find_coordinator),
    GROUPS: (DescribeGroupsRequest, FakeBroker._groups),
    CONSUMER_GROUPS: (ConsumerGroupDescribeRequest, FakeBroker._consumer_groups),
    API_VERSIONS: (ApiVersionsRequest, FakeBroker._api_versions),
    LEADER_EPOCHS: (OffsetForLeaderEpochRequest, FakeBroker._leader_epochs),
    CONFIGS: (DescribeConfigsRequest, FakeBroker._configs),
    PRODUCERS: (DescribeProducersRequest, FakeBroker._producers),
    TRANSACTIONS: (DescribeTransactionsRequest, FakeBroker._transactions),
    TRANSACTION_LIST: (ListTransactionsRequest, FakeBroker._transaction_list),
    LOG_DIRS: (DescribeLogDirsRequest, FakeBroker._log_dirs),
}


# Acts


def as_it_is(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(frame)


def a_byte_at_a_time(connection: socket.socket, frame: bytes) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(len(frame)):
        connection.sendall(frame[at : at + 1])


def hang_up(connection: socket.socket, frame: bytes) -> None:
    connection.close()


def never(connection: socket.socket, frame: bytes) -> None:
    """No answer; the next request is read all the same."""


def late(seconds: float) -> Act:
    def act(connection: socket.socket, frame: bytes) -> None:
        time.sleep(seconds)
        connection.sendall(frame)

    return act


def slowly(bytes_per_s: int) -> Act:
    """The frame over a slow line, twenty times a second."""

    def act(connection: socket.socket, frame: bytes) -> None:
        step = max(1, bytes_per_s // 20)
        for at in range(0, len(frame), step):
            connection.sendall(frame[at : at + step])
            time.sleep(step / bytes_per_s)

    return act


def stalls_after(count: int) -> Act:
    """The first `count` bytes of a longer frame, and no more on this connection."""

    def act(connection: socket.socket, frame: bytes) -> None:
        connection.sendall(frame[:count])
        if len(frame) > count:
            connection.recv(1)

    return act


def reset_after(count: int) -> Act:
    """The first `count` bytes of the frame, then a reset."""

    def act(connection: socket.socket, frame: bytes) -> None:
        connection.sendall(frame[:count])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    return act


def cut_to(count: int) -> Act:
    """Return a whole frame with a body that ends after `count` bytes."""
    return altered(lambda body: body[:count])


def altered(change: Callable[[bytes], bytes]) -> Act:
    """A whole frame with another body (correlation id included)."""

    def act(connection: socket.socket, frame: bytes) -> None:
        body = change(frame[4:])
        connection.sendall(struct.pack(">i", len(body)) + body)

    return act


def instead(content: bytes) -> Act:
    """Other bytes, with no regard for frames."""

    def act(connection: socket.socket, frame: bytes) -> None:
        connection.sendall(content)

    return act


def _base_offset(batch: bytes) -> int:
    return int(struct.unpack_from(">q", batch)[0])


def _last_offset(batch: bytes) -> int:
    if (
        batch[16] < 2
    ):  # a message of an old format, or a wrapper, which has the offset of its last one
        return _base_offset(batch)
    return _base_offset(batch) + int(struct.unpack_from(">i", batch, 23)[0])


def _time_of(batch: bytes) -> int:
    """The largest timestamp of a record batch, or that of a message."""
    return int(struct.unpack_from(">q", batch, 35 if batch[_MAGIC_AT] == 2 else 18)[0])


def _offset_at(partition: FakeLog, when: int, isolation: int) -> int:
    if when == -1:
        return partition.readable_end(isolation)
    if when == -2:
        return partition.log_start
    if partition.finds_no_time:
        return -1
    found = next(
        (_base_offset(batch) for batch in partition.batches if _time_of(batch) >= when), -1
    )
    return (
        found if found < partition.readable_end(isolation) else -1
    )  # as Kafka does: "none" for a record after the start of an open transaction


def _segments_before(partition: FakeLog, when: int, offset: int) -> list[int]:
    """What version 0 answers, newest first."""
    if when == -1 and partition.segments:
        return [offset, *(first for first, _ in reversed(partition.segments))]
    if when < 0:
        return [offset]
    return [
        first
        for first, written_ms in reversed(partition.segments or [(partition.log_start, 0)])
        if written_ms <= when
    ]


def _read_log(
    partition: FakeLog, offset: int, isolation: int, limit: int, *, whole: bool, cuts: bool
) -> bytes:
    """As KIP-74 (0.10.1): cut anywhere, never inside the first batch; `cuts`: there too."""
    found = [
        batch
        for batch in partition.batches
        if _last_offset(batch) >= offset and _base_offset(batch) < partition.readable_end(isolation)
    ]
    if not found:
        return b""
    if len(found[0]) > limit and not cuts:
        return found[0] if whole else b""
    return b"".join(found)[:limit]
