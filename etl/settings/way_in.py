"""The keys of encryption and login where there is no conf file: of a program's consumer, and of the
data source alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from etl.errors import SettingsError
from etl.model.security import OPEN, OPEN_ZOOKEEPER, Access, Security
from etl.settings.mistakes import conf_mistake
from etl.settings.security import SecuritySettings
from etl.settings.zookeeper import WayInSettings


def security_of(said: Security | Mapping[str, Any] | None) -> Security:
    """The same mapping as in a conf file, with `listener` beside the other keys; paths are seen
    from where a process works.

    Raises SettingsError that names the keys as they are in a conf.
    """
    if said is None or isinstance(said, Security):
        return said or OPEN
    keys = {name: value for name, value in said.items() if name != "listener"}
    listener = said.get("listener")
    if listener is not None and not (isinstance(listener, str) and listener):
        raise SettingsError(
            "the name of a listener is a text", key="source.listener", check="the listener's name"
        )
    try:
        return SecuritySettings.model_validate(keys).value(listener)
    except ValidationError as error:
        raise _mistake(error, "source", "security") from None


def access_of(said: Access | Mapping[str, Any] | None) -> Access:
    """The same of `zookeeper`: its keys `tls` and `auth`."""
    if said is None or isinstance(said, Access):
        return said or OPEN_ZOOKEEPER
    try:
        return WayInSettings.model_validate(dict(said)).entered()
    except ValidationError as error:
        raise _mistake(error, "zookeeper") from None


def _mistake(error: ValidationError, *section: str) -> SettingsError:
    found = [
        {**one, "loc": (*section, *one["loc"])}
        for one in error.errors(include_url=False, include_context=False)
    ]
    return conf_mistake(found, None, lambda place: None)
