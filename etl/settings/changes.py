"""What is said on the command line for one run, `--set KEY=VALUE`: as if it stood in the conf file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etl.errors import SettingsError
from etl.settings.mistakes import MEANINGS
from etl.settings.yaml_file import NOT_YAML, document_of, said_of

_SPARK = "spark"
_UNSIGNED = re.compile(r"[^\w.-]")
"""What ends a key."""


@dataclass(frozen=True, slots=True)
class Change:
    """One key of the conf, and what it is for this run."""

    key: str
    """With its section: `limits.max_records_per_run`; of Spark's settings `spark.driver.memory`, as
    Spark calls it.
    """
    value: Any
    """The value as YAML reads it; a text may still refer to a secret."""
    text: str
    """The same as it was written."""

    @property
    def place(self) -> tuple[str, ...]:
        """The keys that lead to it in the document. Spark's own names hold dots, and are one key of
        the section `spark`.
        """
        return (
            (_SPARK, self.key) if self.key.startswith(f"{_SPARK}.") else tuple(self.key.split("."))
        )


def parse_change(word: str) -> Change:
    """`KEY=VALUE`, the value as YAML. Raises SettingsError for a key that a conf does not have, and
    for what is no YAML.
    """
    key, equals, text = word.partition("=")
    key = key.strip()
    if not equals or not key:  # who wrote another sign may have a password behind it
        raise SettingsError(
            f"--set {_UNSIGNED.split(key)[0]}: it is not KEY=VALUE",
            check="--set limits.max_records_per_run=1000",
        )
    if key.startswith(f"{_SPARK}.{_SPARK}."):  # as it stands in the file, section and name
        key = key.removeprefix(f"{_SPARK}.")
    if key not in MEANINGS and not key.startswith(f"{_SPARK}."):
        raise SettingsError(f"--set {key}: a conf has no such key", key=key, check=_near(key))
    try:
        return Change(key, document_of(text), text)
    except NOT_YAML as error:
        what = f"--set {key}: the value cannot be read as YAML: {said_of(error)}"
        raise SettingsError(
            what,
            key=key,
            check="the value: it is written as in a conf file, in quotes for the shell",
        ) from error


def _near(key: str) -> str:
    last = key.rpartition(".")[2]
    like = difflib.get_close_matches(key, MEANINGS, n=1) or [
        known for known in MEANINGS if known.rpartition(".")[2] == last
    ]
    return (
        f"did you mean `{like[0]}`?"
        if like
        else "the keys of a conf, each with its section: `etl schema` tells them"
    )


def changed(document: Any, changes: Sequence[Change]) -> Any:
    """The document with these keys put into it, each over what was there; what is no mapping of
    keys is left for others to refuse.
    """
    if isinstance(document, dict):
        for change in changes:
            document = _put(document, change.place, change.value)
    return document


def _put(section: Mapping[Any, Any], place: Sequence[str], value: Any) -> dict[Any, Any]:
    first, *rest = place
    if not rest:
        return {**section, first: value}
    below = section.get(first)
    return {**section, first: _put(below if isinstance(below, dict) else {}, rest, value)}


_UNTOLD = ("spark.", "zookeeper", "source.bootstrap", "source.security", "table.store")
"""Reports leave out Spark's settings, which may hold secrets, how brokers and stores are entered,
and where servers are.
"""


def told_changes(changes: Sequence[Change]) -> dict[str, str | None]:
    """Key -> the value as it was written, for a report; null of what reports leave out."""
    return {
        change.key: None if change.key.startswith(_UNTOLD) or change.key == _SPARK else change.text
        for change in changes
    }
