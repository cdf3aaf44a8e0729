"""An authority and the certificates that it signed, as PEM files, by openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

KEY_PASSWORD = "of-the-key-alone"


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files with a certificate, its key, and both."""

    cert: Path
    key: Path
    both: Path


class Authority:
    """Signs whatever it is given; `ca` is its own certificate."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder / name
        self._folder.mkdir(parents=True)
        self.ca, self._key = self._folder / "ca.pem", self._folder / "ca.key"
        _openssl(
            "req",
            "-x509",
            *_NEW,
            "-keyout",
            str(self._key),
            "-out",
            str(self.ca),
            "-subj",
            f"/CN={name}",
            "-days",
            "2",
        )

    def signed(self, name: str, *names: str, days: int = 2) -> Certificate:
        """For `names` such as DNS:localhost; one of minus one day has expired."""
        made = [self._folder / f"{name}.{end}" for end in ("pem", "key", "both.pem")]
        cert, key, both = made
        request = self._folder / f"{name}.csr"
        more = ("-addext", f"subjectAltName={','.join(names)}") if names else ()
        _openssl(
            "req", *_NEW, "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}", *more
        )
        _openssl(
            "x509",
            "-req",
            "-in",
            str(request),
            "-CA",
            str(self.ca),
            "-CAkey",
            str(self._key),
            "-CAcreateserial",
            "-days",
            str(days),
            "-copy_extensions",
            "copy",
            "-out",
            str(cert),
        )
        both.write_text(key.read_text() + cert.read_text() + self.ca.read_text())
        return Certificate(cert, key, both)

    def locked(self, own: Certificate) -> Path:
        """The same key under `KEY_PASSWORD`."""
        locked = own.key.with_suffix(".locked")
        _openssl(
            "pkcs8",
            "-topk8",
            "-in",
            str(own.key),
            "-out",
            str(locked),
            "-passout",
            f"pass:{KEY_PASSWORD}",
        )
        return locked


_NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*words: str) -> None:
    done = subprocess.run(
        ["openssl", *words], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
