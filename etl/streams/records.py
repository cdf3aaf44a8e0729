"""How do records become Python objects, one by one? Rows of tables never do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from etl.errors import CorruptData, EtlError
from etl.model.partitions import BrokerPartition

if TYPE_CHECKING:
    import pyarrow as pa


_ROWS_AT_A_TIME, _APPEND_TIME = 100, 1

Decoder = Callable[[bytes], Any]
"""Converts a key or value; null stays None and is not decoded."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record. On Jafka and Kafka 0.7 it has neither key, timestamp nor headers, and lies where
    its entry of the log begins.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    """Milliseconds since 1970."""
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    broker_id: int | None
    """On Jafka: the broker."""
    message_index: int | None
    """On Jafka: index, from 0, among the messages of one compressed entry."""
    next_offset: int
    """Where a consumer continues after this record. Inside a compressed Jafka entry: at that entry
    again.
    """

    is_append_time: bool | None = None
    """True if the broker set the timestamp; None: no timestamp."""

    @property
    def log(self) -> BrokerPartition:
        return BrokerPartition(self.topic, self.partition, self.broker_id)


class Answer(Iterator[Record]):
    """The records of one response of a partition, in order; columns until the next one is
    requested.

    After the last one the error why nothing follows is raised, if there is one, at each call.
    Raises CorruptData if a decoder fails, with the offset after the record (`next_offset`); the
    next call continues there.
    """

    def __init__(
        self,
        log: BrokerPartition,
        batches: Sequence[pa.RecordBatch],
        end: int,
        failure: EtlError | None,
        key_decoder: Decoder | None,
        value_decoder: Decoder | None,
    ) -> None:
        self.log, self.end = log, end
        """Its partition; the offset of the next fetch, unknown after an error."""
        self.count, self.size = (
            sum(batch.num_rows for batch in batches),
            sum(batch.nbytes for batch in batches),
        )
        """Records, and bytes that they take while they are columns."""
        self.failure = failure
        self._batches, self._key_decoder, self._value_decoder = batches, key_decoder, value_decoder
        self._rows = _rows(batches)
        self._next: dict[str, Any] | None = None
        self._is_begun = False
        self._passed = 0
        """Rows that were given, or that no decoder read."""

    @property
    def is_over(self) -> bool:
        """True if no record follows, but perhaps an error."""
        return self._is_begun and self._next is None

    def __length_hint__(self) -> int:
        return self.count or int(self.failure is not None)

    def __next__(self) -> Record:
        try:
            if not self._is_begun:
                self._is_begun, self._next = True, next(self._rows, None)
            if self._next is None:
                raise (
                    self.failure.with_traceback(None) if self.failure is not None else StopIteration
                )
            row, following = self._next, next(self._rows, None)
            try:
                record = self._record(row, following)
            except CorruptData:
                self._next, self._passed = following, self._passed + 1
                raise
            self._next, self._passed = following, self._passed + 1
            return record
        except (EtlError, StopIteration):
            raise
        except (
            BaseException
        ):  # Ctrl-C, which ends generators for good: asked again it goes on where it was
            self._rows, self._is_begun = islice(_rows(self._batches), self._passed, None), False
            raise

    def _record(self, row: dict[str, Any], next_row: dict[str, Any] | None) -> Record:
        log = self.log
        following = row["offset"] if log.is_physical else row["offset"] + 1
        if next_row is not None and log.is_physical:
            following = next_row["offset"]
        elif next_row is None and self.failure is None:
            following = self.end
        return Record(
            log.topic,
            log.partition,
            row["offset"],
            None if row["timestamp"] is None else row["timestamp"] // 1000,
            _decoded(self._key_decoder, row, "key", log, following),
            _decoded(self._value_decoder, row, "value", log, following),
            tuple((each["key"], each["value"]) for each in row["headers"] or ()),
            log.broker_id,
            row.get("message_index"),
            following,
            None if row["timestamp"] is None else row["timestampType"] == _APPEND_TIME,
        )


def records_of(
    log: BrokerPartition,
    batches: Sequence[pa.RecordBatch],
    end: int,
    failure: EtlError | None = None,
    *,
    key_decoder: Decoder | None = None,
    value_decoder: Decoder | None = None,
) -> Answer:
    """The records of one answer of a log; see `Answer`."""
    return Answer(log, batches, end, failure, key_decoder, value_decoder)


def _rows(batches: Sequence[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        # As numbers: Python's own moments end with the year 9999, and what a producer sends does
        # not.
        at = batch.schema.names.index("timestamp")
        plain = batch.set_column(at, "timestamp", batch.column(at).cast("int64"))
        for start in range(0, plain.num_rows, _ROWS_AT_A_TIME):
            yield from plain.slice(start, _ROWS_AT_A_TIME).to_pylist()


def _decoded(
    decoder: Decoder | None, row: dict[str, Any], name: str, log: BrokerPartition, next_offset: int
) -> Any:
    content = row[name]
    if decoder is None or content is None:
        return content
    try:
        return decoder(content)
    except (
        Exception
    ) as error:  # whatever a program's own function raises, the record is not lost by it
        message = f"The {name} decoder failed: {type(error).__name__}: {error}"
        action = "Check the decoder and the record; seek to next_offset to continue behind it"
        raise CorruptData(
            message, action=action, **log.place, offset=row["offset"], next_offset=next_offset
        ) from error
