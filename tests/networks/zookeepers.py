"""ZooKeepers without a broker, to test logins: their requirements and their certificates differ."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.networks.certificates import Authority, Certificate
from tests.networks.secured_zookeeper import STRICT, SecuredZooKeeper, variable_of


class Servers:
    """Four of them: `plain` lets all in, `strict` few; the other two have certificates that prove
    nothing.
    """

    def __init__(self, folder: Path, running: contextlib.ExitStack) -> None:
        self.authority, self.stranger = (
            Authority(folder, "authority"),
            Authority(folder, "stranger"),
        )
        names = ("DNS:localhost", "IP:127.0.0.1")
        self.client, self.unknown = self.authority.signed("client"), self.stranger.signed("unknown")
        self.locked = self.authority.locked(self.client)
        own = self.authority.signed("zookeeper", *names)

        def server(
            name: str, certificate: Certificate, properties: Mapping[str, str] | None = None
        ) -> SecuredZooKeeper:
            return running.enter_context(
                SecuredZooKeeper(
                    folder / name, certificate, self.authority.ca, properties=properties
                )
            )

        self.plain, self.strict = server("plain", own), server("strict", own, STRICT)
        self.elsewhere = server(
            "elsewhere", self.authority.signed("other", "DNS:zookeeper.elsewhere")
        )
        self.expired = server("expired", self.authority.signed("expired", *names, days=-1))
        self.silent: str = running.enter_context(_listening())

    def trusted(self, **more: object) -> dict[str, str]:
        return {
            "ca_file": str(self.authority.ca),
            **{key: str(value) for key, value in more.items()},
        }


@contextlib.contextmanager
def _listening() -> Iterator[str]:
    """A port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"localhost:{listening.getsockname()[1]}"


def login(
    user: str = "etl", *, scheme: str = "sasl", variable: str | None = None
) -> dict[str, str]:
    return {
        "scheme": scheme,
        "username": user,
        "password": f"${{env:{variable or variable_of(user)}}}",
    }
