"""Exactly-once batches from any Kafka into Delta Lake, on PySpark, with the ledger in ZooKeeper.

What users import, all of it:

    from etl import OffsetRanges    # the data source, for `spark.dataSource.register`
    from etl import SimpleConsumer  # one blocking connection to one broker
    from etl import Messages        # the records of a fetched partition, one by one
    from etl import Cluster         # real ZooKeeper and Kafka on this machine, for your own tests

Each is loaded when it is first asked for, so `import etl` loads nothing else. Where a class lives
below may change, these names do not. To read the code, start at `etl.run.ingest` for the story of a
run, at `etl.model.plans` for its nouns, at `etl.cli` for the commands.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etl.io.brokers.client import SimpleConsumer
    from etl.reader.source import OffsetRanges
    from etl.records.decode import Messages
    from etl.testkit.cluster import Cluster

__version__ = "0.1.0"
__all__ = ["Cluster", "Messages", "OffsetRanges", "SimpleConsumer", "__version__"]

_HOMES = {
    "Cluster": "etl.testkit.cluster",
    "Messages": "etl.records.decode",
    "OffsetRanges": "etl.reader.source",
    "SimpleConsumer": "etl.io.brokers.client",
}


def __getattr__(name: str) -> Any:
    """The public name, imported from where it lives (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """The public names beside the module's own."""
    return sorted({*globals(), *__all__})
