"""What does `etl demo` show, and which events does it load?

`etl demo`: the whole path on real parts on this machine, with a run that is killed at the worst
moment, and a proof.

It does what a person would: it writes a conf file and calls the command `etl`, each run a process
of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from etl.cli.screens import show_offsets
from etl.demo.sources import SOURCES, Source
from etl.errors import EtlError
from etl.model.partitions import BrokerFamily
from etl.testkit.cluster import Cluster
from etl.testkit.spark import SHORT_RUN

_CONF = """\
version: 1
pipeline: clicks
{cluster}group: etl-demo
zookeeper: {{connect: "{zookeeper}"}}
source: {source}
table: {{path: "{folder}/warehouse/clicks", partition_by: [{partition_by}]}}
report: {{path: "{folder}/reports"}}
"""


def run_demo(
    *, records: int, folder: Path | None, quiet: bool, dialect: BrokerFamily = BrokerFamily.KAFKA
) -> dict[str, Any]:
    """Tell the story and return its figures. What was started is stopped, also on Ctrl-C; the
    folder with the table stays.
    """
    source = SOURCES[dialect]
    home = Path(folder or tempfile.mkdtemp(prefix="etl-demo-")).absolute()
    home.mkdir(parents=True, exist_ok=True)
    if (home / "warehouse").exists():
        raise EtlError(
            "the folder holds the table of an earlier demo",
            path=home,
            check="give another --folder",
        )
    with source.cluster(home / "cluster") as cluster:
        return _Story(
            cluster, source, home, Console(quiet=quiet, highlight=False, soft_wrap=True)
        ).tell(records)


def conf_of(source: Source, zookeeper: str, home: Path) -> str:
    """The conf file of the demo."""
    return _CONF.format(
        zookeeper=zookeeper,
        folder=home,
        cluster=source.cluster_line,
        source=source.source,
        partition_by=source.partition_by,
    )


class _Story:
    def __init__(self, cluster: Cluster, source: Source, home: Path, screen: Console) -> None:
        self._cluster, self._source, self._home, self._screen = cluster, source, home, screen
        self._conf = home / "clicks.yaml"
        self._conf.write_text(conf_of(source, cluster.zookeeper_connect, home))
        self._produced = 0
        self._began = time.monotonic()

    def tell(self, records: int) -> dict[str, Any]:
        self._say(
            f"{self._source.who.format(version=self._cluster.brokers[0].version)} at {self._cluster.zookeeper_connect}"
        )
        self._source.create(self._cluster)
        self._produce(records)
        first = self._etl("run", "reads all of them")
        self._produce(records // 10)
        killed = self._run_that_dies()
        self._produce(records // 10)
        repaired = self._etl("run", "finds the offsets behind the table, moves them, and goes on")
        nothing = self._etl("run", "has nothing new to do, and starts no Spark")
        proof = self._etl("verify", "reads every row of the table and compares it with the ledger")
        offsets = self._etl("offsets", "", "show")
        if not self._screen.quiet:
            show_offsets(offsets)
        self._end(proof)
        return {
            "produced": self._produced,
            "in_the_table": proof["found_rows"],
            "verified": proof["is_right"],
            "killed_by_signal": killed,
            "table": str(self._home / "warehouse" / "clicks"),
            "conf": str(self._conf),
            "seconds": round(time.monotonic() - self._began, 1),
            "runs": [first, repaired, nothing],
            "offsets": offsets,
        }

    def _produce(self, count: int) -> None:
        with self._screen.status(f"producing {count:,} click events"):
            self._source.produce(self._cluster, self._produced, count)
        self._produced += count
        self._say(f"produced {count:,} JSON click events over {self._source.what}")

    def _etl(self, door: str, why: str, *words: str) -> Any:
        began = time.monotonic()
        quiet = ["--quiet"] if door in ("run", "verify") else []
        command = [sys.executable, "-m", "etl", door, *words, str(self._conf), "--json", *quiet]
        with self._screen.status(f"etl {door} {why}"):
            ended = _ended(command)
        if ended.returncode:
            what = f"`etl {door}` ended with {ended.returncode}: {_last_lines(ended.stderr)}"
            raise EtlError(what, check=f"the files below {self._home}")
        told = json.loads(ended.stdout)
        if why:
            self._say(f"[bold]etl {door}[/] {why} ({time.monotonic() - began:.1f} s)")
        for outcome in told.get("outcomes", ()) if isinstance(told, dict) else ():
            self._screen.print(f"     {outcome['outcome']}: {outcome['says']}")
        return told

    def _run_that_dies(self) -> int:
        """One run that is killed by SIGKILL after its Delta commit and before it moves an offset."""
        command = [sys.executable, "-m", "etl.demo.crash_run", str(self._conf), "commit"]
        with self._screen.status(
            "etl run, to be killed between the table's commit and the offsets"
        ):
            ended = _ended(command)
        if ended.returncode != -signal.SIGKILL:
            raise EtlError(
                f"the run was to be killed and ended with {ended.returncode}: {_last_lines(ended.stderr)}"
            )
        self._say(
            "[bold red]killed[/] one run with SIGKILL, after its rows were in the table and before an offset moved"
        )
        return int(signal.SIGKILL)

    def _end(self, proof: dict[str, Any]) -> None:
        same = (
            "each once, none missing"
            if proof["is_right"] and proof["found_rows"] == self._produced
            else "THIS IS WRONG"
        )
        self._say(
            f"[bold green]{proof['found_rows']:,}[/] records in the table of {self._produced:,} produced: {same}"
        )
        self._screen.print(f"     the table: {self._home / 'warehouse' / 'clicks'}")
        self._screen.print(f"     conf and reports: {self._conf}, {self._home / 'reports'}")

    def _say(self, sentence: str) -> None:
        self._screen.print(
            f"[dim]{time.monotonic() - self._began:5.1f} s[/]  {sentence}", markup=True
        )


def _ended(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run to the end; on Ctrl-C the child is stopped first, as the command itself would."""
    environment = {**os.environ, "JDK_JAVA_OPTIONS": SHORT_RUN}
    child = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = child.communicate()
    except BaseException:
        _stop(child)
        raise
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def _stop(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGTERM)
    try:
        child.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-6:])
