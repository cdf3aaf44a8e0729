"""Commands that store an operator's decision, and `etl pipelines`."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etl.cli.screens import show_pipelines
from etl.commands import inherit_pipeline, operator_decisions, pipelines
from etl.commands import run as running
from etl.commands.inherit_pipeline import _find_pipeline
from etl.commands.operator_decisions import (
    DecisionResult,
    _reject_another_version,
    describe_location,
    outcome_of_replacement,
)
from etl.commands.pipelines import State, _state_of
from etl.errors import SettingsError
from etl.ledger.owner_nodes import DriverNode
from etl.model.plans import CommitResult
from etl.model.snapshot import Ledger, NamedTable, OtherPipeline, Retirement
from tests.builders import changed, plain_plan, plain_settings
from tests.command_result import refused, run_etl

REASON = ("--reason", "T-17")
COMMANDS: dict[str, tuple[Any, str, tuple[str, ...], str]] = {
    "plans supersede": (
        operator_decisions,
        "supersede",
        ("2", "--skip", "clicks:0:5-7", *REASON),
        "Plan 2 is replaced, and the next run executes the new plan; "
        "These offsets are recorded as lost: clicks:0:5-7",
    ),
    "topics accept-changes": (
        operator_decisions,
        "accept_partitions",
        ("-p", "clicks:0", "--truncated-at", "5", *REASON),
        "The changes of clicks:0 are accepted, and the next run continues there; records below "
        "offset 5 count as unchanged",
    ),
    "table accept-changes": (
        operator_decisions,
        "accept_table",
        ("7", *REASON),
        "Changes of other writers up to and including version 7 are accepted",
    ),
    "ledger apply-acl": (
        pipelines,
        "set_acl",
        (),
        "zookeeper.acl: open is applied to the existing znodes of pipeline clicks",
    ),
    "pipelines inherit": (
        inherit_pipeline,
        "inherit_pipeline",
        ("--predecessor", "old/clicks", *REASON),
        "Pipeline clicks continues where old/clicks ended, which is retired if this conf names "
        "all its topics",
    ),
}


def recording(done: list[bool]) -> Callable[..., DecisionResult]:
    def decide(*_: Any, dry_run: bool = False, **__: Any) -> DecisionResult:
        done.append(not dry_run)
        return DecisionResult("It is decided", {"message": "It is decided"})

    return decide


@pytest.fixture(params=COMMANDS)
def command(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[Callable[..., Any], list[bool], str]:
    """The command, what it did (False: in a dry run), and what a confirmation says."""
    module, function, arguments, effects = COMMANDS[request.param]
    done = list[bool]()
    monkeypatch.setattr(module, function, recording(done))
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def run(*options: str) -> Any:
        return run_etl(*request.param.split(), "conf/examples/clicks.yaml", *arguments, *options)

    return run, done, effects


def test_without_a_terminal_it_needs_yes_and_names_what_it_would_do(
    command: tuple[Callable[..., Any], list[bool], str],
) -> None:
    run, done, effects = command
    result = run("--json")
    refused(result, 2, "there is no terminal for a confirmation", effects, "with --yes")
    assert result.document["where"] == {"key": "--yes"} and done == []
    assert run("--yes", "--json").code == 0 and done == [True]


def test_a_dry_run_asks_nothing_and_says_that_nothing_is_changed(
    command: tuple[Callable[..., Any], list[bool], str],
) -> None:
    run, done, _ = command
    result = run("--dry-run", "--json")
    assert result.code == 0 and done == [False], result.err
    assert result.document["dry_run"] is True and result.document["message"] == "It is decided"
    shown = run("--dry-run")
    assert shown.out.splitlines() == [
        "Nothing is changed. Without --dry-run the command would report:",
        "It is decided",
    ]


def test_a_document_begins_with_the_command_and_the_pipeline() -> None:
    result = run_etl("table", "refresh-path", "conf/examples/clicks.yaml", "--yes", "--json")
    assert result.code == 2 and list(result.document)[:2] == ["command", "pipeline"]
    assert result.document["command"] == "table refresh-path"
    assert result.document["pipeline"] == "clicks"
    assert result.document["exit_name"] == "invalid"


NEED_A_REASON = (
    "plans supersede CONF 1",
    "pipelines inherit CONF --predecessor g/p",
    "table accept-changes CONF 1",
    "topics accept-changes CONF clicks",
    "pipelines retire CONF",
    "pipelines resume CONF",
)


def test_a_replacement_is_executed_next_unless_the_ledger_has_another_plan_by_now() -> None:
    stored = changed(plain_plan(3), id="new")
    assert outcome_of_replacement(stored, stored) == "which the next run executes"
    for current in (None, changed(stored, id="old")):
        assert "`etl plans show CONF 3`" in outcome_of_replacement(stored, current)


@pytest.mark.parametrize("words", NEED_A_REASON)
@pytest.mark.parametrize("reason", ["", " "])
def test_an_empty_reason_is_none(words: str, reason: str) -> None:
    refused(run_etl(*words.split(), "--reason", reason, "--json"), 2, "The reason is empty")


@pytest.mark.parametrize(("path", "message"), [("gs://lake/t", True), ("s3://lake/t", False)])
def test_a_run_to_an_untested_store_logs_it(
    path: str,
    message: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def no_services(*_: object, **__: object) -> None:
        raise SettingsError("there is no world in this test")

    monkeypatch.setattr(running, "open_services", no_services)
    with pytest.raises(SettingsError, match="no world"):
        running.run(plain_settings(table={"path": path}, report={"path": str(tmp_path)}))
    assert (
        "table.path: gs:// is supported but not tested; etl verify says whether each row is there"
        in caplog.text
    ) is message


PIPELINES = (
    OtherPipeline("etl/one/group/clicks", 3),
    OtherPipeline("etl/two/group/clicks", 4),
    OtherPipeline("etl/one/group/orders", 5),
)


def test_another_version_is_rejected_under_the_name_of_the_argument() -> None:
    with pytest.raises(SettingsError, match=r"There is no table \(pass `none`\)") as refused:
        _reject_another_version("3", None)
    assert refused.value.where == {"key": "UP_TO_VERSION"}
    _reject_another_version("none", None)


@pytest.mark.parametrize("name", ["orders", "group/orders", "one/group/orders"])
def test_a_predecessor_is_found_by_as_much_of_its_name_as_is_unique(name: str) -> None:
    assert _find_pipeline(name, PIPELINES) is PIPELINES[2]
    assert _find_pipeline("two/group/clicks", PIPELINES) is PIPELINES[1]


@pytest.mark.parametrize(
    ("name", "message", "names"),
    [
        (
            "group/clicks",
            "Several pipelines group/clicks have",
            "one/group/clicks, two/group/clicks",
        ),
        (
            "visits",
            "No pipeline visits has",
            "one/group/clicks, one/group/orders, two/group/clicks",
        ),
    ],
)
def test_the_forms_of_a_predecessor_are_named(name: str, message: str, names: str) -> None:
    with pytest.raises(SettingsError) as refused:
        _find_pipeline(name, PIPELINES)
    assert refused.value.message == f"{message} loaded into the table"
    assert refused.value.where == {"key": "--predecessor"}
    assert refused.value.action == (
        f"Pass NAME, GROUP/NAME or CLUSTER/GROUP/NAME, as far as only one of these has it: {names}"
    )


def test_no_predecessor_is_offered_where_there_is_none() -> None:
    with pytest.raises(SettingsError) as refused:
        _find_pipeline("clicks", ())
    assert refused.value.action == "Check table.path: no pipeline has loaded into the table"


FOUND = NamedTable("lake.clicks", "/wh/clicks", "id-1", 1_700_000_000_000)
OLD_PATH = replace(FOUND, path="/wh/old")


@pytest.mark.parametrize(
    ("before", "made_for", "words", "is_silent_of"),
    [
        (None, None, "Table lake.clicks is at /wh/clicks", "until now"),
        (FOUND, "id-1", "Table lake.clicks is at /wh/clicks", "the next run stops"),
        (OLD_PATH, "id-1", "until now runs used lake.clicks at /wh/old", "the next run stops"),
        (
            replace(FOUND, name="lake.visits"),
            "id-2",
            "It is another table (id-1) than that of plan 1 (id-2): the next run stops",
            "  ",
        ),
    ],
)
def test_the_next_runs_use_of_a_table_name_is_reported(
    before: NamedTable | None, made_for: str | None, words: str, is_silent_of: str
) -> None:
    ledger = Ledger("uid", plain_plan(1, table_id=made_for)) if made_for else Ledger(None)
    message = describe_location(before, FOUND, ledger, None)
    assert words in message and is_silent_of not in message


@pytest.mark.parametrize(
    ("before", "in_table", "words", "is_silent_of"),
    [
        (OLD_PATH, 1, "SET LOCATION '/wh/old'", "accepts"),
        (None, None, "lacks plan 2", "SET LOCATION"),
        (FOUND, 1, "lacks plan 2", "SET LOCATION"),
        (OLD_PATH, 2, "is at /wh/clicks", "lacks"),
    ],
)
def test_a_copy_without_the_newest_plan_is_reported_with_the_location_that_may_have_it(
    before: NamedTable | None, in_table: int | None, words: str, is_silent_of: str
) -> None:
    plan = plain_plan(2, table_id="id-1")
    recorded = Ledger("uid", plan, CommitResult(2, plan.id, 7, "id-1", ()))
    message = describe_location(before, FOUND, recorded, in_table)
    assert words in message and is_silent_of not in message
    assert ("the next run stops" in message) == ("lacks" in message)
    only_stored = describe_location(before, FOUND, Ledger("uid", plan), in_table)
    assert "lacks" not in only_stored, "the next run appends it"


PLAN = plain_plan()


DRIVER = DriverNode("host", 7, None, "run-1")


@pytest.mark.parametrize(
    ("ledger", "retirement", "driver", "state"),
    [
        (Ledger(), None, None, State.NO_PLAN),
        (Ledger("u", PLAN), None, None, State.STORED),
        (Ledger("u", PLAN, CommitResult(1, "", 3, "t", ())), None, None, State.UP_TO_DATE),
        (Ledger("u", PLAN), None, DRIVER, State.RUNNING),
        (Ledger("u", PLAN), Retirement("moved", 1), None, State.RETIRED),
        (Ledger("u", PLAN), Retirement("moved", 1, "g/other"), None, State.TAKEN_OVER),
    ],
    ids=lambda value: value.value if isinstance(value, State) else None,
)
def test_the_state_of_a_pipeline(
    ledger: Ledger, retirement: Retirement | None, driver: DriverNode | None, state: State
) -> None:
    assert _state_of(ledger, retirement, driver) is state


def test_a_table_that_is_not_the_confs_is_shown_by_its_id(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {
        **dict.fromkeys(("table", "retired")),
        **{"group": "g", "pipeline": "p", "state": "running", "newest_plan": 12, "age_s": 90.0},
        **{"topics": ["a", "b"], "table_id": "5f-7", "driver": "run run-1, pid 7 on host"},
        **{"paused": [], "backfills": [{"name": "old", "state": "complete"}]},
    }
    show_pipelines([row])
    result = capsys.readouterr().out
    for words in ("5f-7", "a, b", "g/p: running, run run-1, pid 7 on host"):
        assert words in result


@pytest.mark.parametrize("name", [".", "..", "../x", "a/b", "é"])
def test_an_invalid_pipeline_name_is_rejected_before_any_request_to_zookeeper(name: str) -> None:
    for command in pipelines.retire, pipelines.resume:
        with pytest.raises(SettingsError, match="no name of a pipeline"):
            command(plain_settings(), name, "r")
