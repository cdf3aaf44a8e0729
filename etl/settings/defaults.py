"""What several confs have in common: the file that `defaults` names. Its keys hold where a conf has
none of its own.

Sections are put together key by key, anything else is taken whole from the conf where it is there.
Places and `${file:...}` in the file are seen from its own folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from etl.errors import SettingsError
from etl.settings.places import is_url
from etl.settings.references import resolve
from etl.settings.yaml_file import read_document

OF_ONE_PIPELINE = ("pipeline", "defaults")
"""Keys that such a file cannot have."""
_PLACES: Mapping[str, tuple[str, ...]] = {"table": ("path", "losses_path"), "report": ("path",)}
_PLACES_OF_NO_SECTION = ("metrics_path",)


@dataclass(frozen=True, slots=True)
class Defaults:
    """The keys of such a file."""

    path: str
    written: Mapping[str, Any]
    """As they stand there: a reference to a secret is one."""

    @property
    def meant(self) -> dict[str, Any]:
        """References replaced, places absolute. Raises SettingsError for a reference that leads
        nowhere.
        """
        return _placed(resolve(self.written, self.path), os.path.dirname(self.path))


def defaults_of(document: Any, conf: str) -> Defaults | None:
    """The file that this document of the conf names; None where it names none.

    Raises SettingsError for a file that is not there or holds no keys, or holds those that are one
    pipeline's.
    """
    named = document.get("defaults") if isinstance(document, dict) else None
    if not isinstance(named, str) or not named:
        return None  # another kind of value is refused with the other keys
    path = os.path.join(os.path.dirname(os.path.abspath(conf)), named)
    written = read_document(path, "the file of defaults")
    if not isinstance(written, dict):
        raise SettingsError(
            "a file of defaults is a mapping of keys, as a conf has them",
            path=path,
            check="its content",
        )
    for key in OF_ONE_PIPELINE:
        if key in written:
            check = (
                "the key: it stands in each conf"
                if key == "pipeline"
                else "the key: one file of defaults has no other below it"
            )
            raise SettingsError(
                f"a file of defaults cannot have the key {key}", path=path, key=key, check=check
            )
    return Defaults(path, written)


def over(defaults: Mapping[Any, Any], document: Mapping[Any, Any]) -> dict[Any, Any]:
    """The document, with the defaults where it has no key."""
    both = {
        key: over(value, document[key])
        for key, value in defaults.items()
        if isinstance(value, dict) and isinstance(document.get(key), dict)
    }
    return {**defaults, **document, **both}


def _placed(document: dict[str, Any], folder: str) -> dict[str, Any]:
    sections = {
        name: {**keys, **_seen(keys, places, folder)}
        for name, places in _PLACES.items()
        if isinstance(keys := document.get(name), dict)
    }
    return {**document, **sections, **_seen(document, _PLACES_OF_NO_SECTION, folder)}


def _seen(keys: Mapping[str, Any], places: tuple[str, ...], folder: str) -> dict[str, str]:
    return {
        key: seen_from(folder, keys[key])
        for key in places
        if isinstance(keys.get(key), str) and keys[key]
    }


def seen_from(folder: str, path: str) -> str:
    """`path` seen from that folder; an object store's URL is what it is."""
    return (
        path
        if is_url(path) or path.startswith(("file:", "~"))
        else os.path.normpath(os.path.join(folder, path))
    )
