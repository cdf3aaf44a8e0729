"""What does `etl doctor` check, and in which order?

The result of a line is ok, advice, failed (with the exit code of a run that would stop there), or
not checked because of an earlier line. Checks change nothing: they test permissions by requests
that ZooKeeper rejects for another reason, by an unnamed file in the table's directory, and by a
probe in that directory that is removed.

Lives here: the list of checks; the checks of the table (store, features, columns, permissions), of
a named table in its catalog (starts Spark), of the transform's rows, of the ledger against the
table, and of backfills.
Not here: checks of the machine (etl/commands/doctor_machine.py), of brokers, group and ZooKeeper
(etl/commands/doctor_services.py).
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
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
    failed,
    may_need_jars,
    ok,
)
from etl.commands.plans import preview_of
from etl.decide.lag import progress_of_table
from etl.decide.offsets import starts_of
from etl.decide.reconcile import plan_in_force
from etl.decide.recreated_or_truncated import reject_recreated_or_truncated
from etl.decide.set_offsets import standing_without_paused
from etl.decide.spark_settings import MASTER
from etl.decide.table_rules import catalog_of, is_recorded_location, reject_temporary
from etl.decide.table_storage import LOG_STORE, interval, settings_for
from etl.errors import (
    EtlError,
    NotOurTable,
    Owned,
    SettingsError,
    TableUnreachable,
    worst_of,
)
from etl.io.delta.append import error_of_arrow_writer
from etl.io.delta.exclusive_create_probe import require_exclusive_create
from etl.io.delta.losses import open_losses
from etl.io.delta.table_shape import (
    WRITTEN_BY_SPARK,
    check_shape,
    check_writable,
    features_of,
    local_path,
    not_by_delta_rs,
    open_table,
    reject_expiring_transaction_ids,
)
from etl.io.spark.session import LOCAL_MASTER, translating_spark_errors
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.ledger_side_documents import read_named_table
from etl.model.columns import arrow_schema, names_of_key
from etl.model.snapshot import (
    FirstRun,
    NamedTable,
    PipelineState,
    RebuildFromTable,
    Resume,
    Snapshot,
    StoredBackfill,
    Supersede,
    UpToDate,
)
from etl.report.describe import describe_open
from etl.report.lag import describe_paused
from etl.report.run_progress import Stopwatch
from etl.run.live_services import LiveServices
from etl.run.observe import reject_unaccounted_rows
from etl.run.read_rows import columns_of_tasks, fitting_arrow_transform, try_on_no_rows, unprovable
from etl.run.run_context import RunContext, SparkDefaults
from etl.run.service_interfaces import now_ms
from etl.run.spark_on_demand import RunSpark, entry_of, of_entry, reject_moved_table
from etl.settings.choices import OnDataLoss, OnOffsetChanged, WriterName
from etl.settings.load import placed_by_name
from etl.settings.sections import Settings
from etl.settings.table import untried

Foresee = Callable[[Snapshot, Settings], object]
"""Makes all decisions of `etl run --dry-run` on a snapshot, and raises what it raises."""


# -- backfills


def check_backfills(name: str, findings: Findings) -> Iterator[Line]:
    """Return a line for each unfinished backfill and one for all others; none without backfills."""
    ledger = PlanLedger(findings.zookeeper, findings.settings.group.id, findings.settings.pipeline)
    finished = 0
    for backfill in backfills_of_pipeline(ledger):
        called, current = backfill["name"], backfill["state"]
        found = (
            f"{called} is {current}: "
            f"{backfill['loaded']:,} of {backfill['offsets']:,} offsets are loaded"
        )
        if current == State.STOPPED.value:
            to_do = (
                f"Run `etl backfills run CONF {called}` to continue it, "
                f"or `etl backfills delete CONF {called} --reason ...` to delete it"
            )
            yield advice(name, found, to_do)
        elif current == State.RUNNING.value:
            yield ok(name, found)
        else:
            finished += 1
    if finished:
        yield ok(name, f"{finished:,} are complete; the rows that they loaded stay")


# -- the ledger against the table


def check_state(name: str, findings: Findings, *, foresee: Foresee) -> Iterator[Line]:
    """Check what a run would observe, the pipeline's state, and where a run would stop."""
    leading = {leader.broker.id for leader in findings.metadata.leaders.values()}
    silent = leading & findings.silent_brokers
    if silent:
        found = f"needs broker {min(silent)}, which leads some of the partitions, see above"
        yield Line(name, Verdict.NOT_CHECKED, found)
        return
    yield from check_snapshot(name, _observe(findings), findings.settings, foresee)


