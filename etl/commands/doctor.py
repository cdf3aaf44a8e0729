"""What does `etl doctor` check, in which order, and what does it find at the table and the ledger?

Each line is ok, advice, failed (with the exit code of a run that would stop there) or not checked
because of an earlier line. Nothing is changed: permissions are tested by requests that ZooKeeper
rejects for another reason, by an unnamed file in the table's directory, and by a probe there that
is removed.

Checks here: the table (store, features, columns, permissions), a named table in its catalog (starts
Spark), the transform, the ledger against the table, backfills.

Not here: checks of the machine (etl/commands/doctor_machine.py), of brokers, group and ZooKeeper
(etl/commands/doctor_services.py).
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from etl.commands import doctor_machine, doctor_services
from etl.commands.backfill import State, backfills_of_pipeline
from etl.commands.doctor_machine import (
    Check,
    Fact,
    Findings,
    Line,
    Verdict,
    advice,
    may_need_jars,
    ok,
)
from etl.commands.plans import preview_of
from etl.decide.offsets import starts_of
from etl.decide.partition_identity import reject_recreated_or_truncated
from etl.decide.reconcile import plan_in_force
from etl.decide.set_offsets import standing_without_paused
from etl.decide.table_rules import catalog_of, goes_by, reject_temporary
from etl.decide.table_storage import LOG_STORE, interval, settings_for
from etl.errors import EtlError, NotOurTable, Owned, ProcessLost, SettingsError, worst_of
from etl.io.delta.append import error_of_arrow_writer
from etl.io.delta.exclusive_create import require_exclusive_create
from etl.io.delta.losses import open_losses
from etl.io.delta.table import (
    WRITTEN_BY_SPARK,
    check_shape,
    check_writable,
    features_of,
    local_path,
    not_by_delta_rs,
    open_table,
    reject_expiring_transaction_ids,
)
from etl.io.spark.session import session_there, translating_spark_errors
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.ledger_records import read_named_table
from etl.model.columns import arrow_schema, names_of_key
from etl.model.snapshot import (
    FirstRun,
    NamedTable,
    PipelineState,
    RebuildFromTable,
    Replay,
    Snapshot,
    Supersede,
    UpToDate,
)
from etl.report.describe import describe_open
from etl.report.lag import describe_paused
from etl.report.run_state import Stopwatch
from etl.run.live import LiveServices
from etl.run.observe import reject_unaccounted_rows
from etl.run.rows import columns_of_tasks, fitting_arrow_transform, try_on_no_rows, unprovable
from etl.run.services import RunContext, SparkDefaults, now_ms
from etl.run.spark import RunSpark, entry_of, of_entry, reject_moved_table
from etl.settings.choices import OnDataLoss, OnOffsetChanged, WriterName
from etl.settings.load import placed_by_name
from etl.settings.sections import Settings
from etl.settings.table import untried


def unfinished(name: str, findings: Findings) -> Iterator[Line]:
    """Return a line for each unfinished backfill, and one for all others; none without backfills."""
    ledger = PlanLedger(findings.zookeeper, findings.settings.group.id, findings.settings.pipeline)
    done = 0
    for one in backfills_of_pipeline(ledger):
        text = f"{one['name']} is {one['state']}: {one['loaded']:,} of {one['offsets']:,} offsets are loaded"
        if one["state"] == State.STOPPED.value:
            to_do = f"`etl backfills run CONF {one['name']}`, or `etl backfills delete`"
            yield advice(name, text, to_do)
        elif one["state"] == State.CLOSING.value:
            yield advice(
                name,
                text,
                f"`etl backfills delete CONF {one['name']} --reason ...`, which ends that",
            )
        elif one["state"] == State.AT_WORK.value:
            yield ok(name, text)
        else:
            done += 1
    if done:
        yield ok(name, f"{done:,} are whole or were given up: what they have loaded is theirs")


Foresee = Callable[[Snapshot, Settings], object]
"""Decides all that `etl run --dry-run` decides of a snapshot, and raises what it raises."""


def state(name: str, findings: Findings, *, foresee: Foresee) -> Iterator[Line]:
    """Check what a run would observe, its state, and where it would stop."""
    silent = {
        leader.broker.id for leader in findings.metadata.leaders.values()
    } & findings.silent_brokers
    if silent:
        yield Line(
            name,
            Verdict.NOT_CHECKED,
            f"first broker {min(silent)}, which leads partitions of ours, see above",
        )
        return
    yield from judged(name, _observed(findings), findings.settings, foresee)


def judged(name: str, snapshot: Snapshot, settings: Settings, foresee: Foresee) -> Iterator[Line]:
    """Return the lines for a snapshot. Raises what a run would raise; owners and members are other
    checks.
    """
    yield from held_back("open transactions", snapshot)
    yield from rested("paused logs", snapshot)
    yield from unidentified("topic ids", snapshot)
    snapshot, found = standing_without_paused(snapshot, settings)
    reaches = starts_of(found.plan) if isinstance(found, Supersede) else None
    reject_recreated_or_truncated(plan_in_force(snapshot.ledger, snapshot.table), snapshot, reaches)
    alone = replace(snapshot, other_pipelines={}, ledger=replace(snapshot.ledger, retired=None))
    with contextlib.suppress(Owned):
        foresee(alone, settings)
    yield told(name, found)


def _observed(findings: Findings) -> Snapshot:
    settings = findings.settings
    patient = settings.model_copy(
        update={"source": settings.source.model_copy(update={"wait_for_leader_s": 0})}
    )
    services = LiveServices(patient, findings.zookeeper, RunContext(), "doctor")
    return services.observe()


def held_back(name: str, snapshot: Snapshot) -> Iterator[Line]:
    """Return a line for each topic with an open transaction, up to which a run reads."""
    for sentence in describe_open(snapshot):
        yield advice(
            name,
            sentence,
            "whether its producer lives (kafka-transactions.sh describe-producers); runs read on once it ends",
        )


def rested(name: str, snapshot: Snapshot) -> Iterator[Line]:
    """Return a line for each pause: no run reads these partitions, and retention continues."""
    for sentence in describe_paused(snapshot, now_ms=now_ms()):
        yield advice(
            name,
            sentence,
            "`etl topics resume CONF -p PARTITION --reason ...`, before its records expire",
        )


def unidentified(name: str, snapshot: Snapshot) -> Iterator[Line]:
    """Return a line if nothing distinguishes recreated topics; Jafka partitions have fingerprints."""
    topics = sorted(
        {log.topic for log in snapshot.extents if not log.is_physical} - snapshot.topic_ids.keys()
    )
    if topics:
        more = f" and {len(topics) - 1:,} more" if topics[1:] else ""
        message = f"the brokers tell no topic ids, and their ZooKeeper is not the conf's: nothing tells if {topics[0]}{more} is made again"
        yield advice(
            name,
            message,
            "zookeeper.connect: the ZooKeeper of these brokers, or know it when a topic is made again",
        )


def told(name: str, found: PipelineState) -> Line:
    """One line for the state of the pipeline."""
    if isinstance(found, FirstRun):
        return ok(
            name, "nothing was planned yet: the first run decides where each partition starts"
        )
    if isinstance(found, Replay):
        return ok(
            name,
            f"plan {found.plan.number} is stored and not in the table: the next run finishes it",
        )
    if isinstance(found, Supersede):
        return ok(
            name,
            f"plan {found.plan.number} cannot be finished, the next run puts another in its place: {found.reason}",
        )
    if isinstance(found, RebuildFromTable):
        message = f"the table holds plan {found.plan.number}, and ZooKeeper does not know it: the next run writes the ledger anew"
        return advice(
            name,
            message,
            "nothing here; find out whether ZooKeeper was emptied or restored from an old copy",
        )
    return _up_to_date(name, found)


def _up_to_date(name: str, found: UpToDate) -> Line:
    both = f"plan {found.last.number} is the newest in both"
    if found.followed:
        to_do = "which other consumer of this group runs; group.on_offset_changed: follow takes its offsets"
        return advice(
            name, f"{both}; somebody else moved {len(found.followed)} committed offsets", to_do
        )
    if found.not_followed:
        to_do = "nothing, while their topics are not read: our positions stay, and a run decides once they are"
        message = f"somebody else moved {len(found.not_followed)} committed offsets of topics that are not read now"
        return advice(name, f"{both}; {message}", to_do)
    if found.uncommitted:
        return ok(
            name,
            f"{both}; {len(found.uncommitted)} of its offsets are not committed: the next run moves them",
        )
    return ok(name, f"{both}, and the offsets are its positions")


def transformed(name: str, findings: Findings) -> Iterator[Line]:
    """Tried on no rows by the function that a run uses. Of DataFrames only Spark knows what comes
    out: it is started, for some seconds.
    """
    settings = findings.settings
    if not settings.transform.function:
        return
    if settings.transform.dataframe and may_need_jars(findings):
        yield Line(
            name,
            Verdict.NOT_CHECKED,
            "Delta's jars are not on this machine yet, see above: the first run looks at it",
        )
        return
    if settings.transform.dataframe:
        try_on_no_rows(spark_of(findings).session(), settings)
    fitting_arrow_transform(settings)
    wrong = unprovable(settings)
    if wrong:
        key = names_of_key(physical=settings.source.is_physical)
        to_do = f"if they shall be proven: ALTER TABLE ... ADD COLUMN, and a transform that leaves {key} as they are"
        yield advice(
            name, f"they fit the table, but `verify` cannot prove its rows: {wrong}", to_do
        )
        return
    yield ok(name, "they fit the table" if findings.table else "they can make a new table")


def spark_of(findings: Findings) -> RunSpark:
    """Context manager: Spark as a run would have it, the existing session or one that ends here."""
    log = Path(findings.closing.enter_context(tempfile.TemporaryDirectory()), "spark.log")
    spark = RunSpark(
        findings.settings, findings.spark_defaults, Stopwatch(), log=log, app="etl doctor"
    )
    findings.closing.callback(spark.stop)
    try:
        spark.session()
    except Exception as error:  # whatever a JVM that does not start is told as
        if isinstance(error, EtlError) or session_there() is not None:
            raise
        reason = str(error).strip().split("\n", 1)[0]
        action = "Check the lines above on Java, jars and packages, and the keys under spark"
        raise ProcessLost(f"Spark does not start: {reason}", action=action) from error
    return spark


def place(name: str, findings: Findings) -> Iterator[Line]:
    """Check a named table's location; no line for a path."""
    settings = findings.settings
    called = settings.table.name
    if called is None:
        return
    reject_temporary(called)
    kept, has_plans = _kept(findings)
    is_known = goes_by(kept, called, catalog_of(settings.spark))
    spark = spark_of(findings)
    with translating_spark_errors():
        if kept is not None and is_known:
            reject_moved_table(spark.session(), placed_by_name(settings, kept.path))
        try:
            entry = entry_of(spark, settings)
        except NotOurTable as not_there:
            if kept is not None or has_plans:
                raise
            yield Line(
                name, Verdict.NOT_CHECKED, f"{not_there.message} yet, the first run makes it"
            )
            return
    found = of_entry(settings, entry)
    findings.settings = placed_by_name(settings, found.path)
    yield ok(
        name,
        f"{called} is at {found.path}, "
        + ("by which runs go" if is_known else "which the next run keeps"),
    )


