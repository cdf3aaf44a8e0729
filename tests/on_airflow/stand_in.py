"""A `python` and a `spark-submit` that record their calls and return prepared answers."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCRIPT = """#!{python}
import json, os, sys
folder, me = {folder!r}, {name!r}
with open(os.path.join(folder, "calls"), "a") as file:
    print(json.dumps([me, sys.argv[1:], {{key: os.environ.get(key) for key in ("PYSPARK_PYTHON", "ETL_DOCUMENT_FILE")}}]), file=file)
answers = os.path.join(folder, me + ".json")
empty = {{"document": {{}}}} if me == "spark-submit" else {{}}
prepared = json.load(open(answers)) if os.path.exists(answers) else [empty]
jars = os.path.join(folder, "jars.json")
if sys.argv[1] == "-c":
    answer = {{"document": {{"jars": json.load(open(jars))}}}} if os.path.exists(jars) else {{}}
else:
    answer = prepared[0]
    if len(prepared) > 1:
        json.dump(prepared[1:], open(answers, "w"))
print("26/01/31 WARN Utils: a line of Spark's log", file=sys.stderr)
if "document" in answer:
    print(json.dumps(answer["document"], indent=2))
    if os.environ.get("ETL_DOCUMENT_FILE"):
        json.dump(answer["document"], open(os.environ["ETL_DOCUMENT_FILE"], "w"))
sys.stdout.flush()
if answer.get("signal"):
    os.kill(os.getpid(), answer["signal"])
sys.exit(answer.get("code", 0))
"""


@dataclass(frozen=True)
class Call:
    words: list[str]
    environment: dict[str, str | None]

    def after(self, option: str) -> list[str]:
        """What each appearance of the option was given."""
        return [self.words[at + 1] for at, word in enumerate(self.words) if word == option]

    @property
    def job(self) -> list[str]:
        """Of spark-submit: the command and its arguments, after the job file."""
        at = next(at for at, word in enumerate(self.words) if word.endswith("/jobs/etl_job.py"))
        return self.words[at + 1 :]


class StandIn:
    """Answers are given in turn, the last one repeatedly: `code`, `document`, or `signal`, which
    then ends the process.

    A spark-submit without a prepared answer succeeds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        self.python = folder / "bin" / "python"
        self.forget()

    def forget(self) -> None:
        for name in ("python", "spark-submit"):
            script = self.folder / "bin" / name
            script.write_text(
                _SCRIPT.format(python=sys.executable, folder=str(self.folder), name=name)
            )
            script.chmod(0o755)
        for path in (*self.folder.glob("*.json"), self.folder / "calls"):
            path.unlink(missing_ok=True)

    def spark_submit(self, *answers: dict[str, Any]) -> None:
        (self.folder / "spark-submit.json").write_text(json.dumps(answers))

    def command(self, *answers: dict[str, Any]) -> None:
        """What `python -m etl ...` will answer."""
        (self.folder / "python.json").write_text(json.dumps(answers))

    def jars(self, *paths: str) -> None:
        """Delta's jars in its cache; without them it does not answer."""
        (self.folder / "jars.json").write_text(json.dumps(paths))

    def without_package(self) -> None:
        """A real python without any package; its spark-submit fails as the real one then."""
        self.python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
        self.spark_submit({"code": 1})

    def calls(self, who: str = "spark-submit") -> list[Call]:
        """The calls so far, but for the question where Delta's jars are."""
        path = self.folder / "calls"
        found = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        return [
            Call(words, environment)
            for name, words, environment in found
            if name == who and words[0] != "-c"
        ]
