"""The commands and programs of README, the tutorial and other pages, on real servers."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from etl.testkit.cluster import EmbeddedCluster
from tests.command_result import CommandResult, run_etl
from tests.conftest import TopicFactory
from tests.pages import PAGES, ROOT, code_blocks, command_lines, place, programs

RECORDS = 80
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "TUTORIAL.md"


class Reader:
    """Someone who follows a page: its topic, group and servers are replaced by those of a test."""

    def __init__(self, cluster: EmbeddedCluster, topic: str) -> None:
        self._topic = topic
        self._replacements = {
            "127.0.0.1:2181/kafka": cluster.zookeeper_connect,
            "127.0.0.1:9092": cluster.bootstrap,
            '"127.0.0.1", 9092': f'"127.0.0.1", {cluster.bootstrap.rpartition(":")[2]}',
            '"clicks"': f'"{topic}"',
            "etl-clicks": f"etl-{topic}",
            "timeout_s=10": "timeout_s=2",
        }

    def type(self, command: str) -> CommandResult:
        """Run a command of the page, `etl ...`; it must end with exit 0."""
        words = shlex.split(self._replaced(command))[1:]
        words = [re.sub(r"^clicks(?=$|:)", self._topic, word) for word in words]
        if words[0] == "init":
            words += ["--set", "pipeline=clicks", "--set", f"group=etl-{self._topic}"]
        result = run_etl(*words)
        assert result.code == 0, f"{command}\n{result.err}{result.out}"
        return result

    def run(self, program: str, **names: Any) -> dict[str, Any]:
        """Run a Python program of the page; return its names."""
        exec(compile(self._replaced(program), "a program of the page", "exec"), names)
        return names

    def _replaced(self, text: str) -> str:
        for written, ours in self._replacements.items():
            text = text.replace(written, ours)
        return text


@pytest.fixture
def reader(
    cluster: EmbeddedCluster,
    topic: TopicFactory,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Reader:
    """A reader in an empty directory, with a topic of four partitions."""
    name = topic(4)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
    for number in range(RECORDS):
        producer.send(name, value=b"%d" % number, partition=number % 4)
    producer.close()
    monkeypatch.chdir(tmp_path)
    return Reader(cluster, name)


def steps(page: Path, section: str) -> Iterator[str]:
    """Return the commands and Python programs of a section, in order."""
    for block in code_blocks(page):
        if block.section != section:
            continue
        if block.language == "python":
            yield block.text
        else:
            yield from re.findall(r"^etl .*?(?=$| {3,})", textwrap.dedent(block.text), re.MULTILINE)


def count_rows() -> int:
    table = DeltaTable("warehouse/clicks")
    return int(table.to_pyarrow_table(columns=["offset"]).num_rows)


def test_the_commands_of_readme_load_and_verify_a_topic(reader: Reader) -> None:
    for command in command_lines(README):
        if command.startswith("etl "):
            reader.type(command)
    assert count_rows() == RECORDS


def test_the_tutorial_loads_a_topic_and_verifies_the_table(reader: Reader) -> None:
    commands = [line for line in command_lines(TUTORIAL) if line.startswith("etl ")]
    results = {command: reader.type(command) for command in commands}
    named = {command.split()[1] for command in commands}
    assert named >= {"init", "doctor", "run", "verify", "lag", "offsets", "report", "plans"}
    assert count_rows() == RECORDS
    [with_key] = [result for command, result in results.items() if "--run-key" in command]
    assert "already_loaded" in with_key.err + with_key.out, "the second run with the key"


def test_a_pipeline_continues_at_the_end_of_a_job_with_sparks_kafka_source(reader: Reader) -> None:
    page = ROOT / "docs" / "WHEN.md"
    for step in steps(page, "Move from Spark's Kafka source"):
        if step.startswith("etl "):
            reader.type(step)
        else:
            reader.run(step)
    assert count_rows() == RECORDS - (4 + 3 + 0 + 10)


PROGRAMS = {
    program: place(page)
    for page in PAGES
    for program in programs(page)
    if program.startswith("from etl import")
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: PROGRAMS[program])
def test_a_program_of_a_page_reads_the_records(
    reader: Reader, program: str, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    names = reader.run(program, spark=spark)
    if "clicks" in names:
        assert names["clicks"].count() == RECORDS
    if "print(" in program:
        assert capsys.readouterr().out.strip(), "the program prints records"