def _kept(findings: Findings) -> tuple[NamedTable | None, bool]:
    """Return the recorded location of a name, and whether there is a plan; None if unknown."""
    settings = findings.settings
    if Fact.ZOOKEEPER not in findings.established or Fact.CHROOT not in findings.established:
        return None, False
    ledger = PlanLedger(findings.zookeeper, settings.group.id, settings.pipeline)
    return read_named_table(ledger), bool(ledger.plan_numbers())


_CREATES_IF_ABSENT = {"wasb", "wasbs", "adl", "gs", "viewfs"}
"""By Delta's documentation; untested here."""
_KEEPS_LOG = "delta.logRetentionDuration"
_LONGEST_GAP = timedelta(days=7)
"""The longest gap between two runs to expect: a long weekend and a repair."""
_LITTLE_SPACE = 2**30


def store(name: str, findings: Findings) -> Iterator[Line]:
    """Check that the store separates two writers of one version, creating a log file only if it is
    absent.
    """
    path, spark = findings.settings.table.path, findings.settings.spark
    chosen = {key: value for key, value in spark.items() if key.startswith(LOG_STORE)}
    for key, value in chosen.items():
        if value.endswith("LocalLogStore"):
            action = "Leave the key out: Delta's default for a local path makes a log file only if it is absent"
            raise SettingsError(
                "LocalLogStore loses commits when two writers meet",
                key=f"spark.{key}",
                action=action,
            )
    folder = local_path(path)
    if folder is not None:
        yield _on_this_machine(name, folder, spark.get("spark.master", "local"))
        return
    chosen = {**settings_for(path, spark), **chosen}
    scheme = path.partition("://")[0].lower()
    option = "s3a" if scheme == "s3" else scheme  # by which Spark is told of it
    by = next(
        (
            value
            for key, value in chosen.items()
            if key in (f"{LOG_STORE}.{option}.impl", f"{LOG_STORE}.class")
        ),
        None,
    )
    if untested := untried(path):
        keeps = scheme in _CREATES_IF_ABSENT or by is not None
        how = (
            f"by {by}"
            if by
            else ""
            if keeps
            else "it is not known whether it makes a log file only if it is absent"
        )
        found, to_do = (
            "; ".join(filter(None, (untested, how))),
            "etl verify behind the first runs (docs/STORES.md)",
        )
        yield advice(
            name, found, to_do if keeps else f"one driver at a time until you know; {to_do}"
        )
    elif by:
        yield ok(name, f"{scheme}, by {by}")
    else:
        yield ok(name, f"{scheme} makes a log file only if it is absent")


