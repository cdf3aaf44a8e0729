"""Exactly-once batches from any Kafka into Delta Lake, on PySpark, with the ledger in ZooKeeper.

Start at `etl.run.ingest` for the story of a run, at `etl.model.plans` for its nouns, at `etl.cli` for the doors.
"""

__version__ = "0.1.0"
