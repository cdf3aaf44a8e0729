"""How ZooKeeper is entered, and who may change what a pipeline keeps there. Values; no secret is in
them, only where one is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from etl.model.security import SecretRef, Tls


class Scheme(str, Enum):
    """How ZooKeeper is told who we are (ZooKeeper Programmer's Guide, "Builtin ACL Schemes", and
    SASL).
    """

    SASL = "sasl"
    """DIGEST-MD5: a wrong login is refused at once."""
    DIGEST = "digest"
    """ZooKeeper refuses no wrong password: what it opens is found closed."""
    X509 = "x509"
    """By the certificate that the connection shows."""


class Acl(str, Enum):
    """Who may change what a pipeline keeps; everybody may read it."""

    OPEN = "open"
    CREATOR = "creator"


@dataclass(frozen=True, slots=True)
class Auth:
    """Who we are."""

    scheme: Scheme
    username: str | SecretRef | None = None
    password: SecretRef | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """How each session begins."""

    tls: Tls | None = None
    """None: without encryption."""
    auth: Auth | None = None
    acl: Acl = Acl.OPEN


OPEN = Access()
"""Neither encryption nor login, and nothing guarded."""

EVERYBODY = "everybody"
"""Who may change an open znode, where others are told as `scheme:id`."""
