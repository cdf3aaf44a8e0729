"""What does each key mean, for an editor and for a person whose conf is wrong?

The JSON Schema of a conf file, for editors: made of the settings themselves, so that it says
what they take.

It knows less than they do: what a text must look like, and which keys do not fit one another, is
told when the conf is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etl.settings.defaults import OF_ONE_PIPELINE
from etl.settings.mistakes import MEANINGS
from etl.settings.policies import GroupStrategy, StartAt
from etl.settings.secrets import REFERENCE_PATTERN
from etl.settings.sections import Settings

SCHEMA_FILE = "pipeline.schema.json"
"""Where a conf that we write looks for it, beside itself."""
_TEXT = {"type": "string", "minLength": 1}
_REFERENCE = {"type": "string", "pattern": REFERENCE_PATTERN}
"""Any value may come from a variable or a file, also one that is no text."""
_STRATEGY = {"enum": [one.value for one in GroupStrategy]}
_OWN_FORMS: Mapping[str, list[dict[str, Any]]] = {
    "source.start": [
        {"enum": [one.value for one in StartAt]},
        {
            "type": "object",
            "properties": {"timestamp": {"description": MEANINGS["source.start.timestamp"]}},
            "required": ["timestamp"],
            "additionalProperties": False,
        },
    ],
    "ownership.strategy": [_STRATEGY, {"type": "array", "minItems": 1, "items": _STRATEGY}],
    "spark": [
        {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
    ],
}
"""Keys whose values our own validators read: pydantic cannot say what these take."""
_EITHER: Mapping[str, tuple[str, ...]] = {"table": ("path", "name")}
"""Sections that need one of several keys."""


def conf_schema(*, for_defaults: bool = False) -> dict[str, Any]:
    """The schema of a conf; with `for_defaults` that of a file of defaults, which needs no key, and
    has none of one pipeline's.
    """
    whole = Settings.model_json_schema()
    keys = _section(whole, whole["$defs"], "")
    head = {"$schema": "http://json-schema.org/draft-07/schema#"}
    if for_defaults:
        properties = {
            name: key for name, key in keys["properties"].items() if name not in OF_ONE_PIPELINE
        }
        return {
            **head,
            "title": "what several pipelines of offset-range-etl have in common",
            **keys,
            "properties": properties,
        }
    by_defaults = {"required": ["defaults"], "properties": {"defaults": _TEXT}}
    needed = _needed(whole, whole["$defs"])
    return {
        **head,
        "title": "a pipeline of offset-range-etl",
        **keys,
        "required": ["pipeline"],
        "anyOf": [needed, by_defaults],
    }


def _section(node: Mapping[str, Any], known: Mapping[str, Any], above: str) -> dict[str, Any]:
    properties = {
        name: _key({**known[_name(key)], **key} if "$ref" in key else key, known, above + name)
        for name, key in node["properties"].items()
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _key(node: Mapping[str, Any], known: Mapping[str, Any], key: str) -> dict[str, Any]:
    told: dict[str, Any] = {"description": MEANINGS[key]}
    if "properties" in node:
        return {**told, **_section(node, known, f"{key}.")}
    if node.get("default") is not None:
        told["default"] = node["default"]
    return {**told, **_one_of(_OWN_FORMS.get(key) or _forms(node))}


def _forms(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the key takes, each form by itself: a list may be one text, and a value a reference."""
    forms = [
        {
            name: fact
            for name, fact in form.items()
            if name not in ("title", "default", "description", "$ref")
        }
        for form in node.get("anyOf", [node])
    ]
    if any(form.get("type") == "array" for form in forms):
        return [_TEXT, *forms]
    return (
        forms
        if _REFERENCE in forms or any(_is_any_text(form) for form in forms)
        else [*forms, _REFERENCE]
    )


def _is_any_text(form: Mapping[str, Any]) -> bool:
    return form.get("type") == "string" and not {"enum", "const", "pattern"} & form.keys()


def _one_of(forms: list[dict[str, Any]]) -> dict[str, Any]:
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def _needed(node: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that must be there, section by section."""
    sections = {
        name: known[_name(key)] for name, key in node["properties"].items() if "$ref" in key
    }
    below = {
        name: _needed(section, known)
        for name, section in sections.items()
        if section.get("required")
    }
    below |= {
        name: {"anyOf": [{"required": [key]} for key in keys]}
        for name, keys in _EITHER.items()
        if name in sections
    }
    return {"required": node["required"], **({"properties": below} if below else {})}


def _name(key: Mapping[str, Any]) -> str:
    return str(key["$ref"]).rpartition("/")[2]
