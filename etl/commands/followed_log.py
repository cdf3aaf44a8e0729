"""One log that is followed beyond its end: what a `Consumer` gives of it, as `peeked_log` gives
what is there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from etl.commands.peeked_log import FETCH_BYTES, Ended, PeekedLog
from etl.errors import CorruptData, ExpiredOffsets, RanOutBeforeUntil
from etl.streams.conf import Conf
from etl.streams.consumer import Consumer
from etl.streams.records import Record

_SLICE_S = 0.5


class FollowedLog(PeekedLog):
    """See `PeekedLog`; only what comes in time ends it, and the count."""

    def records(self) -> Iterator[Record]:  # type: ignore[override]
        """Each record, until there are as many as wanted, or nothing comes in time. Raises as
        `Consumer.poll`.
        """
        source, log = self._source, self.log
        conf = Conf(
            isolation=source.isolation,
            broker_version=source.broker_version,
            fetch_max_bytes=source.fetch_max_bytes,
            partition_max_bytes=FETCH_BYTES,
            fetch_limit_bytes=source.fetch_limit_bytes,
            timeout_s=source.timeout_s,
        )
        with Consumer.on(self._cluster, conf) as consumer:
            consumer.assign([log])
            consumer.seek(log, self.from_offset)
            while self.ended is None:
                some = self._polled(consumer)
                for record in some:
                    self.given += 1
                    self.position = record.next_offset
                    yield record
                    if self.given == self._most:
                        self.ended = (
                            Ended.COUNT if record.next_offset > record.offset else Ended.INSIDE
                        )
                        return
                if some:
                    self._idle_since = time.monotonic()
                else:
                    self.position = consumer.position(log)
                    self.ended = Ended.TIME_OUT if self._left_s() <= 0 else None

    def _polled(self, consumer: Consumer) -> list[Record]:
        try:
            return consumer.poll(max(0.0, min(_SLICE_S, self._left_s()))).get(self.log, [])
        except (ExpiredOffsets, RanOutBeforeUntil) as gone:
            check = "the topic's retention, and whether it was deleted and made again; --from earliest begins with what is left"
            raise type(gone)(gone.what, check=check, **gone.where) from None
        except CorruptData as broken:
            check = "the broker's log; --from goes on behind it"
            raise type(broken)(broken.what, check=check, **broken.where) from None
