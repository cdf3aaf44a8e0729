"""How do records become Python objects?

Only for `etl.streams`. Rows of tables stay in Arrow columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from etl.errors import CorruptData, EtlError
from etl.model.partitions import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


_ROWS_AT_A_TIME = 100
_APPEND_TIME = 1

Decoder = Callable[[bytes], Any]
"""Converts a key or value; null stays None and is not decoded."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record.

    On Jafka and Kafka 0.7 it has neither key, timestamp nor headers, and its offset is the byte
    offset of its entry in the partition.
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
    """The offset to continue at after this record. Inside a compressed Jafka entry: the offset of
    that entry again.
    """

    is_append_time: bool | None = None
    """True if the broker set the timestamp; None: no timestamp."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition, self.broker_id)


class FetchedRecords(Iterator[Record]):
    """The records of one response of a partition, in order, converted from columns one by one.

    After the last record each call raises the error of the response, if there is one. Raises
    CorruptData if a decoder fails, with the offset after the record (`next_offset`); the next call
    continues there.
    """

    def __init__(
        self,
        partition: TopicPartition,
        batches: Sequence[pa.RecordBatch],
        end: int,
        failure: EtlError | None,
        key_decoder: Decoder | None,
        value_decoder: Decoder | None,
    ) -> None:
        self.partition = partition
        self.end = end
        """The offset of the next fetch; meaningless after an error."""
        self.count = sum(batch.num_rows for batch in batches)
        """Number of records."""
        self.size = sum(batch.nbytes for batch in batches)
        """Their size in bytes, as columns."""
        self.failure = failure
        """The error that follows the last record."""
        self._batches = batches
        self._key_decoder = key_decoder
        self._value_decoder = value_decoder
        self._rows = _rows(batches)
        self._next: dict[str, Any] | None = None
        self._is_started = False
        self._passed = 0
        """Rows that were returned, or that a decoder failed on."""

    @property
    def is_over(self) -> bool:
        """True if no record follows; an error may follow."""
        return self._is_started and self._next is None

    def __length_hint__(self) -> int:
        return self.count or int(self.failure is not None)

    def __next__(self) -> Record:
        try:
            if not self._is_started:
                self._is_started, self._next = True, next(self._rows, None)
            row = self._next
            if row is None:
                if self.failure is not None:
                    raise self.failure.with_traceback(None)
                raise StopIteration
            following = next(self._rows, None)
            try:
                record = self._record(row, following)
            except CorruptData:
                self._next, self._passed = following, self._passed + 1
                raise
            self._next, self._passed = following, self._passed + 1
            return record
        except (EtlError, StopIteration):
            raise
        except BaseException:
            # Ctrl-C ends a generator for good. A new one lets the next call continue here.
            self._rows = islice(_rows(self._batches), self._passed, None)
            self._is_started = False
            raise

    def _record(self, row: dict[str, Any], next_row: dict[str, Any] | None) -> Record:
        partition = self.partition
        next_offset = row["offset"] if partition.is_physical else row["offset"] + 1
        if next_row is not None and partition.is_physical:
            next_offset = next_row["offset"]
        elif next_row is None and self.failure is None:
            next_offset = self.end
        timestamp_ms = None
        is_append_time = None
        if row["timestamp"] is not None:
            timestamp_ms = row["timestamp"] // 1000
            is_append_time = row["timestampType"] == _APPEND_TIME
        return Record(
            partition.topic,
            partition.partition,
            row["offset"],
            timestamp_ms,
            _decoded(self._key_decoder, row, "key", partition, next_offset),
            _decoded(self._value_decoder, row, "value", partition, next_offset),
            tuple((each["key"], each["value"]) for each in row["headers"] or ()),
            partition.broker_id,
            row.get("message_index"),
            next_offset,
            is_append_time,
        )


def records_of(
    partition: TopicPartition,
    batches: Sequence[pa.RecordBatch],
    end: int,
    failure: EtlError | None = None,
    *,
    key_decoder: Decoder | None = None,
    value_decoder: Decoder | None = None,
) -> FetchedRecords:
    """Return the records of one response of a partition; see `FetchedRecords`."""
    return FetchedRecords(partition, batches, end, failure, key_decoder, value_decoder)


def _rows(batches: Sequence[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        # As numbers: Python's datetime ends with the year 9999, timestamps need not.
        column = batch.schema.names.index("timestamp")
        plain = batch.set_column(column, "timestamp", batch.column(column).cast("int64"))
        for start in range(0, plain.num_rows, _ROWS_AT_A_TIME):
            yield from plain.slice(start, _ROWS_AT_A_TIME).to_pylist()


def _decoded(
    decoder: Decoder | None,
    row: dict[str, Any],
    name: str,
    partition: TopicPartition,
    next_offset: int,
) -> Any:
    content = row[name]
    if decoder is None or content is None:
        return content
    try:
        return decoder(content)
    except Exception as error:  # any error of the program's own function keeps the record
        raise CorruptData(
            f"The {name} decoder failed: {type(error).__name__}: {error}",
            **partition.place,
            offset=row["offset"],
            next_offset=next_offset,
            action="Check the decoder and the record. Seek to next_offset to continue after it",
        ) from error
