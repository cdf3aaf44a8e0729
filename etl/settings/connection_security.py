"""How does a conf secure connections to brokers and ZooKeeper?

Lives here: the sections `source.security` and `zookeeper`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, field_validator, model_validator

from etl.model.security import (
    Access,
    Acl,
    Auth,
    Login,
    Mechanism,
    Scheme,
    SecretRef,
    Security,
    SecurityProtocol,
    Tls,
    names_token_source,
)
from etl.settings.choices import split_connect
from etl.settings.secrets import FileOfEach, Secret, Section, TextOrSecret


class TlsSettings(Section):
    """Trusted authorities and the client certificate."""

    ca_file: FileOfEach | None = None
    """PEM; the system's authorities unless given."""
    cert_file: FileOfEach | None = None
    key_file: FileOfEach | None = None
    """Key of `cert_file`, unless that file holds it."""
    key_password: Secret | None = None

    @model_validator(mode="after")
    def _key_of_a_certificate(self) -> TlsSettings:
        for name in ("key_file", "key_password"):
            if getattr(self, name) is not None and self.cert_file is None:
                raise ValueError(f"{name} is of a client's certificate, and no cert_file is given")
        return self

    @property
    def value(self) -> Tls:
        """Return the value for connections."""
        return Tls(self.ca_file, self.cert_file, self.key_file, self.key_password)


class SaslSettings(Section):
    """Login."""

    mechanism: Mechanism | None = None
    """None: there is no login."""
    username: TextOrSecret | None = None
    password: Secret | None = None
    token: TextOrSecret | None = None
    """`module:function`, `aws-msk:REGION`, or a reference."""
    kerberos_service_name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+$")
    """Kerberos' name of the brokers' service."""

    @field_validator("token")
    @classmethod
    def _names_a_source(cls, value: str | SecretRef | None) -> str | SecretRef | None:
        if isinstance(value, str) and not names_token_source(value):
            raise ValueError(
                "must name where tokens come from, module:function, aws-msk:REGION or a reference such as ${file:/path}: "
                "no token stands in a conf"
            )
        return value

    @field_validator("username")
    @classmethod
    def _can_be_sent(cls, value: str | SecretRef | None) -> str | SecretRef | None:
        if isinstance(value, str) and "\0" in value:
            raise ValueError("has a NUL in it, which no login can say")
        return value

    @model_validator(mode="after")
    def _fits_the_mechanism(self) -> SaslSettings:
        given = [
            name
            for name in ("username", "password", "token", "kerberos_service_name")
            if getattr(self, name) is not None
        ]
        if self.mechanism is None:
            if given:
                raise ValueError(f"mechanism is missing, and {given[0]} is of a login")
            return self
        takes, said = _TAKEN_BY[self.mechanism], self.mechanism.value
        for name in takes:
            if name not in given and name != "kerberos_service_name":
                raise ValueError(f"{name} is missing, which mechanism {said} takes")
        for name in given:
            if name not in takes:
                raise ValueError(
                    f"{name} has no meaning with mechanism {said}, which takes {' and '.join(takes)}"
                )
        return self


_TAKEN_BY: Mapping[Mechanism, tuple[str, ...]] = {
    **{mechanism: ("username", "password") for mechanism in Mechanism if mechanism.has_password},
    Mechanism.OAUTHBEARER: ("token",),
    Mechanism.GSSAPI: ("kerberos_service_name",),
}


