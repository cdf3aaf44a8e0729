"""`python -m tests.groups.coordinator_golden [RELEASE ...]`: record tests/golden/groups anew, from
running coordinators, with the values that we parse."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.member_state import MemberTerms
from etl.kafka import group_messages, kafka_python_messages
from etl.kafka.versions import Api
from etl.model.partitions import GroupProtocol
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import HOST
from tests.brokers.groups import with_consumer_protocol

FOLDER = Path(__file__).parents[1] / "golden" / "groups"
_OF_EACH = 3
"""Answers of one kind with different content."""


def take(version: str) -> list[dict[str, Any]]:
    answers: dict[tuple[Api, str], dict[str, Any]] = {}

    def decoded(api: Api, version: int, response: memoryview, **place: Any) -> Any:
        found = decode(api, version, response, **place)
        if api in PARSERS and sum(kept is api for kept, _ in answers) < _OF_EACH:
            message = plain_answer(api, found)
            answers[api, json.dumps(message)] = {
                "api": api.name,
                "version": version,
                "answer": bytes(response).hex(),
                "says": message,
            }
        return found

    decode = kafka_python_messages.decode
    with (
        EmbeddedCluster(version=version) as cluster,
        mock.patch.object(kafka_python_messages, "decode", decoded),
    ):
        cluster.create_topic("clicks", 4)
        for protocol in GroupProtocol if version >= "4" else [GroupProtocol.CLASSIC]:
            terms = MemberTerms(f"golden-{protocol.value}", ("clicks",), session_timeout_s=6)
            first, second = (
                CoordinatedMember([(HOST, cluster.brokers[0].port)], terms, protocol=protocol)
                for _ in range(2)
            )
            if protocol is GroupProtocol.CONSUMER:
                with_consumer_protocol(cluster)
            first.join()
            second.join()
            first.rejoin()
            second.leave()
            first.leave()
    return list(answers.values())


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for version in sys.argv[1:] or RELEASES:
        answers = ",\n".join(map(json.dumps, take(version)))
        head = json.dumps(
            {"release": version, "how": "python -m tests.groups.coordinator_golden", "answers": []}
        ).removesuffix("]}")
        (FOLDER / f"{version}.json").write_text(f"{head}\n{answers}\n]}}\n")
        print(version, answers.count("\n") + 1, flush=True)


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


if __name__ == "__main__":
    main()