def check_snapshot(
    name: str, snapshot: Snapshot, settings: Settings, foresee: Foresee
) -> Iterator[Line]:
    """Return the lines for a snapshot.

    Raises what a run would raise, except for owners, members and other pipelines of the topics,
    which the check "group" covers.
    """
    yield from _open_transactions("open transactions", snapshot)
    yield from _paused_partitions("paused logs", snapshot, settings)
    yield from _missing_topic_ids("topic ids", snapshot)
    snapshot, found = standing_without_paused(snapshot, settings)
    reaches = starts_of(found.plan) if isinstance(found, Supersede) else None
    reject_recreated_or_truncated(plan_in_force(snapshot.ledger, snapshot.table), snapshot, reaches)
    alone = replace(
        snapshot,
        group=replace(snapshot.group, other_pipelines={}),
        ledger=replace(snapshot.ledger, retired=None),
    )
    with contextlib.suppress(Owned):
        foresee(alone, settings)
    yield describe_state(name, found)


def _observe(findings: Findings) -> Snapshot:
    """Observe as a run does, without waiting for leaders."""
    settings = findings.settings
    source = settings.source.model_copy(update={"wait_for_leader_s": 0})
    impatient = settings.model_copy(update={"source": source})
    services = LiveServices(impatient, findings.zookeeper, RunContext(), "doctor")
    return services.observe()


def _open_transactions(name: str, snapshot: Snapshot) -> Iterator[Line]:
    """Return a line for each topic with an open transaction, up to which a run reads."""
    to_do = (
        "Check that its producer is alive (kafka-transactions.sh describe-producers). "
        "Runs read on once the transaction ends"
    )
    for sentence in describe_open(snapshot):
        yield advice(name, sentence, to_do)


def _paused_partitions(name: str, snapshot: Snapshot, settings: Settings) -> Iterator[Line]:
    """Return a line for each pause: no run reads these partitions, and retention continues."""
    to_do = "Run `etl topics resume CONF -p PARTITION --reason ...` before its records expire"
    so_far = progress_of_table(snapshot, settings)
    for sentence in describe_paused(snapshot, so_far, settings, now_ms=now_ms()):
        yield advice(name, sentence, to_do)


def _missing_topic_ids(name: str, snapshot: Snapshot) -> Iterator[Line]:
    """Return a line if recreated topics cannot be detected.

    Partitions of Jafka need no topic id: they have fingerprints.
    """
    read = {partition.topic for partition in snapshot.readable if not partition.is_physical}
    topics = sorted(read - snapshot.topic_ids.keys())
    if not topics:
        return
    named = topics[0]
    if topics[1:]:
        named += f" and {len(topics) - 1:,} more"
    found = (
        "the brokers report no topic ids, and zookeeper.connect is not the ZooKeeper of these "
        f"brokers: runs cannot detect that {named} is recreated"
    )
    to_do = (
        "Set zookeeper.connect to the ZooKeeper of these brokers, "
        "or make sure that you know when a topic is recreated"
    )
    yield advice(name, found, to_do)


def describe_state(name: str, found: PipelineState) -> Line:
    """Return the line for the state of the pipeline."""
    if isinstance(found, FirstRun):
        return ok(name, "no plan yet: the first run decides where each partition starts")
    if isinstance(found, Resume):
        number = found.plan.number
        return ok(name, f"plan {number} is stored and not in the table: the next run finishes it")
    if isinstance(found, Supersede):
        number = found.plan.number
        return ok(
            name, f"plan {number} cannot be finished, the next run replaces it: {found.reason}"
        )
    if isinstance(found, StoredBackfill):
        number = found.plan.number
        return ok(
            name,
            f"plan {number} of backfill {found.plan.backfill} is stored and not in the table: the "
            "next plan takes its number, and the backfill loads its offsets later",
        )
    if isinstance(found, RebuildFromTable):
        message = (
            f"plan {found.plan.number} is in the table, and ZooKeeper does not know it: "
            "the next run restores the ledger"
        )
        to_do = (
            "Change nothing in the pipeline. "
            "Check whether ZooKeeper was emptied or restored from an old copy"
        )
        return advice(name, message, to_do)
    return _up_to_date(name, found)


