"""How long topics are kept, and how they are cleaned up: DescribeConfigs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest

from etl.errors import CorruptData
from etl.model.partitions import Retention

_TOPIC = 2
_LIMIT_KEYS = ("retention.ms", "retention.bytes")
_RETENTION_KEYS = ("cleanup.policy", "remote.storage.enable", *_LIMIT_KEYS)


def configs_fields(topics: Collection[str]) -> dict[str, Any]:
    """How long topics are kept, and how they are cleaned up (KIP-133)."""
    wanted = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        wanted(resource_type=_TOPIC, resource_name=name, configuration_keys=list(_RETENTION_KEYS))
        for name in sorted(topics)
    ]
    return {"resources": resources, "include_synonyms": False, "include_documentation": False}


def parse_retention(response: Any) -> dict[str, Retention]:
    """Retention by topic; one that we may not describe is left out. A topic that is only compacted
    has no limits.

    Raises CorruptData for a limit that is no number.
    """
    return {
        topic.resource_name: _retention(
            {one.name: one.value for one in topic.configs}, topic.resource_name
        )
        for topic in response.results
        if topic.error_code == 0
    }


def _retention(found: Mapping[str, str | None], topic: str) -> Retention:
    policy = [word.strip() for word in (found.get("cleanup.policy") or "delete").split(",")]
    ms, size = (
        _limit(found.get(key), key, topic) if "delete" in policy else None for key in _LIMIT_KEYS
    )
    return Retention(
        ms,
        size,
        is_compacted="compact" in policy,
        is_tiered=found.get("remote.storage.enable") == "true",
    )


def _limit(value: str | None, key: str, topic: str) -> int | None:
    said = value or "-1"
    if not re.fullmatch(r"-?[0-9]{1,19}", said):
        raise CorruptData(f"the broker says that {key} is {said[:40]!r}", topic=topic)
    return int(said) if int(said) >= 0 else None
