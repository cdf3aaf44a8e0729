"""What does each key mean, for an editor and in an error?

A key is described once, by its field in the settings classes: `description`, default, bounds, enum;
a section by the docstring of its class.

Lives here: the JSON Schema of conf files, derived from these classes; a key in words, derived from
the schema; error texts for invalid confs (the key, a suggestion, the key in words). The schema is
less strict than the settings: formats of texts and combinations of keys are checked when the conf
is loaded.
Not here: the page docs/SETTINGS.md, made of the same words (tests/settings_page.py).
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from etl.errors import SettingsError
from etl.settings.choices import GroupStrategy, StartAt
from etl.settings.conf_file import OF_ONE_PIPELINE, SHORT_FORMS
from etl.settings.secrets import INT64, REFERENCE_PATTERN, SIZE_PATTERN, UNITS, is_secret
from etl.settings.sections import Settings

SCHEMA_FILE = "pipeline.schema.json"
"""Name of the schema file that `etl init` writes next to a conf."""
_MESSAGES = {
    "missing": "is missing",
    "string_pattern_mismatch": "has a form that this key does not accept",
    "string_type": "must be a string",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys",
    "model_type": "must be a section with keys",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}
"""By pydantic's error type. Its own messages are about Python types and patterns."""
_PASSWORD = re.compile(r"(?i)(?<=\w:)(?<!abfs:|bfss:|wasb:|asbs:)//[^/\s]*@|//[^/\s]*:[^/\s]*@")
"""Credentials in a URL: all before its @, except Azure's container."""


def conf_mistake(
    found: Sequence[Mapping[str, Any]],
    path: str | None,
    reference_at: Callable[[Sequence[int | str]], str | None],
) -> SettingsError:
    """Return all errors of a conf as one, with the `key` of the first.

    found          pydantic's errors (`type`, `loc`, `msg`, `input`)
    reference_at   returns the reference to a secret at a key; its value is then not shown
    """
    missing = {_key_of_mistake(one) for one in found if one["type"] == "missing"}
    sentences = dict[str, str]()
    misspelt = set[str]()
    for one in found:
        key = _key_of_mistake(one)
        similar = _similar_key(one)
        if similar in missing:
            misspelt.add(similar)
        if key not in sentences:
            sentences[key] = _sentence(one, similar, reference_at(one["loc"]))
    for key in misspelt:  # it is not missing, but has another spelling
        sentences.pop(key)

    first = next(iter(sentences))
    if len(sentences) == 1:
        sentence = sentences[first]
        message = f"{first}: {sentence}" if first else sentence
        return SettingsError(message, path=path, key=first or None, action=_action(first, sentence))
    lines = [f"{len(sentences)} keys of the conf are invalid:"]
    for key, sentence in sentences.items():
        line = f"{key}: {sentence}"
        description = describe_key(key)
        if description:
            line += f"; it takes {description}"
        lines.append(line)
    return SettingsError(
        "\n".join(lines),
        path=path,
        key=first or None,
        action="Check the spelling and the indentation of each of these keys",
    )


def _sentence(one: Mapping[str, Any], similar: str, reference: str | None) -> str:
    kind = one["type"]
    if kind == "extra_forbidden":
        return f"unknown key; did you mean `{similar}`?" if similar else "unknown key"
    if reference and not is_secret(_key_of_mistake(one)):
        # The value may be a secret: print neither it nor a message that quotes it.
        return f"refers to a value that it does not accept: {reference}"
    message = _MESSAGES.get(kind)
    if message is None:
        message = re.sub(r"^Input should be ", "must be ", one["msg"].removeprefix("Value error, "))
    if kind in ("enum", "literal_error"):  # write the choices as in a conf
        message = re.sub(r"<\w+\.\w+: (.*?)>", r"\1", message.replace("'", ""))
    return message + _shown_value(one)


def _shown_value(one: Mapping[str, Any]) -> str:
    """Return the value in parentheses, if it is neither a section nor a possible secret."""
    value = one["input"]
    is_plain = isinstance(value, (str, int, float, bool, type(None)))
    if one["type"] == "missing" or is_secret(_key_of_mistake(one)) or not is_plain:
        return ""
    if isinstance(value, int) and value.bit_length() > 64:
        value = "a number of many digits"  # Python does not convert the largest ones to text
    if isinstance(value, str):
        value = _PASSWORD.sub("//***@", value)
    return f" (it is {value!r})"


