"""At most one fetch under way, and the two buffers that answers are received into.

The broker reads while the answer before is decoded, so one buffer is decoded while the other is
received into.
"""

from __future__ import annotations

import time
from dataclasses import replace

from etl.edges.broken import ConnectionBroken
from etl.edges.brokers.connection import ImpossibleSize, outsized
from etl.edges.brokers.exchange import Exchange
from etl.edges.brokers.sent import Sent
from etl.errors import CorruptData
from etl.kafka.messages import Fetch, FetchAnswer


class Fetching:
    """The fetches of one exchange. See `SimpleConsumer.begin_fetch` and `end_fetch`."""

    def __init__(self, exchange: Exchange, max_response_bytes: int) -> None:
        self._exchange = exchange
        self._max_response_bytes = max_response_bytes
        self._under_way: tuple[Fetch, Sent[FetchAnswer]] | None = None
        self._buffers = [bytearray(), bytearray()]
        self._turn = 0

    def refuse_while_under_way(self) -> None:
        """Raise ValueError where an answer is still to come: it would be taken for another's."""
        if self._under_way is not None:
            raise ValueError("a fetch is under way on this connection: end_fetch first")

    def is_answered(self, wait_s: float) -> bool:
        """Whether `end` would find that the answer has begun, or that the connection ended, within
        so long.
        """
        if self._under_way is None:
            raise ValueError("no fetch is under way")
        return self._under_way[1].is_answering(time.monotonic() + wait_s)

    def forget(self) -> None:
        """Wait for nothing any more."""
        self._under_way = None

    def begin(self, fetch: Fetch) -> None:
        deadline = self._exchange.deadline()
        try:
            sent = self._send(fetch, deadline)
        except ConnectionBroken:
            sent = self._send_anew(fetch, deadline)
        self._under_way = fetch, sent

    def end(self) -> FetchAnswer:
        if self._under_way is None:
            raise ValueError("no fetch is under way")
        (fetch, sent), self._under_way = self._under_way, None
        deadline = self._exchange.deadline() + fetch.max_wait_ms / 1000
        try:
            response = self._receive(fetch, sent, deadline)
        except ConnectionBroken as broken:
            if broken.answered:
                raise self._exchange.cut(broken) from None
            sent = self._send_anew(fetch, deadline)
            try:
                response = self._receive(fetch, sent, deadline)
            except ConnectionBroken as again:
                raise self._exchange.cut(again) from None
        return self._checked(self._read(fetch, sent, response), fetch)

    def _send(self, fetch: Fetch, deadline: float) -> Sent[FetchAnswer]:
        return self._exchange.send(lambda dialect: dialect.fetch(fetch), deadline)

    def _send_anew(self, fetch: Fetch, deadline: float) -> Sent[FetchAnswer]:
        try:
            return self._send(fetch, deadline)
        except ConnectionBroken as broken:
            raise self._exchange.cut(broken) from None

    def _receive(self, fetch: Fetch, sent: Sent[FetchAnswer], deadline: float) -> memoryview:
        try:
            return self._exchange.receive(sent.number, deadline, self._next_buffer)
        except ImpossibleSize as size:
            raise outsized(
                self._exchange.address, size, sent.number, self._max_response_bytes, fetch.place
            ) from None

    def _next_buffer(self, size: int) -> memoryview:
        # A bytearray with views cannot grow, and the views of an earlier answer must stay what they
        # are: a new one.
        self._turn ^= 1
        if len(self._buffers[self._turn]) < size:
            self._buffers[self._turn] = bytearray(
                min(size + size // 4, max(size, self._max_response_bytes))
            )
        return memoryview(self._buffers[self._turn])[:size]

    def _read(self, fetch: Fetch, sent: Sent[FetchAnswer], response: memoryview) -> FetchAnswer:
        try:
            return self._exchange.read(sent.request, response)
        except CorruptData as corrupt:
            asked = {(each.log.topic, each.log.partition): each.offset for each in fetch.wanted}
            offset = asked.get((corrupt.where.get("topic", ""), corrupt.where.get("partition", -1)))
            raise CorruptData(
                corrupt.what, check=corrupt.check, **{**corrupt.where, "offset": offset}
            ) from None

    def _checked(self, answer: FetchAnswer, fetch: Fetch) -> FetchAnswer:
        if answer.refusal:
            raise answer.refusal.error("fetch", broker=self._exchange.address)
        if answer.throttle_ms > 0 and not answer.partitions:
            return answer
        asked = {(each.log.topic, each.log.partition): each.offset for each in fetch.wanted}
        got = [(each.topic, each.partition) for each in answer.partitions]
        if len(got) != len(asked) or set(got) != set(asked):
            raise CorruptData(
                "the answer to a fetch names other partitions than were asked for",
                broker=self._exchange.address,
                asked=sorted(asked),
                got=got,
            )
        return replace(
            answer,
            partitions=tuple(
                replace(each, asked_offset=asked[each.topic, each.partition])
                for each in answer.partitions
            ),
        )
