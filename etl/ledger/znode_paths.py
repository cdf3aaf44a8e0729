"""Which path does each thing have in ZooKeeper?

    /brokers/ids/<id>                              listener: JSON (0.8+), fields (Jafka); ephemeral
    /brokers/topics/<topic>                        replicas: JSON (0.8+); empty (Jafka)
    /brokers/topics/<topic>/partitions/<p>/state   leader and in-sync replicas: JSON (0.8+)
    /brokers/topics/<topic>/<id>                   partition count of a broker (Jafka), ephemeral
    /admin/delete_topics/<topic>                   a topic that is being deleted (0.8.1+)
    /config/topics/<topic>                         overrides of a topic: JSON (0.8.1+)
    /cluster/id                                    JSON (0.10.1+)
    /consumers/<group>/ids/<consumer id>           live consumers, ephemeral
    /consumers/<group>/owners/<topic>/<key>        thread that owns the partition, ephemeral
    /consumers/<group>/offsets/<topic>/<key>       next offset to read, ASCII decimal
    /consumers/<group>/etl/<pipeline>              uid of the pipeline
      .../drivers/<id>-<sequence>                  host, pid and run id of a driver, ephemeral: the
                                                   first one drives, the others wait
      .../plans/<N>                                plan N
      .../chunks/<hash>/<i>                        pieces of a plan that is too large for a znode
      .../applied/<N>                              result of plan N
      .../coverage                                 loaded intervals of pruned plans
      .../acknowledged                             last operator decision on changes of the table
      .../retired                                  why the pipeline loads no more
      .../paused                                   paused partitions, with reason and time
      .../named_table                              location of a table that a catalog names
      .../backfills/<name>                         the request of a backfill

`<key>` is `<partition>` from Kafka 0.8 on and `<broker>-<partition>` on Jafka. Paths are relative
to the chroot of the connect string. Parents that are created on the way hold no data.
"""

from __future__ import annotations

from dataclasses import dataclass

from etl.model.partitions import TopicPartition

BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
DELETED_TOPICS = "/admin/delete_topics"
CLUSTER_ID = "/cluster/id"
CONSUMERS = "/consumers"
TOPIC_CONFIGS = "/config/topics"


def is_of_a_pipeline(path: str) -> bool:
    """True if the znode is a pipeline's own, or below one, and not shared with consumers or other
    pipelines.
    """
    _, _, below = path.removeprefix(f"{CONSUMERS}/").partition("/")
    return path.startswith(f"{CONSUMERS}/") and below.startswith("etl/")


def partition_state(partition: TopicPartition) -> str:
    """Leader and replicas of a partition, by Kafka's controller."""
    return f"{BROKER_TOPICS}/{partition.topic}/partitions/{partition.partition}/state"


@dataclass(frozen=True, slots=True)
class GroupPaths:
    """The part of the tree that belongs to one consumer group."""

    group: str

    @property
    def consumer_ids(self) -> str:
        """Children are the live consumers."""
        return f"/consumers/{self.group}/ids"

    @property
    def offsets(self) -> str:
        """Children are topics."""
        return f"/consumers/{self.group}/offsets"

    @property
    def pipelines(self) -> str:
        """Children are the pipelines of this group. Written, with nothing, each time that one of
        them takes a topic.
        """
        return f"/consumers/{self.group}/etl"

    @property
    def owners(self) -> str:
        """Children are topics."""
        return f"/consumers/{self.group}/owners"

    def owner(self, partition: TopicPartition) -> str:
        """Current owner of the partition."""
        return f"/consumers/{self.group}/owners/{partition.topic}/{partition.key}"

    def owners_of(self, topic: str) -> str:
        """Children are the owned keys of this topic."""
        return f"{self.owners}/{topic}"

    def offset(self, partition: TopicPartition) -> str:
        """The committed offset of this log."""
        return f"/consumers/{self.group}/offsets/{partition.topic}/{partition.key}"

    def offsets_of(self, topic: str) -> str:
        """Children are the keys of this topic with a committed offset."""
        return f"{self.offsets}/{topic}"


@dataclass(frozen=True, slots=True)
class PipelinePaths:
    """The part of the tree that belongs to one pipeline."""

    group: str
    pipeline: str

    @property
    def root(self) -> str:
        """Holds the uid."""
        return f"{GroupPaths(self.group).pipelines}/{self.pipeline}"

    @property
    def drivers(self) -> str:
        """Children are the driver at work, which came first, and those that wait."""
        return f"{self.root}/drivers"

    @property
    def plans(self) -> str:
        """Children are plan numbers."""
        return f"{self.root}/plans"

    @property
    def applied_plans(self) -> str:
        """Children are numbers of plans with a recorded result."""
        return f"{self.root}/applied"

    @property
    def loaded(self) -> str:
        """Loaded intervals of pruned plans."""
        return f"{self.root}/coverage"

    @property
    def acknowledged(self) -> str:
        """The last acknowledgement by an operator."""
        return f"{self.root}/acknowledged"

    @property
    def retired(self) -> str:
        """Retirement."""
        return f"{self.root}/retired"

    @property
    def paused(self) -> str:
        """Logs that get no range until they are resumed."""
        return f"{self.root}/paused"

    @property
    def named_table(self) -> str:
        """Location of a named table."""
        return f"{self.root}/named_table"

    @property
    def backfills(self) -> str:
        """Children are the names of the pipeline's backfills."""
        return f"{self.root}/backfills"

    def backfill(self, name: str) -> str:
        """The request of a backfill."""
        return f"{self.backfills}/{name}"

    def plan(self, number: int) -> str:
        """Plan `number`."""
        return f"{self.plans}/{number}"

    def applied(self, number: int) -> str:
        """Result of plan `number`."""
        return f"{self.applied_plans}/{number}"

    def chunk(self, digest: str, index: int) -> str:
        """One piece of a document too large for one znode."""
        return f"{self.chunks(digest)}/{index}"

    def chunks(self, digest: str) -> str:
        """Children are the pieces of that document."""
        return f"{self.all_chunks}/{digest}"

    @property
    def all_chunks(self) -> str:
        """Children are the hashes of documents that have pieces."""
        return f"{self.root}/chunks"
