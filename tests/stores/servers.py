"""Servers of stores on this machine, each with an existing bucket or container, and their conf.

None is a cloud: moto checks no credentials, versitygw does, Azurite has no hierarchical namespace.
`python -m tests.stores.servers` fetches those that CI uses.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import http.client
import os
import shutil
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from etl.testkit.java_and_jars import (
    Artifact,
    alone,
    cache_folder,
    fetched,
    find_java,
    java_environment,
)
from etl.testkit.server_process import HOST, Server, answers
from etl.testkit.spark_launch import SHORT_RUN
from tests.stores.way import FaultyWay, RpcWay

if TYPE_CHECKING:
    import pytest

BUCKET = "lake"
KEY_VARIABLE, SECRET_VARIABLE = "ETL_TEST_STORE_KEY", "ETL_TEST_STORE_SECRET"


class StoreServer(Server):
    kind: str
    way: type[FaultyWay] = FaultyWay
    stop_within_s = 0.5
    """Its data is not used afterwards, and Azurite does not end on SIGTERM."""

    def __init__(self, folder: Path | str | None = None, port: int | None = None) -> None:
        super().__init__(self.kind, folder, port)
        self.reached_by = self.port
        """The port by which confs reach it: another one where something stands between."""

    @property
    @abstractmethod
    def secrets(self) -> Mapping[str, str]:
        """Variable of the environment -> secret."""

    def give_secrets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are in the environment, where confs refer to them."""
        for variable, secret in self.secrets.items():
            monkeypatch.setenv(variable, secret)

    @abstractmethod
    def url(self, name: str) -> str:
        """The path of a table of this name."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """`table.store` of a conf."""

    @abstractmethod
    def options(self) -> dict[str, str]:
        """delta-rs' options, written independently of the package."""

    @abstractmethod
    def make_bucket(self) -> None:
        """The bucket is there."""

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def is_ready(self) -> bool:
        return answers(self.port)

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.reached_by}"

    def __enter__(self) -> Self:
        super().__enter__()
        self.make_bucket()
        return self


class _S3(StoreServer):
    key, secret = "etl-key-of-tests", "etl-secret-of-tests"

    @property
    def secrets(self) -> Mapping[str, str]:
        return {KEY_VARIABLE: self.key, SECRET_VARIABLE: self.secret}

    def url(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}"

    def settings(self) -> dict[str, Any]:
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "allow_http": True,
            "access_key": f"${{env:{KEY_VARIABLE}}}",
            "secret_key": f"${{env:{SECRET_VARIABLE}}}",
        }

    def options(self) -> dict[str, str]:
        return {
            "aws_endpoint": f"http://{HOST}:{self.port}",
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
            "aws_access_key_id": self.key,
            "aws_secret_access_key": self.secret,
        }


class Moto(_S3):
    """S3 by moto, which believes everybody."""

    kind = "moto"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.port)]

    def make_bucket(self) -> None:
        request(self.port, "PUT", f"/{BUCKET}")


class VersityGateway(_S3):
    """S3 over a folder, by versitygw, which looks at keys and signatures."""

    kind = "versitygw"

    def command(self) -> list[str]:
        (self.folder / "buckets" / BUCKET).mkdir(parents=True, exist_ok=True)
        return [
            str(versitygw()),
            "--access",
            self.key,
            "--secret",
            self.secret,
            "--port",
            f"{HOST}:{self.port}",
            "posix",
            "buckets",
        ]

    def make_bucket(self) -> None:
        """A folder of its root is one."""