def _up_to_date(name: str, found: UpToDate) -> Line:
    newest = f"plan {found.last.number} is the newest in both"
    if found.followed:
        to_do = (
            "Check which other consumer of this group runs. "
            "A run continues at its offsets (group.on_offset_changed: follow)"
        )
        message = f"{newest}; another client moved {len(found.followed)} committed offsets"
        return advice(name, message, to_do)
    if found.not_followed:
        message = (
            f"{newest}; another client moved {len(found.not_followed)} committed offsets "
            "of topics that are not read now"
        )
        to_do = (
            "Change nothing while their topics are not read: the loaded-until offsets stay, "
            "and a run decides once the topics are read again"
        )
        return advice(name, message, to_do)
    if found.uncommitted:
        count = len(found.uncommitted)
        return ok(
            name, f"{newest}; {count} of its offsets are not committed: the next run commits them"
        )
    return ok(name, f"{newest}, and its offsets are committed")


# -- the transform's rows


def check_transformed_rows(name: str, findings: Findings) -> Iterator[Line]:
    """Check the transform on no rows, with the function that a run uses.

    Only Spark knows the columns that a DataFrame transform returns, so Spark starts, which takes
    some seconds.
    """
    settings = findings.settings
    if not settings.transform.function:
        return
    if settings.transform.dataframe and may_need_jars(findings):
        found = "Delta's jars are not on this machine yet, see above: the first run checks it"
        yield Line(name, Verdict.NOT_CHECKED, found)
        return
    if settings.transform.dataframe:
        try_on_no_rows(spark_of(findings).session(), settings)
    fitting_arrow_transform(settings)
    wrong = unprovable(settings)
    if wrong:
        key = names_of_key(physical=settings.source.is_physical)
        found = f"they fit the table, but `verify` cannot prove its rows: {wrong}"
        to_do = (
            "If `verify` shall prove them, run ALTER TABLE ... ADD COLUMN, "
            f"and use a transform that leaves {key} unchanged"
        )
        yield advice(name, found, to_do)
    elif findings.table:
        yield ok(name, "they fit the table")
    else:
        yield ok(name, "a new table can be created from them")


def spark_of(findings: Findings) -> RunSpark:
    """Return Spark as a run has it: the existing session, or one that ends with the checks."""
    log = Path(findings.closing.enter_context(tempfile.TemporaryDirectory()), "spark.log")
    spark = RunSpark(
        findings.settings, findings.spark_defaults, Stopwatch(), log=log, app="etl doctor"
    )
    findings.closing.callback(spark.stop)
    with translating_spark_errors():
        spark.session()
    return spark


def check_session(name: str, findings: Findings) -> Iterator[Line]:
    """Start a session; on a local master it writes a Delta table, too."""
    master = findings.settings.spark.get(MASTER, LOCAL_MASTER)
    session = spark_of(findings).session()
    if master.startswith("local"):
        folder = findings.closing.enter_context(tempfile.TemporaryDirectory())
        with translating_spark_errors():
            session.range(1).write.format("delta").save(f"file://{folder}/table")
    yield ok(name, f"Spark {session.version} starts, master {master}")


# -- the table


def check_table_name(name: str, findings: Findings) -> Iterator[Line]:
    """Check the location of a table given by name; no line for a table given by path."""
    settings = findings.settings
    called = settings.table.name
    if called is None:
        return
    reject_temporary(called)
    recorded, has_plans = _recorded_location(findings)
    is_current = is_recorded_location(recorded, called, catalog_of(settings.spark))
    spark = spark_of(findings)
    with translating_spark_errors():
        if recorded is not None and is_current:
            reject_moved_table(spark.session(), placed_by_name(settings, recorded.path))
        try:
            entry = entry_of(spark, settings)
        except NotOurTable as missing:
            if recorded is not None or has_plans:
                raise
            found = f"{missing.message} yet, the first run makes it"
            yield Line(name, Verdict.NOT_CHECKED, found)
            return
    located = of_entry(settings, entry)
    findings.settings = placed_by_name(settings, located.path)
    if is_current:
        yield ok(name, f"{called} is at {located.path}, as recorded in the ledger")
    else:
        yield ok(name, f"{called} is at {located.path}, which the next run records in the ledger")


def _recorded_location(findings: Findings) -> tuple[NamedTable | None, bool]:
    """Return the recorded location of the table's name, and whether there is a plan.

    The location is None if none is recorded, or if the ledger cannot be read.
    """
    settings = findings.settings
    if Fact.ZOOKEEPER not in findings.established or Fact.CHROOT not in findings.established:
        return None, False
    ledger = PlanLedger(findings.zookeeper, settings.group.id, settings.pipeline)
    return read_named_table(ledger), bool(ledger.plan_numbers())


