"""Planning on very many brokers: requests per broker, number of connections, and one common
deadline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from etl.errors import BrokerUnreachable
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.partition_ends import (
    MAX_PARALLEL_BROKERS,
    OffsetsAndLeaders,
    max_kept_connections,
)
from etl.io.process import open_files
from etl.model.partitions import BrokerPartition, Isolation, PartitionOffsets
from tests.fakes.many_brokers import (
    API_VERSIONS,
    BYTES_PER_OFFSET,
    CONFIGS,
    GROUPS,
    LEADER_EPOCHS,
    LIST_OFFSETS,
    LOG_DIRS,
    METADATA,
    ManyBrokers,
)

BROKERS, TOPICS, PARTITIONS = 30, 10, 60


@pytest.fixture
def many() -> Iterator[ManyBrokers]:
    with ManyBrokers(
        brokers=BROKERS, topics=TOPICS, partitions=PARTITIONS, end_offset=100
    ) as running:
        yield running


def every_question(cluster: Cluster) -> tuple[OffsetsAndLeaders, Mapping[BrokerPartition, float]]:
    """The requests of a run to the brokers."""
    reported = cluster.describe(None)
    logs = [each.log for topic in reported.topics.values() for each in topic.partitions]
    found = cluster.extents(logs, isolation=Isolation.READ_COMMITTED, metadata=reported)
    assert cluster.epoch_ends(dict.fromkeys(logs, 5), leaders=found.leaders).keys() == set(logs)
    assert cluster.retained_from(
        found, dict.fromkeys(logs, 1), isolation=Isolation.READ_COMMITTED
    ) == dict.fromkeys(logs, 0)
    assert cluster.retention(reported.topics).keys() == reported.topics.keys()
    assert cluster.members_of("group", reported.brokers.values()).unknown is None
    return found, cluster.bytes_per_offset(found)


def test_each_broker_gets_each_request_once_however_many_logs_it_leads(
    many: ManyBrokers,
) -> None:
    with Cluster([("127.0.0.1", many.ports[0])]) as cluster:
        found, sizes = every_question(cluster)
    assert len(found.extents) == TOPICS * PARTITIONS and set(found.extents.values()) == {
        PartitionOffsets(0, 100)
    }
    assert set(sizes.values()) == {BYTES_PER_OFFSET}
    offsets = 4  # start, end, high watermark, the first record that lasts
    each = {API_VERSIONS: 1, LIST_OFFSETS: offsets, LEADER_EPOCHS: 1, LOG_DIRS: 1, GROUPS: 1}
    assert {
        key: {many.requests[broker, key] for broker in range(1, BROKERS + 1)} for key in each
    } == {key: {n} for key, n in each.items()}
    assert (
        sum(
            many.requests[broker, key]
            for broker in range(1, BROKERS + 1)
            for key in (METADATA, CONFIGS)
        )
        == 2
    )


def test_with_room_for_few_connections_the_answers_are_the_same_and_few_stay_open(
    many: ManyBrokers,
) -> None:
    with Cluster([("127.0.0.1", many.ports[0])]) as cluster:
        answers = every_question(cluster)
        assert many.open == BROKERS
    many.most_open = 0
    with Cluster([("127.0.0.1", many.ports[0])], keeps=10) as cluster:
        assert every_question(cluster) == answers
        for _ in range(2):
            cluster.describe(
                ()
            )  # the second is answered after all connections that were closed before the first
        assert many.open == 10


def test_connections_leave_half_of_the_files_that_a_process_may_open() -> None:
    assert max_kept_connections() + MAX_PARALLEL_BROKERS <= max(
        open_files() // 2, MAX_PARALLEL_BROKERS
    )


def test_all_brokers_of_a_question_share_one_deadline_however_many_are_silent() -> None:
    with ManyBrokers(
        brokers=MAX_PARALLEL_BROKERS + 20, topics=1, partitions=MAX_PARALLEL_BROKERS + 20
    ) as many:
        with Cluster([("127.0.0.1", many.ports[0])], timeout_s=0.4) as cluster:
            reported = cluster.describe(None)
            many.silent.update(range(2, MAX_PARALLEL_BROKERS + 21))
            many.requests.clear()
            logs = [each.log for topic in reported.topics.values() for each in topic.partitions]
            with pytest.raises(BrokerUnreachable):
                cluster.extents(
                    logs,
                    isolation=Isolation.READ_UNCOMMITTED,
                    metadata=reported,
                    wait_for_leader_s=0,
                )
        request = {broker for broker, _ in many.requests}
        assert (
            1 in request and len(request) <= MAX_PARALLEL_BROKERS + 1
        )  # brokers after those have no deadline of their own
