"""`etl doctor` on real parts: each line, its exit code and what to do; and no trace is left."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from kazoo.security import make_acl

from etl.io.delta.table_shape import WRITTEN_BY_DELTA_RS, WRITTEN_BY_SPARK
from etl.model.columns import arrow_schema
from etl.testkit.cluster import ZooKeeper
from etl.testkit.server_process import free_port
from tests.command_result import CommandResult, refused
from tests.system.driving import Pipeline

pytestmark = pytest.mark.without_spark

Line = dict[str, Any]


def lines(result: CommandResult, name: str) -> list[Line]:
    """The lines of one check (of one broker: `broker 0`)."""
    found = [line for line in result.document["checks"] if line["name"] == name]
    assert found, f"no line {name}"
    return found


def failing(pipeline: Pipeline, name: str, code: int, *words: str) -> CommandResult:
    """The doctor's result, of which the line `name` alone fails, with that code and all `words`."""
    result = pipeline.door("doctor")
    assert "Traceback" not in result.err
    bad = [line for line in result.document["checks"] if line["verdict"] == "failed"]
    assert [line["name"] for line in bad] == [name], bad
    assert (result.code, bad[0]["exit_code"], result.document["exit_code"]) == (code, code, code)
    reported = bad[0]["found"] + bad[0]["to_do"]
    for word in words:
        assert word in reported, reported
    assert bad[0]["to_do"] in result.err
    return result


def all_well(pipeline: Pipeline) -> CommandResult:
    result = pipeline.door("doctor")
    assert [line for line in result.document["checks"] if line["verdict"] != "ok"] == []
    assert result.code == result.document["exit_code"] == 0
    return result


def tree(pipeline: Pipeline) -> dict[str, Any]:
    """Every znode of the group and the topic with its stat, the names of all groups and topics, and
    every file with its time, but for the rewritten conf.
    """
    found: dict[str, Any] = {}
    folders = ("/", "/kafka", "/consumers", "/kafka/consumers", "/kafka/brokers/topics")
    waiting = [
        f"/consumers/{pipeline.group}",
        f"/kafka/consumers/{pipeline.group}",
        f"/kafka/brokers/topics/{pipeline.topic}",
    ]
    with pipeline.zookeeper() as client:
        client.chroot = ""
        for folder in folders:
            if client.exists(folder):
                found[folder] = sorted(client.get_children(folder))
        while waiting:
            path = waiting.pop()
            if client.exists(path):
                found[path] = client.get(path)
                waiting += [f"{path}/{child}" for child in client.get_children(path)]
    for file in sorted(pipeline.folder.rglob("*")):
        found[str(file)] = file.stat().st_mtime_ns if file.is_file() else None
    for rewritten in (pipeline.folder, pipeline.folder / "conf.yaml"):
        found.pop(str(rewritten), None)
    return found


def test_all_is_well_before_the_first_run_and_after_it_and_then_each_damage_is_named(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(80)
    pipeline.conf.touch()
    before = tree(pipeline)
    result = all_well(pipeline)
    assert "first run" in lines(result, "ledger and table")[0]["found"]
    assert "none yet" in lines(result, "table")[0]["found"]
    assert "Kafka 3.9" in lines(result, "broker 0")[0]["found"]
    assert tree(pipeline) == before, "the doctor leaves no trace"

    pipeline.ran()
    before = tree(pipeline)
    result = all_well(pipeline)
    assert "plan 1 is the newest in both" in lines(result, "ledger and table")[0]["found"]
    assert tree(pipeline) == before, "the doctor leaves no trace"

    pipeline.settings = {"pipeline": "another", "table": {"path": str(pipeline.folder / "another")}}
    failing(pipeline, "group", 2, "Pipeline clicks of the same group", pipeline.topic)
    pipeline.settings = {}

    root = f"/consumers/{pipeline.group}/etl/clicks"
    with pipeline.zookeeper() as client:
        uid, _ = client.get(root)
        client.set(root, b"feedfeedfeedfeed")
        failing(
            pipeline, "ledger and table", 5, "another pipeline of the same name", "feedfeedfeedfeed"
        )
        client.set(root, uid)
    DeltaTable(str(pipeline.table)).delete("partition = 1")
    failing(pipeline, "ledger and table", 5, "removed rows", "table accept-changes")
    DeltaTable(str(pipeline.table)).alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 1 days"}
    )
    texts = ("delta.setTransactionRetentionDuration", "UNSET TBLPROPERTIES")
    result = failing(pipeline, "table retention", 2, *texts)
    assert lines(result, "ledger and table")[0]["verdict"] == "not checked"


@pytest.mark.parametrize(
    ("settings", "name", "code", "words"),
    [
        (
            {"source": {"topics": ["no-such-topic"]}},
            "topics",
            2,
            ("no-such-topic", "source.topics"),
        ),
        ({"source": {"bootstrap_servers": "127.0.0.1:1"}}, "cluster", 6, ("No broker answers",)),
        (
            {"table": {"path": "/proc/table", "losses_path": "/tmp/losses"}},
            "table folder",
            7,
            ("/proc/table",),
        ),
    ],
    ids=["topic", "brokers", "table"],
)
def test_a_setting_that_cannot_work_is_named_by_its_line(
    make_pipeline: Callable[..., Pipeline],
    settings: dict[str, Any],
    name: str,
    code: int,
    words: tuple[str, ...],
) -> None:
    failing(make_pipeline(**settings), name, code, *words)


