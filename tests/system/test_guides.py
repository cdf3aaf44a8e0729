"""The commands of docs/TUTORIAL.md and docs/HOWTO.md work exactly as written, in that order, on
real servers.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from etl.testkit.cluster import EmbeddedCluster
from tests.command_result import run_etl
from tests.conftest import TopicFactory

DOCS = Path(__file__).parents[2] / "docs"
RECORDS = 80


def steps(page: str, until: str = "") -> Iterator[str]:
    """Return the commands in order: lines that begin with `etl`, and programs; up to the heading
    `until`.
    """
    text = (DOCS / page).read_text()
    text = text[: text.index(until)] if until else text
    for found in re.finditer(
        r"^ *```python\n(?P<program>.*?)^ *```$|^ {4,}etl (?P<words>\S[^\n]*)$",
        text,
        re.MULTILINE | re.DOTALL,
    ):
        yield (
            textwrap.dedent(found["program"])
            if found["program"]
            else found["words"].split("   ")[0]
        )


@pytest.fixture
def follow(
    cluster: EmbeddedCluster,
    topic: TopicFactory,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], list[str]]:
    """Types one step, with the test's topic, group and ZooKeeper for those of the page; the
    outcomes of a run.
    """
    name, bootstrap = topic(4), cluster.bootstrap
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for n in range(RECORDS):
        producer.send(name, value=b"%d" % n, partition=n % 4)
    producer.close()
    monkeypatch.chdir(tmp_path)

    def ours(text: str) -> str:
        here = text.replace("127.0.0.1:2181/kafka", cluster.zookeeper_connect).replace(
            '"clicks"', f'"{name}"'
        )
        return here.replace("etl-clicks", f"etl-{name}")

    def do(step: str) -> list[str]:
        if "\n" in step:
            exec(
                compile(ours(step), "a program of the page", "exec"), {}
            )  # it is ours, from the page
            return []
        words = [re.sub(r"^clicks(?=$|:)", name, word) for word in shlex.split(ours(step))]
        more = (
            ["--set", "pipeline=clicks", "--set", f"group=etl-{name}"] if words[0] == "init" else []
        )
        result = run_etl(*words, *more)
        assert result.code == 0, f"etl {step}\n{result.err}{result.out}"
        return re.findall(r"(ingested|up_to_date|already_loaded)", result.err + result.out)

    return do


def rows(tmp_path: Path) -> int:
    return int(
        DeltaTable(str(tmp_path / "warehouse" / "clicks"))
        .to_pyarrow_table(columns=["offset"])
        .num_rows
    )


def test_the_tutorial_leads_from_nothing_to_a_table_that_is_proven_whole(
    follow: Callable[[str], list[str]], tmp_path: Path
) -> None:
    result = {step: follow(step) for step in steps("TUTORIAL.md")}
    assert {step.split()[0] for step in result} >= {
        "init",
        "doctor",
        "run",
        "verify",
        "lag",
        "offsets",
        "report",
        "plans",
        "records",
    }
    assert rows(tmp_path) == RECORDS
    [under_key] = [found for step, found in result.items() if "--run-key" in step]
    assert "already_loaded" in under_key, (
        "the guide shows the outcome of the second run under the key"
    )


def test_a_pipeline_continues_exactly_at_the_end_of_a_job_with_sparks_kafka_source(
    follow: Callable[[str], list[str]], tmp_path: Path
) -> None:
    for step in steps("HOWTO.md", until="## Take over a group"):
        follow(step)
    assert rows(tmp_path) == RECORDS - (4 + 3 + 0 + 10)
