"""Topic filters of consumers in ZooKeeper: a regular expression of Java's, and whether topics are
read that it matches, or all others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from etl.model.partitions import INTERNAL_TOPICS
from etl.protocol.zookeeper.java_patterns import java_pattern

_QUOTES_AT_END = re.compile("[\"']+(?=[\\x85\\u2028\\u2029]?\\Z)")


class FilterKind(str, Enum):
    """What a filter does with the topics that it matches; the names in registrations of 0.8."""

    WHITE_LIST = "white_list"
    BLACK_LIST = "black_list"


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """Raises NotTranslated, in words, where the text has no translation or is no pattern."""

    kind: FilterKind
    text: str
    """As a consumer cleaned it."""

    def __post_init__(self) -> None:
        java_pattern(self.text)

    def allows(self, topic: str) -> bool:
        """Whether a topic that exists is read.

        No filter lets those of the brokers themselves pass, unless a consumer has
        `exclude.internal.topics=false`, which its registration does not tell.
        """
        matches = java_pattern(self.text).fullmatch(topic) is not None
        return matches == (self.kind is FilterKind.WHITE_LIST) and topic not in INTERNAL_TOPICS


def cleaned(text: str) -> str:
    """What a consumer makes of a filter's text: `,` is `|`, blanks go, and so do quotes around it,
    for it comes from a property file.
    """
    trimmed = text.strip("".join(map(chr, range(33))))
    return _QUOTES_AT_END.sub("", trimmed.replace(",", "|").replace(" ", "").lstrip("\"'"))