def _on_this_machine(name: str, folder: Path, master: str) -> Line:
    if not master.startswith("local"):
        to_do = (
            "that the folder is the same one, mounted, on the driver and on every executor's host"
        )
        return advice(
            name, f"{folder} is a folder of this machine, and Spark's master is {master}", to_do
        )
    return ok(
        name,
        "a folder of this machine; whether it creates a log file only if it is absent says the table's folder, below",
    )


def look(name: str, findings: Findings) -> Iterator[Line]:
    """Check whether there is a table that delta-rs reads."""
    path = findings.settings.table.path
    table = findings.table = open_table(path)
    if table is None:
        yield ok(name, f"{path}: none yet, the first run makes it")
        return
    by = table.metadata().partition_columns
    layout = f"partitioned by {', '.join(by)}" if by else "not partitioned"
    yield ok(name, f"{path}: version {table.version()}, id {table.metadata().id}, {layout}")


def writer(name: str, findings: Findings) -> Iterator[Line]:
    """Report which writer rows get, and why the requested one cannot write them."""
    settings, table = findings.settings, findings.table
    wanted, refusal = settings.table.writer, None
    if wanted is not WriterName.SPARK:
        refusal = error_of_arrow_writer(
            settings, lambda: table, lambda: columns_of_tasks(settings), is_new=table is None
        )
    if refusal is not None and wanted is WriterName.ARROW:
        raise refusal
    by = (
        ""
        if wanted is not WriterName.AUTO
        else ": arrow"
        if refusal is None
        else f": spark. {refusal.message}"
    )
    yield ok(name, f"table.writer is {wanted.value}{by}")


