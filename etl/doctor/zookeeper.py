"""ZooKeeper: its servers, how large a request may be, the chroot, and what we may do where the
pipeline keeps its ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from etl.doctor.check import Findings, Line, advice, failed, ok
from etl.errors import EtlError, PermissionRefused, SettingsError
from etl.io.zookeeper.connection import describe_identity
from etl.io.zookeeper.permissions import (
    ServerAnswer,
    ask_server,
    children_shown,
    may_read,
    may_write,
    nearest,
    refused_below,
    takes_request,
)
from etl.io.zookeeper.session import NODE_MAX_BYTES, ZooKeeper
from etl.ledger import paths
from etl.run.discovery import Discovery
from etl.settings.choices import OwnershipMode, split_address

_REQUEST_BYTES = NODE_MAX_BYTES + 20_000
"""The largest request of a run, with its paths."""
_TOPICS_TRIED = 20
"""Topics whose znodes are tried; a group's topics seldom have ACLs of their own."""

_PLACES_SHOWN = 3
_CHILDREN, _WRITE = "children", "write"
"""What a run does to a znode: make and delete others below it, or change its payload."""


def servers(name: str, findings: Findings) -> Iterator[Line]:
    """Each server of `zookeeper.connect` by itself, and then the session that all other questions
    go through.
    """
    asked = findings.settings.zookeeper
    hosts = [
        split_address(address.strip()) for address in asked.connect.partition("/")[0].split(",")
    ]

    def ask(address: tuple[str, int]) -> ServerAnswer | EtlError:
        try:
            return ask_server(
                *address,
                session_timeout_s=asked.session_timeout_s,
                timeout_s=asked.connect_timeout_s,
                access=asked.access,
            )
        except EtlError as shut:
            return shut

    with ThreadPoolExecutor(len(hosts)) as pool:
        answers = list(pool.map(ask, hosts))
    shut = [answer for answer in answers if isinstance(answer, EtlError)]
    if len(shut) == len(answers):
        raise shut[0]
    timeouts = {
        "session_timeout_s": asked.session_timeout_s,
        "connect_timeout_s": asked.connect_timeout_s,
    }
    findings.zookeeper = findings.closing.enter_context(
        ZooKeeper(asked.connect, **timeouts, access=asked.access)
    )
    for answer in answers:
        yield _server(name, answer, asked.session_timeout_s)


def _server(name: str, answer: ServerAnswer | EtlError, asked_s: float) -> Line:
    if isinstance(answer, EtlError):
        return advice(
            name, str(failed(name, answer).found), f"{answer.check}; other servers let us in"
        )
    version = (
        f"ZooKeeper {answer.version}, {answer.mode}"
        if answer.version
        else "version not known (it does not answer srvr)"
    )
    found = f"{answer.address}: {version}, session timeout {answer.granted_s:g} s"
    if answer.granted_s == asked_s:
        return ok(name, found)
    what = "minSessionTimeout" if answer.granted_s > asked_s else "maxSessionTimeout"
    return advice(
        name,
        f"{found}, where {asked_s:g} s were asked for",
        f"zookeeper.session_timeout_s, or {what} of the server",
    )


def request_limit(name: str, findings: Findings) -> Iterator[Line]:
    """Whether the server takes requests as large as ours: a refused one looks like a lost
    connection, so one is tried that only reads.
    """
    if takes_request(findings.zookeeper, _REQUEST_BYTES):
        yield ok(name, f"requests of {_REQUEST_BYTES:,} bytes pass, and no run sends larger ones")
        return
    what = f"ZooKeeper closes the connection at a request of {_REQUEST_BYTES:,} bytes"
    check = "jute.maxbuffer of every server: 1048575, its default, or more"
    raise SettingsError(what, connect=findings.zookeeper.hosts, check=check)


def chroot(name: str, findings: Findings) -> Iterator[Line]:
    """Whether the path of the connection string holds a cluster; with brokers given by the conf it
    need not.
    """
    zookeeper, given = findings.zookeeper, findings.settings.source.bootstrap
    place = zookeeper.chroot or "/"
    if given:
        yield ok(name, f"{place} holds the ledger only: the brokers are those of source.bootstrap")
        return
    brokers = Discovery(findings.settings, zookeeper).registered()
    registered = len(zookeeper.children(paths.BROKER_IDS) or brokers)
    if len(brokers) < registered:
        wanted = findings.settings.source.way_in
        listener = f"listener of {wanted.protocol.value}" + (
            f" by the name {wanted.listener}" if wanted.listener else ""
        )
        found = f"{registered - len(brokers)} of {registered} brokers registered under {place} have no {listener}"
        yield advice(name, found, "their `listeners`: partitions that they lead cannot be read")
    yield ok(name, f"{place}; registered brokers: {len(brokers)}")


def permissions(name: str, findings: Findings) -> Iterator[Line]:
    """What we may do to each znode that a run reads, writes, creates or deletes, or where these
    would be made.
    """
    with findings.zookeeper.at_root() as whole:
        tried = {
            (there := nearest(whole, path), wants if there == path else _CHILDREN)
            for path, wants in _wanted(findings, whole)
        }
        refused = [
            denied for path, wants in sorted(tried) if (denied := _denied(whole, path, wants))
        ]
    if refused:
        check = f"getAcl of these znodes; setAcl must let us do it: we are {describe_identity(findings.settings.zookeeper.access)}"
        raise PermissionRefused(
            f"ZooKeeper does not let us {'; '.join(refused)}",
            connect=findings.zookeeper.hosts,
            check=check,
        )
    places = sorted({path for path, _ in tried})
    shown = ", ".join(places[:_PLACES_SHOWN]) + (", ..." if len(places) > _PLACES_SHOWN else "")
    yield ok(name, f"we may read, write, create and delete as a run does (tried at {shown})")


def _denied(whole: ZooKeeper, path: str, wants: str) -> str | None:
    if not may_read(whole, path):
        return f"read {path}"
    if wants == _WRITE:
        return None if may_write(whole, path) else f"write {path}"
    denied = refused_below(whole, path)
    return f"{denied} znodes below {path}" if denied else None


def _wanted(findings: Findings, whole: ZooKeeper) -> Iterator[tuple[str, str]]:
    """Full paths, and what a run does there."""
    settings, root = findings.settings, findings.zookeeper.chroot
    group, pipeline = (
        paths.GroupPaths(settings.group),
        paths.PipelinePaths(settings.group, settings.pipeline),
    )
    below = [pipeline.plans, pipeline.applied_plans, pipeline.root, group.offsets]
    written = [pipeline.root, pipeline.coverage]
    for topic in _ours(findings, whole, group.offsets):
        below.append(group.offsets_of(topic))
        written += [
            f"{group.offsets_of(topic)}/{key}"
            for key in children_shown(whole, root + group.offsets_of(topic))[:1]
        ]
    if settings.ownership.mode is OwnershipMode.JOIN:
        below.append(group.consumer_ids)
    if settings.ownership.mode is not OwnershipMode.OBSERVE:
        below += [
            group.owners,
            *(group.owners_of(topic) for topic in _ours(findings, whole, group.owners)),
        ]
    yield from ((root + path, _CHILDREN) for path in below)
    yield from ((root + path, _WRITE) for path in written)


def _ours(findings: Findings, whole: ZooKeeper, path: str) -> list[str]:
    there = children_shown(whole, findings.zookeeper.chroot + path)
    return [topic for topic in there if findings.settings.source.topics.admits(topic)][
        :_TOPICS_TRIED
    ]
