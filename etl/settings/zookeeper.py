"""The section `zookeeper` of a conf file."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from etl.model.security import Access, Acl, Auth, Scheme
from etl.settings.address import split_connect
from etl.settings.secrets import Secret, TextOrSecret
from etl.settings.section import Section
from etl.settings.security import TlsSettings


class ZooKeeperTlsSettings(TlsSettings):
    """Whether connections are encrypted, whom we trust, and who we are."""

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
        """Whether connections are encrypted."""
        return self.given is not None if self.enabled is None else self.enabled

    @model_validator(mode="after")
    def _is_of_what_is_on(self) -> ZooKeeperTlsSettings:
        if self.given is not None and not self.is_on:
            raise ValueError(f"{self.given} is of encrypted connections, and enabled is false")
        return self


class AuthSettings(Section):
    """Who we are, as ZooKeeper is told."""

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
    """Where the ledger and, for clusters that have one, the brokers' registry are."""

    connect: str
    """`host:port,host:port/chroot`, as Kafka's own `zookeeper.connect`."""
    session_timeout_s: float = Field(default=10, ge=1, le=3600)
    connect_timeout_s: float = Field(default=10, gt=0, le=3600)
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
