"""What an operator does, by the advice of an error: commands that must succeed."""

from __future__ import annotations

from deltalake import DeltaTable

from tests.chaos.stage import ended
from tests.system.driving import Pipeline

REASON = ("--reason", "a test", "--yes")


def decide(pipeline: Pipeline, command: str, *words: str) -> None:
    """Run a command with these words after its conf, a reason and a confirmation."""
    ended(pipeline.door(*command.split(), after=(*words, *REASON), json_too=False), 0)


def accept_table(pipeline: Pipeline) -> None:
    """Accept the table as it is now."""
    version = str(DeltaTable(str(pipeline.table)).version())
    decide(pipeline, "table accept-changes", version)


def inherit(heir: Pipeline, old: Pipeline) -> None:
    """The heir takes the place of another pipeline."""
    decide(heir, "pipelines inherit", "--predecessor", f"{old.group}/clicks")
