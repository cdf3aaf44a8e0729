"""Every connection security of a real broker, and every error of it."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from etl.errors import EtlError, PermissionDenied
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.settings.load import security_of
from tests.command_result import refused
from tests.networks.certificates import KEY_PASSWORD
from tests.networks.secured import ODD_USER, PASSWORD, REAUTH_MS, MakePipeline, Secured
from tests.networks.ways_that_fail import FAILING, Failing, Way, changed
from tests.system.driving import Pipeline

pytestmark = pytest.mark.networks


def entered(
    secured: Secured, way: Way, listener: str | None = None, host: str = "localhost"
) -> SimpleConsumer:
    """A connection with that security, after one request."""
    name = listener or way["listener"]
    port = secured.plain_port if name == "PLAINTEXT" else secured.ports[name]
    consumer = SimpleConsumer(
        host, port, security=security_of(way["security"]), request_timeout_s=20
    )
    try:
        assert consumer.topic_metadata(()).brokers[0].port == port
    except BaseException:
        consumer.close()
        raise
    return consumer


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_each_mechanism_logs_in_with_and_without_encryption(
    secured: Secured, protocol: str, mechanism: str
) -> None:
    entered(secured, secured.security(protocol, mechanism)).close()


def test_encryption_alone_by_name_by_address_and_with_a_certificate_of_our_own(
    secured: Secured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = secured.client
    entered(secured, secured.security("SSL")).close()
    entered(secured, secured.security("SSL"), host="127.0.0.1").close()
    monkeypatch.setenv("KEY_PASSWORD", KEY_PASSWORD)
    locked = secured.authority.locked(own)
    for given in (
        {"cert_file": str(own.cert), "key_file": str(own.key)},
        {"cert_file": str(own.both)},
        {
            "cert_file": str(own.cert),
            "key_file": str(locked),
            "key_password": "${env:KEY_PASSWORD}",
        },
    ):
        entered(secured, secured.security("SSL", listener="MUTUAL", **given)).close()


def test_a_name_that_scram_must_escape_logs_in(secured: Secured) -> None:
    entered(
        secured, changed(secured.security("SASL_SSL", "SCRAM-SHA-256"), username=ODD_USER)
    ).close()


@pytest.mark.parametrize("case", sorted(FAILING))
def test_a_failing_connection_is_reported_with_the_settings_of_both_sides(
    secured: Secured, case: str
) -> None:
    failing = FAILING[case]
    way, address = failing.entered(secured)
    host, _, port = address.rpartition(":")
    with SimpleConsumer(
        host, int(port), security=security_of(way["security"]), request_timeout_s=20
    ) as consumer:
        with pytest.raises(EtlError) as refused:
            consumer.topic_metadata(())
    error = refused.value
    assert PASSWORD not in f"{error} {error.as_json()} {error!r}"
    assert type(error) is failing.kind and re.search(failing.pattern, str(error)), str(error)
    assert (error.where.get("key"), error.exit_code) == (failing.key, failing.exit_code)
    assert {name: error.where.get(name) for name in failing.where} == {
        name: of(secured) for name, of in failing.where.items()
    }


def test_a_login_that_ends_is_made_anew_before_it_does_where_nothing_is_under_way(
    secured: Secured,
) -> None:
    with entered(secured, secured.security("SASL_PLAINTEXT", "PLAIN"), "SHORT") as consumer:
        first = consumer._exchange._open
        assert (
            first is not None
            and 0 < first[0].renew_at - time.monotonic() <= 0.85 * REAUTH_MS / 1000
        )
        begun = time.monotonic()
        while time.monotonic() < begun + 2 * REAUTH_MS / 1000:
            consumer.topic_metadata(())
            time.sleep(0.1)
        assert consumer._exchange._open is not first


def test_a_login_that_ended_unnoticed_costs_a_connect_and_nothing_else(secured: Secured) -> None:
    with entered(secured, secured.security("SASL_PLAINTEXT", "PLAIN"), "SHORT") as consumer:
        opened = consumer._exchange._open
        assert opened is not None
        opened[0].renew_at = float("inf")  # as if the broker had not reported it
        time.sleep(REAUTH_MS / 1000 + 0.5)
        assert consumer.topic_metadata(()).brokers


def test_a_renewed_password_counts_from_the_next_connection_on(
    secured: Secured, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("not yet\n")
    way = changed(secured.security("SASL_SSL", "PLAIN"), password=f"${{file:{tmp_path}/password}}")
    with SimpleConsumer(
        "localhost",
        secured.ports["SASL_SSL"],
        security=security_of(way["security"]),
        request_timeout_s=20,
    ) as consumer:
        with pytest.raises(PermissionDenied):
            consumer.topic_metadata(())
        (tmp_path / "password").write_text(f"{PASSWORD}\n")
        assert consumer.topic_metadata(()).brokers


ONE_OF_EACH = {
    (failing.kind, failing.key, *failing.where): case for case, failing in FAILING.items()
}
"""A case of each error, key and place; `test_ways_in` has all cases by a client."""


def failing_pipeline(failing: Failing, secured: Secured, piped: MakePipeline) -> Pipeline:
    """By the address: an unregistered listener is rejected before any connection."""
    way, address = failing.entered(secured)
    pipeline = piped(way, source={"listener": None, "bootstrap_servers": address})
    pipeline.produce(4)
    return pipeline


@pytest.mark.parametrize("case", sorted(ONE_OF_EACH.values()))
def test_run_and_doctor_end_with_the_exit_code_the_key_and_the_file_and_nothing_is_begun(
    secured: Secured,
    piped: MakePipeline,
    case: str,
) -> None:
    failing = FAILING[case]
    pipeline = failing_pipeline(failing, secured, piped)
    named = [
        *([f"key {failing.key}"] if failing.key else []),
        *(f"{name} {of(secured)}" for name, of in failing.where.items()),
    ]
    ran, looked = pipeline.run(), pipeline.door("doctor")
    refused(ran, failing.exit_code, *named)
    assert ran.document["error"] == failing.kind.__name__ and re.search(
        failing.pattern, " ".join(ran.err.split())
    ), ran.err
    lines = [
        line for line in looked.document["checks"] if line.get("error") == failing.kind.__name__
    ]
    reported = [
        f"{line['found']} {line['to_do']}"
        for line in lines
        if all(name in line["found"] for name in named)
    ]
    assert looked.code == failing.exit_code and any(
        re.search(failing.pattern, text) for text in reported
    ), looked.out
    assert not any(PASSWORD in text for value in (ran, looked) for text in (value.out, value.err))
    assert not pipeline.table.exists() and pipeline.committed() == {}
