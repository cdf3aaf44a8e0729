"""The doctor's lines about who may change a pipeline's znodes."""

from __future__ import annotations

import pytest

from etl.commands.doctor_machine import Verdict
from etl.commands.doctor_services import acl_line
from etl.model.security import EVERYBODY, Acl

OPEN, OURS, OTHERS = (
    frozenset({EVERYBODY}),
    frozenset({"sasl:etl"}),
    frozenset({"digest:etl:hash-of-a-password"}),
)


@pytest.mark.parametrize(
    ("acl", "znodes", "ours", "message"),
    [
        (
            Acl.CREATOR,
            {"/a": OPEN, "/b": OURS, "/c": OPEN},
            "sasl:etl",
            "2 of 3 znodes (/a, /c) can be changed by everybody",
        ),
        (
            Acl.OPEN,
            {"/a": OPEN, "/b": OTHERS},
            "sasl:etl",
            "1 of 2 znodes (/b) can be changed by digest:etl alone",
        ),
        (
            Acl.CREATOR,
            {"/a": OURS, "/b": OTHERS},
            "sasl:etl",
            "some by digest:etl or sasl:etl",
        ),
        (
            Acl.CREATOR,
            {"/a": OTHERS},
            "digest:etl:another-hash",
            "by digest:etl alone, and the login of this conf is digest:etl with another password",
        ),
        (
            Acl.CREATOR,
            {"/a": OURS},
            "sasl:other",
            "by sasl:etl alone, and the login of this conf is sasl:other",
        ),
    ],
    ids=["open", "guarded", "two logins", "another password", "another login"],
)
def test_znodes_that_are_not_as_configured_are_reported_before_a_run_is_denied_and_without_a_hash(
    acl: Acl, znodes: dict[str, frozenset[str]], ours: str, message: str
) -> None:
    line = acl_line("znode ACLs", acl, znodes, ours)
    assert line.verdict is Verdict.ADVICE and message in line.found and "hash" not in line.found
    assert ("everybody" in message) <= ("`etl ledger apply-acl CONF`" in line.to_do)


@pytest.mark.parametrize(
    ("acl", "writers", "ours"),
    [
        (Acl.OPEN, OPEN, "sasl:etl"),
        (Acl.CREATOR, OURS, "sasl:etl"),
        (Acl.CREATOR, OURS | {"x509:CN=client"}, "sasl:etl"),
        (Acl.CREATOR, OTHERS, None),
        (Acl.CREATOR, None, None),
    ],
    ids=["open", "ours", "ours by two ways", "a certificate's user is unknown", "all are hidden"],
)
def test_znodes_as_configured_are_ok(
    acl: Acl, writers: frozenset[str] | None, ours: str | None
) -> None:
    znodes = {"/a": writers, "/b": writers} if writers else {}
    assert acl_line("znode ACLs", acl, znodes, ours).verdict is Verdict.OK
