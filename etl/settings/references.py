"""References in a conf file, `${env:NAME}` and `${file:/path}`: secrets come by them only.

A relative file is seen from the conf file's folder. References of secret keys stay references, and
files that each process opens for itself stay relative: what they come to is decided where they are
used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from etl.errors import SettingsError
from etl.model.security import LocalFile, parse_reference
from etl.settings.secrets import FILE_KEYS, SECRET_KEYS
from etl.settings.yaml_file import SECRET_MAX_BYTES, read_text

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


def reference_at(document: Any, loc: Sequence[int | str]) -> str | None:
    """The text at that place of the file as it was written, when it holds a reference."""
    for part in loc:
        children = dict(enumerate(document)) if isinstance(document, list) else document
        if not isinstance(children, dict):
            break
        document = children.get(part)
    return document if isinstance(document, str) and _REFERENCE.search(document) else None


def resolve(value: Any, path: str | None, key: str = "") -> Any:
    """Replace `${env:NAME}` and `${file:/path}` in every text, but for those of `secrets`."""
    if isinstance(value, dict):
        return {k: resolve(v, path, f"{key}.{k}".lstrip(".")) for k, v in value.items()}
    if isinstance(value, list):
        return [resolve(v, path, f"{key}.{i}") for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value
    if key in SECRET_KEYS:
        return parse_reference(value, _folder(path)) or value
    meant = _REFERENCE.sub(lambda found: _referenced(found[1], found[2], path, key), value)
    return LocalFile(meant, _folder(path)) if key in FILE_KEYS and meant else meant


def _referenced(kind: str, name: str, path: str | None, key: str) -> str:
    try:
        return (
            os.environ[name]
            if kind == "env"
            else read_text(_beside(path, name), SECRET_MAX_BYTES).strip()
        )
    except (KeyError, OSError, ValueError) as error:
        what = f"the {'environment variable' if kind == 'env' else 'file'} {name} it refers to cannot be read"
        raise SettingsError(
            what, path=path, key=key, check="that it is set where this command runs"
        ) from error


def _beside(conf: str | None, name: str) -> str:
    return os.path.join(_folder(conf) or "", name)


def _folder(conf: str | None) -> str | None:
    return os.path.dirname(os.path.abspath(conf)) if conf else None