def features(name: str, findings: Findings) -> Iterator[Line]:
    """Rows are written by Spark, or by tasks; a plan without ranges by delta-rs, where it can."""
    if findings.table is None:
        yield ok(name, "those of a new table")
        return
    used, awkward = features_of(findings.table), sorted(not_by_delta_rs(findings.table))
    protocol = findings.table.protocol()
    versions = f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}"
    unwritable = sorted(used - WRITTEN_BY_SPARK)
    if unwritable:
        action = (
            "DESCRIBE DETAIL; ALTER TABLE ... DROP FEATURE, or a table of its own for this pipeline"
        )
        raise NotOurTable(
            f"The table has features that Spark's Delta cannot write: {', '.join(unwritable)}",
            action=action,
        )
    if awkward:
        to_do = "nothing, if that is fine; or ALTER TABLE ... DROP FEATURE"
        found = f"{versions}: delta-rs cannot commit to a table with {', '.join(awkward)}: a plan without ranges starts Spark, too"
        yield advice(name, found, to_do)
    else:
        yield ok(name, f"{versions}: {', '.join(sorted(used)) or 'none'}")


def retention(name: str, findings: Findings) -> Iterator[Line]:
    """Report what the table's log and files expire."""
    properties = {}
    if findings.table:
        reject_expiring_transaction_ids(findings.table, findings.settings.table.path)
        properties = findings.table.metadata().configuration
    text = properties.get(_KEEPS_LOG)
    kept = interval(text) if text else timedelta(days=30)
    if kept is None:
        yield advice(
            name,
            f"{_KEEPS_LOG} is {text!r}, which is not understood",
            "write it as: interval 30 days",
        )
    elif kept < _LONGEST_GAP:
        to_do = f"ALTER TABLE ... SET TBLPROPERTIES ('{_KEEPS_LOG}' = 'interval 30 days'), Delta's default"
        found = f"the table's log is kept for {kept}: a run that comes later cannot tell what others did meanwhile"
        yield advice(name, found, to_do)
    else:
        only = (
            "; delta.appendOnly keeps others from deleting rows"
            if properties.get("delta.appendOnly") == "true"
            else ""
        )
        yield ok(name, f"transaction ids for ever, the log for {kept.days} days{only}")


