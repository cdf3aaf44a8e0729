"""What it is called where ZooKeeper does not let us."""

from __future__ import annotations

from kazoo.exceptions import (
    AuthFailedError,
    InvalidACLError,
    NoAuthError,
    SessionClosedRequireSaslError,
)

from etl.errors import PermissionRefused
from etl.ledger.paths import is_of_a_pipeline
from etl.model.security import Access, Scheme

REFUSED = (NoAuthError, AuthFailedError, SessionClosedRequireSaslError, InvalidACLError)
"""What kazoo raises then."""
_AUTH = "zookeeper.auth"


def refusal_of(
    error: Exception, connect: str, access: Access, znode: str | None = None
) -> PermissionRefused:
    """What one of these means to who runs us. A wrong password under scheme digest is never one: it
    opens nothing (NoAuthError).
    """
    where = {"connect": connect} if znode is None else {"znode": znode, "connect": connect}
    if isinstance(error, AuthFailedError) and access.auth is not None:
        check = f"{_AUTH}: scheme, username and password, and that every server knows them"
        return PermissionRefused(
            f"ZooKeeper refuses our login, {told(access)}", key=_AUTH, **where, check=check
        )
    if isinstance(error, AuthFailedError | SessionClosedRequireSaslError):
        wanted = (
            "by SASL"
            if isinstance(error, SessionClosedRequireSaslError)
            else "of another scheme than ours"
        )
        check = f"{_AUTH}, with scheme sasl; now we are {told(access)}"
        return PermissionRefused(
            f"ZooKeeper wants a login {wanted}", key=_AUTH, **where, check=check
        )
    if isinstance(error, InvalidACLError):
        what = f"ZooKeeper does not know us, {told(access)}, and by zookeeper.acl creator nobody but us may write"
        return PermissionRefused(
            what, key=_AUTH, **where, check=f"{_AUTH}: its scheme must be one that every server has"
        )
    check = f"who we are: {told(access)}; and the znode's ACL (getAcl)"
    if znode is not None and is_of_a_pipeline(znode):
        check += ", which whoever it names changes by `etl pipelines set-acl CONF`"
    return PermissionRefused(
        "ZooKeeper does not let us: a znode's ACL is for others", **where, check=check
    )


def told(access: Access) -> str:
    """As whom we come, as ACLs have it, and without a secret."""
    auth = access.auth
    if auth is None:
        return "nobody (zookeeper.auth.scheme is not set)"
    if auth.scheme is Scheme.X509:
        return f"x509, by the certificate of zookeeper.tls.cert_file ({access.tls and access.tls.cert_file})"
    password = ", whose wrong password no server refuses" if auth.scheme is Scheme.DIGEST else ""
    return f"{auth.scheme.value} user {auth.username}{password}"