_CREATES_IF_ABSENT = {"wasb", "wasbs", "adl", "gs", "viewfs"}
"""Schemes whose log store creates a file only if it is absent, by Delta's documentation; untested
here.
"""
_LOG_RETENTION = "delta.logRetentionDuration"
_LONGEST_GAP = timedelta(days=7)
"""The longest gap between two runs to expect: a long weekend and a repair."""
_LITTLE_SPACE = 2**30
_NO_SPACE = 50 * 2**20
"""Shown as 0.0 GiB: no run can write its files."""


def check_store(name: str, findings: Findings) -> Iterator[Line]:
    """Check that two writers of one version cannot replace each other's commit.

    The store must create a log file only if it is absent.
    """
    path, spark = findings.settings.table.path, findings.settings.spark
    configured = {key: value for key, value in spark.items() if key.startswith(LOG_STORE)}
    for key, value in configured.items():
        if value.endswith("LocalLogStore"):
            action = (
                "Leave the key out: Delta's default for a local path creates a log file "
                "only if it is absent"
            )
            raise SettingsError(
                "LocalLogStore loses commits when two writers meet",
                key=f"spark.{key}",
                action=action,
            )
    directory = local_path(path)
    if directory is not None:
        yield _local_store(name, directory, spark.get("spark.master", "local"))
        return

    scheme = path.partition("://")[0].lower()
    log_store = _log_store_class(scheme, {**settings_for(path, spark), **configured})
    untested = untried(path)
    if not untested and log_store:
        yield ok(name, f"{scheme}, by {log_store}")
    elif not untested:
        yield ok(name, f"{scheme} makes a log file only if it is absent")
    else:
        yield _untested_store(name, scheme, untested, log_store)


def _log_store_class(scheme: str, conf: Mapping[str, str]) -> str | None:
    """Return the LogStore class of a scheme by Spark's configuration; None for Delta's default."""
    option = "s3a" if scheme == "s3" else scheme
    keys = (f"{LOG_STORE}.{option}.impl", f"{LOG_STORE}.class")
    for key, value in conf.items():
        if key in keys:
            return value
    return None


def _untested_store(name: str, scheme: str, untested: str, log_store: str | None) -> Line:
    to_do = "Run `etl verify` after the first runs (docs/guides/networks-and-stores.md)"
    if log_store:
        return advice(name, f"{untested}; by {log_store}", to_do)
    if scheme in _CREATES_IF_ABSENT:
        return advice(name, untested, to_do)
    found = f"{untested}; it is not known whether it makes a log file only if it is absent"
    return advice(name, found, f"Run one driver at a time until you know. {to_do}")


def _local_store(name: str, directory: Path, master: str) -> Line:
    if not master.startswith("local"):
        found = f"{directory} is a folder of this machine, and Spark's master is {master}"
        to_do = (
            "Check that the same folder is mounted on the driver and on the host of every executor"
        )
        return advice(name, found, to_do)
    found = (
        "a folder of this machine; whether it creates a log file only if it is absent "
        'is checked below ("table folder")'
    )
    return ok(name, found)


def check_table(name: str, findings: Findings) -> Iterator[Line]:
    """Check whether there is a table that delta-rs reads."""
    path = findings.settings.table.path
    table = findings.table = open_table(path)
    if table is None:
        yield ok(name, f"{path}: none yet, the first run makes it")
        return
    layout = "not partitioned"
    partition_columns = table.metadata().partition_columns
    if partition_columns:
        layout = f"partitioned by {', '.join(partition_columns)}"
    yield ok(name, f"{path}: version {table.version()}, id {table.metadata().id}, {layout}")


def check_writer(name: str, findings: Findings) -> Iterator[Line]:
    """Report which writer writes the rows. Raises why the arrow writer cannot, if requested."""
    settings, table = findings.settings, findings.table
    wanted, error = settings.table.writer, None
    if wanted is not WriterName.SPARK:
        error = error_of_arrow_writer(
            settings, lambda: table, lambda: columns_of_tasks(settings), is_new=table is None
        )
    if error is not None and wanted is WriterName.ARROW:
        raise error
    found = f"table.writer is {wanted.value}"
    if wanted is WriterName.AUTO and error is None:
        found += ": arrow"
    elif wanted is WriterName.AUTO and error is not None:
        found += f": spark. {error.message}"
    yield ok(name, found)