class SecuritySettings(Section):
    """Encryption and login of all connections to brokers."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: TlsSettings = TlsSettings()
    sasl: SaslSettings = SaslSettings()

    @model_validator(mode="after")
    def _fits_the_protocol(self) -> SecuritySettings:
        said = self.protocol.value
        if self.protocol.has_login and self.sasl.mechanism is None:
            raise ValueError(f"protocol {said} begins with a login, and sasl.mechanism is missing")
        if self.sasl.mechanism is not None and not self.protocol.has_login:
            raise ValueError(
                f"sasl.mechanism {self.sasl.mechanism.value} is a login, and protocol {said} has none: "
                "it is SASL_SSL, or SASL_PLAINTEXT without encryption"
            )
        given = [name for name in TlsSettings.model_fields if getattr(self.tls, name) is not None]
        if given and not self.protocol.is_encrypted:
            raise ValueError(
                f"tls.{given[0]} is of encrypted connections, and protocol {said} has none: it is SSL or SASL_SSL"
            )
        return self

    def value(self, listener: str | None = None) -> Security:
        """Return the value for connections."""
        sasl = self.sasl
        login = sasl.mechanism and Login(
            sasl.mechanism,
            sasl.username,
            sasl.password,
            sasl.token,
            sasl.kerberos_service_name or "kafka",
        )
        return Security(self.protocol, listener, self.tls.value, login or None)


class ZooKeeperTlsSettings(TlsSettings):
    """Encryption, trusted authorities and client certificate."""

    enabled: bool | None = None
    """None: where another key is given."""

    @property
    def given(self) -> str | None:
        """The first of the other keys that is."""
        return next(
            (name for name in TlsSettings.model_fields if getattr(self, name) is not None), None
        )

    @property
    def is_on(self) -> bool:
        """True if connections are encrypted."""
        return self.given is not None if self.enabled is None else self.enabled

    @model_validator(mode="after")
    def _is_of_what_is_on(self) -> ZooKeeperTlsSettings:
        if self.given is not None and not self.is_on:
            raise ValueError(f"{self.given} is of encrypted connections, and enabled is false")
        return self


class AuthSettings(Section):
    """Credentials for ZooKeeper."""

    scheme: Scheme | None = None
    """None: there is no login."""
    username: TextOrSecret | None = None
    password: Secret | None = None

    @model_validator(mode="after")
    def _fits_the_scheme(self) -> AuthSettings:
        for name in ("username", "password"):
            given = getattr(self, name) is not None
            if self.scheme is None:
                if given:
                    raise ValueError(f"scheme is missing, and {name} is of a login")
                continue
            if given and self.scheme is Scheme.X509:
                raise ValueError(
                    f"{name} has no meaning with scheme x509: who we are is what zookeeper.tls.cert_file says"
                )
            if not given and self.scheme is not Scheme.X509:
                raise ValueError(f"{name} is missing, which scheme {self.scheme.value} takes")
        if self.scheme is Scheme.DIGEST and isinstance(self.username, str) and ":" in self.username:
            raise ValueError("username has a colon in it, which ends a name in scheme digest")
        return self


class WayInSettings(Section):
    """How a server lets us in."""

    tls: ZooKeeperTlsSettings = ZooKeeperTlsSettings()
    auth: AuthSettings = AuthSettings()

    @model_validator(mode="after")
    def _is_somebody(self) -> WayInSettings:
        if self.auth.scheme is Scheme.X509 and self.tls.cert_file is None:
            raise ValueError(
                "auth.scheme x509 says who we are by a certificate, and tls.cert_file names none"
            )
        return self

    def entered(self, acl: Acl = Acl.OPEN) -> Access:
        """How every session begins."""
        auth = (
            None
            if self.auth.scheme is None
            else Auth(self.auth.scheme, self.auth.username, self.auth.password)
        )
        return Access(self.tls.value if self.tls.is_on else None, auth, acl)


class ZooKeeperSettings(WayInSettings):
    """ZooKeeper of the ledger and, in older clusters, of the brokers' registry."""

    connect: str
    """`host:port,host:port/chroot`, as Kafka's own `zookeeper.connect`."""
    session_timeout_s: float = Field(default=10, ge=1, le=3600)
    """Session timeout, and timeout of a connect."""
    acl: Acl = Acl.OPEN

    @field_validator("connect")
    @classmethod
    def _hosts_and_chroot(cls, value: str) -> str:
        split_connect(value)
        return value

    @model_validator(mode="after")
    def _guards_as_somebody(self) -> ZooKeeperSettings:
        if self.acl is Acl.CREATOR and self.auth.scheme is None:
            raise ValueError(
                "acl creator lets nobody but us change what the pipeline keeps, and auth.scheme does not say who we are"
            )
        return self

    @property
    def access(self) -> Access:
        """How every session begins."""
        return self.entered(self.acl)
