"""`SimpleConsumer`: what one broker can be asked, one question at a time, in words of no
generation.

The connection and its deadlines belong to `exchange`, fetches under way to `fetching`, what the
bytes are to `etl.kafka`; asking several brokers to `cluster`; walking a range to
`cursor` and `fetch`. Nothing here retries on a refusal: answers carry them, the short forms raise
them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from etl.edges.brokers.group_offsets import GroupOffsets
from etl.errors import BrokerUnreachable, CorruptData, OtherRelease, Refusal, SettingsError
from etl.kafka.messages import (
    EARLIEST,
    LATEST,
    Fetch,
    FetchAnswer,
    FetchedPartition,
    FetchTarget,
    ListedOffset,
    in_serving_order,
    reject_negative,
    reject_wrong_times,
)
from etl.model.partitions import BrokerPartition, Isolation
from etl.settings.choices import FETCH_MAX_BYTES


class SimpleConsumer(GroupOffsets):
    """Asks one broker, and nobody else.

    host, port            where the broker listens connect_timeout_s     how long a connect may take
    timeout_s             how long a call may take, the connect and the handshake included; a fetch
    may take
                          `max_wait_ms` longer, and so may what follows an answer that says it was throttled
    max_response_bytes    a larger answer is refused before a byte of memory is taken for it
    generation            how the broker must be spoken to (`Broker.generation`); None: it tells
    itself idle_connections      where connections come from, and go to with `close`; None: they are
    this consumer's alone security              encryption and login of the listener on that port
    (`etl.settings.load.security_of` makes it of a mapping)

    Connects with the first call. A connection that broke before any byte of an answer came is made
    anew once per call (brokers close idle connections); `produce` is the exception, because it may
    have happened.

    What a broker refuses is carried by the answers (`multifetch`, `list_offsets`, `topic_metadata`)
    or raised; nothing is asked again for it, but for the coordinator of a group.
    `etl.Messages` decodes a fetched partition, one record at a time; `send` takes any request.

    Every call may raise BrokerUnreachable, NotKafka (the port answers in another protocol),
    SettingsError (the broker is too old for the question) and CorruptData (what came is not the
    protocol), a fetch also MessageTooLarge (a record batch larger than `max_response_bytes`);
    ConsumerInUse where another thread waits for an answer: each takes a consumer of its own.
    """

    # Records

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = FETCH_MAX_BYTES,
        isolation: Isolation = Isolation.READ_COMMITTED,
        max_wait_ms: int = 500,
    ) -> FetchedPartition:
        """Records of one log from `offset` on; raises what the broker's error code means.

        `records` is valid until the second next fetch answer of this consumer is received.
        """
        wanted, deadline = (
            [FetchTarget(BrokerPartition(topic, partition), offset, max_bytes)],
            self._exchange.deadline(),
        )
        while not (
            answer := self.multifetch(
                wanted, isolation=isolation, max_bytes=max_bytes, max_wait_ms=max_wait_ms
            )
        ).partitions:
            if time.monotonic() > deadline:
                raise BrokerUnreachable(
                    "the broker throttles us and gives nothing",
                    broker=self.address,
                    check="the quota of our client",
                )
        fetched = answer.partitions[0]
        if fetched.refusal:
            raise fetched.refusal.error(
                "fetch", topic=topic, partition=partition, offset=offset, broker=self.address
            )
        return fetched

    def multifetch(
        self,
        wanted: Sequence[FetchTarget],
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
        max_bytes: int = FETCH_MAX_BYTES,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
    ) -> FetchAnswer:
        """Records of several logs in one request; each partition of the answer carries its own
        error code.

        An answer that says it was throttled may name no partition at all (KIP-219): then ask again.
        """
        with self._alone():
            self.begin_fetch(
                wanted,
                isolation=isolation,
                max_bytes=max_bytes,
                max_wait_ms=max_wait_ms,
                min_bytes=min_bytes,
            )
            return self.end_fetch()

    def begin_fetch(
        self,
        wanted: Sequence[FetchTarget],
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
        max_bytes: int = FETCH_MAX_BYTES,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
    ) -> None:
        """Send a fetch and do not wait: the broker reads while the answer before is decoded.
        `end_fetch` must follow.

        max_bytes bounds the whole answer, each `FetchTarget.max_bytes` its part. The first log with
        records gets its first record batch whole even if that is larger (KIP-74). Raises ValueError
        for a negative number, and when a log is named twice or another fetch is under way.
        """
        reject_negative(max_bytes=max_bytes, max_wait_ms=max_wait_ms, min_bytes=min_bytes)
        for target in wanted:
            if (
                target.offset < 0
                or target.max_bytes < 0
                or target.leader_epoch is not None
                and target.leader_epoch < 0
            ):
                reject_negative(
                    offset=target.offset,
                    max_bytes=target.max_bytes,
                    leader_epoch=target.leader_epoch,
                )
        with self._alone():
            self._fetching.begin(
                Fetch(in_serving_order(wanted), isolation, max_bytes, max_wait_ms, min_bytes)
            )

    def end_fetch(self) -> FetchAnswer:
        """The answer to the fetch under way, its partitions in the order they were served.

        Two buffers take turns: the records of this answer are valid until the second next answer is
        received. Raises ValueError when no fetch is under way.
        """
        with self._alone(is_fetching=True):
            return self._fetching.end()

    def is_answered(self, wait_s: float = 0.0) -> bool:
        """Whether the answer to the fetch under way has begun, or the connection ended, within
        `wait_s`.

        Raises ValueError when no fetch is under way.
        """
        with self._alone(is_fetching=True):
            return self._fetching.is_answered(wait_s)

    # Offsets

    def list_offsets(
        self,
        times: Mapping[BrokerPartition, int],
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
        epochs: Mapping[BrokerPartition, int | None] | None = None,
    ) -> dict[BrokerPartition, ListedOffset]:
        """One request for many logs: LATEST, EARLIEST, or the first record at or after milliseconds
        since 1970.

        Under read_committed LATEST is the last stable offset (KIP-98). Each answer carries its own
        error code. Raises ValueError for any other negative time.
        """
        reject_wrong_times(times, least=EARLIEST)
        listed = self._ask(lambda dialect: dialect.list_offsets(times, isolation, epochs or {}))
        if set(listed) != set(times):
            raise CorruptData(
                "the answer to ListOffsets names other partitions than were asked for",
                broker=self.address,
            )
        return listed

    def largest_times(
        self,
        logs: Collection[BrokerPartition],
        *,
        epochs: Mapping[BrokerPartition, int | None] | None = None,
    ) -> dict[BrokerPartition, ListedOffset] | None:
        """The largest timestamp of each log, wherever it lies, in one request; None: this broker
        cannot tell (Kafka before 3.0, Jafka).
        """
        if not self._dialect().tells_largest_times:
            return None
        listed = self._ask(lambda dialect: dialect.largest_times(logs, epochs or {}))
        if set(listed) != set(logs):
            raise CorruptData(
                "the answer to ListOffsets names other partitions than were asked for",
                broker=self.address,
            )
        return listed

    def offsets_before(
        self, topic: str, partition: int, time: int, max_offsets: int = 1
    ) -> tuple[int, ...]:
        """Offsets for `LATEST`, `EARLIEST` or milliseconds since 1970, newest first, at most
        `max_offsets`.

        What a time finds depends on the broker. Kafka before 0.10.1 names where the segments begin
        that were written by then; later ones one offset, that of the first record at or after it,
        none where no record is that late. Jafka cannot be asked for a time. Raises ValueError for
        any other negative time.
        """
        log = BrokerPartition(topic, partition)
        reject_wrong_times({log: time}, least=EARLIEST)
        found = (
            self._ask(lambda dialect: dialect.offsets_before(log, time, max_offsets))
            if max_offsets > 0
            else ()
        )
        if isinstance(found, Refusal):
            raise found.error("list offsets", topic=topic, partition=partition, broker=self.address)
        return found

    def segment_before(self, log: BrokerPartition, time_ms: int) -> int:
        """Where the newest segment begins that was written by then, by the broker's clock: no
        record before it is later.

        The log start where no segment is that old, or where the broker does not tell when segments
        were written (Kafka from 4.0 on). Raises ValueError for a negative time.
        """
        reject_wrong_times({log: time_ms})
        try:
            found = self._ask(lambda dialect: dialect.segments_before(log, time_ms))
        except OtherRelease:
            raise
        except SettingsError:
            found = ()
        if found and not isinstance(found, Refusal):
            return found[0]
        return self.earliest_or_latest_offset(log.topic, log.partition, EARLIEST)

    def earliest_or_latest_offset(self, topic: str, partition: int, time: int) -> int:
        """The log start offset (`EARLIEST`) or the high watermark (`LATEST`). ValueError for
        another time.
        """
        if time not in (EARLIEST, LATEST):
            raise ValueError(f"{time} is neither EARLIEST ({EARLIEST}) nor LATEST ({LATEST})")
        found = self.offsets_before(topic, partition, time)
        if not found:
            raise CorruptData(
                "the broker names no offset for a log's end",
                topic=topic,
                partition=partition,
                broker=self.address,
            )
        return found[0]

    # Writing, for tests and demos

    def produce(
        self,
        topic: str,
        partition: int,
        records: bytes | Sequence[tuple[bytes | None, bytes | None]],
    ) -> int | None:
        """Append one encoded record batch, or keys and values, to a log that this broker leads: the
        first one's offset.

        None: the broker took it and does not say where it lies (Jafka).

        Waits for all in-sync replicas. Never sent twice: BrokerUnreachable may mean that it was
        appended.
        """
        log = BrokerPartition(topic, partition)
        now_ms, timeout_ms = int(time.time() * 1000), int(self._timeout_s * 1000)
        appended = self._ask(
            lambda dialect: dialect.append(
                log, records, timestamp_ms=now_ms, timeout_ms=timeout_ms
            ),
            may_repeat=False,
        )
        if isinstance(appended, Refusal):
            raise appended.error("append", topic=topic, partition=partition, broker=self.address)
        return appended