def check_features(name: str, findings: Findings) -> Iterator[Line]:
    """Check that the writers support the table's features.

    Spark or tasks write rows; delta-rs commits plans without ranges, where it supports the table.
    """
    if findings.table is None:
        yield ok(name, "those of a new table")
        return
    used, unsupported = features_of(findings.table), sorted(not_by_delta_rs(findings.table))
    protocol = findings.table.protocol()
    versions = f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}"
    unwritable = sorted(used - WRITTEN_BY_SPARK)
    if unwritable:
        action = (
            "Run DESCRIBE DETAIL to see them. "
            "Run ALTER TABLE ... DROP FEATURE, or use a separate table for this pipeline"
        )
        raise NotOurTable(
            f"The table has features that Spark's Delta cannot write: {', '.join(unwritable)}",
            action=action,
        )
    if unsupported:
        found = (
            f"{versions}: delta-rs cannot commit to a table with {', '.join(unsupported)}: "
            "a plan without ranges starts Spark, too"
        )
        to_do = "Change nothing if that is acceptable, or run ALTER TABLE ... DROP FEATURE"
        yield advice(name, found, to_do)
        return
    yield ok(name, f"{versions}: {', '.join(sorted(used)) or 'none'}")


def check_retention(name: str, findings: Findings) -> Iterator[Line]:
    """Check how long the table keeps transaction ids and its log."""
    properties = {}
    if findings.table:
        reject_expiring_transaction_ids(findings.table, findings.settings.table.path)
        properties = findings.table.metadata().configuration
    kept: timedelta | None = timedelta(days=30)
    text = properties.get(_LOG_RETENTION)
    if text:
        kept = interval(text)
    if kept is None:
        found = f"{_LOG_RETENTION} is {text!r}, which is not understood"
        yield advice(name, found, "Write it as: interval 30 days")
        return
    if kept < _LONGEST_GAP:
        found = (
            f"the table's log is kept for {kept}: "
            "a run after a longer gap cannot see what other writers did meanwhile"
        )
        to_do = (
            "Run ALTER TABLE ... SET TBLPROPERTIES "
            f"('{_LOG_RETENTION}' = 'interval 30 days'), Delta's default"
        )
        yield advice(name, found, to_do)
        return
    found = f"transaction ids are kept for ever, the log for {kept.days} days"
    if properties.get("delta.appendOnly") == "true":
        found += "; delta.appendOnly keeps others from deleting rows"
    yield ok(name, found)


def check_columns(name: str, findings: Findings) -> Iterator[Line]:
    """Check that the rows fit the table; the columns of a transform are another check's."""
    settings = findings.settings
    if settings.transform.function:
        yield ok(name, "made by the transform, see below")
        return
    physical = settings.source.is_physical
    expected = arrow_schema(physical=physical)
    try:
        check_shape(settings.table.path, expected, settings.table.partition_by)
    except NotOurTable:
        if _has_no_plan(findings):
            reject_unaccounted_rows(settings, findings.metadata.topics)
        raise
    if findings.table:
        yield ok(name, "as this pipeline writes them")
        return
    added = "broker_id, message_index and incarnation" if physical else "incarnation"
    yield ok(name, f"those of Spark's Kafka source and {added}")


def _has_no_plan(findings: Findings) -> bool:
    """Return whether the ledger can be read and the topics are known, and there is no plan yet."""
    if not {Fact.ZOOKEEPER, Fact.TOPICS} <= findings.established:
        return False
    settings = findings.settings
    ledger = PlanLedger(findings.zookeeper, settings.group.id, settings.pipeline)
    return ledger.read_ledger().newest is None


def check_directory(name: str, findings: Findings) -> Iterator[Line]:
    """Check that files can be created in the table's directory, exclusively, and the free space."""
    path = findings.settings.table.path
    directory = local_path(path)
    check_writable(path)
    require_exclusive_create(path)
    if directory is None:
        yield ok(name, "the store can be written, and does not create a file that exists")
        return
    while not directory.exists():
        directory = directory.parent
    free = shutil.disk_usage(directory).free
    found = f"{directory} can be written, {free / 2**30:,.1f} GiB free"
    if free >= _LITTLE_SPACE:
        yield ok(name, found)
        return
    to_do = (
        "Free space for the files that a run writes. "
        "Files of failed runs stay until VACUUM removes them"
    )
    if free < _NO_SPACE:
        yield failed(name, TableUnreachable(found, path=path, action=to_do))
        return
    yield advice(name, found, to_do)


