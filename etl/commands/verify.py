"""Is every record of every applied plan in the table once?

Expected rows come from the ledgers, actual rows from Spark. If rows are missing, the plan's own
commit and later commits of other writers explain them. Rows of other pipelines are not verified,
but topics that they loaded may stop a run.

Lives here: reading both sides of the proof, leaving out rows of other pipelines, and the reasons
for missing rows. Not here: the comparison (etl/audit/compare_rows.py), the expected rows
(etl/commands/expected_rows.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from etl.audit.causes_of_missing_rows import (
    Origin,
    PartitionProof,
    PlanProof,
    UnprovenOffsets,
    blame,
    doubt_of,
    gaps_of,
    origin_of,
)
from etl.audit.compare_rows import (
    AuditedPartition,
    Expected,
    IncompleteInterval,
    PartitionFindings,
    more_than_before,
    rows_before_of,
)
from etl.commands.expected_rows import (
    BothLedgers,
    ExpectedOfAll,
    Loaded,
    expected_of_all,
    incarnation_of_range,
    loaded_plans,
    read_both_ledgers,
)
from etl.commands.run import new_run_id
from etl.decide.reconcile import compare, naming_table, reject_other_broker_type
from etl.decide.table_changes import (
    accepted_version,
    is_let_pass,
    is_taken,
    name_of,
    plan_of,
    reject_topics_of_other_pipelines,
    unacknowledged,
)
from etl.errors import LedgersDisagree
from etl.io.delta.loaded_plans import other_pipelines
from etl.io.spark.session import translating_spark_errors
from etl.model.plans import Plan
from etl.model.snapshot import (
    FirstRun,
    ForeignCommit,
    Ledger,
    OtherPipeline,
    PipelineState,
    RebuildFromTable,
    Resume,
    Table,
)
from etl.report.run_progress import Stopwatch
from etl.report.verify import Proof
from etl.run.live_services import LiveServices
from etl.run.open_services import open_services
from etl.run.run_context import ALONE, RunContext
from etl.settings.sections import Settings


def reject_lost_ledger(services: LiveServices) -> None:
    """Raise LedgersDisagree if this pipeline has loaded the table and its ledger is missing."""
    own_suffix = f"/{services.settings.group.id}/{services.settings.pipeline}"
    for other in other_pipelines(services.settings.table.path, ""):
        if other.app_id.endswith(own_suffix):
            message = (
                f"The table holds plan {other.number} of {name_of(other.app_id)}, "
                "ZooKeeper knows none"
            )
            action = (
                "Check that ZooKeeper was not emptied, and check with `etl run CONF --dry-run`. "
                "The next run restores the ledger from the table"
            )
            raise LedgersDisagree(message, table_version=other.delta_version, action=action)


def reject_topics_loaded_by_others(
    services: LiveServices, state: PipelineState, table: Table, ledger: Ledger
) -> None:
    """Raise LedgersDisagree, as a run would, if another pipeline loaded a topic that is new here.

    Topics are read from the brokers only if the table has such a pipeline.
    """
    if ledger.retired:
        return
    plan = None
    app_id = ""
    if not isinstance(state, FirstRun):
        plan = plan_of(state)
        app_id = services.app_id
    known = frozenset[str]()
    if plan and table.transaction_version:
        known = plan.known_topics
    others = other_pipelines(services.settings.table.path, app_id)
    if any(_may_have_loaded(other, plan, known, services) for other in others):
        snapshot = services.observe()
        observed_state = compare(snapshot.ledger, snapshot.table, services.settings.table.place)
        reject_topics_of_other_pipelines(observed_state, snapshot, services.settings)


def _may_have_loaded(
    other: OtherPipeline, plan: Plan | None, known: Collection[str], services: LiveServices
) -> bool:
    if other.topics is None:
        return not (known and plan and is_taken(other, plan))
    topic_filter = services.settings.source.topic_filter
    return any(topic_filter.admits(topic) for topic in other.topics - set(known))


def stops_a_run(found: ForeignCommit, ledger: Ledger) -> bool:
    """Return whether a run stops at the commit: a retired pipeline ignores other pipelines."""
    return not (found.by and ledger.retired)


def without_others(
    services: LiveServices,
    ledger: Ledger,
    table: Table,
    expected: Mapping[AuditedPartition, Expected],
    found: tuple[PartitionFindings, ...],
) -> tuple[tuple[PartitionFindings, ...], int]:
    """Return the findings without rows of other pipelines, and the number of these rows.

    Left out are topics that this pipeline never loaded, and rows beyond its own in topics that
    another pipeline loads now: this pipeline is retired, its conf leaves the topic out, or a run
    stops at the other's commits.
    """
    own_topics = {audited.partition.topic for audited in expected}
    if ledger.newest:
        own_topics |= ledger.newest.known_topics
    topics = {f.audited.partition.topic for f in found}
    foreign = topics - own_topics
    is_ended = bool(ledger.retired) or any(commit.by for commit in table.foreign)
    topic_filter = services.settings.source.topic_filter
    given_away = set()
    for f in found:
        topic = f.audited.partition.topic
        if f.unexpected and topic in own_topics and (is_ended or not topic_filter.admits(topic)):
            given_away.add(topic)
    if not foreign and not given_away:
        return found, 0

    others = other_pipelines(services.settings.table.path, services.app_id)

    def is_loaded_by_others(topic: str) -> bool:
        return any(other.topics is None or topic in other.topics for other in others)

    judged = []
    left_out = 0
    for f in found:
        topic = f.audited.partition.topic
        if topic in foreign and is_loaded_by_others(topic):
            left_out += f.found_rows
        elif topic in given_away and is_loaded_by_others(topic):
            without = _without_unexpected(f)
            left_out += f.unexpected - without.unexpected
            judged.append(without)
        else:
            judged.append(f)
    return tuple(judged), left_out


def _without_unexpected(found: PartitionFindings) -> PartitionFindings:
    """Return the findings without unexpected rows, except surplus ones in our loaded offsets."""
    surplus = sum(max(0, one.found_rows - one.expected_rows) for one in found.unequal)
    return replace(found, unexpected=surplus, unexpected_first=())


_Place = tuple[AuditedPartition, int, int]
"""A range: partition incarnation, from, until."""


def verify(settings: Settings, run_context: RunContext = ALONE) -> Proof:
    """Compare the table's rows with the ledger.

    The ledger has ranges and results of kept plans, and loaded intervals of pruned ones. Raises
    LedgersDisagree if a run would, and for a table ahead of the ledger.
    """
    watch = Stopwatch()
    opened = open_services(settings, run_context, name=f"{new_run_id()}-verify", phases=watch)
    with run_context.progress(watch.doing), opened as services, translating_spark_errors():
        ledgers = read_both_ledgers(services)
        ledger, table = ledgers.ledger, ledgers.table
        reject_other_broker_type(ledger.newest, settings)
        with naming_table(settings):
            state = _compare(ledger, table, settings.table.place)
            if isinstance(state, FirstRun):
                reject_lost_ledger(services)
            if table is not None:
                reject_topics_loaded_by_others(services, state, table, ledger)
        if table is None or isinstance(state, FirstRun):
            return Proof((), (), None, (_note_of_no_rows(state),))
        return _prove(services, ledgers, table)


def _prove(services: LiveServices, ledgers: BothLedgers, table: Table) -> Proof:
    """Return the proof of a table with plans of this pipeline."""
    from etl.io.delta.offsets_of_rows import EntryScan, Scan, rows_in_intervals

    settings = services.settings
    path = settings.table.path
    is_physical = settings.source.is_physical
    ledger = ledgers.ledger
    # an UPDATE leaves each row at its offset: only the table's log shows it
    by_others = []
    for commit in unacknowledged(table, ledger.acknowledged):
        if not stops_a_run(commit, ledger):
            continue
        if not is_let_pass(commit, settings.table.on_rows_removed):
            by_others.append(commit)
    of_pipeline, led = loaded_plans(services, ledgers, table)
    of_all = expected_of_all(services, ledgers, table, of_pipeline, led)
    spark = services.spark()
    before = rows_before_of(ledger.newest, table, of_all.rows)
    scan_class = EntryScan if is_physical else Scan
    scan = scan_class(spark, path, table.version, before=before)
    found, rows_of_others = without_others(
        services, ledger, table, of_all.rows, tuple(scan.findings(of_all.rows))
    )
    doubles = []
    spans = {}
    current = set()
    incarnations = ledger.newest.incarnations if ledger.newest else {}
    for f in found:
        doubles += [(f.audited, place, rows) for place, rows in scan.doubles(f)]
        if incarnations.get(f.audited.partition, 0) == f.audited.incarnation:
            current.add(f.audited)
            span = scan.doubled_span(f)
            if span:
                spans[f.audited] = span
    partitions = tuple(_explain(services, ledgers, table, of_all, found))
    plans = tuple(_sums_of_plans(services, ledgers, table, of_all, found))

    notes = of_all.notes
    if rows_of_others:
        notes += (
            f"{rows_of_others:,} rows are of topics that other pipelines load into this table: "
            "they are not verified",
        )
    given_up = sum(f.given_up_rows for f in found)
    if given_up:
        notes += (
            f"{given_up:,} rows are of plans that are unknown or were given up: none is "
            "duplicated, and their completeness is not verified",
        )
    rows_without_partition = (
        tuple(scan.first_without_partition()) if scan.rows_without_partition else ()
    )
    rows_before = rows_in_intervals(spark, path, table.version, before, physical=is_physical)
    number_before = sum(rows_before.values())
    if rows_before:
        notes += (
            f"{number_before:,} rows are from before plan 1: they are counted, and not verified",
        )
    return Proof(
        partitions,
        tuple(doubles),
        table.version,
        notes,
        settings.transform.function,
        tuple(by_others),
        scan.rows_without_partition,
        rows_without_partition,
        number_before,
        more_than_before(ledger.newest, rows_before),
        double_spans=spans,
        current=frozenset(current),
        plans=plans,
    )


def _compare(ledger: Ledger, table: Table | None, place: str) -> PipelineState:
    """Return the state of the pipeline, as a run would. Raises LedgersDisagree."""
    state = compare(ledger, table, place)
    if isinstance(state, RebuildFromTable):
        known = ledger.newest.number if ledger.newest else "none"
        message = (
            f"The table holds plan {state.plan.number} ({state.plan.id}), ZooKeeper knows {known}"
        )
        action = (
            "Check with `etl run CONF --dry-run`. The next run restores the ledger from the table"
        )
        raise LedgersDisagree(message, action=action)
    return state


def _note_of_no_rows(state: PipelineState) -> str:
    if isinstance(state, (FirstRun, Resume)):
        return "no plan was applied yet"
    return "there is no table, and an operator accepted that: the rows of its plans are given up"


# -- why rows are missing


def _explain(
    services: LiveServices,
    ledgers: BothLedgers,
    table: Table,
    of_all: ExpectedOfAll,
    found: Sequence[PartitionFindings],
) -> Iterator[PartitionProof]:
    """Return the findings with reasons; the table's log is read only if rows are missing."""
    short: dict[_Place, IncompleteInterval] = {}
    for f in found:
        for interval in f.short:
            short[f.audited, interval.from_offset, interval.until_offset] = interval
    origins: dict[_Place, Origin] = {}
    removals: tuple[ForeignCommit, ...] = ()
    allowed = frozenset[int]()
    if short:
        origins = _all_origins(services, of_all, short)
        topics = frozenset(audited.partition.topic for audited, _, _ in short)
        removals, allowed = _removals(services, ledgers.ledger, table, origins.values(), topics)
    # Behind a batch transform each range has both counts, so nothing is left to permit.
    transform = services.settings.transform
    may_drop = transform.may_drop and transform.dataframe is not None
    for f in found:
        audited = f.audited
        gaps = gaps_of(
            of_all.rows.get(audited, Expected()),
            of_all.losses.get(audited, ()),
            is_physical=audited.partition.is_physical,
        )
        own_origins = [origins[audited, s.from_offset, s.until_offset] for s in f.short]
        unproven = UnprovenOffsets()
        if f.unproven:
            unproven = _unproven(
                ledgers,
                table,
                of_all.loaded,
                f,
                may_drop=may_drop,
                has_transform=transform.function is not None,
            )
        missing = blame(own_origins, removals, allowed, may_drop=may_drop)
        yield PartitionProof(f, gaps, missing, unproven)


