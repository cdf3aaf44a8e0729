"""What a person sees of a folder of confs that was run, of a first conf that was written, and of
what was packed for a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from etl.commands.init import FirstConf
from etl.commands.package import Package
from etl.commands.run import ConfRun, FolderRun
from etl.console.text import screen, table


def show_one_run(run: ConfRun) -> None:
    """What one conf of a folder came to; an error was told when it came."""
    for one in (run.report or {}).get("outcomes", ()):
        screen.print(f"  {one['outcome']}: {one['says']}", markup=False)


def show_folder_run(found: FolderRun) -> None:
    """All of them, a line each."""
    table(
        ("conf", "exit code", "records", "seconds", "came to"),
        [
            (
                run.conf,
                run.exit_code,
                (run.report or {}).get("records"),
                (run.report or {}).get("seconds_in_all"),
                run.error.what.splitlines()[0]
                if run.error
                else ", ".join(one["outcome"] for one in (run.report or {}).get("outcomes", ())),
            )
            for run in found.runs
        ],
    )


def show_first_conf(written: FirstConf) -> None:
    """What was written and why, and what comes next."""
    for one in written.chosen:
        screen.print(
            f"{one.key}: {one.value}" + (f"  ({one.why})" if one.why else ""), markup=False
        )
    screen.print(f"written: {written.path}; next: `etl doctor {written.path}`", markup=False)


def show_sentences(says: Sequence[str]) -> None:
    """What a command came to, a line each."""
    for sentence in says:
        screen.print(sentence, markup=False)


def show_package(made: Package) -> None:
    """What was made, and the command that uses it, as a shell takes it."""
    screen.print(f"written: {made.environment or made.zip}, and {made.job}", markup=False)
    screen.print(made.needs, markup=False)
    screen.print(f"  {made.command}", markup=False)
