"""The mirrored group: committed and skipped offsets; a run succeeds independently of it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from etl.errors import BrokerError, SettingsError
from etl.io.brokers.group_offsets import MirrorWriter, commit_to_mirror_group
from etl.kafka.request_values import CommittedOffset
from etl.model.partitions import TopicPartition
from etl.model.plans import CommitResult, Predecessor
from etl.model.snapshot import Ledger
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.run import after_commit
from tests.builders import plain_plan, plain_settings

A, B = (TopicPartition("clicks", partition) for partition in (0, 1))
OTHER = TopicPartition("orders", 0)


class Group:
    """A group's coordinator: its offsets, and the received commits."""

    def __init__(self, **there: tuple[int | None, str]) -> None:
        self.there = {
            dict(a=A, b=B)[name]: CommittedOffset(None, *reported)
            for name, reported in there.items()
        }
        self.committed: list[tuple[dict[TopicPartition, int], str]] = []

    def fetch_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        return {
            partition: self.there.get(partition, CommittedOffset(None, None, ""))
            for partition in partitions
        }

    def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], *, metadata: str
    ) -> None:
        self.committed.append((dict(offsets), metadata))

    def first(self, ask: Any) -> Any:
        return ask(self)


US, OLD = MirrorWriter("g", "clicks"), MirrorWriter("before", "clicks-2025")


@pytest.mark.parametrize(
    ("group", "written", "left"),
    [
        (Group(), {A: 5, B: 7}, {}),
        (Group(a=(3, "etl:g/clicks:1"), b=(4, "etl:before/clicks-2025:9")), {A: 5, B: 7}, {}),
        (Group(a=(3, "etl:clicks:1"), b=(4, "etl:clicks-2025:9")), {A: 5, B: 7}, {}),
        (Group(a=(3, "")), {B: 7}, {A: ""}),
        (Group(a=(3, "by hand"), b=(None, "")), {B: 7}, {A: "by hand"}),
        (
            Group(a=(3, "etl:h/clicks:1"), b=(3, "etl:g/clicks2:1")),
            None,
            {A: "etl:h/clicks:1", B: "etl:g/clicks2:1"},
        ),
        (
            Group(a=(3, "etl:clicks:12:c5a1"), b=(3, "etl:clicks-2025:9:d7")),
            None,
            {A: "etl:clicks:12:c5a1", B: "etl:clicks-2025:9:d7"},
        ),
        (
            Group(a=(3, "etl:g/clicks:1 by hand"), b=(3, "etl:g/clicks:")),
            None,
            {A: "etl:g/clicks:1 by hand", B: "etl:g/clicks:"},
        ),
    ],
    ids=[
        "empty",
        "ours",
        "of-earlier-versions",
        "without-a-word",
        "of-other-writers",
        "of-other-pipelines",
        "loaded-offsets-of-pipelines-with-these-names",
        "not-exactly-ours",
    ],
)
def test_offsets_of_another_writer_are_left_as_they_are(
    group: Group,
    written: dict[TopicPartition, int] | None,
    left: dict[TopicPartition, str],
) -> None:
    positions = {A: 5, B: 7}
    cluster: Any = group
    outcome = commit_to_mirror_group(
        cluster, "lag", positions, writer=US, predecessors=[OLD], plan_number=3
    )
    assert outcome == left
    assert group.committed == ([(written, "etl:g/clicks:3")] if written else [])


PLAN = plain_plan(3, loaded_until={A: 5, OTHER: 9})
RECORDED = Ledger("u", PLAN, CommitResult(3, "", 8, "t", ()))
MIRRORED = plain_settings(group={"mirror_group": "lag"})


def mirrored(
    monkeypatch: pytest.MonkeyPatch, ledger: Ledger, group: Any, settings: Any = MIRRORED
) -> Report:
    @contextlib.contextmanager
    def open_cluster() -> Iterator[Any]:
        yield group

    monkeypatch.setattr(
        after_commit, "PlanLedger", lambda *a: SimpleNamespace(read_ledger=lambda: ledger)
    )
    monkeypatch.setattr(
        after_commit, "Discovery", lambda *a: SimpleNamespace(open_cluster=open_cluster)
    )
    report = Report("run-1", "clicks", "group", "clicks", 0)
    after_commit.mirror(settings, None, report)  # type: ignore[arg-type]
    return report


def test_positions_of_the_topics_that_the_conf_names_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group()
    assert not mirrored(monkeypatch, RECORDED, group).outcomes and group.committed == [
        ({A: 5}, f"etl:{MIRRORED.group.id}/clicks:3")
    ]


def test_the_metadata_of_another_pipeline_is_reported_and_that_of_an_inherited_one_is_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = Group(a=(3, "etl:other/clicks:1"))
    ((outcome, result),) = mirrored(monkeypatch, RECORDED, theirs).outcomes
    assert (
        outcome is Outcome.NOT_MIRRORED
        and "first clicks 0 (etl:other/clicks:1). They are not changed" in result
        and not theirs.committed
    )
    heir = replace(
        RECORDED,
        newest=replace(PLAN, predecessors=(Predecessor("offset-range-etl/c/other/clicks", 1),)),
    )
    assert not mirrored(monkeypatch, heir, theirs).outcomes and theirs.committed


@pytest.mark.parametrize(
    "ledger",
    [
        Ledger(),
        Ledger("u", PLAN),
    ],
    ids=["no plan", "not recorded"],
)
def test_offsets_without_a_confirmed_append_are_not_written(
    monkeypatch: pytest.MonkeyPatch, ledger: Ledger
) -> None:
    group = Group()
    assert not mirrored(monkeypatch, ledger, group).outcomes and not group.committed


def test_without_the_key_no_group_is_contacted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not mirrored(monkeypatch, RECORDED, None, plain_settings()).outcomes


def test_a_rejection_is_reported_and_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Group):
        def commit_offsets(self, *given: Any, **more: Any) -> None:
            raise BrokerError(
                "the broker refused to commit an offset of group lag: UNKNOWN_MEMBER_ID",
                action="Check its members",
            )

    report = mirrored(monkeypatch, RECORDED, Refusing())
    ((outcome, result),) = report.outcomes
    assert outcome is Outcome.NOT_MIRRORED and result.startswith(
        "group.mirror_group lag not updated: the broker refused to commit an offset of"
    )
    assert result.endswith("UNKNOWN_MEMBER_ID. Check its members")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"group": {"mirror_group": "group"}}, "the pipeline's own group"),
        ({"group": {"mirror_group": ".."}}, "mirror_group"),
        (
            {
                "group": {"mirror_group": "lag"},
                "source": {"assume_cluster_id": "c", "broker_type": "jafka"},
            },
            "these brokers store no offsets of groups.",
        ),
    ],
    ids=["own", "no-name", "jafka"],
)
def test_a_group_that_cannot_be_or_must_not_be_written_is_refused_by_its_key(
    changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        plain_settings(**changes)
    assert what in str(refused.value) and refused.value.where["key"] == "group.mirror_group"