def _sums_of_plans(
    services: LiveServices,
    ledgers: BothLedgers,
    table: Table,
    of_all: ExpectedOfAll,
    found: Sequence[PartitionFindings],
) -> Iterator[PlanProof]:
    """Return the plans of which only the sum of the rows is known, with their rows in the table.

    Left out: plans of which a later one replaced rows, partitions with doubled rows, which are an
    error anyway, and Jafka's, whose offsets do not count messages.
    """
    without_row = {}
    doubled = set()
    for f in found:
        if f.double_rows:
            doubled.add(f.audited)
        for interval in f.unproven:
            place = (f.audited, interval.from_offset, interval.until_offset)
            without_row[place] = interval.missing
    for one in of_all.loaded:
        if one.is_given_up or one.applied.written is None:
            continue
        places = []
        rows = 0
        is_whole = True
        for r, result in zip(one.plan.ranges, one.applied.results, strict=True):
            audited = incarnation_of_range(one.plan, r)
            applied = of_all.rows.get(audited, Expected()).applied
            is_summed = result.rows is None and not r.partition.is_physical
            if not is_summed or audited in doubled or (r, result) not in applied:
                is_whole = False
                break
            places.append((audited, r.from_offset, r.until_offset))
            rows += (result.records or 0) - without_row.get(places[-1], 0)
        if is_whole:
            yield _sum_of_plan(services, ledgers, table, one, rows, places)


