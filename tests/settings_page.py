"""Writes the tables of docs/SETTINGS.md from the settings: `python -m tests.settings_page`.

The text above the tables is written by hand and stays. Small sections share the first table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etl.settings.schema import conf_schema, describe_size, describe_values, schemas_in

PAGE = Path(__file__).parents[1] / "docs" / "SETTINGS.md"
TITLE = "## Keys\n"
SMALL_KEYS = 5
"""Largest number of keys of a section without a table of its own."""


def with_tables(page: str) -> str:
    """Return the page with the tables of all keys below its title `Keys`."""
    schema = conf_schema()
    rest = list[str]()
    tables = list[str]()
    for name, key in schema["properties"].items():
        rows = list(_rows(name, key))
        if len(rows) <= SMALL_KEYS:
            rest += rows
        else:
            tables.append(f"### `{name}`\n\n{key['description']}.\n\n{_table(rows)}")
    head = page.partition(TITLE)[0]
    return "\n".join([head + TITLE, _table(rest), *tables])


def _table(rows: list[str]) -> str:
    lines = ["| key | values | default | meaning |", "| --- | --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


def _rows(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the row of a key, or those of a section: its own keys before those of its sections."""
    keys = [(name, schema)]
    if "properties" in schema:
        keys = sorted(schemas_in(schema, f"{name}."), key=_depth)
    for key, one in keys:
        if "properties" not in one:
            cells = (f"`{key}`", describe_values(key, one), _default(key, one), one["description"])
            yield f"| {' | '.join(cells)} |"


def _depth(keyed: tuple[str, Mapping[str, Any]]) -> int:
    return keyed[0].count(".")


def _default(key: str, schema: Mapping[str, Any]) -> str:
    if "default" not in schema:
        is_optional = {"type": "null"} in schema.get("anyOf", ())
        return "null" if is_optional else "required"
    default = schema["default"]
    if "_bytes" in key:
        return describe_size(default)
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, list) and default:
        return ", ".join(default)
    if isinstance(default, float):
        return f"{default:g}"
    return str(default)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
