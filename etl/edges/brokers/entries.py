"""Whether an entry of a physical log (0.7 family) begins at a byte position that somebody told. One
broker is asked.

Two looks, for the first one is cheap and the second one is proof:

- The bytes at the offset must be an entry whose checksum holds, and which ends where its segment
  does or before. One request for all logs,
  a few KiB of each. A payload that holds messages (a copy of a log) looks just so. Of one that would be larger than what is looked at,
  this look tells nothing.
- From an offset at which an entry begins for sure it is walked, by lengths alone, to the offset: an
  entry ends there, or it lies inside of
  one, and where that one begins and ends is known then. It takes all bytes in between, so it is bounded for all logs of a broker together,
  some of the bad ones first and then the nearest. What is further from a segment's start than that has its checksum alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.errors import EtlError, OffsetInsideMessage
from etl.kafka.messages import FetchedPartition, FetchTarget
from etl.model.partitions import BrokerPartition, DoubtedOffset, Isolation, LookedAt
from etl.settings.choices import MIB

LOOK_BYTES = 4 << 10
"""What is asked for at each offset first."""
WALKED_BYTES_MAX = 64 * MIB
"""Of all walks at one broker together, and of one entry whose checksum is looked at."""
_LOGS_AT_A_TIME, _ANSWER_BYTES_MAX = 1000, 16 * MIB
_BAD_ONES_WALKED = 16
"""One of them is told."""
_NOTHING_GIVEN = "its broker gives nothing from there"
_LENGTH_BYTES = 4


def look_at(
    consumer: SimpleConsumer, doubted: Collection[DoubtedOffset]
) -> list[tuple[BrokerPartition, LookedAt]]:
    """What this broker's logs have at these offsets. Raises BrokerUnreachable."""
    found = dict(_checked(consumer, doubted))
    found.update(_walked(consumer, _to_walk(found), found))
    return [(one.log, looked) for one, looked in found.items()]


def _to_walk(found: Mapping[DoubtedOffset, LookedAt]) -> list[DoubtedOffset]:
    """Those that are walked to: some of the bad ones, in order, so that the one that is told is
    told in full; then the nearest.
    """
    bad = sorted(one for one, looked in found.items() if looked.is_entry is False)[
        :_BAD_ONES_WALKED
    ]
    good = [
        one for one, looked in found.items() if looked.is_entry is not False and not one.is_kept
    ]
    left, chosen = WALKED_BYTES_MAX, list[DoubtedOffset]()
    for one in (*bad, *sorted(good, key=lambda one: (one.offset - one.walk_from, one))):
        if one.offset - one.walk_from <= left:
            left -= one.offset - one.walk_from
            chosen.append(one)
    return chosen


def _checked(
    consumer: SimpleConsumer, doubted: Collection[DoubtedOffset]
) -> Iterator[tuple[DoubtedOffset, LookedAt]]:
    """By the bytes at each offset alone."""
    waiting = {one: LOOK_BYTES for one in doubted}
    while waiting:
        asked = _of_different_logs(waiting)
        for one, fetched in zip(
            asked,
            _fetched(consumer, [(one, one.offset, waiting[one]) for one in asked]),
            strict=True,
        ):
            looked, needed = _checked_one(one, fetched, waiting[one])
            if waiting[one] < needed:
                waiting[one] = needed
                continue
            del waiting[one]
            yield one, looked


def _of_different_logs(waiting: dict[DoubtedOffset, int]) -> list[DoubtedOffset]:
    """A request names a log once, and an answer is held in memory: a few of those that wait."""
    asked: dict[BrokerPartition, DoubtedOffset] = {}
    size = 0
    for one, needed in waiting.items():
        if (
            one.log not in asked
            and len(asked) < _LOGS_AT_A_TIME
            and (not asked or size + needed <= _ANSWER_BYTES_MAX)
        ):
            asked[one.log] = one
            size += needed
    return list(asked.values())


def _checked_one(
    one: DoubtedOffset, fetched: FetchedPartition | None, asked_bytes: int
) -> tuple[LookedAt, int]:
    """What the bytes say, and how many are needed where these are too few."""
    from etl.records.message_kernel import PHYSICAL_ENTRY_BYTES, SMALLEST_PHYSICAL

    left = one.until_offset - one.offset
    if left < PHYSICAL_ENTRY_BYTES + SMALLEST_PHYSICAL:
        return LookedAt(
            one.offset,
            False,
            f"there are {left} bytes before {one.until_offset}, and none is so small",
        ), 0
    if fetched is None:
        return LookedAt(one.offset, None, _NOTHING_GIVEN), 0
    try:
        # The compiled kernels load only where records are decoded.
        from etl.records.decode import Messages

        messages = Messages(fetched)
        if needed := messages.needed_bytes:
            return _cut_off(one, len(fetched.records), asked_bytes, needed)
        next(iter(messages), None)
    except OffsetInsideMessage as inside:
        if inside.where.get("offset") == one.offset:
            return LookedAt(one.offset, False, inside.what), 0
    except EtlError:
        pass  # it begins there, and is damaged: whoever reads it tells
    return LookedAt(one.offset, True), 0