def _sum_of_plan(
    services: LiveServices,
    ledgers: BothLedgers,
    table: Table,
    one: Loaded,
    rows: int,
    places: Sequence[_Place],
) -> PlanProof:
    written = one.applied.written or 0
    proof = PlanProof(one.plan.number, one.applied.records_read or 0, written, rows)
    if rows >= written:
        return proof
    lacking = IncompleteInterval(0, 0, written - rows)
    origin = Origin(lacking, one.applied.delta_version, written, written)
    topics = frozenset(audited.partition.topic for audited, _, _ in places)
    removals, allowed = _removals(services, ledgers.ledger, table, [origin], topics)
    return replace(proof, missing=blame([origin], removals, allowed))


def _unproven(
    ledgers: BothLedgers,
    table: Table,
    loaded: Sequence[Loaded],
    found: PartitionFindings,
    *,
    may_drop: bool,
    has_transform: bool,
) -> UnprovenOffsets:
    acknowledgement = ledgers.ledger.acknowledged
    accepted = 0
    if acknowledgement and acknowledgement.table_id == table.id:
        accepted = acknowledgement.number
    plans = {}
    transformed = set()
    for one in loaded:
        if one.applied.written is not None:
            transformed.add(one.plan.number)
        for r in one.plan.ranges:
            if incarnation_of_range(one.plan, r) == found.audited:
                plans[r.from_offset, r.until_offset] = one.plan.number
    return doubt_of(
        found.unproven,
        plans,
        pruned=ledgers.loaded.unproven_through,
        accepted=accepted,
        is_physical=found.audited.partition.is_physical,
        transformed=transformed,
        may_drop=may_drop,
        has_transform=has_transform,
    )


