"""`python -m tests.groups.coordinator_golden [RELEASE ...]`: take the answers in
tests/golden/groups anew, from running coordinators.

Two members of ours join one group, one of them leaves; what the broker answered is kept as it came,
with what we read in it, for a person to compare. Ids are of the day on which they were taken.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.member_state import MemberTerms
from etl.kafka import kafka_python_messages
from etl.kafka.versions import Api
from etl.model.partitions import GroupProtocol
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import HOST
from tests.brokers.groups import with_consumer_protocol
from tests.groups.answers import PARSERS, RELEASES, plain_answer

FOLDER = Path(__file__).parents[1] / "golden" / "groups"
_OF_EACH = 3
"""Answers of one kind with different content."""


def take(version: str) -> list[dict[str, Any]]:
    """The answers of one release."""
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
    """Take those that are named, or all."""
    FOLDER.mkdir(exist_ok=True)
    for version in sys.argv[1:] or RELEASES:
        answers = ",\n".join(map(json.dumps, take(version)))
        head = json.dumps(
            {"release": version, "how": "python -m tests.groups.coordinator_golden", "answers": []}
        ).removesuffix("]}")
        (FOLDER / f"{version}.json").write_text(f"{head}\n{answers}\n]}}\n")
        print(version, answers.count("\n") + 1, flush=True)


if __name__ == "__main__":
    main()
