"""How does a `Connector` feed streams, each read by a thread of its own?

`Connector`: streams of a group's records, each for a thread of its own, as consumers of Jafka
and of Kafka 0.8 give them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from etl.errors import SettingsError
from etl.ledger.topic_filters import FilterKind
from etl.model.partitions import BrokerPartition
from etl.settings.choices import MIB
from etl.streams.conf import Conf
from etl.streams.fetches import Fetches
from etl.streams.groups import Listener, Subscription, by_filter, by_names
from etl.streams.message_stream import MessageStream
from etl.streams.opened import open_cluster
from etl.streams.pump import Pump
from etl.streams.records import Decoder
from etl.streams.stream_positions import StreamPositions
from etl.streams.stream_queue import StreamQueue
from etl.streams.subscribed import Subscribed


class Connector:
    """One member of a group, that gives its share in streams; made once for each connector, and
    ended by `shutdown`.

    conf            see `Conf`; with a group queue_records   how many records wait for a stream
    before no more is asked for queue_bytes     the same in bytes, as columns. Beyond both a stream
    holds one answer of each of its partitions at most. listener        hears what the group takes
    and gives, in the thread that fetches; it may not call the connector

    A program has at least as many threads as it wants streams to be read at a time: one that is not
    read holds its partitions all the same. In ZooKeeper each stream is a thread of the member and
    owns its partitions as such; a coordinator knows no threads, so the member's partitions are
    shared out among its streams. Every partition's records are given to one stream. What is
    committed by itself (`Group.auto_commit_s`) is what streams have handed out, but for the last
    record of each, which its thread may still be at.
    """

    def __init__(
        self,
        conf: Conf,
        *,
        queue_records: int = 100_000,
        queue_bytes: int = 4 * MIB,
        listener: Listener | None = None,
    ) -> None:
        """Raises SettingsError."""
        if conf.checked() is None:
            raise SettingsError(
                "streams are what a group gives a member, and there is no group",
                key="group",
                check="Conf(..., group=...)",
            )
        if queue_records < 1 or queue_bytes < 1:
            raise SettingsError(
                "a stream without a queue would never give anything",
                check="queue_records and queue_bytes: 1 or more",
            )
        self._conf, self._listener = conf, listener
        self._queue_records, self._queue_bytes = queue_records, queue_bytes
        self._changed = threading.Condition()
        self._streams: list[MessageStream] = []
        self._pump: Pump | None = None
        self._is_shut_down = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def create_message_streams(
        self,
        topics: Mapping[str, int],
        *,
        key_decoder: Decoder | None = None,
        value_decoder: Decoder | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, list[MessageStream]]:
        """So many streams of each topic; a topic that is not there yet joins once it is.

        key_decoder, value_decoder   called with the bytes of each that is not null, by the thread
        that asks for the record timeout_s                    of each stream's `next`; see
        `MessageStream`

        Raises SettingsError, also where streams were made before; BrokerUnreachable or
        ZooKeeperUnreachable where nobody can be asked.
        """
        wanted = by_names(topics)
        made = {
            topic: [self._stream(topic, number, timeout_s) for number in range(count)]
            for topic, count in topics.items()
        }
        self._start(
            wanted,
            [stream for some in made.values() for stream in some],
            key_decoder,
            value_decoder,
        )
        return made

    def create_message_streams_by_filter(
        self,
        pattern: str,
        streams: int = 1,
        *,
        kind: FilterKind | str = FilterKind.WHITE_LIST,
        key_decoder: Decoder | None = None,
        value_decoder: Decoder | None = None,
        timeout_s: float | None = None,
    ) -> list[MessageStream]:
        """So many streams over all topics that match the pattern of Java's from end to end
        (`white_list`), or over all others (`black_list`); those that are made later join by
        themselves. Raises as `create_message_streams`.

        Each stream has its part of every topic. The brokers' own topics are in none. Consumers of
        Jafka know no filters: beside them the member is registered with the topics' names, anew
        whenever they change.
        """
        if type(streams) is not int or streams < 1:
            raise SettingsError(f"{streams!r} is no number of streams", check="1 or more")
        wanted = by_filter(pattern, FilterKind(kind), threads=streams)
        made = [self._stream(None, number, timeout_s) for number in range(streams)]
        self._start(wanted, made, key_decoder, value_decoder)
        return made

    def commit(self) -> None:
        """Store behind the last record that each stream handed out. With several threads: when none
        of them is amid a record. Raises as `Consumer.commit`; and SettingsError before there are
        streams."""
        if self._pump is None:
            raise SettingsError(
                "there are no streams yet",
                check="create_message_streams, before anything is committed",
            )
        self._pump.commit()

    def shutdown(self) -> None:
        """End all streams, and leave the group. Commits nothing but where that is done by itself.
        May be called again.
        """
        self._is_shut_down = True
        if self._pump is not None:
            self._pump.stop()

    def _stream(self, topic: str | None, number: int, timeout_s: float | None) -> MessageStream:
        return MessageStream(
            topic,
            number,
            StreamQueue(self._queue_records, self._queue_bytes),
            self._changed,
            timeout_s,
        )

    def _start(
        self,
        wanted: Subscription,
        streams: Sequence[MessageStream],
        key_decoder: Decoder | None,
        value_decoder: Decoder | None,
    ) -> None:
        if self._streams or self._is_shut_down:
            raise SettingsError("a connector makes its streams once", check="another Connector")
        conf = self._conf
        with ExitStack() as until:
            opened, sizes = open_cluster(conf, until), conf.sizes
            fetches = Fetches(opened.cluster, sizes, conf.generation)
            until.callback(fetches.close)
            positions = StreamPositions(
                opened.cluster,
                opened.kept,
                conf.begins,
                sizes,
                key_decoder,
                value_decoder,
                queue_of=lambda log: queue_of(log),
                changed=self._changed,
            )
            group = Subscribed(opened, positions)
            queue_of = _sharing(streams, group)
            until.callback(group.unsubscribe)
            group.subscribe(wanted, self._listener)
            self._streams = list(streams)
            self._pump = Pump(group, positions, fetches, until.pop_all(), self._changed)
        for stream in streams:
            stream.start(self._pump)


def _sharing(
    streams: Sequence[MessageStream], group: Subscribed
) -> Callable[[BrokerPartition], StreamQueue]:
    """Which stream a log that comes belongs to: that of the thread that owns it, or else the one
    that has the fewest.
    """

    def queue_of(log: BrokerPartition) -> StreamQueue:
        of_topic = [stream for stream in streams if stream.topic in (None, log.topic)]
        if (threads := group.threads) is not None:
            return of_topic[threads[log]].queue
        return min(
            of_topic, key=lambda stream: sum(one.topic == log.topic for one in stream.queue.logs)
        ).queue

    return queue_of
