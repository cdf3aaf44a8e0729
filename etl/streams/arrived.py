"""What an answer to a consumer's fetch comes to for one log: records to hand out, a failure to
tell, or that it is asked again.
"""

from __future__ import annotations

import pyarrow as pa

from etl.errors import (
    BrokerError,
    BrokerUnreachable,
    EtlError,
    ExpiredOffsets,
    Meaning,
    RanOutBeforeUntil,
)
from etl.io.brokers.client import SimpleConsumer
from etl.kafka.messages import EARLIEST, LATEST, EntryLayout, FetchedPartition
from etl.model.columns import raw_columns
from etl.model.partitions import Isolation
from etl.reader.cursor import RangeProgress, place_of
from etl.records.batch_v2 import AbortedTransactions
from etl.records.decode import decode
from etl.records.decode import walk_entries as walk_of
from etl.records.entries import Counts, Selection
from etl.records.kernel_cache import Tally

_END_OF_ALL = 2**63 - 1
_SEEK = "seek, seek_to_beginning or seek_to_end, which say what is read next"


def batches_of(
    walk: RangeProgress,
    fetched: FetchedPartition,
    consumer: SimpleConsumer,
    isolation: Isolation,
) -> tuple[list[pa.RecordBatch], EtlError | None]:
    """The rows of the answer, and what broke behind them. Neither where the log is to be asked
    again; its leader may be lost then.

    The rows are decoded here: the buffer of the answer is another one's soon, and how long records
    wait is the program's to say.
    """
    refusal = fetched.refusal
    try:
        if (
            refusal
            and refusal.meaning in (Meaning.OUT_OF_RANGE, Meaning.UNSAID)
            and (outside := _outside(walk, consumer))
        ):
            return [], outside
        if refusal and (refusal.is_retriable or refusal.meaning is Meaning.OUT_OF_RANGE):
            walk.lose_leader(refusal.error("fetch", broker=consumer.address, **place_of(walk)))
            return [], None
        rows = walk.cursor.feed(fetched)
    except BrokerUnreachable as silent:
        walk.lose_leader(silent)
        return [], None
    except EtlError as broken:
        return [], broken
    walk.failure, walk.idle_since, walk.attempts = None, None, 0
    try:
        return list(rows), None
    except EtlError:
        return _up_to_the_broken(fetched, isolation)


def _up_to_the_broken(
    fetched: FetchedPartition, isolation: Isolation
) -> tuple[list[pa.RecordBatch], EtlError | None]:
    """The same one record batch after the other, for decoded together none is given; the failure
    says where the broken one ends.
    """
    asked, found, aborted = (
        fetched.asked_offset,
        list[pa.RecordBatch](),
        AbortedTransactions(fetched.aborted),
    )
    columns = raw_columns(physical=fetched.layout is EntryLayout.PHYSICAL)
    selection = Selection(
        asked, _END_OF_ALL, columns, skips_aborted=isolation is Isolation.READ_COMMITTED
    )
    for header in walk_of(fetched, asked, _END_OF_ALL).batches:
        try:
            found += decode(fetched, [header], selection, Tally(asked), Counts(), aborted)
        except EtlError as broken:
            where = {**broken.where, "next_offset": header.last_offset + 1}
            return found, type(broken)(
                broken.what,
                check=f"{broken.check}; seek to next_offset to go on behind it",
                **where,
            )
    return found, None


def _outside(walk: RangeProgress, consumer: SimpleConsumer) -> EtlError | None:
    """Why the offset is not in the log; None where it is: a broker that just lost the lead, or won
    it, answers so.
    """
    start, end = (_bound(walk, consumer, when) for when in (EARLIEST, LATEST))
    if walk.cursor.position < start:
        return ExpiredOffsets(
            "the offset was deleted by retention before it was read",
            check=f"the topic's retention; {_SEEK}",
            **place_of(walk),
            log_start_offset=start,
        )
    if walk.cursor.position > end:
        return RanOutBeforeUntil(
            f"the log ends at {end} by now, below the offset",
            **place_of(walk),
            check=f"whether the topic was deleted and made again, or lost its end with a broker; {_SEEK}",
        )
    return None


def _bound(walk: RangeProgress, consumer: SimpleConsumer, when: int) -> int:
    listed = consumer.list_offsets({walk.log: when}, isolation=Isolation.READ_UNCOMMITTED)[walk.log]
    if listed.refusal or listed.offset is None:
        raise BrokerError(
            "the broker names no start or end of the log",
            **walk.log.place,
            check="the broker's log",
        )
    return listed.offset
