"""Load Kafka topics into Delta tables in batches, exactly once.

The public names, all imported from here:

    from etl import OffsetRanges       # data source, for `spark.dataSource.register`
    from etl import SimpleConsumer     # one blocking connection to one broker
    from etl import Messages           # iterate over the records of a fetched partition
    from etl import Consumer           # consumer of all partitions, alone or as member of a group
    from etl import ConsumerConnector  # streams of records for several threads
    from etl import TopicPartition     # a partition; ("clicks", 0) names it, too
    from etl import EtlError           # base class of all errors (etl.errors)
    from etl import EmbeddedCluster    # real ZooKeeper and Kafka on this machine, for tests

A name is imported on first access, so `import etl` loads no other module. Modules below may move;
these names do not. Start reading at `etl.run.ingest` (the story of a run), `etl.model.plans` (its
values) and `etl.cli` (the commands).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etl.errors import EtlError
    from etl.io.brokers.simple_consumer import SimpleConsumer
    from etl.kafka.request_values import FetchTarget
    from etl.model.partitions import TopicPartition
    from etl.reader.source import OffsetRanges
    from etl.records.decode import Messages
    from etl.streams.conf import ConsumerConfig, Group, RebalanceListener
    from etl.streams.consumer import Consumer
    from etl.streams.consumer_connector import ConsumerConnector, ConsumerTimeout, MessageStream
    from etl.streams.records import Record
    from etl.testkit.cluster import EmbeddedCluster

__version__ = "0.1.0"
__all__ = [
    "Consumer",
    "ConsumerConfig",
    "ConsumerConnector",
    "ConsumerTimeout",
    "EmbeddedCluster",
    "EtlError",
    "FetchTarget",
    "Group",
    "MessageStream",
    "Messages",
    "OffsetRanges",
    "RebalanceListener",
    "Record",
    "SimpleConsumer",
    "TopicPartition",
    "__version__",
]

_HOMES = {
    "Consumer": "etl.streams.consumer",
    "ConsumerConfig": "etl.streams.conf",
    "ConsumerConnector": "etl.streams.consumer_connector",
    "ConsumerTimeout": "etl.streams.consumer_connector",
    "EmbeddedCluster": "etl.testkit.cluster",
    "EtlError": "etl.errors",
    "FetchTarget": "etl.kafka.request_values",
    "Group": "etl.streams.conf",
    "MessageStream": "etl.streams.consumer_connector",
    "Messages": "etl.records.decode",
    "OffsetRanges": "etl.reader.source",
    "RebalanceListener": "etl.streams.conf",
    "Record": "etl.streams.records",
    "SimpleConsumer": "etl.io.brokers.simple_consumer",
    "TopicPartition": "etl.model.partitions",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """Return the names of the module, public ones included."""
    return sorted({*globals(), *__all__})
