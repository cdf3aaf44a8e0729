"""Where a table lies, as people write it: a folder of this machine, or an object store's URL. Pure functions of texts.

An object store is known by its `scheme://`; anything else, and `file://`, is a folder.
"""

from __future__ import annotations

import os
import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ONE_SLASH = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")


def is_url(path: str) -> bool:
    """Whether an object store is meant."""
    return "://" in path and not path.startswith("file:")


def folder_of(path: str) -> str | None:
    """The folder that `path` names; None for an object store."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return None if is_url(path) else path


def place_of(path: str) -> str:
    """The same text for the same place, however it is written: to compare, not to open."""
    folder = folder_of(path)
    return path.rstrip("/") if folder is None else os.path.abspath(folder)


def check_place(path: str) -> str:
    """The path itself. Raises ValueError for one that would be taken for another place than whoever wrote it means."""
    if path != path.strip() or "\0" in path:
        raise ValueError("it begins or ends with a blank, or holds a NUL")
    if path.startswith("~"):
        raise ValueError("it begins with ~, which only a shell knows; write the folder out")
    if _ONE_SLASH.match(path) or (is_url(path) and not _URL.match(path)):
        raise ValueError("it is no URL: those are SCHEME://PLACE")
    if path.startswith("memory:"):
        raise ValueError("it is a store that is gone with the process")
    if path.startswith("file:") and not re.match("file:/(?!/)|file:///", path):
        raise ValueError("it names no folder of this machine: file:///FOLDER does, or the folder alone")
    return path
