"""Who else is at work in the consumer group: drivers, other consumers, owners, and pipelines that
share a topic.
"""

from __future__ import annotations

from collections.abc import Iterator

from etl.decide.group_commits import is_member
from etl.decide.group_ownership import (
    foreign_consumers,
    foreign_owners,
    members_as_owners,
    on_owned,
)
from etl.decide.reconcile import refuse_retired, refuse_shared_topics
from etl.doctor.brokers import ask_brokers, consumers_of, some
from etl.doctor.check import Findings, Line, advice, failed, ok
from etl.errors import EtlError, Owned, SettingsError
from etl.io.zookeeper.ledger import PlanLedger
from etl.ledger import registrations
from etl.ledger.paths import PipelinePaths
from etl.model.partitions import KafkaGroup, Membership
from etl.model.snapshot import Ledger
from etl.run.live import unspoken
from etl.settings.choices import OnLiveGroup, OnOwned


def group(name: str, findings: Findings) -> Iterator[Line]:
    """Who else is at work: a driver of this pipeline, other consumers of the group, pipelines that
    share a topic.
    """
    settings, names = findings.settings, set(findings.metadata.topics)
    paths = PipelinePaths(settings.group, settings.pipeline)
    found = findings.zookeeper.read(paths.driver)
    driver = registrations.parse_driver(found[0]) if found else None
    if found:
        yield ok(
            name,
            f"a run of this pipeline is at work: {driver or 'by a driver that does not say who it is'}",
        )
    else:
        yield from _others(name, findings, names)
    left = consumers_of(findings).offsets_of_the_other_family(sorted(names))
    if left:
        what = f"{len(left)} of the group's offsets are of the other family of brokers, the first of {left[0]}: they are left alone"
        yield advice(
            name,
            what,
            "nothing, where the group read these topics from such brokers before; else source.dialect",
        )
    yield from _other_pipelines(
        name, PlanLedger(findings.zookeeper, settings.group, settings.pipeline), names
    )


def _other_pipelines(name: str, ledger: PlanLedger, names: set[str]) -> Iterator[Line]:
    """What `refusals.refuse_what_cannot_run` would refuse."""
    try:
        refuse_retired(Ledger(retired=ledger.read_retirement()))
        refuse_shared_topics(names, ledger.other_pipelines(), has_plans=bool(ledger.plan_numbers()))
    except EtlError as refusal:
        yield failed(name, refusal)


def _others(name: str, findings: Findings, names: set[str]) -> Iterator[Line]:
    settings = findings.settings
    members, (in_kafka, refusal) = consumers_of(findings), _in_kafka(findings)
    if in_kafka.unknown:
        what = f"whether consumers of Kafka's own group {settings.group} are alive is not known: {in_kafka.unknown}"
        yield advice(
            name,
            what,
            "that nobody consumes under this name; ACLs: Describe for the group, from Kafka 0.11 on",
        )
    logs = [p.log for topic in findings.metadata.topics.values() for p in topic.partitions]
    others = foreign_consumers(members.live_consumers(), settings)
    is_coordinated = settings.membership is Membership.COORDINATOR
    with_us, elsewhere = (
        (tuple(sorted(in_kafka.members)), others)
        if is_coordinated
        else (others, tuple(in_kafka.members))
    )
    if refusal:
        yield failed(name, refusal)
    if is_member(settings) and not elsewhere:
        yield ok(
            name,
            f"{settings.group}: a run shares with {f'live consumers: {some(with_us)}' if with_us else 'nobody: none is alive'}",
        )
        return
    live = (*others, *sorted(in_kafka.members))
    owners = foreign_owners(
        {**members_as_owners(in_kafka, logs), **members.owners(names)}, settings
    )
    check = "that they are stopped; a crashed one leaves after its session timeout"
    if live:
        what = f"{len(live)} live consumers are registered in the group: {some(live)}"
        allowed = settings.ownership.on_live_group is OnLiveGroup.UNOWNED
        yield (
            advice(name, what, "nothing: a run takes what none of them owns")
            if allowed
            else failed(name, Owned(what, check=check))
        )
    if owners:
        log, owner = min(owners.items())
        what = f"{len(owners)} partitions are owned, {log} by {owner}"
        policy = on_owned(settings.ownership)
        stops = policy is OnOwned.FAIL
        word = f"nothing: a run {'waits for them' if policy is OnOwned.WAIT else 'leaves these to them'}"
        yield failed(name, Owned(what, check=check)) if stops else advice(name, what, word)
    if not live and not owners:
        yield ok(name, f"{settings.group}: no live consumer, no owner, no driver")


def _in_kafka(findings: Findings) -> tuple[KafkaGroup, SettingsError | None]:
    """Who is in Kafka's own group, and why no run can be, where it is to."""
    settings, brokers, refusal = findings.settings, findings.metadata.brokers.values(), None
    with ask_brokers([(broker.host, broker.port) for broker in brokers], findings) as asked:
        if settings.membership is Membership.COORDINATOR:
            refusal = unspoken(settings, asked.first(lambda consumer: consumer.membership()))
        return asked.members_of(settings.group, brokers), refusal
