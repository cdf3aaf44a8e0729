"""The test of each command that the pages name: our commands are executed section by section,
others elsewhere, and few nowhere here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.pages import PAGES, Written, is_whole, lines, meant_by, place, sentences


class Runs(NamedTuple):
    """A test that runs a command, in its own words."""

    file: str
    test: str
    types: str = ""
    """Words that the file's source has in literals, as what it types."""


@dataclass(frozen=True)
class Section:
    """Commands of ours under one heading, to be typed in this order."""

    name: str
    commands: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


_GUIDES, _WHEEL, _CLUSTER = (
    "tests/system/test_guides.py",
    "tests/system/test_wheel.py",
    "tests/system/test_clusters_page.py",
)
_ON_CLUSTER = Runs(
    _CLUSTER, "test_the_page_is_typed_from_the_zip_to_a_table_that_a_cluster_wrote", "CLUSTER.md"
)
IN_ORDER: dict[str, Runs] = {
    "docs/TUTORIAL.md": Runs(
        _GUIDES,
        "test_the_tutorial_leads_from_nothing_to_a_table_that_is_proven_whole",
        "TUTORIAL.md",
    ),
    "docs/HOWTO.md: Move from Spark's Kafka source": Runs(
        _GUIDES,
        "test_a_pipeline_continues_exactly_at_the_end_of_a_job_with_sparks_kafka_source",
        "HOWTO.md",
    ),
    "docs/INSTALL.md: A wheel": Runs(
        _WHEEL, "test_a_new_environment_with_nothing_but_the_wheel_goes_the_whole_way", "INSTALL.md"
    ),
}
"""Tests that type all lines of a page, or of a section, in their order."""

