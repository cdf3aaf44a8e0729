"""How are the documents of the ledger, other than plans, stored?

Lives here: the frame of all documents (format number, size limit, compression), which fields
differ from the JSON of their types, results that are too large.
Not here: the JSON of types (document_codec.py), plans (plan_document.py), znode paths
(znode_paths.py), reading and writing znodes (etl/io/zookeeper/).

A new kind of document needs a dataclass, and an entry in the tables below if it differs. What the
types do not tell is checked in `__post_init__` of the class.

There is one format. A document of a newer one is rejected, so that an old driver never misreads
a newer plan.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from etl.errors import LedgersDisagree, NeedsDecision
from etl.ledger.document_codec import Codec, Differs
from etl.model.plans import CommitResult, RangeResult
from etl.model.snapshot import (
    Acknowledgement,
    Backfill,
    ForeignCommit,
    Interval,
    LoadedIntervals,
    Pause,
    Retirement,
)

T = TypeVar("T")
FORMAT = 3
"""The format of all documents."""
WRITTEN_MAX_BYTES = 64 * 2**20
"""Largest document that is written, in bytes before compression.

Any document that is written must be readable later. A larger plan is rejected; a larger commit
result is written without some of its gaps; loaded intervals merge the oldest ones.
"""
DOCUMENT_MAX_BYTES = 4 * WRITTEN_MAX_BYTES
"""Largest document that is parsed, in bytes after decompression.

It is more than what is written, so that a lower `WRITTEN_MAX_BYTES` makes no document unreadable.
"""
DIFFERING: Mapping[type, Mapping[str, Differs]] = {
    CommitResult: {
        "results": Differs.BY_COLUMN,
        "undated": Differs.NOT_STORED,
        "written": Differs.LEFT_OUT,
    },
    RangeResult: {
        "gaps": Differs.FLAT,
        "epochs": Differs.FLAT,
        "records": Differs.LEFT_OUT,
        "requests": Differs.NOT_STORED,
    },
    Interval: {"left_out": Differs.LEFT_OUT},
    LoadedIntervals: {
        "given_up": Differs.APART,
        "read_by_others": Differs.LEFT_OUT,
        "has_unknown_plans": Differs.LEFT_OUT,
    },
    ForeignCommit: {"by": Differs.NOT_STORED, "unread": Differs.NOT_STORED},
    Acknowledgement: {"rows_of": Differs.LEFT_OUT},
    Backfill: {"incarnations": Differs.ZERO_IF_ABSENT, "lost": Differs.APART},
}
"""Fields that differ from the JSON of their types."""
CODEC = Codec(DIFFERING, format=FORMAT)
_AS_TEXT = (Acknowledgement, Retirement)
"""Documents that are not compressed, so that operators can read them in a ZooKeeper shell."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """The pauses of a pipeline."""

    pauses: tuple[Pause, ...]


def render(value: Any) -> bytes:
    """Return a dataclass as a stored document.

    If not all gaps of a commit result fit, as many ranges as possible keep theirs.
    """
    content = CODEC.write(value)
    if isinstance(value, _AS_TEXT):
        return json.dumps(content, sort_keys=True).encode()
    text = canonical(content)
    if isinstance(value, CommitResult) and len(text) + _size_of_gaps(value) > WRITTEN_MAX_BYTES:
        text = canonical(CODEC.write(_with_gaps_that_fit(value)))
    return zlib.compress(text, 6)


def parse(kind: type[T], payload: bytes, *, path: str) -> T:
    """Parse a document of this class.

    Raises LedgersDisagree if it is invalid, NeedsDecision if it is of a newer format.
    """

    def build(document: dict[str, Any]) -> T:
        return CODEC.read(kind, document)

    if issubclass(kind, _AS_TEXT):
        payload = zlib.compress(payload)
    return parsed(payload, path, build)


def parsed(payload: bytes, path: str, build: Callable[[dict[str, Any]], T]) -> T:
    """Parse a compressed document by `build`.

    Raises LedgersDisagree if it is invalid, NeedsDecision if it is of a newer format.
    """
    try:
        with collector_paused():
            document = json.loads(_inflate(payload))
            if document["format"] > FORMAT:
                raise NeedsDecision(
                    f"The document has format {document['format']}, "
                    f"but this version reads only format {FORMAT}",
                    znode=path,
                    action="Check that the newest version of offset-range-etl runs everywhere",
                )
            if document["format"] < FORMAT:
                raise ValueError(f"no version writes format {document['format']}")
            return build(document)
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        RecursionError,
        OverflowError,
        zlib.error,
    ) as error:
        message = f"A stored document is invalid: {type(error).__name__}: {error}"
        action = (
            "Check which client wrote that znode, and whether ZooKeeper was restored from a copy"
        )
        ledger = re.match(r"/consumers/[^/]+/etl/[^/]+", path)
        if ledger:
            action += (
                ". Set the znode right from a copy of ZooKeeper. Without one, and unless "
                "group.mode is join, stop all commands of this pipeline and delete "
                f"{ledger[0]}: the next run makes the ledger again from the table's commits; "
                "pauses, requests of backfills and accepted changes are lost"
            )
        raise LedgersDisagree(message, znode=path, action=action) from error


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Context manager: the garbage collector is paused while many objects without cycles are made,
    as of a document or a snapshot.

    It would visit them again and again, which is a third of the time for 100,000 partitions.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _inflate(payload: bytes) -> bytes:
    """Decompress up to `DOCUMENT_MAX_BYTES`.

    Raises ValueError for a larger or incomplete document, and for bytes after its end.
    """
    inflating = zlib.decompressobj()
    text = inflating.decompress(payload, DOCUMENT_MAX_BYTES)
    if not inflating.eof:
        raise ValueError("the document is incomplete or far too large")
    if inflating.unused_data:
        raise ValueError("bytes follow the end of the document")
    return text


def canonical(document: Any) -> bytes:
    """Return the canonical JSON of a document: equal documents have equal bytes and hashes."""
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


_GAP_BYTES = 40
"""Largest size of one gap: two offsets of 19 digits, each with a comma."""


def without_gaps(applied: CommitResult) -> CommitResult:
    """Return a plan's result without gaps."""
    return _with_gaps(applied, [()] * len(applied.results))


def _size_of_gaps(applied: CommitResult) -> int:
    """Return the largest size of all gaps, in bytes."""
    return _GAP_BYTES * sum(len(result.gaps) for result in applied.results)


def _with_gaps_that_fit(applied: CommitResult) -> CommitResult:
    """Return the result with all gaps of some ranges, so that it is no larger than allowed.

    A part of a range's gaps would prove no more than their number.
    """
    size = len(canonical(CODEC.write(without_gaps(applied))))
    left = (WRITTEN_MAX_BYTES - size) // _GAP_BYTES
    results = applied.results
    kept: list[tuple[tuple[int, int], ...]] = [()] * len(results)
    for i in sorted(range(len(results)), key=lambda i: len(results[i].gaps)):
        left -= len(results[i].gaps)
        if left < 0:
            break
        kept[i] = results[i].gaps
    return _with_gaps(applied, kept)


def _with_gaps(applied: CommitResult, kept: Sequence[tuple[tuple[int, int], ...]]) -> CommitResult:
    results = []
    for result, gaps in zip(applied.results, kept, strict=True):
        if len(gaps) < len(result.gaps):
            result = replace(result, gaps=gaps, gaps_complete=False)
        results.append(result)
    return replace(applied, results=tuple(results))
