"""A table that a catalog of Spark's names: what the catalog says of it, and what is kept of that."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamedTable:
    """Where a name led when Spark was asked."""

    name: str
    """As the conf has it."""
    path: str
    """As a conf would write it."""
    table_id: str | None
    """Of the Delta table that was there."""
    at_ms: int
    catalog: str | None = None
    """Which catalog that was, as `catalog_of` tells it of the conf; None from before this was kept.
    """


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """What a catalog says of a name."""

    catalog: str
    kind: str
    """MANAGED, EXTERNAL, VIEW, ...: as Spark calls it; empty where the catalog does not say."""
    provider: str
    """delta, parquet, ...: lower case."""
    location: str | None
    """The place as Hadoop writes it: file:/a b, s3a://bucket/path."""
    properties: frozenset[str] = frozenset()
    """Keys of the table's own, and of what the catalog gives a session to reach its files by: their
    values may be secrets.
    """
