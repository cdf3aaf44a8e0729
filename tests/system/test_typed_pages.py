"""Each command of ours that a page names is typed as it stands there, section by section, on real
ZooKeeper, Kafka, Spark and Delta.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from etl.testkit.cluster import EmbeddedCluster
from tests.page_commands import TYPED, Section
from tests.pages import ROOT, meant_by, programs
from tests.system.page_world import CONF, LARGE, PageWorld, fill

pytestmark = pytest.mark.without_spark


@dataclass(frozen=True)
class Way:
    """How a command is typed that is not just typed."""

    before: Callable[[PageWorld], object] | None = None
    code: int = 0
    answer: str | None = None
    """The answer typed at the terminal; None: there is no terminal."""


def to_be_taken_over(world: PageWorld) -> None:
    world.begin("old")
    world.type("etl run CONF")


def take_over(world: PageWorld) -> None:
    world.begin("renamed", table="old")


def retired(world: PageWorld) -> None:
    world.left()
    world.type("etl pipelines retire CONF NAME --reason ...")


def rows_deleted(world: PageWorld) -> None:
    world.begin("ruled")
    world.type("etl run CONF")
    world.table.delete("partition = 0 and offset = 0")
    world.type("etl run CONF", code=5)


def part_loaded(world: PageWorld) -> None:
    world.begin("set")
    world.type("etl run CONF --until 2025-12-02T00:00:00Z")


def zookeeper_lost(world: PageWorld) -> None:
    world.begin("lost")
    world.type("etl run CONF")
    world.without_zookeeper()


WAYS: dict[str, Way] = {
    "etl table maintain CONF": Way(code=130, answer="n"),
    "etl pipelines inherit CONF --predecessor GROUP/PIPELINE --reason ...": Way(
        take_over, answer="y"
    ),
    "etl table accept-changes CONF VERSION --reason ...": Way(rows_deleted, answer="y"),
    "etl plans supersede CONF N --reason ...": Way(PageWorld.left, answer="y"),
    "etl plans supersede CONF N --skip ... --reason ...": Way(PageWorld.left, answer="y"),
    "etl plans supersede CONF N --skip TOPIC:PARTITION:FROM-UNTIL --reason ...": Way(
        PageWorld.left, answer="y"
    ),
    "etl pipelines resume CONF --reason ...": Way(retired),
    "etl pipelines retire CONF NAME --reason ...": Way(PageWorld.left),
    "etl offsets set CONF -p clicks:3 --to 1200 --reason ...": Way(answer="y"),
    "etl ledger restore CONF --reason ...": Way(zookeeper_lost, answer="y"),
    "etl records show CONF -p clicks:3 --from latest --follow --value-format json": Way(code=130),
    "etl replay CONF -p clicks --from 2026-01-31T00:00:00+00:00 --until "
    "2026-02-01T00:00:00+00:00 --reason ...": Way(answer="y"),
    "etl backfills run CONF january --from 2026-01-01T00:00:00Z --until 2026-02-01T00:00:00Z": Way(
        answer="y"
    ),
    "etl backfills run CONF one -p clicks:3 --from 0 --until 4800": Way(answer="y"),
    "etl backfills run CONF rest --from 2026-01-01T00:00:00Z --until 2026-02-01T00:00:00Z "
    "--only-unloaded": Way(answer="y"),
    "etl backfills delete CONF january --reason ...": Way(PageWorld.left_backfill, answer="y"),
}
WORLDS: dict[str, Callable[[PageWorld], object]] = {
    "README.md: Use it": lambda world: CONF.unlink(missing_ok=True),
    "docs/RUNNING.md: One interval, once: run keys and bounds": lambda world: world.begin("keys"),
    "docs/RUNNING.md: Taking another pipeline's place": to_be_taken_over,
    "docs/RUNNING.md: Setting a position: `etl offsets set`": part_loaded,
    "docs/RUNNING.md: Loading what was never loaded: `etl backfills run`": lambda world: (
        world.begun_late("late")
    ),
    "docs/SETTINGS.md: For one time: `--set KEY=VALUE`": lambda world: world.begin("changed"),
}
LONG = (
    "docs/RUNNING.md: Making rows again: `etl replay`",
    "docs/RUNNING.md: Loading what was never loaded: `etl backfills run`",
    "docs/RUNNING.md: Keeping the table quick: `etl table maintain CONF`, `etl table compact CONF`",
)
"""Sections of which each run has tests of its own besides."""


@pytest.fixture(scope="module")
def pages(
    cluster: EmbeddedCluster, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[PageWorld, Path]]:
    fill(cluster)
    yield PageWorld(cluster, "etl-pages"), tmp_path_factory.mktemp("pages")


@pytest.mark.parametrize(
    "section",
    [pytest.param(one, marks=[pytest.mark.long] * (one.name in LONG)) for one in TYPED],
    ids=str,
)
def test_the_commands_of_a_section_end_as_it_promises(
    pages: tuple[PageWorld, Path], section: Section, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, folder = pages
    monkeypatch.chdir(folder)
    WORLDS.get(str(section), PageWorld.loaded)(world)
    for text in section.commands:
        way = WAYS.get(meant_by(text), Way())
        if way.before:
            way.before(world)
        if "--follow" in text:
            world.type_and_interrupt(text)
        else:
            world.type(text, way.code, way.answer)
    if section.name in LONG:
        world.type("etl verify CONF")


@pytest.mark.long
def test_the_commands_of_cron_and_systemd_succeed(
    pages: tuple[PageWorld, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, folder = pages
    monkeypatch.chdir(folder)
    world.loaded()
    reported = "".join((ROOT / "deploy" / name).read_text() for name in ("crontab", "etl@.service"))
    texts = re.findall(r"etl (?:verify|maintain|run) /etc/pipelines/[^>&\n]*", reported)
    assert [text.split()[1] for text in texts] == ["verify", "maintain", "run"]
    for text in texts:
        world.type(re.sub(r"/etc/pipelines/(clicks|%i)\.yaml", "CONF", text))


def test_the_programs_of_the_reader_read_the_records_of_the_topic(
    pages: tuple[PageWorld, Path],
    cluster: EmbeddedCluster,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The last one starts servers of its own."""
    [first] = programs(ROOT / "README.md")
    reader, consumer, servers = programs(ROOT / "docs" / "READER.md")
    assert first == reader
    names: dict[str, Any] = {"spark": spark}
    exec(
        compile(reader.replace("127.0.0.1:9092", cluster.bootstrap), "the reader alone", "exec"),
        names,
    )  # it is ours, from the page
    assert names["clicks"].count() >= LARGE
    exec(
        compile(
            consumer.replace("9092", cluster.bootstrap.rpartition(":")[2]), "one broker", "exec"
        ),
        {},
    )
    assert "/article/0" in capsys.readouterr().out
    exec(compile(servers, "real servers", "exec"), {})


def test_the_programs_of_the_streams_read_the_records_of_the_topic(
    pages: tuple[PageWorld, Path], cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    polling, subscribing, streaming = programs(ROOT / "docs" / "STREAMS.md")
    for program, reported in (
        (polling, "/article/0"),
        (subscribing, " records"),
        (streaming, "/article/0"),
    ):
        short = program.replace("127.0.0.1:9092", cluster.bootstrap).replace(
            "timeout_s=10)[", "timeout_s=2)["
        )
        exec(compile(short, "STREAMS.md", "exec"), {})
        assert reported in capsys.readouterr().out
