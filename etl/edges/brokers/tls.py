"""A socket to TLS, and what each way to fail means: whom we do not trust, who does not trust us, what is no TLS, what of ours is wrong.

That the certificate is the host's is always checked. Files are read for each connection, so that renewed ones count from the next one on.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from etl.edges.brokers.broken import ConnectionBroken
from etl.errors import EtlError, NotKafka, PermissionRefused, SettingsError
from etl.model.security import LocalFile, SecretRef, Tls
from etl.settings.secrets import place_of_file, resolve_secret

_CA, _CERT, _KEY, _PASSWORD = (f"source.security.tls.{name}" for name in ("ca_file", "cert_file", "key_file", "key_password"))
_EXPIRED, _NOT_YET, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64
"""OpenSSL's X509_V_ERR_*; the others say in one way or another that nobody whom we trust signed it."""
_OF_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
_NO_TLS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG",
           "DATA_LENGTH_TOO_LONG")

_PORT = "source.security.protocol, and the port: brokers have one for each of their listeners"


def wrap(connected: socket.socket, host: str, tls: Tls, address: str) -> ssl.SSLSocket:
    """The same connection behind a handshake, within the time that the socket has. The socket is closed where that fails.

    Raises TimeoutError; ConnectionBroken where the other side hangs up; SettingsError, PermissionRefused and NotKafka.
    """
    with _closing_on_failure(connected):
        context, timeout_s = _context(tls), connected.gettimeout()
        try:
            peer = connected.getpeername()[:2]
            return context.wrap_socket(connected, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise _untrusted(error, lambda: _names(context, peer, host, timeout_s), host, tls, address) from None
        except ssl.SSLError as error:
            raise refused(error, address) or _no_handshake(error, address) from None
        except TimeoutError:
            raise
        except OSError as error:
            raise _no_tls(error.strerror or str(error), address) from None


def refused(error: ssl.SSLError, address: str) -> PermissionRefused | None:
    """What an error of TLS means, in a handshake or behind it; None: it says nothing of who may connect.

    From TLS 1.3 on a broker looks at our certificate behind the handshake: what it thinks of it comes with the first read.
    """
    reason = error.reason or ""
    if "ALERT" in reason and any(word in reason for word in _OF_CERTIFICATES):
        what = f"the broker does not take our certificate, or has to have one: {reason}"
        check = f"{_CERT}: a certificate of an authority that the broker trusts (ssl.truststore), not expired"
        return PermissionRefused(what, key=_CERT, broker=address, check=check)
    return None


def _no_handshake(error: ssl.SSLError, address: str) -> EtlError | ConnectionBroken:
    """Of a handshake alone: behind it the port has spoken TLS, and the same errors are a connection that broke."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return _no_tls("the other side hung up in the middle of the handshake", address)
    if (error.reason or "") in _NO_TLS:
        return NotKafka("the port does not speak TLS", broker=address, check=_PORT)
    what = f"the broker and this machine agree on no way to encrypt: {error.reason or error}"
    check = "ssl.enabled.protocols and ssl.cipher.suites of the broker"
    return SettingsError(what, key="source.security.protocol", broker=address, check=check)


def _no_tls(why: str, address: str) -> ConnectionBroken:
    """A broker that is being started again may do this once, and a port that is none does it each time."""
    each_time = NotKafka(f"the port does not speak TLS: {why}", broker=address, check=_PORT)
    return ConnectionBroken(f"in the handshake of TLS: {why}", answered=False, each_time=each_time)


def _untrusted(
    error: ssl.SSLCertVerificationError, names: Callable[[], list[str]], host: str, tls: Tls, address: str,
) -> SettingsError:
    place = {"key": _CA, "host": host, "file": "the system's authorities" if tls.ca_file is None else str(tls.ca_file)}
    if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
        what = f"the broker's certificate is of another host: {', '.join(names()) or 'which, is not known'}"
        check = "the address: it must be one of these names; or the certificate's names (subjectAltName)"
        return SettingsError(what, host=host, broker=address, check=check)
    if error.verify_code in (_EXPIRED, _NOT_YET):
        when = "has expired" if error.verify_code == _EXPIRED else "is not valid yet"
        return SettingsError(f"the broker's certificate, or one above it, {when}", **place, broker=address,
                             check="the certificates of the broker (ssl.keystore) and of its authority, and this machine's clock")
    what = f"nobody whom we trust has signed the broker's certificate: {error.verify_message}"
    return SettingsError(what, **place, broker=address, check=f"{_CA}: PEM, the certificate of the authority that signed the broker's")


def _names(context: ssl.SSLContext, peer: tuple[str, int], host: str, timeout_s: float | None) -> list[str]:
    """Those of the certificate, which is trusted but for its names. Asked for on a connection of its own, on which nothing is sent.

    It names the same host, since one port may have a certificate for each name (SNI).
    """
    context.check_hostname = False
    try:
        with socket.create_connection(peer, timeout=timeout_s) as other, context.wrap_socket(other, server_hostname=host) as told:
            found: Any = told.getpeercert() or {}
    except OSError:
        return []
    return [str(name) for _, name in found.get("subjectAltName", ())]


def _context(tls: Tls) -> ssl.SSLContext:
    with _telling(_CA, tls.ca_file):
        context = ssl.create_default_context(cafile=None if tls.ca_file is None else place_of_file(tls.ca_file))
    if tls.cert_file is not None:
        _load_own(context, tls.cert_file, tls)
    return context


def _load_own(context: ssl.SSLContext, cert_file: LocalFile, tls: Tls) -> None:
    for key, file in ((_CERT, cert_file), (_KEY, tls.key_file)):
        with _telling(key, file):
            if file is not None:
                open(place_of_file(file), "rb").close()
    password = _Password(tls.key_password)
    key_file = None if tls.key_file is None else place_of_file(tls.key_file)
    with _telling(_KEY if tls.key_file else _CERT, tls.key_file or cert_file, password):
        context.load_cert_chain(place_of_file(cert_file), key_file, password)


class _Password:
    """Of the key, where it has one. Without it OpenSSL would ask whoever sits at the terminal."""

    def __init__(self, reference: SecretRef | None) -> None:
        self._reference = reference
        self.was_asked = False

    def __call__(self) -> str:
        self.was_asked = True
        return "" if self._reference is None else resolve_secret(self._reference, _PASSWORD)


@contextmanager
def _telling(key: str, file: LocalFile | None, password: _Password | None = None) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        if password is not None and password.was_asked and error.reason != "KEY_VALUES_MISMATCH":
            what, key, check = "the password does not open the key", _PASSWORD, f"{_PASSWORD}, and that the key is whole"
        elif error.reason == "KEY_VALUES_MISMATCH":
            what, check = "the key is not the certificate's", f"{_CERT} and {_KEY}"
        else:
            what, check = f"the file holds nothing of the kind in PEM: {error.reason or 'it cannot be read'}", f"{key}, a PEM file"
        _refuse_file(what, key, file, check)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        _refuse_file(f"the file cannot be read: {why}", key, file, "that it is there on every machine that connects to brokers")


def _refuse_file(what: str, key: str, file: LocalFile | None, check: str) -> NoReturn:
    named = None if file is None else place_of_file(file)
    raise SettingsError(what, key=key, file=named, host=socket.gethostname(), check=check) from None


@contextmanager
def _closing_on_failure(connected: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connected.close()
        raise
