"""Who we say we are: what a login's references come to now."""

from __future__ import annotations

from kazoo.security import make_digest_acl_credential

from etl.errors import SettingsError
from etl.model.security import Access, Scheme, SecretRef
from etl.settings.secrets import login_text


def no_such_login() -> SettingsError:
    """Of a server that answers SASL with nothing."""
    check = "of every server: authProvider.sasl, and the section Server of its java.security.auth.login.config; or another scheme"
    return SettingsError(
        "the server has no login by SASL (DIGEST-MD5)", key="zookeeper.auth.scheme", check=check
    )


def said_of(access: Access, name: str) -> str:
    """`username` or `password`; nothing where there is no such login. Raises SettingsError that
    names the key and the machine.
    """
    said: str | SecretRef | None = getattr(access.auth, name, None)
    return "" if said is None else login_text(said, f"zookeeper.auth.{name}")


def id_of(access: Access) -> str | None:
    """As whom ACLs know us, `scheme:id`; None where only the server knows (a certificate's
    subject), and for nobody.
    """
    if access.auth is None or access.auth.scheme is Scheme.X509:
        return None
    if access.auth.scheme is Scheme.SASL:
        return f"sasl:{said_of(access, 'username')}"
    return f"digest:{make_digest_acl_credential(said_of(access, 'username'), said_of(access, 'password'))}"
