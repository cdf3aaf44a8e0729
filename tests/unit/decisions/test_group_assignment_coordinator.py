"""A member's reaction to a coordinator's answers."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.heartbeat import Heartbeat

from etl.decide.group_assignment import (
    Heartbeats,
    Next,
    Reaction,
    Reconciled,
    interval_of,
    reaction_to,
    reconcile_assignment,
)
from etl.errors import BrokerError, EtlError, MembershipLost, Owned, PermissionDenied, SettingsError
from etl.kafka.versions import CODES, error_of
from etl.model.partitions import TopicPartition

LOST = Reaction(Next.GIVE_UP, is_lost=True)
AGAIN, LOOK_UP = Reaction(Next.ASK_AGAIN), Reaction(Next.LOOK_UP)
ROWS: list[tuple[int, Reaction, type[EtlError]]] = [
    (14, LOOK_UP, BrokerError),
    (15, LOOK_UP, BrokerError),
    (16, LOOK_UP, BrokerError),
    (22, Reaction(Next.JOIN_AGAIN, is_lost=True), BrokerError),
    (23, LOST, SettingsError),
    (24, LOST, SettingsError),
    (25, Reaction(Next.JOIN_AGAIN, keeps_id=False, is_lost=True), BrokerError),
    (26, LOST, SettingsError),
    (27, Reaction(Next.JOIN_AGAIN), BrokerError),
    (30, LOST, PermissionDenied),
    (35, LOST, SettingsError),
    (69, LOST, SettingsError),
    (79, Reaction(Next.JOIN_AGAIN), BrokerError),
    (81, LOST, Owned),
    (82, LOST, MembershipLost),
    (110, Reaction(Next.JOIN_AGAIN, is_lost=True), BrokerError),
    (111, AGAIN, Owned),
    (112, LOST, SettingsError),
    (113, Reaction(Next.ASK_AT_ONCE), BrokerError),
    (-1, AGAIN, BrokerError),
    (7, AGAIN, BrokerError),
    (42, LOST, EtlError),
    (999, LOST, EtlError),
]


@pytest.mark.parametrize(("code", "means", "kind"), ROWS, ids=[str(row[0]) for row in ROWS])
def test_each_code_has_one_reaction_of_a_member_and_one_error(
    code: int, means: Reaction, kind: type[EtlError]
) -> None:
    refusal = error_of(code)
    assert refusal is not None and (reaction_to(refusal), refusal.kind) == (means, kind)


def test_after_an_answer_without_an_error_a_member_continues() -> None:
    assert reaction_to(None) == Reaction(Next.GO_ON)


def test_for_every_error_code_a_member_has_a_next_step_and_retries_only_transient_errors() -> None:
    for refusal in CODES.values():
        step = reaction_to(refusal).next
        assert refusal.is_retriable or step not in (Next.ASK_AGAIN, Next.LOOK_UP)
        assert not refusal.is_retriable or step is not Next.GIVE_UP


EVENTS = st.lists(
    st.tuples(st.sampled_from(["send", "answer", "fail", "join"]), st.floats(0, 30)), max_size=12
)


@given(
    events=EVENTS, interval=st.floats(0.1, 3), session=st.floats(3, 60), backoff=st.floats(0.05, 1)
)
def test_heartbeats_are_due_and_sessions_end_as_in_kafka_python(
    events: Sequence[tuple[str, float]], interval: float, session: float, backoff: float
) -> None:
    now = 1000.0
    with mock.patch("kafka.coordinator.heartbeat.time.monotonic", lambda: now):
        oracle = Heartbeat(
            heartbeat_interval_ms=interval * 1000,
            session_timeout_ms=session * 1000,
            retry_backoff_ms=backoff * 1000,
        )
        ours = Heartbeats(interval, session, backoff, begun=now)
        for what, passed in events:
            now += passed
            if what == "send":
                oracle.sent_heartbeat()
                ours = ours.at_send(now)
            elif what == "answer":
                oracle.received_heartbeat()
                ours = ours.at_answer(now)
            elif what == "fail":
                oracle.fail_heartbeat()
                ours = ours.at_failure()
            else:
                oracle.reset_timeouts()
                ours = ours.at_join(now)
            assert ours.wait_s(now) == pytest.approx(oracle.time_to_next_heartbeat())
            assert ours.is_over(now) == oracle.session_timeout_expired()


@pytest.mark.parametrize(("session", "interval"), [(45, 3), (10, 3), (6, 2), (3, 1)])
def test_a_member_sends_three_heartbeats_a_session_and_one_every_three_seconds_at_least(
    session: float, interval: float
) -> None:
    assert interval_of(session) == interval


A, B, C = (TopicPartition("clicks", number) for number in range(3))


@pytest.mark.parametrize(
    ("owned", "target", "holds", "found"),
    [
        ({A, B}, {A, B}, False, Reconciled(frozenset({A, B}), frozenset())),
        ({A, B}, {A}, False, Reconciled(frozenset({A}), frozenset())),
        ({A, B}, {A}, True, Reconciled(frozenset({A, B}), frozenset({B}))),
        ({A, B}, {A, C}, True, Reconciled(frozenset({A, B}), frozenset({B}))),
        ({A}, {A, C}, True, Reconciled(frozenset({A, C}), frozenset())),
        (set(), {C}, False, Reconciled(frozenset({C}), frozenset())),
    ],
    ids=["the same", "less", "less and held", "other ones and held", "more", "the first"],
)
def test_revoked_partitions_are_released_unless_held_and_no_new_one_is_owned_meanwhile(
    owned: set[TopicPartition],
    target: set[TopicPartition],
    holds: bool,
    found: Reconciled[TopicPartition],
) -> None:
    assert reconcile_assignment(frozenset(owned), frozenset(target), holds=holds) == found
    assert found.is_settled == (not found.held)
