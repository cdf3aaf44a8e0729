"""What a first conf says, and why: of what a person asked for and what was seen. Nothing is asked here."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from etl.commands.conf_text import Chosen
from etl.errors import SettingsError
from etl.model.logs import Dialect
from etl.report.words import counted
from etl.settings.places import folder_of

TOPICS_NAMED = 50
"""Of many topics the first so many are named."""
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

    @property
    def name(self) -> str:
        """What the pipeline is called: as was said, else as the file, else as the one topic, else as the table's folder."""
        topic = self.topics[0] if len(self.topics) == 1 and re.fullmatch(r"[\w.-]+", self.topics[0]) else None
        found = self.pipeline or (self.out and self.out.stem) or topic or self.table.rstrip("/").rpartition("/")[2]
        return _NO_NAME.sub("-", found).strip("-") or "pipeline"

    @property
    def path(self) -> Path:
        """Where the conf goes."""
        return self.out or Path("conf") / f"{self.name}.yaml"


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is."""

    dialect: Dialect
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


def choose(asked: Asked, seen: Seen) -> tuple[Chosen, ...]:
    """The keys of the conf, in its order, each with why. Raises SettingsError for a name that the brokers make pointless."""
    is_jafka = seen.dialect is Dialect.JAFKA
    unit = "byte" if is_jafka else "offset"
    topics = ", ".join(f"{name} ({counted(partitions, 'partition')})" for name, partitions in list(seen.topics.items())[:TOPICS_NAMED])
    return (
        Chosen("version", 1, ""),
        Chosen("pipeline", asked.name, "names the plans in ZooKeeper and in the table; keep it as it is"
               + (f". Plan {seen.newest_plan} of this name is there already: the conf goes on with it" if seen.newest_plan else "")),
        *_cluster(asked, seen),
        Chosen("group", asked.group or f"etl-{asked.name}", "whose committed offsets are read and moved"
               + (f"; it has offsets of {counted(seen.committed, 'partition')}, where the first run goes on" if seen.committed
                  else "; it has none of these topics yet")),
        Chosen("zookeeper.connect", asked.zookeeper,
               "the ledger is kept here" + ("" if asked.bootstrap else ", and the brokers are registered here")),
        Chosen("source.dialect", seen.dialect.value, f"{counted(seen.brokers, 'broker')}, "
               + ("registered as Jafka and Kafka 0.7 do" if is_jafka else "of Kafka 0.8 or later")),
        *_bootstrap(asked),
        Chosen("source.topics.allow", list(asked.topics), f"regular expressions for whole names; now they match {topics}"),
        Chosen("source.start", "earliest",
               f"the first run loads what the logs hold, now {counted(seen.offsets, unit)}; latest: only what comes"),
        Chosen("source.on_data_loss", "fail", "offsets that expire before they are read stop the run; skip: go on behind them, loudly"),
        Chosen("table.path", _seen_from_conf(asked), "seen from this file; " + (
            "no table is there yet, the first run makes it" if seen.table_version is None
            else f"a Delta table is there, at version {seen.table_version}: rows are appended to it")),
        Chosen("report.path", os.path.relpath("reports", asked.path.parent), "each run leaves a report there"),
    )


def _bootstrap(asked: Asked) -> list[Chosen]:
    return [Chosen("source.bootstrap", asked.bootstrap, "brokers are found here, not by ZooKeeper")] if asked.bootstrap else []


def _cluster(asked: Asked, seen: Seen) -> list[Chosen]:
    if seen.cluster_id is None:
        return [Chosen("cluster", asked.cluster or asked.name, "needed: these brokers have no cluster id. Any name does, and it must stay")]
    if asked.cluster:
        what = f"the brokers tell the cluster's id, {seen.cluster_id}, and the pipeline goes by it"
        raise SettingsError(what, key="cluster", check="leave --cluster out")
    return []


def _seen_from_conf(asked: Asked) -> str:
    folder = folder_of(asked.table)
    return asked.table if folder is None or os.path.isabs(folder) else os.path.relpath(folder, asked.path.parent)
