"""A login by Kerberos with the KDC of Debian's packages, only where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from etl.errors import PermissionDenied
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.settings.load import security_of
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import free_port
from tests.command_result import refused
from tests.system.driving import ROOT, WITHOUT_SPARK, Pipeline

_PATH = f"{os.environ['PATH']}:/usr/sbin"
pytestmark = [
    pytest.mark.networks,
    pytest.mark.skipif(shutil.which("krb5kdc", path=_PATH) is None, reason="apt install krb5-kdc"),
]
_WAY = {"protocol": "SASL_PLAINTEXT", "sasl": {"mechanism": "GSSAPI"}}
_CONF = """\
[libdefaults]
 default_realm = TEST
 dns_lookup_kdc = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
[realms]
 TEST = {{
  kdc = 127.0.0.1:{port}
  kdc_ports = {port}
  kdc_tcp_ports = {port}
  database_name = {folder}/principals
  key_stash_file = {folder}/stash
  acl_file = {folder}/acl
 }}
[domain_realm]
 localhost = TEST
"""


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A realm with the broker's principal and ours: the folder of its keytabs."""
    pytest.importorskip("gssapi", reason="pip install 'offset-range-etl[gssapi]'")
    folder = tmp_path_factory.mktemp("kerberos")
    conf = folder / "krb5.conf"
    conf.write_text(_CONF.format(port=free_port(), folder=folder))
    (folder / "acl").touch()
    environment = {
        **os.environ,
        "PATH": _PATH,
        "KRB5_CONFIG": str(conf),
        "KRB5_KDC_PROFILE": str(conf),
    }
    for words in (
        ["kdb5_util", "create", "-s", "-P", "master"],
        *(
            ["kadmin.local", "-q", question]
            for name, file in (("kafka/localhost", "kafka"), ("etl", "etl"))
            for question in (f"addprinc -randkey {name}", f"ktadd -k {folder}/{file}.keytab {name}")
        ),
    ):
        subprocess.run(words, env=environment, check=True, capture_output=True, timeout=60)
    with subprocess.Popen(
        ["krb5kdc", "-n"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        try:
            deadline = time.monotonic() + 20
            words = ["kinit", "-k", "-t", f"{folder}/etl.keytab", "-c", f"{folder}/ticket", "etl"]
            while subprocess.run(
                words, env=environment, capture_output=True, timeout=60, check=False
            ).returncode:
                assert time.monotonic() < deadline, "no ticket"
                time.sleep(0.2)
            yield folder
        finally:
            running.kill()


@pytest.fixture(scope="module")
def kerberized(
    kdc: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[EmbeddedCluster, int]]:
    """A broker, and the port of its listener that takes tickets."""
    module = "com.sun.security.auth.module.Krb5LoginModule"
    entered, plain = free_port(), free_port()
    keytab = (
        f'{module} required useKeyTab=true storeKey=true keyTab="{kdc}/kafka.keytab" '
        f'principal="kafka/localhost@TEST";'
    )
    with_listener = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},KERBEROS://127.0.0.1:{entered}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},KERBEROS://localhost:{entered}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,KERBEROS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.kerberos.gssapi.sasl.jaas.config": keytab,
    }
    cluster = EmbeddedCluster(
        folder=tmp_path_factory.mktemp("cluster"),
        properties=with_listener,
        java_options=[f"-Djava.security.krb5.conf={kdc}/krb5.conf"],
    )
    cluster.brokers[0].port = plain
    with cluster:
        yield cluster, entered


@pytest.fixture
def port(kerberized: tuple[EmbeddedCluster, int]) -> int:
    return kerberized[1]


@pytest.fixture
def pipeline(kerberized: tuple[EmbeddedCluster, int], tmp_path: Path) -> Pipeline:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    kerberized[0].create_topic(name, 2)
    source = {"listener": "KERBEROS", "security": _WAY}
    return Pipeline(
        kerberized[0], tmp_path, name, f"group-{name}", {"source": source}, everywhere=WITHOUT_SPARK
    )


def ours(kdc: Path, empty: Path, variable: str | None) -> dict[str, str]:
    """The environment of a user with a ticket, with a keytab, or with neither."""
    ticket = f"{kdc}/ticket" if variable == "KRB5CCNAME" else str(empty / "none")
    keytab = f"{kdc}/etl.keytab" if variable == "KRB5_CLIENT_KTNAME" else str(empty / "no.keytab")
    return {"KRB5_CONFIG": f"{kdc}/krb5.conf", "KRB5CCNAME": ticket, "KRB5_CLIENT_KTNAME": keytab}


@pytest.mark.parametrize("variable", ["KRB5CCNAME", "KRB5_CLIENT_KTNAME"])
def test_a_ticket_or_a_keytab_logs_in(
    kdc: Path, port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    for name, value in ours(kdc, tmp_path, variable).items():
        monkeypatch.setenv(name, value)
    with SimpleConsumer(
        "localhost", port, security=security_of(_WAY), request_timeout_s=20
    ) as consumer:
        assert consumer.topic_metadata(()).brokers[0].port == port


def test_a_missing_ticket_is_reported(
    kdc: Path, port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in ours(kdc, tmp_path, None).items():
        monkeypatch.setenv(name, value)
    with SimpleConsumer(
        "localhost", port, security=security_of(_WAY), request_timeout_s=20
    ) as consumer:
        with pytest.raises(PermissionDenied, match="The login by GSSAPI failed: "):
            consumer.topic_metadata(())


@pytest.mark.parametrize("variable", ["KRB5CCNAME", "KRB5_CLIENT_KTNAME"])
def test_runs_load_each_record_once_and_verify_doctor_and_peek_enter_alike(
    kdc: Path,
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    variable: str,
) -> None:
    for name, value in ours(kdc, tmp_path, variable).items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        pipeline.produce(40, partitions=2)
        assert "WARN" not in pipeline.ran().err
    assert pipeline.is_whole()
    for words in (("verify",), ("doctor",), ("lag",)):
        assert pipeline.door(*words).code == 0
    peeked = pipeline.door("records", "show", after=["-p", f"{pipeline.topic}:0", "-n", "3"])
    assert peeked.code == 0 and len(peeked.document["records"]) == 3, peeked.err


def test_tasks_of_spark_get_tickets_of_the_keytab_that_their_environment_names(
    kdc: Path, pipeline: Pipeline, tmp_path: Path
) -> None:
    pipeline.settings |= {
        "table": {"writer": "spark"},
        "limits": {"local_below_bytes": 0},
        "spark": {"spark.master": "local[2]"},
    }
    pipeline.produce(40, partitions=2)
    found_by = os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    )  # the library may be outside of the environment
    child = pipeline.start(
        "etl",
        "run",
        str(pipeline.conf),
        PYTHONPATH=found_by,
        **ours(kdc, tmp_path, "KRB5_CLIENT_KTNAME"),
    )
    _, err = child.communicate(timeout=240)
    assert child.returncode == 0, err
    assert pipeline.is_whole()


def test_a_run_without_a_ticket_ends_with_2_and_so_does_doctor(
    kdc: Path,
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name, value in ours(kdc, tmp_path, None).items():
        monkeypatch.setenv(name, value)
    pipeline.produce(4, partitions=2)
    refused(
        pipeline.run(),
        2,
        "The login by GSSAPI failed: ",
        "key source.security.sasl.mechanism",
    )
    looked = pipeline.door("doctor")
    assert looked.code == 2 and "The login by GSSAPI failed: " in looked.out
