"""Why a broker does not do what it is asked, in words of no generation. No I/O; each generation has
a table of its own codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from etl.errors import EtlError


class Meaning(Enum):
    """What a refusal means to whoever asked, where that changes what is done next."""

    OUT_OF_RANGE = "the offset is not in the log"
    UNKNOWN_TOPIC = "the topic is not there"
    ANOTHER_TOPIC = "no topic has this id, or another one has its name"
    NOT_ALLOWED = "we are known, and may not"
    NOT_COORDINATOR = "another broker keeps this group"
    NO_COORDINATOR_YET = "nobody keeps this group's offsets yet, or whoever does still loads them"
    REBALANCING = "the group divides its logs anew: its members join again"
    OLD_GENERATION = "the group has divided its logs anew since"
    NO_SUCH_GROUP = "there is no group of this name, or it is one of the other protocol"
    SWITCHED_OFF = "brokers of this version, or with these features, do nothing of the kind"
    UNKNOWN_MEMBER = "nobody of this id is a member of the group"
    ID_REQUIRED = "a new member joins again with the id that it is given here"
    FENCED = "another process is the static member of this name by now"
    FENCED_EPOCH = "the member was taken for gone, and keeps its id if it joins again"
    STALE_EPOCH = "the member has another epoch by now, which its next heartbeat is told"
    NO_COMMON_STRATEGY = "the members of the group have no strategy in common"
    UNSTABLE = "a transaction is open that stores this offset"
    NO_SEARCH = "the log cannot be searched by time"
    NO_LISTENER = "whoever leads it is there, and has no listener of the name by which we came"
    UNSAID = "something went wrong, and the broker does not say what"
    OTHER = "nothing that is treated on its own"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a broker does not do what it is asked. Each generation has a table of its own."""

    code: int
    """The number on the wire, for people only: generations give the same numbers other meanings."""
    name: str
    is_retriable: bool
    """Asking again may help, metadata refreshes counted; the one who asks again bounds it."""
    kind: type[EtlError]
    """Which error it is once nobody asks again."""
    check: str
    meaning: Meaning = Meaning.OTHER

    def error(self, doing: str, **place: Any) -> EtlError:
        """The error to raise once nobody asks again."""
        return self.kind(
            f"the broker refused to {doing}: {self.name} (code {self.code})",
            check=self.check,
            **place,
        )
