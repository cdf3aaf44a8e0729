"""The text of a conf file and the YAML document in it, bounded: by size, by depth, and by what its aliases unfold to.

PyYAML alone bounds nothing: a kilobyte of aliases of aliases unfolds to billions of values once somebody walks over them, its merge
keys do so while it reads, and brackets in brackets take it quadratic time. What the keys mean is `settings`'.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

CONF_MAX_BYTES = 2**20
CONF_MAX_DEPTH = 50
CONF_MAX_VALUES = 100_000
"""A conf file with more than that is none of ours."""
SECRET_MAX_BYTES = 64 * 2**10
"""A file that a value refers to holds one value."""

NOT_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError, OverflowError)
"""What PyYAML raises: for tags such as `!!int ''` and numbers such as 59:59:...:59.0 plain ones."""


def read_text(path: str | Path, most: int) -> str:
    """A text file of at most that many bytes; what has no end (a device) is not read to it.

    Raises OSError, and ValueError for a larger one and for bytes that are not UTF-8.
    """
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most:,} bytes")
    return content.decode("utf-8")


def document_of(text: str) -> Any:
    """The one YAML document of `text`, built once it is known how much its aliases unfold to. Raises one of NOT_YAML."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _unfolded(node, {}) > CONF_MAX_VALUES:
            raise ValueError(f"its aliases (*) unfold to more than {CONF_MAX_VALUES} values")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _unfolded(node: yaml.Node, known: dict[int, int]) -> int:
    """Values in `node` with every alias written out. Raises ValueError where one holds itself."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = 0
        parts = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_unfolded(part, known) for part in parts)
    elif not known[id(node)]:
        raise ValueError("a value holds itself, by its anchor (&) and alias (*)")
    return known[id(node)]


class _Loader(yaml.SafeLoader):
    """PyYAML's, which alone would follow brackets as deep as they go: each one costs it as much as all those around it."""

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        if self.flow_level >= CONF_MAX_DEPTH:
            raise ValueError(f"brackets lie more than {CONF_MAX_DEPTH} deep in each other")
        super().fetch_flow_collection_start(TokenClass)
