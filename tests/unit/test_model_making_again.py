"""Topics that are recreated on some of their brokers, in every interleaving of the small model;
with two drivers it takes minutes.
"""

from __future__ import annotations

import pytest

from tests.model import making_again
from tests.model.making_again import SMALL, UNTOLD, Plan, State, explore


@pytest.mark.parametrize(
    "start",
    [pytest.param(SMALL, id="by its bytes"), pytest.param(UNTOLD, id="by the topic's id alone")],
)
def test_every_law_holds_for_a_topic_recreated_in_any_way_while_a_broker_is_away(
    start: State,
) -> None:
    states, broken = explore(start)
    assert broken is None, broken
    assert states > 10_000


def test_in_the_model_an_id_accepted_for_the_whole_topic_loses_the_log_of_a_broker_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_the_topic(state: State, plan: Plan, stopped: list[int]) -> tuple[int, int]:
        return state.topic_id, state.topic_id

    monkeypatch.setattr(making_again, "decided", of_the_topic)
    broken = str(explore(UNTOLD)[1])
    assert "missing" in broken and "goes away" in broken and "accepts" in broken


def test_in_the_model_a_topic_accepted_as_a_whole_doubles_the_log_that_a_broker_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(making_again, "is_another", lambda *_: True)
    assert "there twice" in str(explore(SMALL)[1])


def test_in_the_model_the_topics_id_does_not_show_a_log_recreated_under_another_znode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(making_again, "lost", lambda *_: [])
    assert "missing" in str(explore(SMALL)[1])


def test_the_model_sees_that_tasks_which_do_not_ask_at_their_end_read_another_log_than_was_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        making_again,
        "is_readable",
        lambda state, plan: all(
            making_again.is_there(state, i) and len(state.logs[i]) >= plan.untils[i]
            for i in (0, 1)
            if plan.untils[i] > plan.starts[i]
        ),
    )
    assert "there twice" in str(explore(SMALL)[1])


def test_logs_of_identical_messages_are_not_distinguished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A known hole: the bytes before our position are the same in both."""
    monkeypatch.setattr(making_again, "content", lambda record: 0)
    assert "missing" in str(explore(SMALL)[1])