def test_a_zookeeper_that_does_not_answer_is_named_and_what_needs_it_is_not_checked(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    dead_port = free_port()
    pipeline = make_pipeline(
        zookeeper={"connect": f"127.0.0.1:{dead_port}/kafka", "session_timeout_s": 1}
    )
    result = failing(pipeline, "ZooKeeper", 6, f"127.0.0.1:{dead_port}", "zookeeper.connect")
    checks = result.document["checks"]
    skipped = [line["name"] for line in checks if line["verdict"] == "not checked"]
    assert skipped[:4] == ["request limit", "chroot", "znode permissions", "znode ACLs"]
    assert {"cluster", "broker", "topics", "group", "ledger and table"} <= set(skipped)
    assert result.document["not_checked"] == len(skipped)


def test_one_server_of_several_that_does_not_answer_is_advice(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline()
    dead_port, connect = free_port(), pipeline.cluster.zookeeper_connect
    pipeline.settings = {
        "zookeeper": {"connect": f"127.0.0.1:{dead_port},{connect}", "session_timeout_s": 300}
    }
    result = pipeline.door("doctor")
    dead, alive = lines(result, "ZooKeeper")
    assert (result.code, dead["verdict"], alive["verdict"]) == (0, "advice", "advice")
    assert f"127.0.0.1:{dead_port}" in dead["found"]
    assert "session timeout 60 s, requested: 300 s" in alive["found"]
    assert "maxSessionTimeout" in alive["to_do"]


def test_a_wrong_chroot_is_named_and_stays_empty_also_where_a_run_will_make_it(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline()
    pipeline.settings = {"zookeeper": {"connect": f"{pipeline.cluster.zookeeper.connect}/kafak"}}
    failing(pipeline, "chroot", 2, "/kafak", "chroot")
    refused(pipeline.run(), 2, "/kafak", "chroot")
    with pipeline.zookeeper() as client:
        client.chroot = ""
        assert not client.exists("/kafak")
    pipeline.settings |= {"source": {"bootstrap_servers": pipeline.cluster.bootstrap}}
    all_well(pipeline)
    with pipeline.zookeeper() as client:
        client.chroot = ""
        assert not client.exists("/kafak"), "a run will make it, and the doctor does not"


@pytest.fixture
def small_zookeeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ZooKeeper]:
    """One that takes requests of 200,000 bytes at most."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Djute.maxbuffer=200000")
    with ZooKeeper(tmp_path / "zookeeper") as server:
        monkeypatch.delenv("JDK_JAVA_OPTIONS")
        yield server


def test_a_server_that_takes_small_requests_only_is_named(
    make_pipeline: Callable[..., Pipeline], small_zookeeper: ZooKeeper
) -> None:
    pipeline = make_pipeline()
    pipeline.settings = {
        "zookeeper": {"connect": small_zookeeper.connect},
        "source": {"bootstrap_servers": pipeline.cluster.bootstrap},
    }
    failing(pipeline, "request limit", 2, "920,000 bytes", "jute.maxbuffer")


@pytest.mark.parametrize(
    ("path", "may", "denied"),
    [
        ("", {"read": True}, "create znodes below"),
        ("/etl/clicks/plans", {"read": True, "create": True}, "delete znodes below"),
        ("/etl/clicks", {"create": True, "delete": True}, "read "),
        ("/offsets/{topic}/0", {"read": True}, "write "),
    ],
    ids=["group", "plans", "pipeline", "offset"],
)
def test_a_locked_znode_is_named_with_the_denied_operation(
    make_pipeline: Callable[..., Pipeline], path: str, may: dict[str, bool], denied: str
) -> None:
    pipeline = make_pipeline()
    locked = f"/consumers/{pipeline.group}{path}".format(topic=pipeline.topic)
    with pipeline.zookeeper() as client:
        client.ensure_path(locked)
        client.set_acls(
            locked, [make_acl("world", "anyone", **may), make_acl("world", "anyone", admin=True)]
        )
        result = pipeline.door("doctor")
        client.set_acls(locked, [make_acl("world", "anyone", all=True)])
    (line,) = lines(result, "znode permissions")
    assert (line["verdict"], line["exit_code"], result.code) == ("failed", 2, 2)
    assert denied in line["found"] and locked in line["found"], line


def test_a_broker_that_is_registered_and_dead_is_named(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline()
    dead_port, chroot = free_port(), f"/doctor-{pipeline.group}"
    elsewhere = {
        "host": "127.0.0.1",
        "port": dead_port,
        "endpoints": [f"PLAINTEXT://127.0.0.1:{dead_port}"],
    }
    with pipeline.zookeeper() as client:
        alive, _ = client.get("/brokers/ids/0")
        client.chroot = ""
        dead = json.dumps({**json.loads(alive), **elsewhere})
        for number, payload in (
            (0, alive),
            (7, dead.encode()),
            (8, b'{"host": null, "port": -1, "endpoints": ["SSL://h:9093"]}'),
        ):
            client.create(f"{chroot}/brokers/ids/{number}", payload, makepath=True)
    pipeline.settings = {"zookeeper": {"connect": f"{pipeline.cluster.zookeeper.connect}{chroot}"}}
    result = failing(pipeline, "broker 7", 6, f"127.0.0.1:{dead_port}", "partitions led: 0")
    assert lines(result, "broker 0")[0]["verdict"] == "ok"
    registered = lines(result, "chroot")[0]["found"]
    assert "1 of 3 brokers" in registered and "PLAINTEXT" in registered
    assert lines(result, "ledger and table")[0]["verdict"] == "ok"


def test_live_consumers_and_owners_are_named_by_policy_and_a_run_at_work_is_no_harm(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline()
    root = f"/consumers/{pipeline.group}"
    with pipeline.zookeeper() as client:
        client.create(f"{root}/ids/old-consumer-1", b"{}", ephemeral=True, makepath=True)
        failing(pipeline, "group", 4, "old-consumer-1")
        client.delete(f"{root}/ids/old-consumer-1")
        client.create(
            f"{root}/owners/{pipeline.topic}/2", b"old-consumer-1-0", ephemeral=True, makepath=True
        )
        failing(pipeline, "group", 4, "old-consumer-1-0", pipeline.topic)
        pipeline.settings = {"group": {"on_owned": "skip"}}
        assert lines(pipeline.door("doctor"), "group")[0]["verdict"] == "advice"
        pipeline.settings = {}
        driver = b'{"host": "elsewhere", "pid": 7, "started": null, "run_id": "theirs"}'
        path = f"{root}/etl/clicks/drivers/theirs-0000000000"
        client.create(path, driver, ephemeral=True, makepath=True)
        result = all_well(pipeline)
        assert "run theirs, pid 7 on elsewhere" in lines(result, "group")[0]["found"]


def test_another_table_where_the_losses_would_be_written_down_is_named(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline()
    write_deltalake(f"{pipeline.table}_losses", arrow_schema().empty_table())
    result = pipeline.door("doctor")
    (line,) = lines(result, "losses table")
    assert (result.code, line["verdict"]) == (0, "advice")
    assert "has no column app_id" in line["found"]
    pipeline.settings = {"source": {"on_data_loss": "skip"}}
    failing(pipeline, "losses table", 2, "has no column app_id", "table.losses_path")


def test_features_that_one_of_the_two_writers_lacks_and_a_short_log_retention_are_reported(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline()
    write_deltalake(
        str(pipeline.table),
        arrow_schema().empty_table(),
        configuration={"delta.logRetentionDuration": "interval 2 days"},
    )
    result = pipeline.door("doctor")
    assert "2 days" in lines(result, "table retention")[0]["found"]
    _with_feature(pipeline.table, "domainMetadata")
    advised = lines(pipeline.door("doctor"), "table features")[0]
    assert advised["verdict"] == "advice" and "domainMetadata" in advised["found"]
    _with_feature(pipeline.table, "somethingNew")
    result = pipeline.door("doctor")
    (line,) = lines(result, "table features")
    assert (line["verdict"], line["exit_code"], result.code) == ("failed", 2, 2)
    assert "somethingNew" in line["found"]


def _with_feature(table: Path, feature: str, *, for_readers_too: bool = False) -> None:
    """The first commit as another writer would have made it."""
    commit = table / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            if for_readers_too:
                both = {"minReaderVersion": 3, "readerFeatures": [feature]}
            else:
                both = {"minReaderVersion": 1}
            action["protocol"] = {**both, "minWriterVersion": 7, "writerFeatures": [feature]}
    commit.write_text("\n".join(json.dumps(action) for action in actions))


def test_the_doctors_verdict_on_table_features_equals_that_of_the_two_writers(
    spark: Any, tmp_path: Path
) -> None:
    features = spark._jvm.org.apache.spark.sql.delta.TableFeature.allSupportedFeaturesMap()
    supported, named = features.values().iterator(), {}
    while supported.hasNext():
        feature = supported.next()
        named[feature.name()] = bool(feature.isReaderWriterFeature())
    assert set(named) == WRITTEN_BY_SPARK
    taken = set()
    write_deltalake(str(tmp_path / "t"), arrow_schema().empty_table())
    for name, for_readers_too in named.items():
        _with_feature(tmp_path / "t", name, for_readers_too=for_readers_too)
        (tmp_path / "t" / "_delta_log" / "00000000000000000001.json").unlink(missing_ok=True)
        try:
            table = DeltaTable(str(tmp_path / "t"))
            properties = CommitProperties(app_transactions=[Transaction("a", 1, last_updated=1)])
            table.create_write_transaction(
                [], "append", table.schema(), partition_by=[], commit_properties=properties
            )
            taken.add(name)
        except DeltaError:
            continue
    assert taken == WRITTEN_BY_DELTA_RS
