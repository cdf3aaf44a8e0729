"""An environment for the commands of the pages: their topics, their conf, answers at a terminal,
and the required state.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable
from kafka import KafkaProducer

from etl.commands.backfill import parse_backfill_request, run_backfill
from etl.commands.run import run
from etl.settings.load import load_settings
from etl.settings.sections import Settings
from etl.testkit.cluster import EmbeddedCluster
from tests.command_result import CommandResult, entered, run_etl
from tests.pages import ROOT
from tests.system.driving import WITHOUT_SPARK, Before, BrokenOff
from tests.system.sessions import session_at

CONF = Path("conf/clicks.yaml")
"""The conf that replaces CONF in the pages, relative to the working directory."""
FIRST_MS, JANUARY_MS, LAST_DAY_MS, FEBRUARY_MS = (
    1_764_547_200_000,
    1_767_225_600_000,
    1_769_817_600_000,
    1_769_904_000_000,
)  # December 1st, 2025; January 1st and 31st, February 1st
LARGE, OF_EACH = 4_800, 24
"""Records of December in partition 3, as many as the pages' offsets want; and of each stretch of
time in each partition otherwise.
"""


def fill(cluster: EmbeddedCluster) -> None:
    """The topics `clicks` and `orders`: December is offsets 0 to 4800 of partition 3, then come
    January, its last day, and February.
    """
    for topic in ("clicks", "orders"):
        cluster.create_topic(topic, 4, config={"retention.ms": "-1"})
    with contextlib.closing(
        KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=20)
    ) as producer:
        for partition in range(4):
            counts = [
                (FIRST_MS, JANUARY_MS, LARGE if partition == 3 else OF_EACH),
                (JANUARY_MS, LAST_DAY_MS, OF_EACH),
                (LAST_DAY_MS, FEBRUARY_MS, OF_EACH),
                (FEBRUARY_MS, FEBRUARY_MS + 86_400_000, OF_EACH),
            ]
            for begins, ends, count in counts:
                for n in range(count):
                    value = json.dumps({"page": f"/article/{n}"}).encode()
                    producer.send(
                        "clicks",
                        value,
                        partition=partition,
                        timestamp_ms=begins + (ends - begins) * n // count,
                    )


class Terminal(io.StringIO):
    """Where a person sits."""

    def isatty(self) -> bool:
        return True


class UntilShown(Terminal):
    """One who presses Ctrl-C at the first record, and is heard."""

    def write(self, text: str) -> int:
        is_first = "/article/" in text and "/article/" not in self.getvalue()
        written = super().write(text)
        if is_first:
            signal.raise_signal(signal.SIGINT)
        return written


class PageWorld:
    """The folder in which commands are typed is the current one; one pipeline at a time has its
    conf in `conf/clicks.yaml`.
    """

    def __init__(self, cluster: EmbeddedCluster, groups: str) -> None:
        self.cluster = cluster
        self.groups = groups
        self.group = ""
        self._loaded: str | None = None
        self.words: dict[str, Callable[[], str]] = {
            "CONF": lambda: str(CONF),
            "conf/clicks.yaml": lambda: str(CONF),
            "FOLDER": lambda: "conf",
            "N": self.newest_plan,
            "VERSION": lambda: str(self.table.version()),
            "RUN": self.newest_run,
            "NAME": lambda: "clicks",
            "[NAME]": lambda: "clicks",
            "TOPIC": lambda: "clicks",
            "PARTITION": lambda: "clicks:3",
            "TOPIC:PARTITION": lambda: "clicks:3",
            "TOPIC:PARTITION:FROM-UNTIL": lambda: "clicks:3:1200-1300",
            "GROUP/PIPELINE": lambda: f"{self.before}/clicks",
            "127.0.0.1:2181/kafka": lambda: cluster.zookeeper_connect,
        }
        self.before = ""
        """The group of the pipeline that had the conf before this one."""

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.settings.table.path.removeprefix("file://"))

    @property
    def settings(self) -> Settings:
        return load_settings(CONF)

    def begin(self, name: str, *, table: str | None = None, **sections: Mapping[str, Any]) -> None:
        """The project's own conf, for a pipeline of a group, table and folder of reports of its
        own; its small plans need no Spark.
        """
        document = yaml.safe_load((ROOT / "conf" / "clicks.yaml").read_text())
        self.before, self.group = self.group, f"{self.groups}-{name}"
        document["group"] = self.group
        document["zookeeper"]["connect"] = self.cluster.zookeeper_connect
        document["table"]["path"] = f"../warehouse/{table or name}"
        document["report"]["path"] = f"../reports/{name}"
        for section, keys in (*WITHOUT_SPARK.items(), *sections.items()):
            document[section] = {**document[section], **keys}
        CONF.parent.mkdir(exist_ok=True)
        CONF.write_text(yaml.safe_dump(document))

    def loaded(self) -> None:
        """A pipeline that is at the end of the logs; always the same one."""
        if self._loaded:
            CONF.parent.mkdir(exist_ok=True)
            CONF.write_text(self._loaded)
            self.group = str(self.settings.group.id)
            return
        self.begin("loaded")
        self.type("etl run CONF")
        self._loaded = CONF.read_text()

    def left(self) -> None:
        """Begin a pipeline, and leave its first plan stored and not executed."""
        self.begin("left")
        with _broken_off() as around:
            run(self.settings, around=around)

    def begun_late(self, name: str) -> None:
        """One that began with February."""
        self.begin(name, source={"starting_offsets": "2026-02-01T00:00:00+00:00"})
        self.type("etl run CONF")

    def left_backfill(self) -> None:
        """A backfill of January that has claimed its offsets and loaded none."""
        self.begun_late("given-up")
        request = parse_backfill_request("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", ())
        with _broken_off() as around:
            run_backfill(self.settings, "january", request, around=around)

    def without_zookeeper(self) -> None:
        """ZooKeeper has forgotten the group."""
        with session_at(self.cluster.zookeeper_connect) as client:
            client.delete(f"/consumers/{self.group}", recursive=True)

    def newest_plan(self) -> str:
        return str(
            max(
                row["number"]
                for row in run_etl("plans", "list", str(CONF), "--json").document["plans"]
            )
        )

    def newest_run(self) -> str:
        pages = sorted(
            (Path("reports") / self.group.removeprefix(f"{self.groups}-")).glob("*.json")
        )
        return str(json.loads(pages[-1].read_text())["run_id"])

    def filled(self, text: str) -> list[str]:
        """Return the words after `etl`, with placeholders replaced."""
        words = [
            self.words[word]() if word in self.words else word for word in shlex.split(text)[1:]
        ]
        meant = {"--reason": "as on the page", "--skip": "clicks:3:1300-1400"}
        words = [
            meant.get(before, word) if word == "..." else word
            for before, word in zip(["", *words], words)
        ]
        return [*words, "--set", f"group={self.groups}-first"] if words[0] == "init" else words

    def type(self, text: str, code: int = 0, answer: str | None = None) -> CommandResult:
        """Run it, on a terminal if it prompts, and check that it ends as the page states."""
        words = self.filled(text)
        result = run_etl(*words) if answer is None else self._at_terminal(words, answer)
        assert result.code == code, f"{text}: exit {result.code}\n{result.err}{result.out}"
        assert "Traceback" not in result.err, result.err
        return result

    @staticmethod
    def _at_terminal(words: list[str], answer: str) -> CommandResult:
        out, err = Terminal(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            patch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
            code = entered(words)
        return CommandResult(code, out.getvalue(), err.getvalue())

    def type_and_interrupt(self, text: str) -> None:
        """While records come, Ctrl-C at the first that is shown: exit 130."""
        out, err, words = UntilShown(), io.StringIO(), self.filled(text)
        with self._records_come(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = entered(words)
        assert (code, "/article/" in out.getvalue()) == (130, True), err.getvalue()

    @contextlib.contextmanager
    def _records_come(self) -> Iterator[None]:
        done = threading.Event()

        def send() -> None:
            with contextlib.closing(
                KafkaProducer(bootstrap_servers=self.cluster.bootstrap)
            ) as producer:
                while not done.wait(0.1):
                    producer.send("clicks", b'{"page": "/article/new"}', partition=3).get(20)

        sending = threading.Thread(target=send)
        sending.start()
        try:
            yield
        finally:
            done.set()
            sending.join()


@contextlib.contextmanager
def _broken_off() -> Iterator[Before]:
    """It ends when it would fetch."""

    def break_off() -> None:
        raise BrokenOff

    with pytest.raises(BrokenOff):
        yield Before("fetch", break_off)
