"""The table: which store it is on, what is there, its features and properties, its columns, and
whether its folder can be written.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from etl.decide.table_storage import LOG_STORE, interval, settings_for
from etl.doctor.check import Fact, Findings, Line, advice, ok
from etl.errors import EtlError, NotOurTable, SettingsError
from etl.io.delta.append import refusal_of_arrow
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
    refuse_expiring_ids,
)
from etl.io.zookeeper.ledger import PlanLedger
from etl.model.columns import arrow_schema
from etl.run.observe import refuse_rows_of_nobody
from etl.run.rows import columns_of_tasks
from etl.settings.choices import OnDataLoss, OnMoved, WriterName
from etl.settings.table import untried

_CREATES_IF_ABSENT = {"wasb", "wasbs", "adl", "gs", "viewfs"}
"""By what Delta says of them; nobody tried it here."""
_KEEPS_LOG = "delta.logRetentionDuration"
_LONGEST_GAP = timedelta(days=7)
"""The longest time between two runs that nobody should have to think about: a long weekend and a
repair.
"""
_LITTLE_SPACE = 2**30


def store(name: str, findings: Findings) -> Iterator[Line]:
    """Whether two writers of one version are kept apart: a log file must be made only where there
    is none.
    """
    path, spark = findings.settings.table.path, findings.settings.spark
    chosen = {key: value for key, value in spark.items() if key.startswith(LOG_STORE)}
    for key, value in chosen.items():
        if value.endswith("LocalLogStore"):
            check = "leave the key out: Delta's default for a local path makes a log file only if it is absent"
            raise SettingsError(
                "LocalLogStore loses commits when two writers meet", key=f"spark.{key}", check=check
            )
    folder = local_path(path)
    if folder is not None:
        yield _on_this_machine(name, folder, spark.get("spark.master", "local"))
        return
    chosen = {**settings_for(path, spark), **chosen}
    scheme = path.partition("://")[0].lower()
    told = "s3a" if scheme == "s3" else scheme  # by which Spark is told of it
    by = next(
        (
            value
            for key, value in chosen.items()
            if key in (f"{LOG_STORE}.{told}.impl", f"{LOG_STORE}.class")
        ),
        None,
    )
    if untold := untried(path):
        keeps = scheme in _CREATES_IF_ABSENT or by is not None
        how = (
            f"by {by}"
            if by
            else ""
            if keeps
            else "it is not known whether it makes a log file only if it is absent"
        )
        found, to_do = (
            "; ".join(filter(None, (untold, how))),
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
    """Whether there is a table and delta-rs reads it."""
    path = findings.settings.table.path
    table = findings.table = open_table(path)
    if table is None:
        yield ok(name, f"{path}: none yet, the first run makes it")
        return
    by = table.metadata().partition_columns
    layout = f"partitioned by {', '.join(by)}" if by else "not partitioned"
    yield ok(name, f"{path}: version {table.version()}, id {table.metadata().id}, {layout}")


def writer(name: str, findings: Findings) -> Iterator[Line]:
    """Which writer rows get, and what keeps the one that the conf asks for from writing them."""
    settings, table = findings.settings, findings.table
    wanted, refusal = settings.table.writer, None
    if wanted is not WriterName.SPARK:
        refusal = refusal_of_arrow(
            settings, lambda: table, lambda: columns_of_tasks(settings), is_new=table is None
        )
    if refusal is not None and wanted is WriterName.ARROW:
        raise refusal
    by = (
        ""
        if wanted is not WriterName.AUTO
        else ": arrow"
        if refusal is None
        else f": spark, for {refusal.what}"
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
        check = (
            "DESCRIBE DETAIL; ALTER TABLE ... DROP FEATURE, or a table of its own for this pipeline"
        )
        raise NotOurTable(
            f"the table has features that Spark's Delta cannot write: {', '.join(unwritable)}",
            check=check,
        )
    if awkward:
        to_do = "nothing, if that is fine; or ALTER TABLE ... DROP FEATURE"
        found = f"{versions}: delta-rs cannot commit to a table with {', '.join(awkward)}: a plan without ranges starts Spark, too"
        yield advice(name, found, to_do)
    else:
        yield ok(name, f"{versions}: {', '.join(sorted(used)) or 'none'}")


def retention(name: str, findings: Findings) -> Iterator[Line]:
    """What the table forgets, and when."""
    properties = {}
    if findings.table:
        refuse_expiring_ids(findings.table, findings.settings.table.path)
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
    """Whether the rows fit; those of a transform are known only when Spark has made them."""
    settings = findings.settings
    if settings.either_transform:
        yield ok(name, "made by the transform, see below")
        return
    physical = settings.source.is_physical
    try:
        check_shape(
            settings.table.path, arrow_schema(physical=physical), settings.table.partition_by
        )
    except NotOurTable:
        if _has_no_plan(findings):
            refuse_rows_of_nobody(settings, findings.metadata.topics)
        raise
    further = "broker_id, message_index and log_epoch" if physical else "log_epoch"
    yield ok(name, "ours" if findings.table else f"those of Spark's Kafka source and {further}")


def _has_no_plan(findings: Findings) -> bool:
    """Whether the pipeline is known to have made no plan yet, and which topics it reads."""
    if not {Fact.ZOOKEEPER, Fact.TOPICS} <= findings.established:
        return False
    settings = findings.settings
    return (
        PlanLedger(findings.zookeeper, settings.group, settings.pipeline).read_ledger().newest
        is None
    )


def folder(name: str, findings: Findings) -> Iterator[Line]:
    """Whether files can be created there, or where it will be, each once, and how much room is
    left.
    """
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
    """Where the losses of a plan are written down: a losses table or nothing yet, and a place that
    can be written.
    """
    path, source = findings.settings.table.losses_at, findings.settings.source
    try:
        table = open_losses(path)
        check_writable(path)
        require_exclusive_create(path)
    except EtlError as error:
        if source.on_data_loss is OnDataLoss.SKIP or source.on_moved is OnMoved.FOLLOW:
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
