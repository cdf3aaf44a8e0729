"""Which offset ranges the options of the data source come to, log by log, with what the brokers say
of the logs' ends. No I/O.

What the options say is in `options`. What the log does not hold is an error or left out, as
`failOnDataLoss` says; a start behind the end is a mistake wherever both were said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from etl.errors import (
    DataLoss,
    EtlError,
    NotYetReadable,
    RanOutBeforeUntil,
    SettingsError,
    TopicMissing,
)
from etl.model.partitions import BrokerPartition, PartitionOffsets
from etl.model.plans import OffsetRange
from etl.reader.reading import Bound, FirstAt, LogEnd, Reading
from etl.reader.tasks import QueryTask


def ranges_of(
    reading: Reading,
    extents: Mapping[BrokerPartition, PartitionOffsets],
    first: Mapping[BrokerPartition, int | None],
    last: Mapping[BrokerPartition, int | None],
) -> Iterator[OffsetRange]:
    """What is read of each log. `first` and `last` say where the times of `starting` and `ending`
    lie, None where no record is that late.

    Raises SettingsError for bounds that no log can have, and what `inside` does for offsets that
    the log does not hold.
    """
    for option, bounds in (
        (reading.starting.option, reading.starting),
        (reading.ending.option, reading.ending),
    ):
        _refuse_others(option, bounds.by_log, extents)
    for log, extent in sorted(extents.items()):
        starting, ending = reading.starting.of(log), reading.ending.of(log)
        start, end = (
            _offset_of(starting, extent, first.get(log)),
            _offset_of(ending, extent, last.get(log)),
        )
        if start is None:
            start = _too_late(log, extent, reading)
        if end is None:
            ending, end = LogEnd.LATEST, extent.end_offset
        _refuse_reversed(log, reading, (starting, start), (ending, end))
        if start > end and reading.fails_on_data_loss:
            raise _not_held(log, start, end, extent)
        yield inside(
            OffsetRange(log, start, max(start, end)), extent, fails=reading.fails_on_data_loss
        )


def inside(whole: OffsetRange, extent: PartitionOffsets, *, fails: bool) -> OffsetRange:
    """The range, when the log holds all of it; else, unless it `fails`, the part that the log
    holds.

    Raises DataLoss when it starts below the log start, NotYetReadable when it reaches beyond the
    readable end, RanOutBeforeUntil when it reaches beyond the log's.
    """
    place = whole.log.place
    if (
        not whole.size
        or extent.log_start_offset <= whole.from_offset <= whole.until_offset <= extent.end_offset
    ):
        return whole
    if not fails:
        start = min(max(whole.from_offset, extent.log_start_offset), extent.end_offset)
        return OffsetRange(whole.log, start, max(start, min(whole.until_offset, extent.end_offset)))
    if whole.from_offset < extent.log_start_offset:
        what = f"the log starts at {extent.log_start_offset}, offsets from {whole.from_offset} on are asked for"
        raise DataLoss(
            what, **place, check="the topic's retention; failOnDataLoss: false reads what is left"
        )
    what = f"the log can be read up to {extent.end_offset}, offsets up to {whole.until_offset} are asked for"
    if whole.until_offset <= extent.end_offset + extent.held_back:
        raise NotYetReadable(
            what,
            **place,
            check="who left a transaction open there; once it ends, the rest can be read",
        )
    raise RanOutBeforeUntil(
        what, **place, check="the offsets; failOnDataLoss: false reads what is there"
    )


def pieces_of(task: QueryTask, wholes: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
    """The part of each whole range that the task reads. All tasks together read each offset of the
    wholes once.
    """
    mine: dict[BrokerPartition, list[OffsetRange]] = {}
    for piece in task.ranges:
        mine.setdefault(piece.log, []).append(piece)
    for whole in wholes:
        planned = task.planned.get(whole.log)
        if planned is None:  # a log that was added later
            yield whole
            continue
        for piece in mine.get(whole.log, ()):
            start, end = whole.from_offset, whole.until_offset
            if piece.from_offset > planned.from_offset:
                start = max(start, piece.from_offset)
            if piece.until_offset < planned.until_offset:
                end = min(end, piece.until_offset)
            if start < end:
                yield replace(whole, from_offset=start, until_offset=end)


def _refuse_reversed(
    log: BrokerPartition, reading: Reading, start: tuple[Bound, int], end: tuple[Bound, int]
) -> None:
    """A start behind the end is a mistake where both were said, whatever the log holds. Raises
    SettingsError, as Spark's source fails.
    """
    what = None
    if isinstance(start[0], FirstAt) and isinstance(end[0], FirstAt) and start[0].ms > end[0].ms:
        what = f"reading would start at the time {start[0].ms} and stop at {end[0].ms}"
    elif start[1] > end[1] and LogEnd.EARLIEST is not start[0] and LogEnd.LATEST is not end[0]:
        what = f"reading would start at {start[1]} and stop at {end[1]}"
    if what:
        check = f"{reading.starting.option} and {reading.ending.option}"
        raise SettingsError(what, **log.place, check=check)


def _not_held(log: BrokerPartition, start: int, end: int, extent: PartitionOffsets) -> EtlError:
    """The error of a range that lies outside the log: it starts above the readable end, or ends
    below the log start.
    """
    place = log.place
    if start <= extent.log_start_offset:
        what = f"the log starts at {extent.log_start_offset}, offsets up to {end} are asked for"
        return DataLoss(
            what,
            **place,
            check="the topic's retention; failOnDataLoss: false reads what is left, here nothing",
        )
    what = f"the log can be read up to {extent.end_offset}, offsets from {start} on are asked for"
    if start <= extent.end_offset + extent.held_back:
        return NotYetReadable(
            what,
            **place,
            check="who left a transaction open there; once it ends, the rest can be read",
        )
    check = "the offsets, and whether the topic was made again; failOnDataLoss: false reads nothing there"
    return RanOutBeforeUntil(what, **place, check=check)


def _refuse_others(
    option: str, named: Iterable[BrokerPartition], read: Iterable[BrokerPartition]
) -> None:
    """A bound for a log that is not read is a mistake. Raises TopicMissing."""
    left = sorted(set(named) - set(read))
    if left:
        what = "the option names a partition that is not there, or not chosen to be read"
        raise TopicMissing(
            what, option=option, **left[0].place, check="the option, and the topics read"
        )


def _offset_of(bound: Bound, extent: PartitionOffsets, found: int | None) -> int | None:
    """None where no record is that late. A record that came since the log's ends were told lies
    behind all that is read.
    """
    if isinstance(bound, LogEnd):
        return extent.log_start_offset if bound is LogEnd.EARLIEST else extent.end_offset
    if isinstance(bound, FirstAt):
        return None if found is None else min(found, extent.end_offset)
    return bound


def _too_late(log: BrokerPartition, extent: PartitionOffsets, reading: Reading) -> int:
    if reading.late_start_is_latest:
        return extent.end_offset
    what, check = (
        "no record is as late as the starting time",
        "the time; startingOffsetsByTimestampStrategy: latest reads nothing there",
    )
    raise SettingsError(what, option=reading.starting.option, **log.place, check=check)