def _all_origins(
    services: LiveServices, of_all: ExpectedOfAll, short: Mapping[_Place, IncompleteInterval]
) -> dict[_Place, Origin]:
    """Return the origin of each incomplete range or interval, unknown ones too."""
    known = dict(_origins(services, of_all.loaded, short))
    elsewhere = set()
    for audited, expected in of_all.rows.items():
        for r, _ in expected.elsewhere:
            elsewhere.add((audited, r.from_offset, r.until_offset))
    origins = {}
    for place, interval in short.items():
        if place in known:
            origins[place] = known[place]
        else:
            origins[place] = Origin(interval, is_elsewhere=place in elsewhere)
    return origins


def _origins(
    services: LiveServices, loaded: Sequence[Loaded], short: Mapping[_Place, IncompleteInterval]
) -> Iterator[tuple[_Place, Origin]]:
    """Return whether the commit of an incomplete range held its rows.

    The files that the commit added are counted; after they were vacuumed, nothing shows it.
    """
    from etl.io.delta.recover_results import recount_commit

    path = services.settings.table.path
    for one in loaded:
        if one.is_given_up:
            continue
        ranges = one.plan.ranges
        places = {}
        for i, r in enumerate(ranges):
            place = (incarnation_of_range(one.plan, r), r.from_offset, r.until_offset)
            if place in short:
                places[i] = place
        if not places:
            continue
        version = one.applied.delta_version
        recounted = recount_commit(path, version, ranges, one.plan.incarnations)
        for i, place in places.items():
            committed = recounted[i] if recounted else None
            yield place, origin_of(short[place], version, one.applied.results[i], committed)


def _removals(
    services: LiveServices,
    ledger: Ledger,
    table: Table,
    origins: Iterable[Origin],
    topics: Collection[str],
) -> tuple[tuple[ForeignCommit, ...], frozenset[int]]:
    """Return the commits of other writers that removed rows of these topics, and the accepted
    versions of these.

    They are accepted by policy or by an operator.
    """
    from etl.io.delta.log import open_log, removals_since
    from etl.io.delta.table_shape import rust_path

    settings = services.settings.table
    noted = services.ledger.read_loaded_intervals().removals
    versions = [origin.delta_version for origin in origins]
    known = [version for version in versions if version is not None]
    after = None
    if known and len(known) == len(versions):
        after = min(known)
    log = open_log(rust_path(settings.path))
    inherited = ledger.newest.predecessor_numbers if ledger.newest else {}
    logged = removals_since(log, table.version, after, services.app_id, topics.__contains__)
    commits = {commit.as_noted: commit for commit in (*noted, *logged)}
    found = sorted(commits.values(), key=lambda commit: commit.delta_version)
    accepted = accepted_version(ledger.acknowledged, table)
    allowed = set()
    for commit in found:
        is_accepted = accepted is not None and commit.delta_version <= accepted
        is_noted = commit.as_noted in noted
        by = commit.by or commit.unread
        is_inherited = by is not None and by.number <= inherited.get(by.app_id, -1)
        is_permitted = is_accepted or is_inherited or is_let_pass(commit, settings.on_rows_removed)
        if is_permitted or is_noted:
            allowed.add(commit.delta_version)
    return tuple(found), frozenset(allowed)
