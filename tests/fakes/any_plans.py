"""Plans and what came of them, with whatever they may hold."""

from __future__ import annotations

from hypothesis import strategies as st

from etl.ledger.plan_document import with_id
from etl.model.partitions import (
    Broker,
    BrokerFamily,
    ClusterIdentity,
    Committed,
    Fingerprint,
    Leader,
    MemberAssignment,
    Membership,
    OffsetsStorage,
    TopicPartition,
)
from etl.model.plans import (
    NO_BOUNDS,
    Bound,
    Bounds,
    CommitResult,
    CommitState,
    HeldRows,
    Loss,
    Losses,
    LossReason,
    OffsetRange,
    Plan,
    PlanKind,
    PlannedCommit,
    PlannedRequest,
    PlanOrigin,
    RangeResult,
    ReadByOthers,
    RowsBefore,
    StaleRows,
    TableExpectation,
)
from tests.builders import plain_plan

OFFSETS = st.integers(0, 2**63 - 1)
TOPICS = st.text(st.sampled_from("ab.Z9_-"), min_size=1, max_size=4)
LOGS = st.builds(TopicPartition, TOPICS, st.integers(0, 30), st.none() | st.integers(0, 3))
COMMITTED = (
    st.just(Committed())
    | st.builds(Committed, OFFSETS, st.integers(0, 2**31 - 1))
    | st.builds(Committed, st.none(), st.just(0))
)
KEPT = st.builds(
    Committed,
    st.none() | OFFSETS,
    st.none() | st.integers(0, 9),
    st.none() | st.text(max_size=8),
    st.none() | st.tuples(st.none() | OFFSETS, st.none() | OFFSETS),
)
"""Where the group's coordinator keeps them, too."""
LEADERS = st.none() | st.builds(
    Leader,
    st.builds(
        Broker,
        st.integers(0, 3),
        st.text(max_size=5),
        st.integers(1, 65535),
        st.sampled_from([None, "kafka-0.8"]),
    ),
    st.none() | st.integers(0, 9),
)
EPOCHS = st.none() | st.integers(0, 9)
LINEAGES = st.lists(st.tuples(st.integers(0, 9), OFFSETS), min_size=1, max_size=3).map(tuple)
NAMES = st.none() | st.text(max_size=10)
BOUND = st.none() | st.builds(
    Bound, st.text(max_size=8), st.none() | st.integers(0), st.none() | st.integers(0)
)
BOUNDS = st.just(NO_BOUNDS) | st.builds(Bounds, BOUND, BOUND, st.integers(0, 9))
RECEIPTS = st.builds(
    RangeResult,
    st.none() | st.integers(0),
    st.none() | st.integers(0),
    st.integers(0),
    st.integers(0),
    st.integers(0),
    st.lists(st.tuples(OFFSETS, OFFSETS), max_size=3).map(tuple),
    st.booleans(),
    EPOCHS,
    st.booleans(),
)
APPLIED = st.builds(
    CommitResult,
    st.integers(1),
    st.text(),
    st.integers(0),
    st.text(),
    st.lists(RECEIPTS, max_size=4).map(tuple),
    NAMES,
    NAMES,
)


def one_dialect(partitions: list[TopicPartition]) -> list[TopicPartition]:
    """Logs of a cluster: all with a broker id, or none."""
    old = bool(partitions) and partitions[0].broker_id is not None
    return [
        TopicPartition(
            partition.topic, partition.partition, (partition.broker_id or 0) if old else None
        )
        for partition in partitions
    ]


CLUSTERS = st.builds(
    ClusterIdentity,
    st.sampled_from(BrokerFamily),
    st.text(max_size=8),
    st.none() | st.text(max_size=8),
)