def _cut_off(
    one: DoubtedOffset, given_bytes: int, asked_bytes: int, needed: int
) -> tuple[LookedAt, int]:
    """The same of an answer without a whole entry. One that is shorter than what was asked for ends
    where the segment does.
    """
    if needed > one.until_offset - one.offset:
        wrong = f"it would reach to {one.offset + needed}, beyond {one.until_offset}, where its segment or the log ends"
        return LookedAt(one.offset, False, wrong), 0
    if given_bytes < asked_bytes:
        return LookedAt(
            one.offset,
            False,
            f"there are {given_bytes} bytes before its segment ends, and no whole message",
        ), 0
    if needed > WALKED_BYTES_MAX:
        return LookedAt(
            one.offset,
            None,
            f"it would have {needed:,} bytes, and {WALKED_BYTES_MAX:,} are looked at",
        ), 0
    return LookedAt(one.offset, True), needed


def _walked(
    consumer: SimpleConsumer,
    doubted: Sequence[DoubtedOffset],
    found: Mapping[DoubtedOffset, LookedAt],
) -> Iterator[tuple[DoubtedOffset, LookedAt]]:
    """What is known once they were walked to, all logs together; nothing of those where the broker
    gives nothing on the way.
    """
    at = {one: one.walk_from for one in doubted}
    while at:
        sizes = {
            one: min(MIB, max(one.offset - position, LOOK_BYTES)) for one, position in at.items()
        }
        wanted = [(one, at.pop(one), sizes[one]) for one in _of_different_logs(sizes)]
        answers = zip(wanted, _fetched(consumer, wanted), strict=True)
        steps = [
            (one, position, _step(one, position, fetched))
            for (one, position, _), fetched in answers
        ]
        for (
            one,
            position,
            reached,
        ) in steps:  # only now, for who asks more takes the buffers of these answers
            if isinstance(reached, OffsetInsideMessage):
                yield one, _inside(consumer, one, reached.where["offset"], found[one], reached.what)
            elif reached >= one.offset:
                yield one, LookedAt(one.offset, True)
            elif reached > position:
                at[one] = reached


def _step(
    one: DoubtedOffset, position: int, fetched: FetchedPartition | None
) -> int | OffsetInsideMessage:
    """Where the entries end that begin from `position` on and are told by these bytes, or what says
    that one reaches beyond the offset.
    """
    from etl.records.decode import walk_entries

    if fetched is None:
        return position
    try:
        found = walk_entries(fetched, position, one.offset)
    except OffsetInsideMessage as inside:
        return inside
    reached = found.batches[-1].last_offset + 1 if found.batches else position
    return reached + (
        found.cut_off_bytes if found.cut_off_bytes > 1 else 0
    )  # the length of that one is known, and its bytes not needed


def _inside(
    consumer: SimpleConsumer, one: DoubtedOffset, begins: int, looked: LookedAt, wrong: str
) -> LookedAt:
    """Of an offset that lies inside the entry that begins there; where that is none, the log is
    damaged there, and nothing follows.
    """
    header = _fetched(consumer, [(one, begins, _LENGTH_BYTES)])[0]
    if header is None or len(header.records) < _LENGTH_BYTES:
        return looked
    ends = begins + _LENGTH_BYTES + int.from_bytes(header.records, "big", signed=True)
    if not begins < one.offset < ends <= min(one.until_offset, begins + WALKED_BYTES_MAX):
        return looked
    around = replace(one, offset=begins)
    is_whole = _checked_one(
        around, _fetched(consumer, [(around, begins, ends - begins)])[0], ends - begins
    )[0].is_entry
    return LookedAt(one.offset, False, looked.wrong or wrong, begins, ends) if is_whole else looked


def _fetched(
    consumer: SimpleConsumer, wanted: Sequence[tuple[DoubtedOffset, int, int]]
) -> list[FetchedPartition | None]:
    """The bytes from an offset on, so many at most, of each log; None where the broker gives none."""
    targets = [FetchTarget(one.log, offset, size) for one, offset, size in wanted]
    answer = consumer.multifetch(
        targets,
        isolation=Isolation.READ_UNCOMMITTED,
        max_bytes=sum(each.max_bytes for each in targets),
    )
    found = {
        (each.topic, each.partition): each
        for each in answer.partitions
        if each.refusal is None and len(each.records)
    }
    return [found.get((one.log.topic, one.log.partition)) for one, _, _ in wanted]
