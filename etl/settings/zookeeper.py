"""The section `zookeeper` of a conf file."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from etl.model.zookeeper_access import Access, Acl, Auth, Scheme
from etl.settings.address import split_connect
from etl.settings.secrets import Secret, TextOrSecret
from etl.settings.section import Section
from etl.settings.security import TlsSettings


class AuthSettings(Section):
    """Who we are, as ZooKeeper is told."""

    scheme: Scheme
    username: TextOrSecret | None = None
    password: Secret | None = None

    @model_validator(mode="after")
    def _fits_the_scheme(self) -> AuthSettings:
        for name in ("username", "password"):
            given = getattr(self, name) is not None
            if given and self.scheme is Scheme.X509:
                raise ValueError(f"{name} has no meaning with scheme x509: who we are is what zookeeper.tls.cert_file says")
            if not given and self.scheme is not Scheme.X509:
                raise ValueError(f"{name} is missing, which scheme {self.scheme.value} takes")
        if self.scheme is Scheme.DIGEST and isinstance(self.username, str) and ":" in self.username:
            raise ValueError("username has a colon in it, which ends a name in scheme digest")
        return self


class ZooKeeperSettings(Section):
    """Where the ledger and, for clusters that have one, the brokers' registry are."""

    connect: str
    """`host:port,host:port/chroot`, as Kafka's own `zookeeper.connect`."""
    session_timeout_s: float = Field(default=10, ge=1, le=3600)
    connect_timeout_s: float = Field(default=10, gt=0, le=3600)
    tls: TlsSettings | None = None
    """Given, be it empty: each connection is encrypted."""
    auth: AuthSettings | None = None
    acl: Acl = Acl.OPEN

    @field_validator("connect")
    @classmethod
    def _hosts_and_chroot(cls, value: str) -> str:
        split_connect(value)
        return value

    @model_validator(mode="after")
    def _is_somebody(self) -> ZooKeeperSettings:
        has_certificate = self.tls is not None and self.tls.cert_file is not None
        if self.auth is not None and self.auth.scheme is Scheme.X509 and not has_certificate:
            raise ValueError("auth.scheme x509 says who we are by a certificate, and tls.cert_file names none")
        if self.acl is Acl.CREATOR and self.auth is None:
            raise ValueError("acl creator lets nobody but us change what the pipeline keeps, and auth does not say who we are")
        return self

    @property
    def access(self) -> Access:
        """How every session begins."""
        auth = None if self.auth is None else Auth(self.auth.scheme, self.auth.username, self.auth.password)
        return Access(None if self.tls is None else self.tls.value, auth, self.acl)
