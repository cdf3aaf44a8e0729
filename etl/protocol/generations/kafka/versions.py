"""The kinds of request, the versions of each that are spoken here, and which ones brokers of a
release speak.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

from etl.errors import SettingsError

ApiVersions = Mapping[int, tuple[int, int]]
"""What a broker speaks: api key -> lowest and highest version."""
_FIRST_FETCH_WITH_ISOLATION = 4


class Api(Enum):
    """Kind of request: api key, and the lowest and highest version known here."""

    PRODUCE = (0, 0, 8)
    FETCH = (1, 0, 13)
    LIST_OFFSETS = (2, 0, 7)
    METADATA = (3, 0, 12)
    OFFSET_COMMIT = (8, 0, 10)
    OFFSET_FETCH = (9, 0, 10)
    FIND_COORDINATOR = (10, 0, 3)
    JOIN_GROUP = (11, 0, 9)
    HEARTBEAT = (12, 0, 4)
    LEAVE_GROUP = (13, 0, 5)
    SYNC_GROUP = (14, 0, 5)
    DESCRIBE_GROUPS = (15, 0, 4)
    SASL_HANDSHAKE = (17, 1, 1)
    API_VERSIONS = (18, 0, 0)
    OFFSET_FOR_LEADER_EPOCH = (23, 2, 4)
    DESCRIBE_CONFIGS = (32, 0, 3)
    DESCRIBE_LOG_DIRS = (35, 0, 4)
    SASL_AUTHENTICATE = (36, 0, 1)
    DESCRIBE_PRODUCERS = (61, 0, 0)
    DESCRIBE_TRANSACTIONS = (65, 0, 0)
    LIST_TRANSACTIONS = (66, 0, 1)
    CONSUMER_GROUP_HEARTBEAT = (68, 0, 1)
    CONSUMER_GROUP_DESCRIBE = (69, 0, 1)

    @property
    def key(self) -> int:
        return self.value[0]


_NEVER_READS = frozenset(
    {
        Api.PRODUCE,
        Api.JOIN_GROUP,
        Api.HEARTBEAT,
        Api.LEAVE_GROUP,
        Api.SYNC_GROUP,
        Api.CONSUMER_GROUP_HEARTBEAT,
        Api.CONSUMER_GROUP_DESCRIBE,
        Api.SASL_HANDSHAKE,
        Api.SASL_AUTHENTICATE,
    }
)
"""What who only reads never sends, or sends to those alone that say that they know it."""


def is_spoken(api: Api, spoken: ApiVersions) -> bool:
    """Whether the broker and this module share a version of this request."""
    key, lowest, highest = api.value
    return key in spoken and spoken[key][0] <= highest and spoken[key][1] >= lowest


def choose_version(
    api: Api, spoken: ApiVersions, *, least: int = 0, most: int | None = None, **place: Any
) -> int:
    """The highest version that the broker and this module both speak, within bounds that the
    question sets.

    Raises SettingsError when there is none: a broker too old for the question, or one that dropped
    what we know.
    """
    key, lowest, highest = api.value
    lowest, highest = max(lowest, least), highest if most is None else min(highest, most)
    theirs = spoken.get(key)
    if theirs is None or theirs[0] > highest or theirs[1] < lowest:
        says = "none" if theirs is None else f"{theirs[0]} to {theirs[1]}"
        raise SettingsError(
            f"the broker speaks no version of {api.name} from {lowest} to {highest} (it speaks {says})",
            check="the broker's version, and broker_version where it is given",
            **place,
        )
    return min(highest, theirs[1])


def newest_of(api: Api, spoken: ApiVersions) -> int:
    """The highest version of this request that the broker speaks; -1: none."""
    return spoken.get(api.key, (0, -1))[1]


def not_spoken(wanted: ApiVersions, spoken: ApiVersions) -> tuple[str, ...]:
    """The requests, each with its version, that a reader sends to who speaks `wanted`, and that who
    speaks `spoken` does not know.
    """
    sent = {
        api: choose_version(api, wanted)
        for api in Api
        if api not in _NEVER_READS and is_spoken(api, wanted)
    }
    known = {api: spoken.get(api.key, (0, -1)) for api in sent}
    return tuple(
        f"{api.name} v{version}"
        for api, version in sent.items()
        if not known[api][0] <= version <= known[api][1]
    )


def keeps_isolation(spoken: ApiVersions) -> bool:
    """Whether records of transactions can be left out that were not committed; brokers before 0.11
    have no transactions (KIP-98).
    """
    return spoken.get(Api.FETCH.key, (0, 0))[1] >= _FIRST_FETCH_WITH_ISOLATION


def release(spoken: ApiVersions) -> str:
    """The newest release whose requests the broker speaks; a broker tells no version (KIP-35)."""
    from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions

    return ".".join(map(str, infer_broker_version_from_api_versions(dict(spoken))))


@cache
def releases() -> Mapping[str, ApiVersions]:
    """Release -> what its brokers speak, the oldest first, as kafka-python knows it: 0.8.0, 0.8.1,
    0.8.2, 0.9, 0.10.0 and so on to 4.x.

    0.8 alone is what its last release speaks: which of them a broker is cannot be found out, and reading is the same on all.
    """
    from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

    known = {
        ".".join(map(str, version)): spoken
        for version, spoken in sorted(BROKER_API_VERSIONS.items())
    }
    return {"0.8": known["0.8.2"], **known}


def release_of(version: str) -> str | None:
    """The release in `releases` of a version such as 0.9.0.1, the first one of a version given in
    part, such as 0.10; None: not known.
    """
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", version, re.ASCII):
        return None
    wanted = version.split(".")
    exact = [name for name in releases() if wanted[: len(name.split("."))] == name.split(".")]
    first = [name for name in releases() if name.split(".")[: len(wanted)] == wanted]
    return max(exact, key=len) if exact else next(iter(first), None)