_DEMO = Runs(
    "tests/brokers/test_demos.py",
    "test_the_demo_ends_with_every_record_in_its_table_once",
    "demo --broker-type",
)
_SUBMIT = (
    "spark-submit --master {master} --py-files dist/offset-range-etl-0.1.0.zip --packages "
    "io.delta:delta-spark_4.2_2.13:4.4.0 {job}"
)
_CUT = Runs(
    "tests/system/test_cut_logs.py",
    "test_a_truncated_log_is_reported_by_every_command_accepted_and_read_on",
    "topics accept-changes",
)
_JAFKA = "tests/system/test_jafka_made_again.py"
_PACKED = Runs(
    _WHEEL,
    "test_the_environment_is_packed_and_reads_on_bare_workers_by_the_printed_command",
    "package --include-dependencies",
)
_CHECKED = Runs(
    "tests/on_airflow/test_checked_names.py",
    "test_the_commands_of_the_page_create_missing_objects_and_find_existing_ones",
    "AIRFLOW.md",
)
_TOOLS = Runs(
    "tests/system/test_written_tools.py",
    "test_a_tool_that_a_page_names_begins_with_the_words_that_are_there",
)
ELSEWHERE: dict[str, Runs] = {
    "etl demo": _DEMO,
    ".venv/bin/etl demo --broker-type jafka": _DEMO,
    "etl run CONF --dry-run | head -1": Runs(
        "tests/unit/cli/test_output.py",
        "test_the_real_command_leaves_no_trace_of_a_reader_that_is_gone",
    ),
    "etl package": _ON_CLUSTER,
    "etl package --include-dependencies": _PACKED,
    _SUBMIT.format(master="MASTER", job="dist/etl_job.py run CONF"): _ON_CLUSTER,
    "PYSPARK_PYTHON=/opt/venv/bin/python "
    + _SUBMIT.format(master="MASTER", job="dist/etl_job.py run CONF"): _ON_CLUSTER,
    "PYSPARK_PYTHON=/opt/venv/bin/python "
    + _SUBMIT.format(master="spark://HOST:7077", job="jobs/etl_job.py run CONF"): _ON_CLUSTER,
    "pip install 'offset-range-etl[package]'": _PACKED,
    "etl table refresh-path CONF": Runs(
        "tests/system/test_named_tables.py",
        "test_a_table_dropped_and_recreated_elsewhere_stops_runs_until_an_operator_accepts_it",
        "table refresh-path",
    ),
    "etl table refresh-path CONF --create-empty": Runs(
        "tests/system/test_named_tables.py",
        "test_a_table_lost_for_good_is_created_as_the_message_advises_and_used_once_accepted",
        "table refresh-path --create-empty",
    ),
    "etl backfills run CONF NAME -p TOPIC:PARTITION --from OFFSET --until OFFSET "
    "--only-unloaded": Runs(
        "tests/system/test_words.py",
        "test_an_earlier_table_that_is_put_back_lacks_a_plan_and_its_accepted_delete_is_not_reported",
        "backfills run",
    ),
    "etl topics accept-changes CONF -p TOPIC:PARTITION --reason ...": _CUT,
    "etl topics accept-changes CONF -p PARTITION --reason ...": _CUT,
    "etl topics accept-changes CONF -p TOPIC --reason ...": Runs(
        _JAFKA,
        "test_a_topic_recreated_on_one_broker_while_the_other_is_away_needs_decisions",
        "topics accept-changes",
    ),
    "etl topics accept-changes CONF -p TOPIC:BROKER-PARTITION --truncated-at OFFSET --reason "
    "...": Runs(
        _JAFKA,
        "test_a_topic_recreated_on_one_broker_with_a_longer_log_is_reported",
        "topics accept-changes --truncated-at",
    ),
    "etl plans supersede CONF N --skip TOPIC:BROKER-PARTITION:FROM-UNTIL --reason ...": Runs(
        "tests/system/test_jafka_discovery.py",
        "test_an_offset_inside_a_message_is_reported_before_it_is_stored_and_repaired_after",
        "plans supersede --skip",
    ),
    "airflow connections add spark_default --conn-type spark --conn-host 'local[*]'": _CHECKED,
    "python -m etl.airflow check /path/to/dags": _CHECKED,
    **{
        f"python -m tests.model.{name}": Runs(
            f"tests/unit/test_model_{name}.py", ""
        )  # in smaller worlds: these take minutes
        for name in ("run_keys", "backfilling", "backfilling_lives", "backfilling_copies")
    },
    "pytest tests/unit/incidents": Runs("tests/unit/incidents/test_incidents.py", ""),
    "/opt/venv/bin/python -m etl.testkit": IN_ORDER["docs/INSTALL.md: A wheel"],
    **dict.fromkeys(
        (
            "python -m tests.picture",
            "python tests/bench/first_decode.py",
            "PYTHONPATH=. python tests/bench/spark_start.py",
            "PYTHONPATH=. python tests/bench/small_runs.py",
            "PYTHONPATH=. python tests/bench/joining.py",
            "PYTHONPATH=. python tests/bench/cold_profile.py",
            "PYTHONPATH=. python tests/bench/task_profile.py --workload 100B-none --records "
            "1000000 --rounds 5",
            "PYTHONPATH=. python tests/bench/through_jvm.py",
            "python -m tests.bench",
            "python -m tests.bench.killed_backfill",
            "python -m tests.chaos",
            "python -m tests.chaos --writer arrow",
            "python -m tests.chaos --writer processes",
            "pytest -m long",
            "STATEFUL=10000 pytest tests/unit/run/test_stateful_law.py",
            "python -m tests.chaos --store moto",
            'pytest -m "not long" --numprocesses=3 --dist=loadfile tests/brokers',
        ),
        _TOOLS,
    ),
}
"""Commands that another test runs, by its text, or that need tools that not every machine has."""
NOT_HERE: dict[str, str] = {
    "python -m tests.brokers.golden RELEASE": "it writes what other tests go by anew; done by "
    "hand where a release is added",
    **dict.fromkeys(
        (
            f"pip install 'offset-range-etl[{extra}]'"
            for extra in ("openlineage", "aws-msk", "gssapi")
        ),
        "the same as with [package], and that one is run",
    ),
    "systemctl enable --now etl@clicks.timer": "no systemd runs here",
    "systemd-analyze verify": "the same; the units were verified once by hand",
    "docker stop --time 120": "no container engine runs here",
    "kafka-consumer-groups.sh --delete": "a program of Kafka's, of which the sentence names an "
    "option",
    "airflow backfill create --dag-id ingest_clicks --from-date ... --to-date ... "
    "--max-active-runs 1": "`make test-airflow-slow` runs it, with other options",
    "airflow dags trigger -l": "a program of Airflow's, of which the sentence names an option",
    "spark-submit --py-files": "a program of Spark's, of which the sentence names an option",
    "spark-submit --files": "the same",
}
"""What no test runs, and why."""
NOT_RUN_SECTIONS = {
    "docs/CLUSTER.md: YARN",
    "docs/CLUSTER.md: Kubernetes",
    "docs/AIRFLOW.md: Install",
}
"""They print it themselves; the last one is the rest of the other tables."""
_READER = Runs(
    "tests/system/test_typed_pages.py",
    "test_the_programs_of_the_reader_read_the_records_of_the_topic",
    "READER.md README.md",
)
PROGRAMS = {
    "README.md": _READER,
    "docs/READER.md": _READER,
    "docs/STREAMS.md": Runs(
        "tests/system/test_typed_pages.py",
        "test_the_programs_of_the_streams_read_the_records_of_the_topic",
        "STREAMS.md",
    ),
    "docs/HOWTO.md": IN_ORDER["docs/HOWTO.md: Move from Spark's Kafka source"],
    "docs/AIRFLOW.md": _CHECKED,
    "docs/RUNNING.md": Runs(
        "tests/unit/reader/test_arrow_transform.py",
        "test_the_function_on_the_page_returns_its_column",
    ),
}
"""Of which page which test runs the programs in Python."""


def group_of(one: Written, *, in_line: bool) -> str | None:
    """What runs it; None where nothing does."""
    text, section = meant_by(one.text), f"{one.page}: {one.section}"
    if in_line and (section in IN_ORDER or one.page in IN_ORDER):
        return "in order"
    if text in ELSEWHERE:
        return "elsewhere"
    if text.startswith("make "):
        return "dry run"
    if text in NOT_HERE or section in NOT_RUN_SECTIONS:
        return "not here"
    if text.startswith("etl "):
        return "typed" if is_whole(text) else "name"
    return None


def typed() -> Iterator[Section]:
    """The sections of all pages with their commands: each line, and commands in sentences that no
    line had before.
    """
    done = set[str]()
    for page in PAGES:
        found = dict[str, list[str]]()
        written = [
            *((one, True) for one in lines(page)),
            *((one, False) for one in sentences(page)),
        ]
        for one, in_line in written:
            if group_of(one, in_line=in_line) == "typed" and (
                in_line or meant_by(one.text) not in done
            ):
                found.setdefault(one.section, []).append(one.text)
                done.add(meant_by(one.text))
        yield from (
            Section(f"{place(page)}: {section}", tuple(texts)) for section, texts in found.items()
        )


TYPED = list(typed())