def columns(name: str, findings: Findings) -> Iterator[Line]:
    """Check whether the rows fit; columns of a transform are known only with Spark."""
    settings = findings.settings
    if settings.transform.function:
        yield ok(name, "made by the transform, see below")
        return
    physical = settings.source.is_physical
    try:
        check_shape(
            settings.table.path, arrow_schema(physical=physical), settings.table.partition_by
        )
    except NotOurTable:
        if _has_no_plan(findings):
            reject_unaccounted_rows(settings, findings.metadata.topics)
        raise
    further = "broker_id, message_index and log_epoch" if physical else "log_epoch"
    yield ok(name, "ours" if findings.table else f"those of Spark's Kafka source and {further}")


def _has_no_plan(findings: Findings) -> bool:
    """Return whether the pipeline has no plan yet, and its topics."""
    if not {Fact.ZOOKEEPER, Fact.TOPICS} <= findings.established:
        return False
    settings = findings.settings
    return (
        PlanLedger(findings.zookeeper, settings.group.id, settings.pipeline).read_ledger().newest
        is None
    )


def folder(name: str, findings: Findings) -> Iterator[Line]:
    """Check that files can be created in the table's directory, exclusively, and the free space."""
    path = findings.settings.table.path
    there = local_path(path)
    check_writable(path)
    require_exclusive_create(path)
    if there is None:
        yield ok(name, "the store can be written, and refuses to create a file over another one")
        return
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    found = f"{there} can be written, {free / 2**30:,.1f} GiB free"
    to_do = "make room for what a run writes; what failed runs left stays until VACUUM"
    yield ok(name, found) if free >= _LITTLE_SPACE else advice(name, found, to_do)


