"""The command `etl records consume` as a member of a group: output, committed offsets, and its end."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from etl.cli import record_commands
from etl.cli.common_options import OutputFailed
from etl.commands.peek import Ended, TailedGroup, TailRequest
from etl.streams.records import Record
from etl.testkit.server_process import wait_until
from tests.builders import conf_in
from tests.command_result import CommandResult, refused, run_etl
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.coordinator import JOIN, FakeCoordinator

AT = "2023-11-14T22:13:20.000+00:00"


@pytest.fixture
def broker() -> Iterator[FakeCoordinator]:
    with FakeCoordinator() as broker:
        broker.world.topic_ids["clicks"] = UUID(int=1)
        for number in range(2):
            broker.append(
                "clicks",
                number,
                encode(Batch(0, [Rec(delta, b'{"n": %d}' % delta, b"k") for delta in range(3)])),
            )
        yield broker


@pytest.fixture
def conf(broker: FakeCoordinator, tmp_path: Path) -> Path:
    return conf_in(tmp_path, broker.port)


def tail(conf: Path, *words: str) -> CommandResult:
    return run_etl(
        "records", "consume", str(conf), "--group", "lookers", "--offset-reset", "earliest", *words
    )


def committed(broker: FakeCoordinator) -> dict[tuple[str, int], int]:
    return {
        (group, number): offset
        for (group, _, number), (offset, _) in broker.world.committed.items()
    }


def test_a_line_is_shown_and_nothing_committed(broker: FakeCoordinator, conf: Path) -> None:
    result = tail(conf, "-n", "6")
    fields = sorted(line.split("\t") for line in result.out.splitlines())
    assert result.code == 0
    assert len(fields) == 6
    assert fields[0] == ["clicks", "0", "0", AT, "k", '{"n": 0}', ""]
    text = "etl: as a member of lookers: clicks\netl: 6 records; the requested number\n"
    assert result.err == text
    assert not broker.world.committed and not broker.group.members


def test_one_document_for_a_program(conf: Path) -> None:
    result = tail(
        conf, "--topic", "clicks", "--timeout", "400ms", "--json", "--value-format", "json"
    )
    document = result.document
    assert result.code == 0
    assert document["group"] == "lookers"
    assert document["topics"] == ["clicks"]
    assert document["shown"] == 6
    assert document["ended"] == "no further record within --timeout"
    assert {
        (one["topic"], one["partition"], one["offset"], one["value"]["n"])
        for one in document["records"]
    } == {("clicks", partition, offset, offset) for partition in range(2) for offset in range(3)}


def test_with_commits_the_group_continues_after_them(broker: FakeCoordinator, conf: Path) -> None:
    assert tail(conf, "-n", "4", "--commit").code == 0
    assert sorted(committed(broker).values()) == [1, 3]
    assert len(tail(conf, "--timeout", "400ms", "--commit").out.splitlines()) == 2
    assert committed(broker) == {("lookers", 0): 3, ("lookers", 1): 3}


def test_the_groups_of_the_pipeline_are_refused(conf: Path) -> None:
    own = run_etl("records", "consume", str(conf), "--group", "group", "--json")
    text = "is the pipeline's own group, and its offsets follow the table"
    refused(own, 2, text, "`etl records show`")
    conf.write_text(conf.read_text().replace("group: group", "group: group\nmirror_group: lookers"))
    refused(tail(conf, "--json"), 2, "mirror_group")


def test_a_rejected_join_is_reported(broker: FakeCoordinator, conf: Path) -> None:
    broker.refusals[JOIN].append(23)
    assert "INCONSISTENT_GROUP_PROTOCOL" in tail(conf, "-n", "1").err
    assert tail(conf, "--topic", "nothing", "--timeout", "400ms").code == 0, "a topic may come"


def test_the_time_of_a_join_is_no_timeout(broker: FakeCoordinator, conf: Path) -> None:
    broker.refusals[JOIN].extend([27] * 4)
    assert tail(conf, "--timeout", "300ms").out.count("\n") == 6


def test_an_expired_offset_names_commands(broker: FakeCoordinator, conf: Path) -> None:
    broker.world.committed["lookers", "clicks", 0] = (0, "")
    broker.log("clicks", 0).log_start = 2
    result = tail(conf, "--timeout", "5s")
    assert result.code == 5
    assert "deleted by retention" in result.err and "etl records show" in result.err
    assert "seek" not in result.err


class OneMessage:
    """A consumer that returns two records of one compressed message of Jafka."""

    is_rebalancing = False

    def subscribe(self, topics: tuple[str, ...], listener: object) -> None:
        pass

    def poll(self, timeout_s: float) -> dict[str, list[Record]]:
        records = []
        for index in range(2):
            records.append(Record("clicks", 0, 113, None, None, b"v", (), 3, index, 113))
        return {"clicks 0": records}


def test_an_end_inside_a_compressed_message_is_named_since_the_group_begins_there_again() -> None:
    consumer: Any = OneMessage()
    tailed = TailedGroup(consumer, ("clicks",), TailRequest("lookers", most=2))
    assert len(list(tailed.records())) == 2
    assert tailed.ended is Ended.INSIDE


def test_a_closed_pipe_commits_nothing_of_what_may_not_have_been_read(
    broker: FakeCoordinator, conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = itertools.count(1)

    def fail() -> None:
        if next(printed) == 2:
            raise OutputFailed(BrokenPipeError())

    monkeypatch.setattr(record_commands, "raise_output_failure", fail)
    assert tail(conf, "--commit").code == 141
    assert not broker.world.committed and not broker.group.members


def test_ctrl_c_leaves_the_group(broker: FakeCoordinator, conf: Path) -> None:
    def press() -> None:
        assert wait_until(lambda: len(broker.fetched) >= 3, 20), (
            "all is shown, and it waits for more"
        )
        signal.raise_signal(signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    result = tail(conf, "--json", "--commit")
    pressing.join()
    assert (result.code, result.document["ended"], result.document["shown"]) == (130, "stopped", 6)
    assert result.err.startswith("etl: Stopped. The group continues after the printed records\n")
    assert not broker.group.members
    assert sum(committed(broker).values()) == 6
