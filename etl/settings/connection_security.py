"""How does a conf secure connections to brokers and ZooKeeper?

Lives here: the sections `source.security` and `zookeeper`.
"""

# Without `from __future__ import annotations`: pydantic would compile each annotation at import.

from collections.abc import Mapping
from typing import Self

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

    ca_file: FileOfEach | None = Field(
        default=None, description="PEM file with trusted authorities; null: the system's"
    )
    cert_file: FileOfEach | None = Field(
        default=None, description="PEM file with the client certificate"
    )
    key_file: FileOfEach | None = Field(
        default=None, description="PEM file with its key; null: cert_file contains it"
    )
    key_password: Secret | None = Field(default=None, description="Password of the key")

    @model_validator(mode="after")
    def _key_of_a_certificate(self) -> Self:
        for name in ("key_file", "key_password"):
            if getattr(self, name) is not None and self.cert_file is None:
                raise ValueError(
                    f"{name} belongs to a client certificate, and cert_file is missing"
                )
        return self

    @property
    def value(self) -> Tls:
        """Return the value for connections."""
        return Tls(self.ca_file, self.cert_file, self.key_file, self.key_password)


class SaslSettings(Section):
    """Login to brokers."""

    mechanism: Mechanism | None = Field(
        default=None,
        description="Kafka's sasl.mechanism, for brokers of 1.0 or later; null: no login",
    )
    username: TextOrSecret | None = Field(
        default=None, description="User of PLAIN or SCRAM, or a reference to it"
    )
    password: Secret | None = Field(default=None, description="Password of PLAIN or SCRAM")
    token: TextOrSecret | None = Field(
        default=None,
        description="OAUTHBEARER, for each connection: module:function (found where tasks run), "
        "aws-msk:REGION (extra aws-msk) or a reference: ${file:/run/token}",
    )
    kerberos_service_name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="GSSAPI (extra gssapi): service name of the brokers; null: kafka",
    )

    @field_validator("token")
    @classmethod
    def _names_a_source(cls, value: str | SecretRef | None) -> str | SecretRef | None:
        if isinstance(value, str) and not names_token_source(value):
            raise ValueError(
                "must name the source of tokens: module:function, aws-msk:REGION or a "
                "reference such "
                "as ${file:/path}. A conf contains no token"
            )
        return value

    @field_validator("username")
    @classmethod
    def _can_be_sent(cls, value: str | SecretRef | None) -> str | SecretRef | None:
        if isinstance(value, str) and "\0" in value:
            raise ValueError("contains a NUL")
        return value

    @model_validator(mode="after")
    def _fits_the_mechanism(self) -> Self:
        given = [
            name
            for name in ("username", "password", "token", "kerberos_service_name")
            if getattr(self, name) is not None
        ]
        if self.mechanism is None:
            if given:
                raise ValueError(f"mechanism is missing, and {given[0]} belongs to a login")
            return self
        takes = _KEYS_OF[self.mechanism]
        mechanism = self.mechanism.value
        for name in takes:
            if name not in given and name != "kerberos_service_name":
                raise ValueError(f"{name} is missing, which mechanism {mechanism} needs")
        for name in given:
            if name not in takes:
                raise ValueError(
                    f"{name} has no effect with mechanism {mechanism}, which takes "
                    f"{' and '.join(takes)}"
                )
        return self


_KEYS_OF: Mapping[Mechanism, tuple[str, ...]] = {
    **{mechanism: ("username", "password") for mechanism in Mechanism if mechanism.has_password},
    Mechanism.OAUTHBEARER: ("token",),
    Mechanism.GSSAPI: ("kerberos_service_name",),
}


