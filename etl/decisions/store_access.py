"""What each of the two engines is told of the store that a table lies in, and when it is probed.
Pure functions of values.

Secrets stay references here, which the edges replace at the moment of use (adr/0035). Nothing given
is nothing told: then each engine finds endpoint and credentials by its own chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from etl.model.plans import Plan
from etl.model.security import SecretRef
from etl.settings.table import StoreKind, StoreSettings, account_of, kind_of

Told = Mapping[str, str | SecretRef]
"""A key of an engine -> its value, or where that is found."""
_REGION_OF_ENDPOINTS = "us-east-1"
"""A signature names a region; a store of its own endpoint, which has none, takes this one."""

_DAY_MS = 86_400_000


def is_probe_due(stored: Plan | None, now_ms: int) -> bool:
    """Whether no stored plan shows that the table's store was probed on this day (UTC).

    A plan is stored only behind a successful probe of its day, and a run reads the newest plan
    anyway: nothing else remembers a probe.
    """
    return stored is None or stored.created_at_ms // _DAY_MS != now_ms // _DAY_MS


def told_delta_rs(path: str, store: StoreSettings) -> Told:
    """Storage options of delta-rs."""
    kind = kind_of(path)
    if kind is StoreKind.S3:
        return _given(
            {
                "AWS_ENDPOINT_URL": store.endpoint,
                "AWS_REGION": _region(store),
                "AWS_ALLOW_HTTP": _yes(store.allow_http),
                "AWS_ACCESS_KEY_ID": store.access_key,
                "AWS_SECRET_ACCESS_KEY": store.secret_key,
            }
        )
    if kind is StoreKind.AZURE and store.said:
        return _given(
            {
                "AZURE_STORAGE_ACCOUNT_NAME": account_of(path),
                "AZURE_STORAGE_ACCOUNT_KEY": store.account_key,
                "AZURE_STORAGE_ENDPOINT": store.endpoint,
                "allow_http": _yes(store.allow_http),
            }
        )
    return {}


def told_hadoop(path: str, store: StoreSettings) -> Told:
    """Settings of Hadoop's client, for this bucket or this account alone: others that a transform
    reads keep theirs.
    """
    kind = kind_of(path)
    if kind is StoreKind.S3:
        bucket = f"fs.s3a.bucket.{urlsplit(path).netloc}"
        return _given(
            {
                f"{bucket}.endpoint": store.endpoint,
                f"{bucket}.endpoint.region": _region(store),
                f"{bucket}.path.style.access": _yes(store.endpoint is not None),
                f"{bucket}.connection.ssl.enabled": "false"
                if (store.endpoint or "").startswith("http://")
                else None,
                f"{bucket}.access.key": store.access_key,
                f"{bucket}.secret.key": store.secret_key,
                f"{bucket}.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
                if store.access_key is not None
                else None,
            }
        )
    if kind is StoreKind.AZURE:
        return _given(
            {
                f"fs.azure.account.key.{_host(path)}": store.account_key,
                **_azure_elsewhere(path, store),
            }
        )
    return {}


def _azure_elsewhere(path: str, store: StoreSettings) -> Mapping[str, str | None]:
    """What is not Azure itself speaks its protocol of blobs, on a port of its own, and has no
    hierarchical namespace.

    Most of that Hadoop asks of all accounts alike.
    """
    if store.endpoint is None:
        return {}
    found, host = urlsplit(store.endpoint), _host(path)
    return {
        f"fs.azure.abfs.endpoint.{host}": f"{found.hostname}:{found.port or (443 if found.scheme == 'https' else 80)}",
        **(
            {
                "fs.azure.always.use.https": "false",
                "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",
            }  # the other one wants TLS
            if found.scheme == "http"
            else {}
        ),
        "fs.azure.account.hns.enabled": "false",
        "fs.azure.fns.account.service.type": "BLOB",
    }


def _region(store: StoreSettings) -> str | None:
    return store.region or (_REGION_OF_ENDPOINTS if store.endpoint is not None else None)


def _host(path: str) -> str:
    return urlsplit(path).netloc.rpartition("@")[2]


def _yes(value: bool) -> str | None:
    return "true" if value else None


def _given(told: Mapping[str, str | SecretRef | None]) -> Told:
    return {key: value for key, value in told.items() if value is not None}
