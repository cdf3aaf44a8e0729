"""A coordinator's answer as a JSON value: for golden bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from etl.kafka import group_messages
from etl.kafka.versions import Api

RELEASES = ("0.9.0.1", "2.8.2", "3.9.1", "4.1.0")
"""The releases with the largest differences in the group protocol."""
PARSERS: Mapping[Api, Callable[[Any], object]] = {
    Api.JOIN_GROUP: group_messages.parse_join,
    Api.SYNC_GROUP: group_messages.parse_sync,
    Api.HEARTBEAT: group_messages.parse_heartbeat,
    Api.LEAVE_GROUP: group_messages.parse_leave,
    Api.CONSUMER_GROUP_HEARTBEAT: group_messages.parse_consumer_heartbeat,
}


def plain_answer(api: Api, response: Any) -> Any:
    """Return the parsed values of a decoded response."""
    return _plain(PARSERS[api](response))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int)):
        return value
    if hasattr(value, "code"):  # a refusal
        return value.name
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(found) for key, found in sorted(value.items())}
    if isinstance(value, bytes):
        return value.hex()
    found = [_plain(each) for each in value]
    return sorted(found, key=str) if isinstance(value, frozenset) else found
