"""Jafka as a generation: which request each question becomes, and which questions such a broker has
no answer for. No I/O.

A broker of this family knows its own logs and nothing else: neither its id nor its topics nor other
brokers, which are all in ZooKeeper. It has no groups, no transactions, no epochs, no timestamps,
and it tells no version. What the bytes are belongs to the modules beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from etl.errors import Refusal
from etl.model.partitions import BrokerPartition, Isolation
from etl.protocol.generations.dialect import Dialect, Generation, Greeting, Reply, Request
from etl.protocol.generations.jafka import fetch as fetches
from etl.protocol.generations.jafka import offsets, produce
from etl.protocol.messages import LATEST, ClusterMetadata, Fetch, FetchAnswer, ListedOffset
from etl.protocol.primitives import Reader

_NOTHING = b"\0\0"
_HANGS_UP = (
    "the topic's name, and how many partitions it has on this broker: one of this generation hangs up on what it cannot serve; "
    "and the broker's log"
)


class Jafka(Generation):
    """Greeted with a MultiFetch of nothing, which is answered with nothing."""

    names = ("jafka",)
    is_told = True

    def greeting(self, client_id: str, address: str, name: str | None = None) -> Greeting:
        return Greeting(
            "MultiFetch",
            fetches.encode_multifetch(()),
            lambda start: bytes(start) == _NOTHING,
            lambda answer: JafkaDialect(address),
            least_answer_bytes=2,
            check_if_cut="that a Jafka or Kafka 0.7 broker listens there: Kafka from 0.8 on and a TLS listener hang up so",
        )


class JafkaDialect(Dialect):
    """What a broker of this family understands; there is one version of it."""

    least_answer_bytes = 2
    check_if_cut = _HANGS_UP

    def __init__(self, address: str) -> None:
        self._address = address

    def introduction(self) -> str:
        return "Jafka, or Kafka 0.7"

    def number_of(self, start: memoryview) -> int | None:
        return None

    def metadata(self, topics: Collection[str] | None) -> Request[ClusterMetadata]:
        self._cannot("tell of brokers and topics: what there is stands in ZooKeeper")

    def list_offsets(
        self,
        times: Mapping[BrokerPartition, int],
        isolation: Isolation,
        epochs: Mapping[BrokerPartition, int | None],
    ) -> Request[dict[BrokerPartition, ListedOffset]]:
        asked = dict(times)
        frames = b"".join(offsets.encode_offsets(log, time) for log, time in asked.items())

        def read(answer: memoryview) -> Reply[dict[BrokerPartition, ListedOffset]]:
            if len(asked) == 1:
                return Reply(
                    {
                        log: offsets.read_listed(log, time, answer, broker=self._address)
                        for log, time in asked.items()
                    }
                )
            reader = Reader(answer, broker=self._address)
            return Reply(
                {
                    log: offsets.read_listed(
                        log, time, reader.span(reader.int32(), "an answer"), broker=self._address
                    )
                    for log, time in asked.items()
                }
            )

        return Request(lambda number: frames, read, answers=len(asked), check_if_cut=_HANGS_UP)

    def offsets_before(
        self, log: BrokerPartition, time_ms: int, most: int
    ) -> Request[tuple[int, ...] | Refusal]:
        frame = offsets.encode_offsets(log, time_ms, most=most)

        def read(answer: memoryview) -> Reply[tuple[int, ...] | Refusal]:
            return Reply(offsets.parse_offsets(log, answer, broker=self._address))

        return Request(lambda number: frame, read, check_if_cut=_HANGS_UP)

    def fetch(self, fetch: Fetch) -> Request[FetchAnswer]:
        asked = fetches.within(fetch.max_bytes, fetch.wanted)

        def read(answer: memoryview) -> Reply[FetchAnswer]:
            if len(asked) == 1:
                found = fetches.parse_fetch(asked[0], answer, broker=self._address)
            else:
                found = fetches.parse_multifetch(asked, answer, broker=self._address)
            if found.refusal is not None:
                return Reply(found)
            told = {(each.topic, each.partition): each for each in found.partitions}
            return Reply(
                FetchAnswer(
                    0,
                    None,
                    tuple(
                        told.get((each.log.topic, each.log.partition)) or fetches.not_asked(each)
                        for each in fetch.wanted
                    ),
                )
            )

        frame = (
            fetches.encode_fetch(asked[0]) if len(asked) == 1 else fetches.encode_multifetch(asked)
        )
        return Request(lambda number: frame, read)

    def append(
        self,
        log: BrokerPartition,
        records: bytes | Sequence[tuple[bytes | None, bytes | None]],
        *,
        timestamp_ms: int,
        timeout_ms: int,
    ) -> Request[int | Refusal | None]:
        messages = records if isinstance(records, bytes) else produce.encode_messages(records)
        frames = produce.encode_produce(log, messages) + offsets.encode_offsets(log, LATEST, most=1)

        def read(answer: memoryview) -> Reply[int | Refusal | None]:
            return Reply(offsets.read_listed(log, LATEST, answer, broker=self._address).refusal)

        return Request(
            lambda number: frames,
            read,
            check_if_cut=f"that a message is not larger than max.message.size; {_HANGS_UP}",
        )

    def create_topic(self, topic: str, partitions: int) -> Request[int | Refusal]:
        return self._count(produce.encode_create(topic, partitions))

    def delete_topic(self, topic: str, password: str) -> Request[int | Refusal]:
        return self._count(produce.encode_delete(topic, password))

    def _count(self, frame: bytes) -> Request[int | Refusal]:
        def read(answer: memoryview) -> Reply[int | Refusal]:
            return Reply(produce.parse_count(answer, broker=self._address))

        return Request(lambda number: frame, read, check_if_cut=_HANGS_UP)
