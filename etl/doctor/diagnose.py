"""`etl doctor CONF`: what is looked at and in which order, and which line is the worst.

Every line is ok, advice, failed with the exit code of a run that would stop there, or not checked
because of a line above it. What each check looks at is in the module of that part of the world.
Nothing is changed: permissions are found out by requests that ZooKeeper refuses for another reason,
by a file without a name in the table's folder, and by a probe there that is removed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import Any

from etl.commands.preview import preview_of
from etl.doctor import (
    acls,
    backfills,
    brokers,
    group,
    ledger,
    machine,
    mirror,
    named_table,
    rows,
    table,
    zookeeper,
)
from etl.doctor.check import Check, Fact, Findings, Line, Verdict
from etl.errors import EtlError, worst_of
from etl.run.services import RunContext, SparkDefaults
from etl.settings.sections import Settings

CHECKS = (
    Check("Java", machine.java, gives=Fact.JAVA),
    Check("Delta's jars", machine.jars),
    Check("Python packages", machine.packages),
    Check("workers' Python", machine.workers_python),
    Check("time zone", machine.time_zone),
    Check("transform", machine.transform, gives=Fact.TRANSFORM),
    Check("report folder", machine.report_folder),
    Check("metrics folder", machine.metrics_folder),
    Check("ZooKeeper", zookeeper.servers, gives=Fact.ZOOKEEPER),
    Check("request limit", zookeeper.request_limit, needs=(Fact.ZOOKEEPER,)),
    Check("chroot", zookeeper.chroot, needs=(Fact.ZOOKEEPER,), gives=Fact.CHROOT),
    Check("znode permissions", zookeeper.permissions, needs=(Fact.ZOOKEEPER, Fact.CHROOT)),
    Check("znode ACLs", acls.acls, needs=(Fact.ZOOKEEPER, Fact.CHROOT)),
    Check("cluster", brokers.cluster, needs=(Fact.ZOOKEEPER, Fact.CHROOT), gives=Fact.CLUSTER),
    Check("broker", brokers.each_broker, needs=(Fact.ZOOKEEPER, Fact.CLUSTER)),
    Check("topics", brokers.topics, needs=(Fact.ZOOKEEPER, Fact.CLUSTER), gives=Fact.TOPICS),
    Check("group", group.group, needs=(Fact.ZOOKEEPER, Fact.TOPICS)),
    Check("backfills", backfills.unfinished, needs=(Fact.ZOOKEEPER, Fact.CHROOT)),
    Check("mirror group", mirror.mirror_group),
    Check("table name", named_table.place, gives=Fact.PLACE),
    Check("store", table.store, needs=(Fact.PLACE,)),
    Check("table", table.look, needs=(Fact.PLACE,), gives=Fact.TABLE),
    Check("table features", table.features, needs=(Fact.TABLE,)),
    Check("table writer", table.writer, needs=(Fact.TABLE,)),
    Check("table retention", table.retention, needs=(Fact.TABLE,), gives=Fact.RETENTION),
    Check("table columns", table.columns, needs=(Fact.TABLE,), gives=Fact.COLUMNS),
    Check("transformed rows", rows.transformed, needs=(Fact.JAVA, Fact.TRANSFORM, Fact.TABLE)),
    Check("table folder", table.folder, needs=(Fact.TABLE,)),
    Check("losses table", table.losses_folder, needs=(Fact.PLACE,)),
    Check(
        "ledger and table",
        partial(ledger.state, foresee=preview_of),
        needs=(Fact.ZOOKEEPER, Fact.TOPICS, Fact.TABLE, Fact.RETENTION, Fact.COLUMNS),
    ),
)
"""In the order of a run: what comes later needs what comes before."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All lines, in the order of the checks."""

    lines: tuple[Line, ...]

    @property
    def worst(self) -> EtlError | None:
        """What to mend first; None when a run may start."""
        return worst_of(line.error for line in self.lines if line.error)

    @property
    def exit_code(self) -> int:
        """That of the worst line."""
        return self.worst.exit_code if self.worst else 0

    def as_json(self) -> dict[str, Any]:
        """The document of `etl doctor --json`."""
        counts = {
            verdict.value.replace(" ", "_"): sum(line.verdict is verdict for line in self.lines)
            for verdict in Verdict
        }
        return {
            "exit_code": self.exit_code,
            **counts,
            "lines": [line.as_json() for line in self.lines],
        }


def diagnose(
    settings: Settings,
    checks: tuple[Check, ...] = CHECKS,
    *,
    spark_defaults: SparkDefaults = RunContext().spark_defaults,
) -> Diagnosis:
    """Look at everything that a run of this pipeline needs. What is wrong is in the lines; nothing
    is raised for it.
    """
    with contextlib.ExitStack() as closing:
        findings = Findings(settings, closing, spark_defaults=spark_defaults)
        return Diagnosis(tuple(line for check in checks for line in check.lines(findings)))