def check_losses_table(name: str, findings: Findings) -> Iterator[Line]:
    """Check the losses table and that it can be written.

    Its errors are advice unless the conf's policies record losses: only such plans need it.
    """
    settings = findings.settings
    path = settings.table.losses_at
    try:
        table = open_losses(path)
        check_writable(path)
        require_exclusive_create(path)
    except EtlError as error:
        skips = settings.source.on_data_loss is OnDataLoss.SKIP
        if skips or settings.group.on_offset_changed is OnOffsetChanged.FOLLOW:
            raise
        to_do = (
            "Correct this before you let offsets be skipped: "
            "a plan that records losses would not be stored"
        )
        yield advice(name, str(error), to_do)
        return
    if table:
        yield ok(name, f"{path}: version {table.version()}")
    else:
        yield ok(name, f"{path}: none yet, the first loss makes it")


CHECKS: tuple[Check, ...] = (
    Check("Java", doctor_machine.java, gives=Fact.JAVA),
    Check("Delta's jars", doctor_machine.jars),
    Check("Python packages", doctor_machine.packages),
    Check("workers' Python", doctor_machine.workers_python),
    Check("Spark settings", doctor_machine.spark_settings),
    Check("time zone", doctor_machine.time_zone),
    Check("transform", doctor_machine.transform, gives=Fact.TRANSFORM),
    Check("report folder", doctor_machine.report_folder),
    Check("metrics folder", doctor_machine.metrics_folder),
    Check("secret files", doctor_machine.secret_files),
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
    Check("backfills", check_backfills, needs=(Fact.ZOOKEEPER, Fact.CHROOT)),
    Check("mirror group", doctor_services.mirror_group),
    Check("table name", check_table_name, gives=Fact.PLACE),
    Check("store", check_store, needs=(Fact.PLACE,)),
    Check("table", check_table, needs=(Fact.PLACE,), gives=Fact.TABLE),
    Check("table features", check_features, needs=(Fact.TABLE,)),
    Check("table writer", check_writer, needs=(Fact.TABLE,)),
    Check("table retention", check_retention, needs=(Fact.TABLE,), gives=Fact.RETENTION),
    Check("table columns", check_columns, needs=(Fact.TABLE,), gives=Fact.COLUMNS),
    Check(
        "transformed rows", check_transformed_rows, needs=(Fact.JAVA, Fact.TRANSFORM, Fact.TABLE)
    ),
    Check("table folder", check_directory, needs=(Fact.TABLE,)),
    Check("losses table", check_losses_table, needs=(Fact.PLACE,)),
    Check(
        "ledger and table",
        partial(check_state, foresee=preview_of),
        needs=(Fact.ZOOKEEPER, Fact.TOPICS, Fact.TABLE, Fact.RETENTION, Fact.COLUMNS),
    ),
)
"""All checks, in the order of a run: a check needs facts of earlier ones."""
SPARK_SESSION = Check("Spark session", check_session, needs=(Fact.JAVA,))
"""Of `etl doctor --spark` alone: it takes some seconds."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of all checks: their lines, in order."""

    lines: tuple[Line, ...]

    @property
    def worst(self) -> EtlError | None:
        """Return the error to fix first; None if a run may start."""
        return worst_of(line.error for line in self.lines if line.error)

    @property
    def exit_code(self) -> int:
        """Return the exit code of the worst error; 0 without one."""
        return self.worst.exit_code if self.worst else 0

    def as_json(self) -> dict[str, Any]:
        """Return the document of `etl doctor --json`."""
        counts = {verdict.value.replace(" ", "_"): 0 for verdict in Verdict}
        for line in self.lines:
            counts[line.verdict.value.replace(" ", "_")] += 1
        return {
            "exit_code": self.exit_code,
            **counts,
            "checks": [line.as_json() for line in self.lines],
        }


def diagnose(
    settings: Settings,
    checks: tuple[Check, ...] = CHECKS,
    *,
    spark_defaults: SparkDefaults = RunContext().spark_defaults,
) -> Diagnosis:
    """Check everything that a run of this pipeline needs. Problems become lines; nothing is
    raised.
    """
    with contextlib.ExitStack() as closing:
        findings = Findings(settings, closing, spark_defaults=spark_defaults)
        lines: list[Line] = []
        for check in checks:
            lines += check.lines(findings)
        return Diagnosis(tuple(lines))
