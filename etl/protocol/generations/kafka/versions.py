"""The kinds of request, and the versions of each that are spoken here."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from etl.errors import SettingsError

ApiVersions = Mapping[int, tuple[int, int]]
"""What a broker said it speaks: api key -> lowest and highest version."""


class Api(Enum):
    """Kind of request: api key, and the lowest and highest version known here."""

    PRODUCE = (0, 3, 8)
    FETCH = (1, 4, 11)
    LIST_OFFSETS = (2, 2, 5)
    METADATA = (3, 4, 12)
    OFFSET_COMMIT = (8, 2, 7)
    OFFSET_FETCH = (9, 2, 5)
    FIND_COORDINATOR = (10, 1, 3)
    DESCRIBE_GROUPS = (15, 0, 4)
    API_VERSIONS = (18, 0, 0)
    OFFSET_FOR_LEADER_EPOCH = (23, 2, 4)
    DESCRIBE_CONFIGS = (32, 1, 3)
    DESCRIBE_LOG_DIRS = (35, 0, 4)
    DESCRIBE_PRODUCERS = (61, 0, 0)
    DESCRIBE_TRANSACTIONS = (65, 0, 0)
    LIST_TRANSACTIONS = (66, 0, 1)

    @property
    def key(self) -> int:
        return self.value[0]


def is_spoken(api: Api, spoken: ApiVersions) -> bool:
    """Whether the broker and this module share a version of this request."""
    key, lowest, highest = api.value
    return key in spoken and spoken[key][0] <= highest and spoken[key][1] >= lowest


def choose_version(api: Api, spoken: ApiVersions, **place: Any) -> int:
    """The highest version that the broker and this module both speak.

    Raises SettingsError when there is none: a broker older than 0.11, or one that dropped what we know.
    """
    key, lowest, highest = api.value
    theirs = spoken.get(key)
    if theirs is None or theirs[0] > highest or theirs[1] < lowest:
        says = "none" if theirs is None else f"{theirs[0]} to {theirs[1]}"
        raise SettingsError(f"the broker speaks no version of {api.name} from {lowest} to {highest} (it says {says})",
                            check="the broker's version: this dialect needs Kafka 0.11 or newer", **place)
    return min(highest, theirs[1])


def release(spoken: ApiVersions) -> str:
    """The newest release whose requests the broker speaks; a broker tells no version (KIP-35)."""
    from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions

    return ".".join(map(str, infer_broker_version_from_api_versions(dict(spoken))))
