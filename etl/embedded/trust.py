"""Owns one file: the certificates that Python trusts, as a Java key store.

A Java out of a pip package knows the public authorities only. Where a company's own authority signs
what comes from outside, Python and pip have been told so (the system's bundle, SSL_CERT_FILE), and
this passes it on.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
from pathlib import Path

_PASSWORD = "changeit"  # Java's own default: the store holds nothing secret, the digest only guards against damage
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
_SALT = b"Mighty Aphrodite"


def trust_options(folder: Path) -> list[str]:
    """Options that let Java trust whom Python trusts, with the store written into `folder`; none
    where Python knows nobody.
    """
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return []
    store = folder / "trusted.jks"
    unfinished = store.with_name(f"{store.name}.{os.getpid()}")
    unfinished.write_bytes(render_key_store(certificates))
    unfinished.replace(store)
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
    ]


def render_key_store(certificates: list[bytes]) -> bytes:
    """A JKS store, version 2, of DER certificates: head, entries, then SHA-1 over password, a fixed
    salt and all before it.
    """
    content = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        content += (
            struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"ca-{number}") + struct.pack(">q", 0)
        )
        content += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    return content + hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + content).digest()


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")