def commit_states(member: MemberAssignment | None) -> st.SearchStrategy[CommitState]:
    """Those that a plan of this member, or of none, can have."""
    impossible = CommitState.AFTER_APPEND if member else CommitState.AFTER_APPEND_AS_MEMBER
    return st.sampled_from([state for state in CommitState if state is not impossible])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    partitions = sorted(set(one_dialect(draw(st.lists(LOGS, max_size=6)))))
    positions = {partition: draw(OFFSETS) for partition in draw(st.permutations(partitions))}
    ranges = []
    for partition in draw(st.lists(st.sampled_from(partitions), max_size=6)) if partitions else []:
        until = draw(st.integers(0, positions[partition]))
        ranges.append(OffsetRange(partition, draw(st.integers(0, until)), until, draw(LEADERS)))
    gone, storage = sorted((draw(OFFSETS), draw(OFFSETS))), draw(st.sampled_from(OffsetsStorage))
    committed = COMMITTED if storage is OffsetsStorage.ZOOKEEPER else KEPT
    pending = draw(
        st.dictionaries(
            LOGS.filter(lambda partition: partition.broker_id is None),
            st.none() | st.integers(0),
            max_size=2,
        )
    )
    member = draw(
        st.none()
        | st.builds(
            MemberAssignment,
            st.text(max_size=5),
            st.sampled_from(Membership),
            st.text(max_size=5),
            EPOCHS,
            st.just(frozenset(partitions[1:])),
            NAMES,
        )
    )
    return with_id(
        plain_plan(
            number=draw(st.integers(1)),
            origin=PlanOrigin(
                pipeline_id=draw(st.text(max_size=8)),
                created_at_ms=draw(st.integers(0)),
                previous=draw(NAMES),
                supersedes=draw(NAMES),
                reason=draw(NAMES),
            ),
            kind=draw(st.sampled_from(PlanKind)),
            cluster=draw(CLUSTERS),
            shape=draw(st.text(max_size=8)),
            ranges=tuple(ranges),
            loaded_until=positions,
            expected_commits={partition: draw(committed) for partition in partitions},
            table=TableExpectation(id=draw(NAMES), transaction_version=draw(st.integers(0, 9))),
            topic_ids=draw(st.dictionaries(TOPICS, st.text(max_size=5), max_size=2)),
            is_closing=draw(st.booleans()),
            request=PlannedRequest(
                run_key=draw(NAMES),
                bounds=draw(BOUNDS),
                unfinished={
                    **{
                        partition: positions[partition] + draw(st.integers(1, 9))
                        for partition in partitions[:1]
                    },
                    **dict.fromkeys(draw(st.sets(LOGS, max_size=2)) - set(partitions)),
                },
            ),
            losses=Losses(
                lost=tuple(
                    Loss(
                        partition,
                        gone[0],
                        gone[1],
                        draw(st.sampled_from(LossReason)),
                        draw(st.integers(0, 2)),
                    )
                    for partition in partitions[:1]
                ),
                stale_rows=tuple(
                    StaleRows(partition, gone[0], gone[1], draw(st.integers(0, 2)))
                    for partition in partitions[1:2]
                ),
                read_by_others=tuple(
                    ReadByOthers(partition, gone[0], gone[1], draw(st.integers(0, 2)))
                    for partition in partitions[:2]
                ),
            ),
            log_starts={partition: draw(OFFSETS) for partition in partitions[1:]},
            leader_epochs={partition: draw(st.integers(0, 9)) for partition in partitions[:2]},
            record_epochs={partition: draw(LINEAGES) for partition in partitions[1:]},
            incarnations={partition: draw(st.integers(1, 3)) for partition in partitions[:1]},
            pending_starts=pending,
            pending_offsets={partition: draw(OFFSETS) for partition in list(pending)[:1]},
            fingerprints={
                partition: Fingerprint(
                    draw(OFFSETS),
                    draw(st.integers(1, 1024)),
                    draw(st.text("0123456789abcdef", max_size=4)),
                )
                for partition in partitions[:2]
            },
            creation_ids=draw(st.dictionaries(TOPICS, st.text(max_size=5), max_size=2)),
            log_topic_ids={partition: draw(st.text(max_size=5)) for partition in partitions[2:]},
            commit=PlannedCommit(draw(commit_states(member)), storage, member),
            rows_before=draw(
                st.none()
                | st.builds(
                    RowsBefore,
                    st.text(max_size=5),
                    st.just(
                        tuple(
                            HeldRows(
                                partition,
                                life,
                                gone[0],
                                gone[1],
                                draw(st.integers(0)),
                                draw(st.booleans()),
                            )
                            for partition in partitions[1:3]
                            for life in (0, 2)
                        )
                    ),
                )
            ),
        )
    )
