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


def test_znodes_writable_by_everyone_under_acl_creator_are_reported_with_the_command() -> None:
    line = acl_line("znode ACLs", Acl.CREATOR, {"/a": OPEN, "/b": OURS, "/c": OPEN}, "sasl:etl")
    assert (
        line.verdict is Verdict.ADVICE
        and "2 of 3 znodes (/a, /c) can be changed by everybody" in line.found
    )
    assert "`etl ledger apply-acl CONF`" in line.to_do


def test_guarded_znodes_under_acl_open_are_reported_with_their_owner_and_no_hash() -> None:
    line = acl_line("znode ACLs", Acl.OPEN, {"/a": OPEN, "/b": OTHERS}, "sasl:etl")
    assert (
        line.verdict is Verdict.ADVICE
        and "1 of 2 znodes (/b) can be changed by digest:etl alone" in line.found
    )


def test_znodes_of_two_logins_are_reported() -> None:
    line = acl_line("znode ACLs", Acl.CREATOR, {"/a": OURS, "/b": OTHERS}, "sasl:etl")
    assert line.verdict is Verdict.ADVICE and "some by digest:etl or sasl:etl" in line.found


def test_znodes_as_configured_are_ok() -> None:
    for request, writers in (
        (Acl.OPEN, OPEN),
        (Acl.CREATOR, OURS),
        (Acl.CREATOR, OURS | {"x509:CN=client"}),
    ):
        assert (
            acl_line("znode ACLs", request, {"/a": writers, "/b": writers}, "sasl:etl").verdict
            is Verdict.OK
        )
    assert acl_line("znode ACLs", Acl.CREATOR, {}, None).verdict is Verdict.OK, (
        "all ACLs are hidden: the check of permissions reports that"
    )


@pytest.mark.parametrize(
    ("writers", "ours", "message"),
    [
        (
            OTHERS,
            "digest:etl:another-hash",
            "by digest:etl alone, and the login of this conf is digest:etl with another password",
        ),
        (OURS, "sasl:other", "by sasl:etl alone, and the login of this conf is sasl:other"),
    ],
)
def test_znodes_guarded_by_another_login_are_reported_before_a_run_is_denied(
    writers: frozenset[str], ours: str, message: str
) -> None:
    line = acl_line("znode ACLs", Acl.CREATOR, {"/a": writers}, ours)
    assert line.verdict is Verdict.ADVICE and message in line.found and "hash" not in line.found
    assert acl_line("znode ACLs", Acl.CREATOR, {"/a": writers}, None).verdict is Verdict.OK, (
        "the user of a certificate is unknown to the client"
    )
