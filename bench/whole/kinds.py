"""The compared kinds of work, by their names, and their titles in the document."""

from __future__ import annotations

from collections.abc import Mapping

SESSION: Mapping[str, str] = {
    "spark-delta": "Spark's Kafka source -> Delta",
    "arrow": "`etl run`, `writer: arrow`",
    "dataframe": "`etl run`, `writer: spark`",
    "without-spark": "`etl run`, without Spark",
    "spark-noop": "Spark's Kafka source -> nothing",
    "reader": "`offset_ranges` data source -> nothing",
}
"""Those of one Spark session."""
RUNS = ("arrow", "dataframe", "without-spark")
"""Those that are runs of ours."""
PEER, DRAIN = "peer", "drain"
KINDS: Mapping[str, str] = {
    **SESSION,
    PEER: "confluent-kafka + deltalake, one process",
    DRAIN: "the sockets, bytes thrown away",
}
ORDER = ("reader", "spark-delta", *RUNS, "spark-noop", PEER, DRAIN)
"""In each round: Spark ends a Python worker that had nothing to do for a minute, so those that have
some lie near each other.
"""
COMPARED_WITH: Mapping[str, str] = {
    **dict.fromkeys((*RUNS, PEER), "spark-delta"),
    "reader": "spark-noop",
}
"""The kind with which the speed of each is compared."""
