"""Who may change what the pipeline keeps, beside what the conf asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from etl.doctor.check import Findings, Line, advice, ok
from etl.io.zookeeper.connection import id_of
from etl.io.zookeeper.permissions import kept_by, writers_of
from etl.model.security import EVERYBODY, Acl

_SHOWN = 3
_COMMAND = "`etl pipelines set-acl CONF`"


def acls(name: str, findings: Findings) -> Iterator[Line]:
    """One line for znodes that are not as they would be made now; one where all are. None where the
    pipeline has none yet.
    """
    settings, zookeeper = findings.settings, findings.zookeeper
    paths = kept_by(zookeeper, settings.group, settings.pipeline)
    if paths:
        yield told(
            name,
            settings.zookeeper.acl,
            writers_of(zookeeper, paths),
            id_of(settings.zookeeper.access),
        )


def told(name: str, asked: Acl, writers: Mapping[str, frozenset[str]], ours: str | None) -> Line:
    """What is said of these znodes and those who may change them; `ours`: as whom ACLs know us,
    where that is known. No I/O.
    """
    opened = [path for path, who in writers.items() if EVERYBODY in who]
    guarded = [path for path, who in writers.items() if EVERYBODY not in who]
    owners = sorted({frozenset(writers[path]) for path in guarded}, key=sorted)
    whom = " or ".join(", ".join(sorted(map(_shown, who))) or "nobody" for who in owners)
    if asked is Acl.OPEN and guarded:
        to_do = f"{_COMMAND} by that login opens them; or zookeeper.acl: creator, by which new ones are guarded, too"
        return advice(
            name,
            f"{_places(guarded, writers)} can be changed by {whom} alone, and zookeeper.acl is open",
            to_do,
        )
    if asked is Acl.CREATOR and opened:
        to_do = f"{_COMMAND}: they are from before zookeeper.acl was creator"
        return advice(
            name,
            f"{_places(opened, writers)} can be changed by everybody, and zookeeper.acl is creator",
            to_do,
        )
    if asked is Acl.CREATOR and len(owners) > 1:
        to_do = f"{_COMMAND} by a login that may change all of them, with zookeeper.acl: open; then the same as zookeeper.auth is to be"
        return advice(
            name,
            f"not all {len(writers):,} znodes can be changed by the same login: some by {whom}",
            to_do,
        )
    if asked is Acl.CREATOR and owners and ours is not None and ours not in owners[0]:
        us = (
            f"{_shown(ours)} with another password"
            if _shown(ours) in whom.split(", ")
            else f"not by us, {_shown(ours)}"
        )
        to_do = f"zookeeper.auth; or zookeeper.acl: open and {_COMMAND} by whom they name, then acl: creator and the same by us"
        return advice(name, f"{len(writers):,} znodes can be changed by {whom} alone, {us}", to_do)
    return ok(name, f"{len(writers):,} znodes, changed by {whom or EVERYBODY}, read by everybody")


def _places(some: Collection[str], of: Collection[str]) -> str:
    shown = ", ".join(sorted(some)[:_SHOWN]) + (", ..." if len(some) > _SHOWN else "")
    return f"{len(some):,} of {len(of):,} znodes ({shown})"


def _shown(who: str) -> str:
    """Without what scheme digest makes of a password."""
    return ":".join(who.split(":")[:2]) if who.startswith("digest:") else who
