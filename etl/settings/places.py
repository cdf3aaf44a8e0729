"""Where a table lies, as people write it: a folder of this machine, or an object store's URL. No
file is looked at.

An object store is known by its `scheme://`; anything else, and `file://`, is a folder.
"""

from __future__ import annotations

import os
import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_CONTAINER_FIRST = ("abfs", "abfss", "wasb", "wasbs")
"""Azure's: CONTAINER@ACCOUNT."""
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


def not_apart(
    table: str, losses: str, reports: str, metrics: str | None = None
) -> tuple[str, str] | None:
    """Which key names a folder that is a table's own, or lies in one, and a sentence; None where
    each has its place.

    A report in the folder of a table to be makes it a folder that is no table, and VACUUM takes
    another table in it for rubbish.
    """
    for place, whose in ((table, "the table"), (losses, "the losses table")):
        if lies_in(reports, place):
            return "report.path", f"the reports' folder is in the folder of {whose}, {place}"
        if metrics and lies_in(metrics, place):
            return "metrics_path", f"the metrics are in the folder of {whose}, {place}"
    if lies_in(losses, table) or lies_in(table, losses):
        return "table.losses_path", f"the losses table and the table are in one folder, {table}"
    return None


def lies_in(path: str, other: str) -> bool:
    """Whether a path is that other place, or in its folder."""
    place, outer = one_scheme(place_of(path)), one_scheme(place_of(other))
    return place == outer or place.startswith(outer.rstrip("/") + "/")


def one_scheme(place: str) -> str:
    """The same for stores that several schemes name."""
    return re.sub("^(s3a|s3n)://", "s3://", re.sub("^abfs://", "abfss://", place))


def check_place(path: str) -> str:
    """The path itself. Raises ValueError for one that would be taken for another place than whoever
    wrote it means.
    """
    if path != path.strip() or "\0" in path:
        raise ValueError("it begins or ends with a blank, or holds a NUL")
    if re.search(r"[\x00-\x1f\x7f]", path):
        raise ValueError(
            "it holds a tab, a line end or another control character, with which delta-rs finds no path"
        )
    if path.startswith("~"):
        raise ValueError("it begins with ~, which only a shell knows; write the folder out")
    if _ONE_SLASH.match(path) or (is_url(path) and not _URL.match(path)):
        raise ValueError("it is no URL: those are SCHEME://PLACE")
    if is_url(path):
        _check_url(path)
    elif "\\" in path:
        raise ValueError(
            "it holds a backslash, which delta-rs takes for a slash, and Spark does not"
        )
    if path.startswith("memory:"):
        raise ValueError("it is a store that is gone with the process")
    if path.startswith("file:") and not re.match("file:/(?!/)|file:///", path):
        raise ValueError(
            "it names no folder of this machine: file:///FOLDER does, or the folder alone"
        )
    return path


def _check_url(path: str) -> None:
    """What the engines read otherwise of each other would be two places: rows would lie where
    nobody looks for them.
    """
    scheme, _, rest = path.partition("://")
    if scheme != scheme.lower():
        raise ValueError(
            f"its scheme is in capitals, which one of the engines does not know; write {scheme.lower()}://"
        )
    before, at, _ = rest.partition("/")[0].rpartition("@")
    if at and (":" in before or scheme not in _CONTAINER_FIRST):
        raise ValueError(
            "it names somebody before the @: keys and passwords are `table.store`'s, and stand in no path"
        )
    odd = re.search(r"[%?#\\]", rest)
    if odd:
        raise ValueError(
            f"it holds {odd[0]}, by which delta-rs finds another place in a store than Spark"
        )
    if any(part in ("", ".", "..") for part in rest.rstrip("/").split("/")[1:]):
        raise ValueError(
            "it holds //, . or .. as a part, which a store may take for a name and an engine does not"
        )
