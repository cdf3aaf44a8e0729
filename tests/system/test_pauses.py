"""`etl topics pause` and `resume` on a real ledger, and what runs and other commands report of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from etl.commands.run import new_run_id
from etl.commands.set_offsets import pause, resume
from etl.errors import Owned
from etl.io.zookeeper.ledger import DriverLock, PlanLedger
from etl.io.zookeeper.ledger_side_documents import read_pauses, read_pauses_at, write_pauses
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.partitions import TopicPartition
from etl.model.snapshot import Pause
from tests.builders import plain_settings
from tests.command_result import CommandResult, refused, run_etl
from tests.system.driving import Pipeline


def pause_or_resume(pipeline: Pipeline, word: str, *topic_partitions: str) -> CommandResult:
    partitions = [argument for partition in topic_partitions for argument in ("-p", partition)]
    return run_etl(
        *("topics", word, str(pipeline.conf), *partitions),
        *("--reason", "its records are broken", "--json"),
    )


@pytest.mark.without_spark
def test_a_paused_log_is_not_read_and_every_command_reports_it_until_the_resume(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline(config={"retention.ms": "315360000000"}, table={"writer": "arrow"})
    topic = pipeline.topic
    refused(pause_or_resume(pipeline, "pause", f"{topic}:9"), 2, f"There is no partition {topic}:9")
    assert pause_or_resume(pipeline, "pause", f"{topic}:1").document["changed"], (
        "before the first run the brokers know the partitions"
    )
    pipeline.produce(80)
    first = pipeline.ran()
    assert sorted(first.outcomes) == ["ingested", "paused"]
    assert pipeline.committed() == {0: 20, 2: 20, 3: 20}
    [reported] = first.document["paused"]
    assert (reported["partitions"], reported["unread"]) == (["1"], 20)
    assert reported["reason"] == "its records are broken" and reported["headroom_s"] > 3600

    again = pause_or_resume(pipeline, "pause", f"{topic}:1", f"{topic}:2")
    assert again.code == 0
    assert again.document["message"][0] == f"{topic}:1 is paused already: its records are broken"
    rows = pipeline.door("offsets", "show").document["partitions"]
    shown = {row["partition"]: row["paused"] for row in rows if row["paused"]}
    assert sorted(shown) == [1, 2] and "@" in shown[1]["by"]
    lag = pipeline.door("lag").document
    assert len(lag["paused"]) == 2 and lag["partitions"][1]["paused"]["since_at"]
    assert len(pipeline.door("run", after=["--dry-run"]).document["paused"]) == 2
    lines = pipeline.door("doctor").document["checks"]
    assert [line["verdict"] for line in lines if line["name"] == "paused logs"] == ["advice"] * 2
    [listed] = run_etl("pipelines", "list", str(pipeline.conf), "--json").document["pipelines"]
    assert [one["partition"] for one in listed["paused"]] == [1, 2]

    times = ("--from", "2020-01-01T00:00Z", "--until", "2039-12-27T00:00Z", "--every", "7300d")
    seen = pipeline.door("table", "gaps", after=times).document
    assert (seen["incomplete"], [one["missing"] for one in seen["waiting_in_paused"]]) == ([], [20])
    assert f"wait in paused partitions: {topic} 1: paused since " in seen["message"]
    assert [one["unread"] for one in seen["paused"]] == [20, 0]
    done = pipeline.door("topics", "ready-to-load", after=("--until", times[1])).document
    assert (done["ready"], done["partitions"]) == (True, 2)
    assert [one["partition"] for one in done["paused"]] == [1, 2]
    assert f"; 2 partitions more paused, {topic} 1 " in done["message"]

    assert pause_or_resume(pipeline, "resume", topic).code == 0
    assert pipeline.ran().outcomes == ["ingested"] and pipeline.is_whole()
    again = pause_or_resume(pipeline, "resume", topic)
    assert again.document["message"][0] == f"{topic} is not paused: there is nothing to resume"
    with (
        ZooKeeper(pipeline.cluster.zookeeper_connect) as session,
        DriverLock(session, pipeline.group, "clicks").driving(new_run_id(), wait_s=0),
    ):
        refused(pause_or_resume(pipeline, "pause", topic), 4)


A = Pause("clicks", TopicPartition("clicks", 1), "r" * 40, "kim@h", 5)


def test_of_two_pauses_at_the_same_moment_the_second_is_rejected_and_can_be_repeated(
    zookeeper: ZooKeeper,
) -> None:
    ledger = PlanLedger(zookeeper, "g", "p")
    zookeeper.ensure(ledger.paths.root)
    (seen, version) = read_pauses_at(ledger)
    write_pauses(ledger, (A,), version)
    with pytest.raises(Owned, match="Another operator paused or resumed partitions"):
        write_pauses(ledger, (), version)
    assert (seen, read_pauses(ledger)) == ((), (A,))


def test_a_log_of_the_ledger_is_paused_and_resumed_while_no_broker_answers(
    zookeeper: ZooKeeper, connect: str
) -> None:
    ledger = PlanLedger(zookeeper, "group", "clicks")
    zookeeper.ensure(ledger.paths.root)
    write_pauses(ledger, (A,), None)
    settings = plain_settings(
        zookeeper={"connect": connect}, source={"bootstrap_servers": "127.0.0.1:1"}
    )
    assert pause(settings, ["clicks:1"], "again").document["changed"] is False
    assert resume(settings, ["clicks:1"], "mended").document["paused"] == []
    assert read_pauses(ledger) == ()
