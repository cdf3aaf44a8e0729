"""Runs that stop (another driver, a server that is down) or are stopped: no process stays."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from etl.testkit.server_process import wait_until
from tests.command_result import refused
from tests.fakes.broker import FETCH, LIST_OFFSETS, FakeBroker, never
from tests.processes import command_line, of_session, that_mention
from tests.system.driving import Pipeline


def test_a_zookeeper_that_is_down_and_a_broker_that_is_down_are_named(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    no_zookeeper = make_pipeline(
        zookeeper={"connect": f"127.0.0.1:{port}/kafka", "session_timeout_s": 1}
    )
    refused(no_zookeeper.run(), 6, f"127.0.0.1:{port}", "retry")
    no_broker = make_pipeline(
        source={"bootstrap_servers": f"127.0.0.1:{port}", "request_timeout_s": 2}
    )
    refused(no_broker.run(), 6, f"127.0.0.1:{port}", "retry")


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(signal.SIGINT, id="Ctrl-C", marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, id="a scheduler"),
    ],
)
def test_a_second_driver_does_not_disturb_the_first_and_stopping_that_loses_and_leaves_nothing(
    spoiled: tuple[Pipeline, FakeBroker], what: signal.Signals
) -> None:
    """Schedulers signal all processes; SIGTERM ends the JVM before the run can."""
    pipeline, broker = spoiled
    pipeline.settings["source"]["request_timeout_s"] = 120
    broker.script[FETCH].extend([never] * 50)
    child = pipeline.start("etl", "run", str(pipeline.conf), "--json", "--quiet")
    try:
        assert wait_until(lambda: any(key == FETCH for key, _ in broker.requests), 120), (
            "the run never came to its fetch"
        )
        refused(pipeline.run(), 4, f"pid {child.pid}", "retry")
        os.killpg(child.pid, what)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130, err
    assert "etl: Stopped. Nothing is lost" in err
    assert len(err.splitlines()) == 2 or what is signal.SIGTERM, err
    assert (json.loads(out)["exit_code"], json.loads(out)["retriable"]) == (130, True)
    assert wait_until(lambda: not of_session(child.pid), 20), [
        command_line(pid) for pid in of_session(child.pid)
    ]
    [_, stopped] = sorted(
        (pipeline.folder / "reports").glob("*.json"),
        key=lambda path: json.loads(path.read_text())["exit_code"],
    )
    assert json.loads(stopped.read_text())["state"] == "failed"
    broker.script.clear()
    broker.hang_up_on_everybody()
    assert pipeline.ran().outcomes == ["plan_resumed", "ingested"]
    assert sum(pipeline.in_table().values()) == 30


@pytest.mark.long
def test_ctrl_c_while_spark_starts_leaves_no_jvm(spoiled: tuple[Pipeline, FakeBroker]) -> None:
    pipeline, _ = spoiled
    child = pipeline.start("etl", "run", str(pipeline.conf), "--json")
    try:
        assert wait_until(
            lambda: any("deploy.SparkSubmit" in command_line(pid) for pid in of_session(child.pid)),
            60,
        )
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert (child.returncode, json.loads(out)["exit_code"]) == (130, 130), err
    *reported, stopped = err.splitlines()
    assert {line.partition(" etl: ")[2] for line in reported} == {"starting Spark"}, err
    assert stopped.startswith("etl: Stopped"), err
    assert wait_until(lambda: not of_session(child.pid), 20), [
        command_line(pid) for pid in of_session(child.pid)
    ]
    assert pipeline.ran().outcomes == ["plan_resumed", "ingested"]


def test_ctrl_c_on_a_folder_of_confs_ends_the_run_at_work_and_begins_no_other(
    spoiled: tuple[Pipeline, FakeBroker],
) -> None:
    """Each run has a session of its own, which Ctrl-C does not reach: it is forwarded."""
    pipeline, broker = spoiled
    pipeline.settings["source"]["request_timeout_s"] = 120
    first, confs = pipeline.conf, pipeline.folder / "confs"
    confs.mkdir()
    first.rename(confs / "1-held.yaml")
    (confs / "2-next.yaml").write_text(
        (confs / "1-held.yaml").read_text().replace("pipeline: clicks", "pipeline: next")
    )
    broker.script[LIST_OFFSETS].extend([never] * 50)
    child = pipeline.start("etl", "run", str(confs), "--json", "--quiet")
    try:
        assert wait_until(lambda: any(key == LIST_OFFSETS for key, _ in broker.requests), 60), (
            "the first run never came to the broker"
        )
        at_work = that_mention(str(confs / "1-held.yaml"))
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130, err
    reported = [
        (Path(run["conf"]).name, run["exit_code"], run["error"]["message"])
        for run in json.loads(out)["runs"]
    ]
    stopped = "Stopped; nothing is lost, the next run continues from what is stored"
    assert reported == [
        ("1-held.yaml", 130, stopped),
        ("2-next.yaml", 130, "Not started: the runs were stopped"),
    ]
    assert "Traceback" not in err
    assert len(at_work) == 1, "a process for the run at work"
    assert wait_until(lambda: not that_mention(str(confs)), 20), [
        command_line(pid) for pid in that_mention(str(confs))
    ]
    [report] = (pipeline.folder / "reports").glob("*.json")
    assert json.loads(report.read_text())["state"] == "failed"
    broker.script.clear()
    broker.hang_up_on_everybody()
    with pipeline.zookeeper() as client:
        assert not client.exists(f"/consumers/{pipeline.group}/etl/clicks/drivers")


@pytest.mark.long
def test_a_demo_that_is_stopped_stops_all_that_it_started(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline()
    home = pipeline.folder / "demo"
    child = pipeline.start("etl", "demo", "--records", "8000", "--folder", str(home))
    assert wait_until(lambda: (home / "reports").exists(), 120), (
        "the demo never came to its first run"
    )
    os.killpg(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert wait_until(lambda: not that_mention(str(home)), 30), [
        command_line(pid) for pid in that_mention(str(home))
    ]
