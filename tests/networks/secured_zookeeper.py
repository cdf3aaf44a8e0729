"""Real ZooKeepers: in the clear and by TLS, with SASL, digest or a certificate."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.security import make_digest_acl_credential

from etl.testkit.cluster import ZooKeeper
from etl.testkit.server_process import HOST, free_port
from tests.networks.certificates import Certificate
from tests.system.driving import session_at

USERS = {
    "etl": "hunter2-of-znodes",
    "another": "another-of-znodes",
    "kafka": "of-the-broker",
    "super": "of-the-superuser",
}
"""Whom SASL knows, and their passwords; the last one may do all by scheme digest."""
_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
_PROVIDERS = "org.apache.zookeeper.server.auth."
STRICT = {"ssl.clientAuth": "need", "sessionRequireClientSASLAuth": "true"}
"""A certificate is required on the encrypted port, and a login by SASL on both."""


class SecuredZooKeeper(ZooKeeper):
    """`port` is plain and `tls_port` encrypted; logins and certificates are optional."""

    def __init__(
        self,
        folder: Path,
        own: Certificate,
        ca: Path,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.tls_port = free_port()
        known = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
        jaas = logged_in(folder, f"Server {{ {_MODULE} required {known}; }};")
        superuser = f"-Dzookeeper.DigestAuthenticationProvider.superDigest={make_digest_acl_credential('super', USERS['super'])}"
        stores = {"keyStore": own.both, "trustStore": ca}
        super().__init__(
            folder,
            port=port,
            options=[jaas, superuser],
            properties={
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "secureClientPort": str(self.tls_port),
                "secureClientPortAddress": HOST,
                "ssl.clientAuth": "want",
                **{f"ssl.{store}.location": str(file) for store, file in stores.items()},
                **{f"ssl.{store}.type": "PEM" for store in stores},
                "authProvider.sasl": f"{_PROVIDERS}SASLAuthenticationProvider",
                "authProvider.x509": f"{_PROVIDERS}X509AuthenticationProvider",
                **(properties or {}),
            },
        )

    @property
    def encrypted(self) -> str:
        """`localhost:port`, as `connect` is of the other one; the certificate names that host."""
        return f"localhost:{self.tls_port}"

    def entered(
        self, user: str | None = None, *, chroot: str = ""
    ) -> contextlib.AbstractContextManager[KazooClient]:
        """A session of kazoo, with that SASL user or without a login."""
        if user:
            login = {
                "sasl_options": {
                    "mechanism": "DIGEST-MD5",
                    "username": user,
                    "password": USERS[user],
                }
            }
        else:
            login = {}
        return session_at(self.connect + chroot, **login)


def broker_options(folder: Path) -> list[str]:
    """The settings with which a broker logs in as `kafka`."""
    return [
        logged_in(
            folder,
            f'Client {{ {_MODULE} required username="kafka" password="{USERS["kafka"]}"; }};',
        )
    ]


def logged_in(folder: Path, jaas: str) -> str:
    """The option for a JVM that finds its logins there."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "jaas.conf"
    file.write_text(jaas)
    return f"-Djava.security.auth.login.config={file}"


def variable_of(user: str) -> str:
    """Where the confs of these tests find a user's password."""
    return f"ZOOKEEPER_PASSWORD_OF_{user.upper()}"