def _action(key: str, sentence: str) -> str:
    if sentence.startswith("unknown key"):
        section = key.rpartition(".")[0]
        names = _keys_of_section(section)
        if not names:
            return "Check its spelling and its indentation"
        return (
            "Check its spelling and its indentation. "
            f"{section or 'The conf'} takes {', '.join(names)}"
        )
    description = describe_key(key)
    if not description:
        return "Check the spelling of the key, and its value"
    return f"{key} takes {description}"


def _keys_of_section(section: str) -> list[str]:
    """Return the names of the keys right in a section; of the conf for an empty name."""
    names = []
    for key in key_names():
        above, _, name = key.rpartition(".")
        if above == section:
            names.append(name)
    return names


def _similar_key(one: Mapping[str, Any]) -> str:
    """Return a known key for an unknown one: of the same section with a similar name, or of another
    section with the same name; empty without one.
    """
    if one["type"] != "extra_forbidden":
        return ""
    section, _, name = _key_of_mistake(one).rpartition(".")
    similar = similar_name(name, _keys_of_section(section))
    if similar:
        return f"{section}.{similar}".lstrip(".")
    for known in key_names():
        if known.rpartition(".")[2] == name:
            return known
    return ""


def similar_name(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name; None if none is similar."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def _key_of_mistake(one: Mapping[str, Any]) -> str:
    return ".".join(str(part) for part in one["loc"])


@functools.cache
def key_names() -> tuple[str, ...]:
    """Return the keys of a conf, with its sections: `source`, `source.topics`."""
    return tuple(_names_in(Settings, ""))


def _names_in(section: type[BaseModel], above: str) -> Iterator[str]:
    for attribute, field in section.model_fields.items():
        name = above + (field.alias or attribute)
        yield name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _names_in(field.annotation, f"{name}.")


def describe_key(key: str) -> str:
    """Return the values that a key takes, and its description: `fail or skip. Offsets are gone...`.

    Of an item of a list or mapping it is the description of the key; empty for an unknown key.
    """
    known = _schemas_of_keys()
    while key and key not in known:
        key = key.rpartition(".")[0]
    if not key:
        return ""
    return f"{describe_values(key, known[key])}. {known[key]['description']}"


@functools.cache
def _schemas_of_keys() -> Mapping[str, Mapping[str, Any]]:
    return dict(schemas_in(conf_schema()))


def schemas_in(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the keys of a section of the JSON Schema, at every depth, each with its schema."""
    for name, schema in section["properties"].items():
        yield above + name, schema
        if "properties" in schema:
            yield from schemas_in(schema, f"{above}{name}.")


_KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "object": "a mapping",
    "string": "text",
}


def describe_values(key: str, schema: Mapping[str, Any]) -> str:
    """Return the values that a key takes in words: `fail or skip`; `0 to 86400 s`.

    Left out are null, which the key's description explains, and references, which any key takes,
    except for a key that takes nothing else.
    """
    if "properties" in schema:
        section = f"the keys {', '.join(schema['properties'])}"
        return f"text, or {section}" if key in SHORT_FORMS else section
    values = list[str]()
    for form in schema.get("anyOf", [schema]):
        if "enum" in form:
            values += form["enum"]
        elif form.get("type") in ("integer", "number"):
            values.append(_describe_number(key, form))
        elif form not in (_NULL, _REFERENCE, _SIZE):
            values.append(_KINDS[form["type"]])
    if not values:
        return "a reference"
    *others, last = values
    return f"{', '.join(others)} or {last}" if others else last


def _describe_number(key: str, form: Mapping[str, Any]) -> str:
    """Return `0 to 86400 s`, `1 KiB or more` or `1 to 100`."""
    unit = " s" if key.endswith("_s") else ""
    if "minimum" in form:
        least = _bound(key, form["minimum"])
    else:
        least = f"above {_bound(key, form['exclusiveMinimum'])}"
    if form["maximum"] == INT64:
        return f"{least} or more"
    return f"{least} to {_bound(key, form['maximum'])}{unit}"


def _bound(key: str, number: int) -> str:
    return describe_size(number) if "_bytes" in key else str(number)


def describe_size(number: int) -> str:
    """Return a number of bytes as a conf has it: `16 MiB`."""
    for unit, size in reversed(UNITS.items()):
        if number and number % size == 0:
            return f"{number // size} {unit}"
    return str(number)


_TEXT = {"type": "string", "minLength": 1}
_REFERENCE = {"type": "string", "pattern": REFERENCE_PATTERN}
"""Any value may be a reference, also of a key that is not a string."""
_SIZE = {"type": "string", "pattern": f"^{SIZE_PATTERN}$"}
_NULL = {"type": "null"}
_STRATEGY = {"enum": [one.value for one in GroupStrategy]}
_OWN_FORMS: Mapping[str, list[dict[str, Any]]] = {
    "source.starting_offsets": [{"enum": [one.value for one in StartAt]}, _TEXT],
    "group.join.assignment_strategy": [
        _STRATEGY,
        {"type": "array", "minItems": 1, "items": _STRATEGY},
    ],
    "spark": [
        {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
    ],
}
"""Keys with custom validators: pydantic cannot derive their forms."""
_EITHER: Mapping[str, tuple[str, ...]] = {"table": ("path", "name")}
"""Sections that need one of several keys."""


def conf_schema(*, for_defaults: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of a conf; with `for_defaults` of a file of defaults, which requires
    no key and cannot have the keys of one pipeline.
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
            "title": "Defaults of several pipelines of offset-range-etl",
            **keys,
            "properties": properties,
        }
    by_defaults = {"required": ["defaults"], "properties": {"defaults": _TEXT}}
    needed = _needed(whole, whole["$defs"])
    return {
        **head,
        "title": "A pipeline of offset-range-etl",
        **keys,
        "required": ["pipeline"],
        "anyOf": [needed, by_defaults],
    }


def _section(node: Mapping[str, Any], known: Mapping[str, Any], above: str) -> dict[str, Any]:
    properties = {}
    for name, key in node["properties"].items():
        properties[name] = _key(_resolved(key, known), known, above + name)
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _key(node: Mapping[str, Any], known: Mapping[str, Any], key: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": _description(node, key)}
    if "properties" in node:
        section = _section(node, known, f"{key}.")
        if key in SHORT_FORMS:
            section["type"] = ["object", "string", "null"]
        return {**schema, **section}
    if node.get("default") is not None:
        schema["default"] = node["default"]
    forms = _OWN_FORMS.get(key) or _forms(node, known)
    if "_bytes" in key:
        forms = [*forms, _SIZE]
    return {**schema, **_one_of(forms)}


def _description(node: Mapping[str, Any], key: str) -> str:
    """Return the description of a field, or the docstring of a section's class, in one line."""
    description = " ".join(node["description"].split()).removesuffix(".")
    if key in SHORT_FORMS:
        description += f"; `{key}: NAME` sets {SHORT_FORMS[key]}"
    return description


def _resolved(node: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with the schema that it refers to, if any."""
    if "$ref" in node:
        return {**known[_name(node)], **node}
    return dict(node)


def _forms(node: Mapping[str, Any], known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each form that a key accepts: a list may be one string, a value a reference."""
    forms = []
    for written in node.get("anyOf", [node]):
        form = _resolved(written, known)
        for name in ("title", "default", "description", "$ref"):
            form.pop(name, None)
        forms.append(form)
    if any(form.get("type") == "array" for form in forms):
        return [_TEXT, *forms]
    if _REFERENCE in forms or any(_is_any_text(form) for form in forms):
        return forms
    return [*forms, _REFERENCE]


def _is_any_text(form: Mapping[str, Any]) -> bool:
    return form.get("type") == "string" and not {"enum", "const", "pattern"} & form.keys()


def _one_of(forms: list[dict[str, Any]]) -> dict[str, Any]:
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def _needed(node: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of required keys, section by section."""
    below = {}
    for name, key in node["properties"].items():
        if "$ref" not in key:
            continue
        section = known[_name(key)]
        if section.get("required"):
            below[name] = _needed(section, known)
        if name in _EITHER:
            below[name] = {"anyOf": [{"required": [one]} for one in _EITHER[name]]}
    needed = {"required": node["required"]}
    if below:
        needed["properties"] = below
    return needed


def _name(key: Mapping[str, Any]) -> str:
    return str(key["$ref"]).rpartition("/")[2]