class Azurite(StoreServer):
    kind = "azurite"
    account = "devstoreaccount1"
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    """The one that everybody's Azurite has."""

    @property
    def secrets(self) -> Mapping[str, str]:
        return {SECRET_VARIABLE: self.key}

    def url(self, name: str) -> str:
        return f"abfss://{BUCKET}@{self.account}.dfs.core.windows.net/{name}"

    def settings(self) -> dict[str, Any]:
        return {
            "endpoint": f"{self.endpoint}/{self.account}",
            "allow_http": True,
            "account_key": f"${{env:{SECRET_VARIABLE}}}",
        }

    def options(self) -> dict[str, str]:
        return {
            "azure_storage_account_name": self.account,
            "azure_storage_account_key": self.key,
            "allow_http": "true",
            "azure_storage_endpoint": f"http://{HOST}:{self.port}/{self.account}",
        }

    def command(self) -> list[str]:
        main = azurite() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        return [
            "node",
            str(main),
            "--blobPort",
            str(self.port),
            "--location",
            str(self.folder),
            "--skipApiVersionCheck",
            "--silent",
        ]

    def make_bucket(self) -> None:
        date, version = email.utils.formatdate(usegmt=True), "2021-08-06"
        signed = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{version}\n/{self.account}/{self.account}/{BUCKET}\nrestype:container"
        proof = base64.b64encode(
            hmac.new(base64.b64decode(self.key), signed.encode(), hashlib.sha256).digest()
        ).decode()
        request(
            self.port,
            "PUT",
            f"/{self.account}/{BUCKET}?restype=container",
            {
                "x-ms-date": date,
                "x-ms-version": version,
                "Authorization": f"SharedKey {self.account}:{proof}",
            },
        )


class MiniDfs(StoreServer):
    """HDFS: a name node and a data node in one JVM, by Hadoop's own cluster for tests."""

    kind = "minidfs"
    way = RpcWay

    @property
    def secrets(self) -> Mapping[str, str]:
        return {}

    def url(self, name: str) -> str:
        return f"hdfs://{HOST}:{self.reached_by}/{BUCKET}/{name}"

    def settings(self) -> dict[str, Any]:
        return {}

    def options(self) -> dict[str, str]:
        return {}

    def command(self) -> list[str]:
        jars = fetched(
            "hadoop-minicluster-3.5.0",
            [
                Artifact("org.apache.hadoop", "hadoop-client-minicluster", "3.5.0"),
                Artifact("org.mockito", "mockito-core", "4.11.0"),
            ],
        )
        options = ["-Xmx400m", *SHORT_RUN.split(), "-cp", os.pathsep.join(map(str, jars))]
        return [
            str(find_java()),
            *options,
            "org.apache.hadoop.test.MiniDFSClusterManager",
            "-format",
            "-nnport",
            str(self.port),
            "-datanodes",
            "1",
            "-writeDetails",
            str(self._details),
            "-D",
            f"hdfs.minidfs.basedir={self.folder / 'data'}",
        ]

    def environment(self) -> dict[str, str]:
        return java_environment()

    def is_ready(self) -> bool:
        return self._details.exists()

    def make_bucket(self) -> None:
        """Writers create directories."""

    @property
    def _details(self) -> Path:
        return self.folder / "details.json"


STORES: Mapping[str, type[StoreServer]] = {
    "moto": Moto,
    "azurite": Azurite,
    "versitygw": VersityGateway,
    "minidfs": MiniDfs,
}


def request(port: int, method: str, path: str, headers: Mapping[str, str] | None = None) -> None:
    """One request to a server of this machine, which must be answered well."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    connection.request(method, path, headers={"Content-Length": "0", **(headers or {})})
    answer = connection.getresponse()
    assert answer.status in (200, 201), f"{answer.status} {answer.read()!r}"
    connection.close()


def azurite() -> Path:
    """The folder that npm put Azurite into, once."""
    return _installed(
        "azurite-3.37.0",
        lambda: ["npm", "install", "--no-fund", "--no-audit", "--prefix", ".", "azurite@3.37.0"],
    )


def versitygw() -> Path:
    folder = _installed(
        "versitygw-1.8.0",
        lambda: ["go", "install", "github.com/versity/versitygw/cmd/versitygw@v1.8.0"],
    )
    return folder / "versitygw"


def _installed(name: str, command: Any) -> Path:
    folder = cache_folder() / "tests" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder.with_name(f"{name}.lock")):
        if not (folder / "installed").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            subprocess.run(
                command(),
                cwd=folder,
                env={**os.environ, "GOBIN": str(folder)},
                check=True,
                stdout=subprocess.DEVNULL,
            )
            (folder / "installed").touch()
    return folder


if __name__ == "__main__":  # what `make test` needs of it, in parallel with its first tests
    if shutil.which("npm"):
        azurite()