def losses_folder(name: str, findings: Findings) -> Iterator[Line]:
    """Check the losses table and that it can be written."""
    path, source = findings.settings.table.losses_at, findings.settings.source
    try:
        table = open_losses(path)
        check_writable(path)
        require_exclusive_create(path)
    except EtlError as error:
        if (
            source.on_data_loss is OnDataLoss.SKIP
            or findings.settings.group.on_offset_changed is OnOffsetChanged.FOLLOW
        ):
            raise
        yield advice(
            name,
            str(error),
            "the same, before anything is let go: a plan that does would not be stored",
        )
        return
    yield ok(
        name,
        f"{path}: version {table.version()}"
        if table
        else f"{path}: none yet, the first loss makes it",
    )


CHECKS = (
    Check("Java", doctor_machine.java, gives=Fact.JAVA),
    Check("Delta's jars", doctor_machine.jars),
    Check("Python packages", doctor_machine.packages),
    Check("workers' Python", doctor_machine.workers_python),
    Check("time zone", doctor_machine.time_zone),
    Check("transform", doctor_machine.transform, gives=Fact.TRANSFORM),
    Check("report folder", doctor_machine.report_folder),
    Check("metrics folder", doctor_machine.metrics_folder),
    Check("ZooKeeper", doctor_services.servers, gives=Fact.ZOOKEEPER),
    Check("request limit", doctor_services.request_limit, needs=(Fact.ZOOKEEPER,)),
    Check("chroot", doctor_services.chroot, needs=(Fact.ZOOKEEPER,), gives=Fact.CHROOT),
    Check("znode permissions", doctor_services.permissions, needs=(Fact.ZOOKEEPER, Fact.CHROOT)),
    Check("znode ACLs", doctor_services.acls, needs=(Fact.ZOOKEEPER, Fact.CHROOT)),
    Check(
        "cluster", doctor_services.cluster, needs=(Fact.ZOOKEEPER, Fact.CHROOT), gives=Fact.CLUSTER
    ),
    Check("broker", doctor_services.each_broker, needs=(Fact.ZOOKEEPER, Fact.CLUSTER)),
    Check(
        "topics", doctor_services.topics, needs=(Fact.ZOOKEEPER, Fact.CLUSTER), gives=Fact.TOPICS
    ),
    Check("group", doctor_services.group, needs=(Fact.ZOOKEEPER, Fact.TOPICS)),
    Check("backfills", unfinished, needs=(Fact.ZOOKEEPER, Fact.CHROOT)),
    Check("mirror group", doctor_services.mirror_group),
    Check("table name", place, gives=Fact.PLACE),
    Check("store", store, needs=(Fact.PLACE,)),
    Check("table", look, needs=(Fact.PLACE,), gives=Fact.TABLE),
    Check("table features", features, needs=(Fact.TABLE,)),
    Check("table writer", writer, needs=(Fact.TABLE,)),
    Check("table retention", retention, needs=(Fact.TABLE,), gives=Fact.RETENTION),
    Check("table columns", columns, needs=(Fact.TABLE,), gives=Fact.COLUMNS),
    Check("transformed rows", transformed, needs=(Fact.JAVA, Fact.TRANSFORM, Fact.TABLE)),
    Check("table folder", folder, needs=(Fact.TABLE,)),
    Check("losses table", losses_folder, needs=(Fact.PLACE,)),
    Check(
        "ledger and table",
        partial(state, foresee=preview_of),
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
        """Return the line to fix first; None if a run may start."""
        return worst_of(line.error for line in self.lines if line.error)

    @property
    def exit_code(self) -> int:
        """Return the highest exit code of all checks."""
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
    """Check everything that a run of this pipeline needs. Problems become lines; nothing is raised."""
    with contextlib.ExitStack() as closing:
        findings = Findings(settings, closing, spark_defaults=spark_defaults)
        return Diagnosis(tuple(line for check in checks for line in check.lines(findings)))
