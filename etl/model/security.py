"""How are connections to brokers and to ZooKeeper secured?

Immutable values that are sent to tasks. They hold references to secrets (`SecretRef`), never
secrets: the process that opens a connection resolves the reference, each time it connects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of the machine that opens it."""

    path: str
    folder: str | None = None
    """Directory that relative paths start at; None: the working directory."""

    @property
    def is_relative_to_conf(self) -> bool:
        """True for a relative path of a conf."""
        return self.folder is not None and not self.path.startswith("/")

    @property
    def name(self) -> str:
        """Return the name without directories, which `spark-submit --files` gives its copy."""
        return self.path.rpartition("/")[2]

    def __str__(self) -> str:
        if self.folder is None or not self.is_relative_to_conf:
            return self.path
        return f"{self.folder.rstrip('/')}/{self.path}"


@dataclass(frozen=True, slots=True, repr=False)
class SecretRef:
    """A reference to a secret: an environment variable or a file. It contains no secret, so it may
    be shown, stored and sent.
    """

    kind: str
    """`env` or `file`."""
    name: str
    folder: str | None = None
    """For a file: see `LocalFile`."""

    @property
    def file(self) -> LocalFile:
        """The file."""
        return LocalFile(self.name, self.folder)

    def __repr__(self) -> str:
        return f"SecretRef({self})"

    def __str__(self) -> str:
        return f"${{{self.kind}:{self.name}}}"


def parse_reference(text: str, folder: str | None = None) -> SecretRef | None:
    """Parse `${env:NAME}` or `${file:/path}`; None for any other text."""
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        return None
    kind, name = match[1], match[2]
    if kind == "file":
        return SecretRef(kind, name, folder)
    return SecretRef(kind, name, None)


class SecurityProtocol(str, Enum):
    """Kafka's `security.protocol`."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def is_encrypted(self) -> bool:
        """True if connections use TLS."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_login(self) -> bool:
        """True if connections begin with a login (SASL)."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


_NAMES_A_SOURCE = re.compile(
    r"[A-Za-z_][\w.]*:[A-Za-z_]\w*|aws-msk:[a-z]{2}(-[a-z0-9]+)+", re.ASCII
)


def names_token_source(text: str) -> bool:
    """True for `module:function` and `aws-msk:REGION`; False for a token itself."""
    return _NAMES_A_SOURCE.fullmatch(text) is not None


class Mechanism(str, Enum):
    """How a login proves who we are."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"
    GSSAPI = "GSSAPI"

    @property
    def has_password(self) -> bool:
        """True if it takes a user name and a password."""
        return self in (Mechanism.PLAIN, Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)


def _shown(value: Any) -> Any:
    """Return the value if it is a reference, else a placeholder: it may be the secret itself."""
    if value is None or isinstance(value, SecretRef):
        return value
    return "***"


@dataclass(frozen=True, slots=True, repr=False)
class Tls:
    """Trusted authorities and the client certificate."""

    ca_file: LocalFile | None = None
    """Certificates of authorities; None: those of the system."""
    cert_file: LocalFile | None = None
    """Our own certificate."""
    key_file: LocalFile | None = None
    """Its key; None: it is in the same file."""
    key_password: SecretRef | None = None

    def __repr__(self) -> str:
        return (
            f"Tls(ca_file={self.ca_file!r}, cert_file={self.cert_file!r}, "
            f"key_file={self.key_file!r}, "
            f"key_password={_shown(self.key_password)!r})"
        )


@dataclass(frozen=True, slots=True, repr=False)
class Login:
    """Login (SASL)."""

    mechanism: Mechanism
    username: str | SecretRef | None = None
    password: SecretRef | None = None
    token: str | SecretRef | None = None
    """Source of tokens: `module:function`, `aws-msk:REGION`, or a reference that others refresh."""
    service: str = "kafka"
    """Kerberos' name of the brokers' service."""

    def __repr__(self) -> str:
        if isinstance(self.token, str) and names_token_source(self.token):
            token = self.token
        else:
            token = _shown(self.token)
        return (
            f"Login(mechanism={self.mechanism!r}, username={self.username!r}, "
            f"password={_shown(self.password)!r}, "
            f"token={token!r}, service={self.service!r})"
        )


@dataclass(frozen=True, slots=True)
class Security:
    """How the brokers' listener is entered. Two that are equal are one way in: connections of
    either do for the other.
    """

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    listener: str | None = None
    """Its name, where brokers are registered in ZooKeeper; None: the first of the protocol."""
    tls: Tls = Tls()
    login: Login | None = None


OPEN = Security()
"""Neither encryption nor login."""


class Scheme(str, Enum):
    """Authentication scheme (ZooKeeper Programmer's Guide, "Builtin ACL Schemes"; SASL)."""

    SASL = "sasl"
    """DIGEST-MD5: a wrong login is rejected at once."""
    DIGEST = "digest"
    """ZooKeeper rejects no wrong password; reading a znode with an ACL then fails."""
    X509 = "x509"
    """By the certificate that the connection shows."""


class Acl(str, Enum):
    """Who may change a pipeline's znodes; everybody may read them."""

    OPEN = "open"
    CREATOR = "creator"


@dataclass(frozen=True, slots=True)
class Auth:
    """Credentials for ZooKeeper."""

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


OPEN_ZOOKEEPER = Access()
"""Neither encryption nor login, and nothing guarded."""

EVERYBODY = "everybody"
"""ACL entry of open znodes; other entries are `scheme:id`."""
