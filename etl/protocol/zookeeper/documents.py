"""What all documents of the ledger have in common: the format, how large they may be, compression,
and logs in them.

Whatever carries a newer format is refused, so that an old driver never misreads a new plan. Format
1 lacked what a plan knows of the table's transaction version, of log starts and of why offsets were
let go; formats before 3 lacked leader epochs, the lives of logs, the starts that wait for their
log, and what is not known of rows that were counted again. Their documents are still read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from etl.errors import LedgersDisagree, NeedsDecision
from etl.model.partitions import BrokerPartition, in_order, parse_partition_key

T = TypeVar("T")
V = TypeVar("V")
FORMAT = 3
WRITTEN_MAX_BYTES = 64 * 2**20
"""No document is written that is larger before it is compressed: a plan is refused, a record leaves
gaps out.
"""
DOCUMENT_MAX_BYTES = 4 * WRITTEN_MAX_BYTES
"""A decompressed document larger than this is not one of ours. Earlier versions bounded no record
that they wrote.
"""


def parsed(payload: bytes, path: str, build: Callable[[dict[str, Any]], T]) -> T:
    """What `build` makes of the document. Raises LedgersDisagree when it is none or not such a one,
    NeedsDecision when it is newer.
    """
    try:
        document = json.loads(_inflate(payload))
        if document["format"] > FORMAT:
            what = (
                f"the document has format {document['format']}, this version reads up to {FORMAT}"
            )
            raise NeedsDecision(
                what,
                znode=path,
                check="that the newest version of offset-range-etl runs everywhere",
            )
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
        what = f"the znode does not hold what it should: {type(error).__name__}: {error}"
        raise LedgersDisagree(
            what,
            znode=path,
            check="who wrote that znode, and whether ZooKeeper was restored from a copy",
        ) from error


def _inflate(payload: bytes) -> bytes:
    """Decompress, never to more than a document of ours can be."""
    inflating = zlib.decompressobj()
    text = inflating.decompress(payload, DOCUMENT_MAX_BYTES)
    if not inflating.eof:
        raise ValueError("it is cut off or far too large")
    return text


def canonical(document: Any) -> bytes:
    """The one way to write a document down, so that its hash is one, too."""
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def render_logs(logs: Iterable[BrokerPartition]) -> dict[str, list[str]]:
    """Logs that are `in_order`, by topic: `{topic: [key, ...]}`."""
    found: dict[str, list[str]] = {}
    for log in logs:
        found.setdefault(log.topic, []).append(log.key)
    return found


def parse_logs(found: Mapping[str, list[str]]) -> list[BrokerPartition]:
    """The logs that `render_logs` wrote, in order. Raises ValueError for a key of none."""
    return [log_of(topic, key) for topic, keys in found.items() for key in keys]


def log_of(topic: str, key: str) -> BrokerPartition:
    """The log of that key. Raises ValueError where it is of none."""
    log = parse_partition_key(topic, key)
    if log is None:
        raise ValueError(f"{key!r} is no partition key")
    return log


def sorted_items(of_logs: Mapping[BrokerPartition, V]) -> list[tuple[BrokerPartition, V]]:
    """The items of a mapping in the order of its logs, so that equal mappings are written alike."""
    return [(log, of_logs[log]) for log in in_order(of_logs)]


def flat(found: Iterable[tuple[int, int]]) -> list[int]:
    """Pairs as one list, which is shorter as JSON."""
    return [number for pair in found for number in pair]


def pairs(found: list[int]) -> tuple[tuple[int, int], ...]:
    """The pairs that `flat` wrote."""
    return tuple(zip(found[::2], found[1::2], strict=True))
