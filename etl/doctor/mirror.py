"""The Kafka group into which positions are mirrored. Its offsets are not read here: who asks for a
coordinator may make a topic.
"""

from __future__ import annotations

from collections.abc import Iterator

from etl.doctor.brokers import ask_brokers
from etl.doctor.check import Fact, Findings, Line, Verdict, advice, failed, ok
from etl.errors import SettingsError


def mirror_group(name: str, findings: Findings) -> Iterator[Line]:
    """Whether brokers keep offsets at all, and whether somebody consumes under that name. No line
    where none is named.
    """
    wanted = findings.settings.mirror_group
    if wanted is None:
        return
    if Fact.CLUSTER not in findings.established:
        yield Line(name, Verdict.NOT_CHECKED, f"first {Fact.CLUSTER.value}, see above")
        return
    brokers = findings.metadata.brokers.values()
    with ask_brokers([(broker.host, broker.port) for broker in brokers], findings) as asked:
        keeps, members = (
            asked.first(lambda consumer: consumer.keeps_offsets()),
            asked.members_of(wanted, brokers),
        )
    if not keeps:
        what = "these brokers keep no offsets of groups: that came with Kafka 0.8.2"
        yield failed(
            name,
            SettingsError(
                what, key="mirror_group", check="leave the key out; runs work without it"
            ),
        )
    elif members.members:
        what = f"{len(members.members)} live consumers are in group {wanted}: {', '.join(sorted(members.members)[:3])}"
        yield advice(
            name,
            what,
            "mirror_group: a name that nobody consumes under; runs leave this group's offsets alone and say so",
        )
    elif members.unknown:
        what = f"whether consumers of group {wanted} are alive is not known: {members.unknown}"
        yield advice(
            name,
            what,
            "that nobody consumes under this name; ACLs: Read and Describe for the group",
        )
    else:
        yield ok(
            name,
            f"{wanted}: nobody consumes under this name; positions are written there after each run",
        )
