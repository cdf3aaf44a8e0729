"""The data source's options of encryption and login, text to values; references stay references. No
I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etl.errors import SettingsError
from etl.model.security import OPEN, OPEN_ZOOKEEPER, Access, Security
from etl.reader.advice import in_options
from etl.reader.option_names import SECURITY, ZOOKEEPER_SECURITY


def security_said(options: Mapping[str, str]) -> Security:
    """Encryption and login, by the keys of a conf. Raises SettingsError that names the option."""
    said = _said(options, SECURITY)
    if not said:
        return OPEN
    if "listener" in said and "zookeeper" not in options:
        raise SettingsError(
            "listener chooses among the addresses that brokers register in ZooKeeper",
            option="listener",
            check="leave the option out, or give zookeeper in the place of bootstrap",
        )
    if "protocol" in said:
        said["protocol"] = said["protocol"].strip().upper()
    from etl.settings.load import security_of

    try:
        return security_of(said)
    except SettingsError as error:
        raise in_options(error) from None


def zookeeper_access_said(options: Mapping[str, str]) -> Access:
    """The same of ZooKeeper. Raises SettingsError that names the option."""
    named = next((name for name in ZOOKEEPER_SECURITY if name in options), None)
    if named is None:
        return OPEN_ZOOKEEPER
    if "zookeeper" not in options:
        raise SettingsError(
            f"{named} says how ZooKeeper is entered, and none is given",
            option=named,
            check="leave the option out, or give zookeeper in the place of bootstrap",
        )
    said = _said(options, ZOOKEEPER_SECURITY)
    if "zookeeper_tls" in options:
        said["tls"]["enabled"] = {"true": True, "false": False}.get(
            options["zookeeper_tls"].strip().lower(), options["zookeeper_tls"]
        )
    from etl.settings.load import access_of

    try:
        return access_of(said)
    except SettingsError as error:
        raise in_options(error) from None


def _said(options: Mapping[str, str], keys: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name, (*section, key) in keys.items():
        if name in options:
            (said.setdefault(section[0], {}) if section else said)[key] = options[name]
    return said
