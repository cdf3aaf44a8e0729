"""A real broker with a listener for each protocol, and some that are misconfigured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kazoo.client import KazooClient

from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import free_port
from tests.networks.certificates import Authority
from tests.networks.secured_zookeeper import SecuredZooKeeper, broker_options, variable_of
from tests.networks.tokens import USER, unsecured_token
from tests.system.driving import Pipeline

MakePipeline = Callable[..., Pipeline]
PASSWORD = "hunter2-of-all"
CHROOT = "/kafka"
ODD_USER = "e=t,l"
LISTENERS = {
    "SSL": "SSL",
    "MUTUAL": "SSL",
    "OTHER_NAME": "SSL",
    "EXPIRED": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "SHORT": "SASL_PLAINTEXT",
    "PLAIN_ONLY": "SASL_PLAINTEXT",
}
REAUTH_MS = 4000
"""Of logins on the listener SHORT."""
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


class Secured:
    """The cluster, and what there is to enter it by."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.stranger = (
            Authority(folder, "authority"),
            Authority(folder, "stranger"),
        )
        names = ("DNS:localhost", "IP:127.0.0.1")
        self.broker = self.authority.signed("broker", *names)
        self.client, self.unknown = self.authority.signed("client"), self.stranger.signed("unknown")
        self._others = {
            "OTHER_NAME": self.authority.signed(
                "elsewhere", "DNS:broker.elsewhere", "DNS:other.elsewhere"
            ),
            "EXPIRED": self.authority.signed("expired", *names, days=-1),
        }
        self.ports = {name: free_port() for name in LISTENERS}
        self.plain_port = free_port()
        self.cluster = EmbeddedCluster(
            chroot=CHROOT,
            folder=folder / "cluster",
            properties=self._properties(),
            java_options=broker_options(folder / "login"),
        )
        self.cluster.brokers[0].port = self.plain_port
        replaced = self.cluster.zookeeper
        self.zookeeper = SecuredZooKeeper(
            replaced.folder, self.broker, self.authority.ca, port=replaced.port
        )
        self.cluster.zookeeper = self.zookeeper

    def _properties(self) -> dict[str, str]:
        ports = {"PLAINTEXT": self.plain_port, **self.ports}
        protocols = {"PLAINTEXT": "PLAINTEXT", **LISTENERS}
        return {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
            "advertised.listeners": ",".join(
                f"{name}://localhost:{port}" for name, port in ports.items()
            ),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in protocols.items()
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "zookeeper.set.acl": "true",
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.broker.both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.ca),
            "listener.name.mutual.ssl.client.auth": "required",
            **{
                f"listener.name.{name.lower()}.ssl.keystore.{key}": value
                for name, one in self._others.items()
                for key, value in (("type", "PEM"), ("location", str(one.both)))
            },
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            **{
                f"listener.name.{name.lower()}.{mechanism}.sasl.jaas.config": login
                for name in ("SASL_PLAINTEXT", "SASL_SSL", "SHORT", "PLAIN_ONLY")
                for mechanism, login in _JAAS.items()
            },
            "listener.name.plain_only.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.short.plain.connections.max.reauth.ms": str(REAUTH_MS),
            "connection.failed.authentication.delay.ms": "300",
        }

    def __enter__(self) -> Secured:
        self.cluster.__enter__()
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.plain_port}"})
        made = admin.alter_user_scram_credentials(
            [
                UserScramCredentialUpsertion(
                    user, ScramCredentialInfo(kind, 4096), PASSWORD.encode()
                )
                for user in (USER, ODD_USER)
                for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
            ]
        )
        for one in made.values():
            one.result(30)
        return self

    def __exit__(self, *error: Any) -> None:
        self.cluster.__exit__(*error)

    def security(
        self, protocol: str, mechanism: str = "", *, listener: str | None = None, **tls: Any
    ) -> dict[str, Any]:
        """Keys of `source` for a way in that works; secrets are in variables that the test sets."""
        sasl: dict[str, Any] = {}
        if mechanism == "OAUTHBEARER":
            sasl = {"mechanism": mechanism, "token": "tests.networks.tokens:token"}
        elif mechanism:
            sasl = {"mechanism": mechanism, "username": USER, "password": "${env:KAFKA_PASSWORD}"}
        trusted = {"ca_file": str(self.authority.ca), **tls} if protocol.endswith("SSL") else {}
        return {
            "listener": listener or protocol,
            "security": {"protocol": protocol, "tls": trusted, "sasl": sasl},
        }

    def zookeeper_by(
        self,
        scheme: str | None,
        *,
        encrypted: bool = False,
        user: str = "etl",
        acl: str = "open",
        **tls: Any,
    ) -> dict[str, Any]:
        """Keys of `zookeeper` that work; passwords are in variables."""
        place = self.zookeeper.encrypted if encrypted else self.zookeeper.connect
        keys: dict[str, Any] = {"connect": place + CHROOT, "acl": acl}
        if encrypted:
            if scheme == "x509":
                own = {"cert_file": str(self.client.cert), "key_file": str(self.client.key)}
            else:
                own = {}
            keys["tls"] = {"ca_file": str(self.authority.ca), **own, **tls}
        if scheme:
            if scheme == "x509":
                who = {}
            else:
                who = {"username": user, "password": f"${{env:{variable_of(user)}}}"}
            keys["auth"] = {"scheme": scheme, **who}
        return keys

    @contextlib.contextmanager
    def allow(self, kind: str, name: str, operation: str, *, user: str = USER) -> Iterator[None]:
        """Allow an operation to this user. A resource with an ACL is closed for all others."""
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.plain_port}"})
        acl = AclBinding(
            ResourceType[kind],
            name,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for made in admin.create_acls([acl]).values():
            made.result(30)
        try:
            yield
        finally:
            same = AclBindingFilter(
                acl.restype,
                acl.name,
                acl.resource_pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )
            for deleted in admin.delete_acls([same]).values():
                deleted.result(30)

    def token(self) -> str:
        """One that the broker takes, for an hour."""
        return unsecured_token()


_JAAS = {
    "plain": f'{_PLAIN} required username="broker" password="none" user_{USER}="{PASSWORD}";',
    "scram-sha-256": f"{_SCRAM} required;",
    "scram-sha-512": f"{_SCRAM} required;",
    "oauthbearer": f'{_OAUTH} required unsecuredLoginStringClaim_sub="broker";',
}


Rights = frozenset[tuple[str, str, int]]
EVERYBODY: Rights = frozenset({("world", "anyone", 31)})


def guarded_for(*who: tuple[str, str]) -> Rights:
    """These do all, and everybody reads."""
    return frozenset({("world", "anyone", 1), *((scheme, name, 31) for scheme, name in who)})


def below(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    for name in client.get_children(path):
        yield from below(client, f"{path}/{name}")


def rights(secured: Secured, pipeline: Pipeline) -> tuple[set[Rights], set[Rights]]:
    """ACLs of what the group's pipelines keep, and of what its consumers share."""
    kept, shared = set[Rights](), set[Rights]()
    with secured.zookeeper.entered(chroot=CHROOT) as stranger:
        for path in below(stranger, f"/consumers/{pipeline.group}"):
            found = frozenset(
                (acl.id.scheme, acl.id.id, acl.perms) for acl in stranger.get_acls(path)[0]
            )
            (kept if path.count("/") > 3 and path.split("/")[3] == "etl" else shared).add(found)
    return kept, shared
