"""What a first conf says, and why: of what a person asked for and what was seen. Nothing is asked
here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etl.commands.conf_text import Chosen
from etl.errors import NeedsDecision, SettingsError
from etl.model.partitions import BrokerFamily
from etl.model.security import parse_reference
from etl.report.describe import counted
from etl.settings.choices import folder_of
from etl.settings.load import Change
from etl.settings.secrets import FILE_KEYS, is_secret

TOPICS_NAMED = 50
"""Of many topics the first so many are named."""
_TAKEN = ("source.", "zookeeper.", "table.")
_CHOSEN = frozenset(
    {
        "zookeeper.connect",
        "source.dialect",
        "source.bootstrap",
        "source.topics.allow",
        "source.start",
        "source.on_data_loss",
        "table.path",
    }
)
_BEST = ("SASL_SSL", "SSL", "SASL_PLAINTEXT")
"""Of ways in, the one that is proposed first."""
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person says; the rest is found out. `zookeeper` and `bootstrap` as in a conf."""

    zookeeper: str
    bootstrap: str | None
    topics: tuple[str, ...]
    table: str
    """Seen from the working directory."""
    out: Path | None = None
    pipeline: str | None = None
    group: str | None = None
    cluster: str | None = None
    keys: tuple[Change, ...] = ()
    """Of the conf, to ask by and to write as they are."""

    def __post_init__(self) -> None:
        for one in self.keys:
            if one.key in _CHOSEN or not one.key.startswith(_TAKEN):
                is_chosen = one.key in _CHOSEN
                what = (
                    "it is found out, or has an option"
                    if is_chosen
                    else "only keys of source, zookeeper and table are asked by"
                )
                check = "`etl init --help`; others are written into the conf afterwards"
                raise SettingsError(f"--set {one.key}: {what}", key=one.key, check=check)

    @property
    def name(self) -> str:
        """What the pipeline is called: as was said, else as the file, else as the one topic, else
        as the table's folder.
        """
        topic = (
            self.topics[0]
            if len(self.topics) == 1 and re.fullmatch(r"[\w.-]+", self.topics[0])
            else None
        )
        found = (
            self.pipeline
            or (self.out and self.out.stem)
            or topic
            or self.table.rstrip("/").rpartition("/")[2]
        )
        return _NO_NAME.sub("-", found).strip("-") or "pipeline"

    @property
    def path(self) -> Path:
        """Where the conf goes."""
        return self.out or Path("conf") / f"{self.name}.yaml"


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is."""

    dialect: BrokerFamily
    cluster_id: str | None
    topics: dict[str, int]
    """Those that were asked for, each with its partitions."""
    offsets: int
    """How many (bytes, of physical logs) they hold now, as far as that is told."""
    brokers: int
    committed: int
    """Partitions of which the group has an offset."""
    newest_plan: int | None
    table_version: int | None
    rows_before: NeedsDecision | None = None
    """Why the first run would load nothing: the table holds rows of these topics."""


def choose(asked: Asked, seen: Seen) -> tuple[Chosen, ...]:
    """The keys of the conf, in its order, each with why. Raises SettingsError for a name that the
    brokers make pointless.
    """
    chosen = _found(asked, seen)
    said = [
        Chosen(one.key, _as_conf_sees(one, asked), "as it was said")
        for one in sorted(asked.keys, key=lambda one: one.key)
    ]
    sections = list(dict.fromkeys(one.key.partition(".")[0] for one in chosen))
    return tuple(
        one
        for section in sections
        for one in (*chosen, *said)
        if one.key.partition(".")[0] == section
    )


def _found(asked: Asked, seen: Seen) -> tuple[Chosen, ...]:
    is_jafka = seen.dialect is BrokerFamily.JAFKA
    unit = "byte" if is_jafka else "offset"
    topics = ", ".join(
        f"{name} ({counted(partitions, 'partition')})"
        for name, partitions in list(seen.topics.items())[:TOPICS_NAMED]
    )
    return (
        Chosen("version", 1, ""),
        Chosen(
            "pipeline",
            asked.name,
            "names the plans in ZooKeeper and in the table; keep it as it is"
            + (
                f". Plan {seen.newest_plan} of this name is there already: the conf goes on with it"
                if seen.newest_plan
                else ""
            ),
        ),
        *_cluster(asked, seen),
        Chosen(
            "group",
            asked.group or f"etl-{asked.name}",
            "whose committed offsets are read and moved"
            + (
                f"; it has offsets of {counted(seen.committed, 'partition')}, where the first run goes on"
                if seen.committed
                else "; it has none of these topics yet"
            ),
        ),
        Chosen(
            "zookeeper.connect",
            asked.zookeeper,
            "the ledger is kept here"
            + ("" if asked.bootstrap else ", and the brokers are registered here"),
        ),
        Chosen(
            "source.dialect",
            seen.dialect.value,
            f"{counted(seen.brokers, 'broker')}, "
            + ("registered as Jafka and Kafka 0.7 do" if is_jafka else "of Kafka 0.8 or later"),
        ),
        *_bootstrap(asked),
        Chosen(
            "source.topics.allow",
            list(asked.topics),
            f"regular expressions for whole names; now they match {topics}",
        ),
        Chosen(
            "source.start",
            "earliest",
            f"the first run loads what the logs hold, now {counted(seen.offsets, unit)}; latest: only what comes",
        ),
        Chosen(
            "source.on_data_loss",
            "fail",
            "offsets that expire before they are read stop the run; skip: go on behind them, loudly",
        ),
        Chosen(
            "table.path",
            _seen_from_conf(asked),
            "seen from this file; "
            + (
                "no table is there yet, the first run makes it"
                if seen.table_version is None
                else f"a Delta table is there, at version {seen.table_version}: {_appended(seen)}"
            ),
        ),
        Chosen(
            "report.path",
            os.path.relpath("reports", asked.path.parent),
            "each run leaves a report there",
        ),
    )


def _appended(seen: Seen) -> str:
    if seen.rows_before is None:
        return "rows are appended to it"
    return f"the first run stops, for {seen.rows_before.what}. Check {seen.rows_before.check}"


def _bootstrap(asked: Asked) -> list[Chosen]:
    return (
        [Chosen("source.bootstrap", asked.bootstrap, "brokers are found here, not by ZooKeeper")]
        if asked.bootstrap
        else []
    )


def _cluster(asked: Asked, seen: Seen) -> list[Chosen]:
    if seen.cluster_id is None:
        return [
            Chosen(
                "cluster",
                asked.cluster or asked.name,
                "needed: these brokers have no cluster id. Any name does, and it must stay",
            )
        ]
    if asked.cluster:
        what = f"the brokers tell the cluster's id, {seen.cluster_id}, and the pipeline goes by it"
        raise SettingsError(what, key="cluster", check="leave --cluster out")
    return []


def _seen_from_conf(asked: Asked) -> str:
    folder = folder_of(asked.table)
    return asked.table if folder is None or os.path.isabs(folder) else _from_conf(folder, asked)


def proposed(listeners: Sequence[tuple[str, str]]) -> str:
    """What to say of `source.security` where brokers have these listeners (name, protocol) and none
    was entered; of none known, of a login behind TLS."""
    best = next(
        (one for protocol in _BEST for one in listeners if one[1] == protocol), ("", _BEST[0])
    )
    words = [f"source.security.protocol={best[1]}"]
    if sum(protocol == best[1] for _, protocol in set(listeners)) > 1:
        words.append(f"source.listener={best[0]}")
    if best[1].startswith("SASL"):
        words += [
            "source.security.sasl.mechanism=MECHANISM",
            "source.security.sasl.username=NAME",
            "'source.security.sasl.password=${file:/PATH}'",
        ]
    if best[1].endswith("SSL"):
        words.append("source.security.tls.ca_file=PEM")
    without = (
        " (without ca_file the system's authorities are trusted)" if best[1].endswith("SSL") else ""
    )
    return f"{' '.join(f'--set {word}' for word in words)}{without}"


def proposed_for_zookeeper(key: str) -> str:
    """What to say of `zookeeper.tls` or `zookeeper.auth`, whichever the key is of."""
    words = (
        ("zookeeper.tls.enabled=true", "zookeeper.tls.ca_file=PEM")
        if key.startswith("zookeeper.tls")
        else (
            "zookeeper.auth.scheme=sasl",
            "zookeeper.auth.username=NAME",
            "'zookeeper.auth.password=${file:/PATH}'",
        )
    )
    return " ".join(f"--set {word}" for word in words)


def _as_conf_sees(change: Change, asked: Asked) -> Any:
    """A file that is named from where the command runs, as the conf names it from its own folder;
    also one that a reference names.
    """
    if not isinstance(change.value, str):
        return change.value
    reference = parse_reference(change.value) if is_secret(change.key) else None
    if reference is not None and reference.kind == "file":
        return f"${{file:{_from_conf(reference.name, asked)}}}"
    return _from_conf(change.value, asked) if change.key in FILE_KEYS else change.value


def _from_conf(path: str, asked: Asked) -> str:
    return path if os.path.isabs(path) else os.path.relpath(path, asked.path.parent)