class SecuritySettings(Section):
    """Encryption and login of all connections to brokers."""

    protocol: SecurityProtocol = Field(
        default=SecurityProtocol.PLAINTEXT, description="Protocol of the listener"
    )
    tls: TlsSettings = TlsSettings()
    sasl: SaslSettings = SaslSettings()

    @model_validator(mode="after")
    def _fits_the_protocol(self) -> Self:
        protocol = self.protocol.value
        if self.protocol.has_login and self.sasl.mechanism is None:
            raise ValueError(f"protocol {protocol} needs a login, and sasl.mechanism is missing")
        if self.sasl.mechanism is not None and not self.protocol.has_login:
            raise ValueError(
                f"sasl.mechanism {self.sasl.mechanism.value} needs a protocol with login, "
                f"not {protocol}: "
                "it is SASL_SSL, or SASL_PLAINTEXT without encryption"
            )
        given = [name for name in TlsSettings.model_fields if getattr(self.tls, name) is not None]
        if given and not self.protocol.is_encrypted:
            raise ValueError(
                f"tls.{given[0]} needs an encrypted protocol, SSL or SASL_SSL, not {protocol}"
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

    enabled: bool | None = Field(
        default=None,
        description="Encrypt connections, to the servers' secureClientPort; null: if another key "
        "of tls is set",
    )

    @property
    def given(self) -> str | None:
        """Return the first of the other keys that is set; None: none is."""
        return next(
            (name for name in TlsSettings.model_fields if getattr(self, name) is not None), None
        )

    @property
    def is_on(self) -> bool:
        """True if connections are encrypted."""
        return self.given is not None if self.enabled is None else self.enabled

    @model_validator(mode="after")
    def _is_of_what_is_on(self) -> Self:
        if self.given is not None and not self.is_on:
            raise ValueError(f"{self.given} has no effect, because enabled is false")
        return self


class AuthSettings(Section):
    """Login to ZooKeeper."""

    scheme: Scheme | None = Field(
        default=None,
        description="sasl: DIGEST-MD5; digest; x509: by tls.cert_file; null: no login",
    )
    username: TextOrSecret | None = Field(
        default=None, description="User of sasl or digest, or a reference to it"
    )
    password: Secret | None = Field(default=None, description="Password of sasl or digest")

    @model_validator(mode="after")
    def _fits_the_scheme(self) -> Self:
        for name in ("username", "password"):
            given = getattr(self, name) is not None
            if self.scheme is None:
                if given:
                    raise ValueError(f"scheme is missing, and {name} belongs to a login")
                continue
            if given and self.scheme is Scheme.X509:
                raise ValueError(
                    f"{name} has no effect with scheme x509, which uses zookeeper.tls.cert_file"
                )
            if not given and self.scheme is not Scheme.X509:
                raise ValueError(f"{name} is missing, which scheme {self.scheme.value} needs")
        if self.scheme is Scheme.DIGEST and isinstance(self.username, str) and ":" in self.username:
            raise ValueError("username contains a colon, which ends the name in scheme digest")
        return self


class AuthenticationSettings(Section):
    """Encryption and credentials of connections to ZooKeeper."""

    tls: ZooKeeperTlsSettings = ZooKeeperTlsSettings()
    auth: AuthSettings = AuthSettings()

    @model_validator(mode="after")
    def _has_certificate(self) -> Self:
        if self.auth.scheme is Scheme.X509 and self.tls.cert_file is None:
            raise ValueError(
                "auth.scheme x509 needs a client certificate, and tls.cert_file is missing"
            )
        return self

    def access_with(self, acl: Acl = Acl.OPEN) -> Access:
        """Return the value for sessions."""
        auth = None
        if self.auth.scheme is not None:
            auth = Auth(self.auth.scheme, self.auth.username, self.auth.password)
        tls = None
        if self.tls.is_on:
            tls = self.tls.value
        return Access(tls, auth, acl)


class ZooKeeperSettings(AuthenticationSettings):
    """ZooKeeper of the ledger and, in older clusters, of the brokers; `connect` is required."""

    connect: str = Field(
        description="host:port,host:port/chroot of the brokers' ZooKeeper, or of one for the "
        "ledger alone"
    )
    session_timeout_s: float = Field(
        default=10, ge=1, le=3600, description="Session timeout, and timeout of a connect"
    )
    acl: Acl = Field(
        default=Acl.OPEN,
        description="Who may change the ledger, for znodes that are created from then on. open: "
        "all; creator: this login",
    )

    @field_validator("connect")
    @classmethod
    def _hosts_and_chroot(cls, value: str) -> str:
        split_connect(value)
        return value

    @model_validator(mode="after")
    def _acl_has_identity(self) -> Self:
        if self.acl is Acl.CREATOR and self.auth.scheme is None:
            raise ValueError(
                "acl: creator restricts changes to this login, and auth.scheme is missing"
            )
        return self

    @property
    def access(self) -> Access:
        """Return the value for sessions of the ledger."""
        return self.access_with(self.acl)
