"""How can a run fail, with which exit code, and may a retry help?

Lives here: all error classes, the error as one line of text (Spark passes only the traceback from
an executor to the driver), error codes of brokers independent of their type, and the order of
severity if several errors occurred.

    EtlError                        1    a bug, if no other class fits
    ├── ConsumerInUse                    another thread uses the connection
    ├── NotAssigned                      the partition is not assigned to this consumer
    ├── SettingsError               2    a conf key or argument, or what it names, is invalid
    │   ├── TopicMissing
    │   ├── WrongChroot
    │   ├── NotKafka                     the port answers in another protocol
    │   ├── OtherRelease                 a broker is not of the configured release
    │   ├── PermissionDenied
    │   ├── MessageTooLarge              a record batch exceeds the largest fetch size
    │   └── NotOurTable
    ├── DataLost                    3    with --fail-on-loss: policy allowed a loss
    ├── Owned                       4    retriable: another driver or consumer is active
    ├── NeedsDecision               5    an operator must decide
    │   ├── LedgersDisagree
    │   │   └── TableAppeared            the table was created after the plan: observe again
    │   ├── OffsetMoved
    │   ├── BadOffset                    a committed offset is not a number, or outside the log
    │   ├── PartitionTruncated           records below a position are gone or replaced
    │   ├── TopicRecreated               a planned topic was recreated
    │   ├── DataLoss                     requested offsets are no longer in the log
    │   │   ├── ExpiredOffsets           retention deleted them before they were read
    │   │   └── MissingOffsets           no record batch has them
    │   ├── CorruptData                  bytes of a broker violate the protocol
    │   │   └── MisalignedOffset         no message begins at a byte offset
    │   ├── RecordTooLarge               a record, or a decompressed batch, exceeds the limit
    │   ├── RanOutBeforeUntil
    │   └── FileLost                     a file that the table's log names is gone
    ├── Unreachable                 6    retriable: ZooKeeper, a broker or Spark
    │   ├── ZooKeeperUnreachable
    │   ├── SessionLost
    │   ├── MembershipLost               the group removed this member before its commit
    │   ├── CommitUnknown                the commit may have succeeded: read it back
    │   ├── BrokerUnreachable
    │   │   └── BrokerError              a retriable error code of a broker
    │   ├── NotYetReadable               records are not readable yet
    │   └── ProcessLost                  Spark's JVM, an executor or a worker died
    ├── TableUnreachable            7    retriable: the table cannot be read or written
    │   └── NoExclusiveCreate            in this store writers can replace each other's commits
    ├── NotReady                    8    retriable later: a time is not complete, or in the future
    ├── VerificationFailed          9    rows are missing or duplicated
    └── Stopped                   130    retriable: Ctrl-C, SIGTERM or SIGHUP
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

EXIT_NAMES = {
    0: "ok",
    1: "internal_error",
    2: "invalid",
    3: "records_lost",
    4: "busy",
    5: "decision_needed",
    6: "unavailable",
    7: "table_unavailable",
    8: "not_ready",
    9: "verification_failed",
    130: "interrupted",
}


class EtlError(Exception):
    """An error with its place and what to do; raise the narrowest class. `cli` turns it into an
    exit code and two lines.

    `message` states what happened to which object, `action` what to do about it: sentences that
    begin with a capital letter and have no final period. Further keywords are places (topic=,
    partition=, offset=, broker=, path=, key=, ...), kept in `where` in order; None is left out.
    """

    exit_code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False

    @property
    def exit_name(self) -> str:
        """The name of the exit code."""
        return EXIT_NAMES[self.exit_code]

    def __init__(self, message: str, *, action: str = "", **where: Any) -> None:
        self.message = message
        self.action = action
        self.where: dict[str, Any] = {
            name: value for name, value in where.items() if value is not None
        }
        super().__init__(message)

    @property
    def next_offset(self) -> int | None:
        """Where to continue after a record that cannot be read; None for other errors."""
        return self.where.get("next_offset")

    def __str__(self) -> str:
        places = ", ".join(f"{name} {value}" for name, value in self.where.items())
        text = f"{self.message} ({places})" if places else self.message
        return f"{text}. {self.action}" if self.action else text

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self).__name__, self.message, self.action, self.where)

    def as_json(self) -> dict[str, Any]:
        """The document that `--json` prints for a failure."""
        where = {
            name: value if isinstance(value, (str, int, float)) else str(value)
            for name, value in self.where.items()
        }
        return {
            "error": type(self).__name__,
            "message": self.message,
            "where": where,
            "action": self.action,
            "exit_code": self.exit_code,
            "exit_name": self.exit_name,
            "retriable": self.retriable,
        }


class ConsumerInUse(EtlError):
    """A second thread uses a SimpleConsumer whose response is outstanding."""


class NotAssigned(EtlError):
    """The partition is not assigned to the consumer."""


class SettingsError(EtlError):
    """A key or argument, or what it names, is invalid."""

    exit_code = 2


class TopicMissing(SettingsError):
    """A topic that the conf names is not there."""


class WrongChroot(SettingsError):
    """The ZooKeeper path of the conf holds no Kafka cluster."""


class NotKafka(SettingsError):
    """Something answered on the broker's port, but it does not speak Kafka (HTTP, TLS, ...)."""


class OtherRelease(SettingsError):
    """A broker does not support what its configured release does: `source.broker_version`."""


class PermissionDenied(SettingsError):
    """ZooKeeper, a broker or the table's store denies access to this identity."""


class MessageTooLarge(SettingsError):
    """One record batch is larger than the fetch size may grow: `source.max_batch_bytes`."""


class NotOurTable(SettingsError):
    """The path is no Delta table, or a table of another shape."""


class DataLost(EtlError):
    """Records were lost by policy, and `--fail-on-loss` is set."""

    exit_code = 3


class Owned(EtlError):
    """Another driver or a live consumer is active."""

    exit_code, retriable = 4, True


class NeedsDecision(EtlError):
    """The facts contradict each other and only a person knows which side is right."""

    exit_code = 5


class LedgersDisagree(NeedsDecision):
    """ZooKeeper's plans and the table's commits contradict each other."""


class TableAppeared(LedgersDisagree):
    """There is a table by now, without a commit of ours, and the plan was made when there was
    none.
    """


class OffsetMoved(NeedsDecision):
    """A committed offset is neither what the plan saw nor what it would write."""


class BadOffset(NeedsDecision):
    """A committed offset is no number, or lies outside the log."""


class PartitionTruncated(NeedsDecision):
    """Records that were read, or planned, are gone from the log's tail: an unclean leader was
    elected, or a broker lost its disk.
    """


class TopicRecreated(NeedsDecision):
    """A topic was deleted and recreated between the plan and the end of reading: other records have
    the same offsets.
    """


class DataLoss(NeedsDecision):
    """Requested offsets are no longer in the log, and policy is `fail`."""


class ExpiredOffsets(DataLoss):
    """Retention deleted offsets of a plan before they were read."""


class MissingOffsets(DataLoss):
    """Offsets inside the log that no record batch has, and nothing explains it; `where["missing"]`
    names all of them, as `--skip` does.
    """


class CorruptData(NeedsDecision):
    """Bytes of a broker violate the protocol: a bad CRC, an impossible length or batch."""


class MisalignedOffset(CorruptData):
    """Offsets of the log are byte positions, and no message begins or ends at this one: it lies
    inside one, or the log is damaged.
    """

    FOUND_BY_READER: ClassVar[str] = "No message is at this byte position: "
    """Begins the message of a reader, which cannot distinguish the two."""


class RecordTooLarge(NeedsDecision):
    """A record, or what a record batch unpacks to, is more than Spark's memory takes."""


class RanOutBeforeUntil(NeedsDecision):
    """The log ended before the range did."""


class FileLost(NeedsDecision):
    """A file that the table's log names is not there any more, or a file of the log is damaged."""


class VerificationFailed(EtlError):
    """Rows are missing or double."""

    exit_code = 9


class Unreachable(EtlError):
    """A server or a worker cannot be reached, or stopped answering."""

    exit_code, retriable = 6, True


class ZooKeeperUnreachable(Unreachable):
    """ZooKeeper does not answer."""


class SessionLost(Unreachable):
    """The ZooKeeper session ended during the run: earlier reads may not be used to commit."""


class MembershipLost(Unreachable):
    """The group removed this member before its plan was committed: no offset moved, nothing was
    fetched.
    """


class CommitUnknown(Unreachable):
    """A write to ZooKeeper, or a commit to a group's coordinator, got no answer: it may have
    happened.
    """


class BrokerUnreachable(Unreachable):
    """A broker does not answer within its deadline."""


class BrokerError(BrokerUnreachable):
    """A broker answered with an error code that may pass (moved leader, election, storage)."""


class NotYetReadable(Unreachable):
    """An open transaction or slow remote storage holds the records back."""


class ProcessLost(Unreachable):
    """A process of the run was lost for good: Spark's JVM, an executor, a worker, or the run
    itself.
    """


class TableUnreachable(EtlError):
    """The table cannot be read or written."""

    exit_code, retriable = 7, True


class NoExclusiveCreate(TableUnreachable):
    """The table's store creates a file over another one of its name: two writers could replace each
    other's commit.
    """


class NotReady(EtlError):
    """Topics or table are not complete up to a time yet, or the time is in the future."""

    exit_code, retriable = 8, True


class Stopped(EtlError):
    """Ctrl-C, SIGTERM or SIGHUP; everything is left as after a crash, and nothing is lost."""

    exit_code, retriable = 130, True


def follows_interrupt(error: BaseException) -> bool:
    """True for KeyboardInterrupt, and for an exception that was raised while it was handled.

    It may come between any two instructions: in the middle of `Condition.wait` it makes the release
    of the lock fail, and py4j closes its connection.
    """
    met: BaseException | None = error
    while met is not None and not isinstance(met, KeyboardInterrupt):
        met = met.__context__
    return met is not None


def rebuild(name: str, message: str, action: str, where: dict[str, Any]) -> EtlError:
    """Return the error of the class of that name; an EtlError if the class is unknown."""
    classes = {kind.__name__: kind for kind in family(EtlError)}
    kind = classes.get(name, EtlError)
    return kind(message, action=action, **where)


def family(kind: type[EtlError]) -> list[type[EtlError]]:
    """Return an error class and all its subclasses."""
    return [kind] + [child for sub in kind.__subclasses__() for child in family(sub)]


_MARK = "etl-error:"


def mark(error: EtlError) -> str:
    """Return a line that carries `error` through a Spark traceback; `unmark` parses it."""
    content = [type(error).__name__, error.message, error.action, error.where]
    return f"{_MARK}{json.dumps(content, default=str)}\n"


def unmark(text: str) -> EtlError | None:
    """Return the first error that `mark` wrote into `text`, or None."""
    at = text.find(_MARK)
    while at >= 0:
        at += len(_MARK)
        try:
            (name, message, action, where), _ = json.JSONDecoder().raw_decode(text, at)
            return rebuild(name, message, action, where)
        except (ValueError, TypeError, RecursionError):
            at = text.find(_MARK, at)  # other text that happens to hold the marker
    return None


def whole_text(failure: BaseException) -> str:
    """Return the text of an exception and of its Java causes, at most 20.

    Spark puts the executor's traceback into one of the causes.
    """
    texts = [str(failure)]
    cause: Any = getattr(failure, "java_exception", None)
    for _ in range(21):
        if cause is None:
            break
        texts.append(str(cause.toString()))
        cause = cause.getCause()
    return "\n".join(texts)


class Meaning(Enum):
    """The meaning of an error code, where the caller acts on it."""

    OUT_OF_RANGE = "the offset is not in the log"
    UNKNOWN_TOPIC = "the topic is not there"
    ANOTHER_TOPIC = "no topic has this id, or another one has its name"
    NOT_ALLOWED = "the login has no permission"
    NOT_COORDINATOR = "another broker is the coordinator of the group"
    NO_COORDINATOR_YET = "the group has no coordinator yet, or its coordinator still loads"
    REBALANCING = "the group rebalances: its members join again"
    OLD_GENERATION = "the group has rebalanced since"
    NO_SUCH_GROUP = "there is no group of this name, or it uses the other protocol"
    SWITCHED_OFF = "the brokers do not support the request at their version or features"
    UNKNOWN_MEMBER = "the group has no member of this id"
    ID_REQUIRED = "a new member joins again with the returned member id"
    FENCED = "another process is the static member of this name"
    FENCED_EPOCH = "the group removed the member; it keeps its id if it joins again"
    STALE_EPOCH = "the member has a newer epoch, which the next heartbeat returns"
    NO_COMMON_STRATEGY = "the members of the group have no common assignment strategy"
    UNSTABLE = "an open transaction stores this offset"
    NO_SEARCH = "the partition cannot be searched by time"
    NO_LISTENER = "the leader has no listener of the name that this connection uses"
    UNSAID = "the broker reports an error without a cause"
    OTHER = "any other error"


@dataclass(frozen=True, slots=True)
class BrokerRefusal:
    """The error code of a broker; each broker type has a table of its own."""

    code: int
    """The number on the wire, for people only: generations give the same numbers other meanings."""
    name: str
    is_retriable: bool
    """True if a retry may help, metadata refreshes included; the caller limits it."""
    kind: type[EtlError]
    """The error class after the last retry."""
    action: str
    meaning: Meaning = Meaning.OTHER

    def error(self, doing: str, **place: Any) -> EtlError:
        """Return the error to raise after the last retry."""
        return self.kind(
            f"The broker refused to {doing}: {self.name} (code {self.code})",
            action=self.action,
            **place,
        )


_WORST_FIRST = (1, 9, 5, 2, 3, 7, 6, 4, 8, 130)
"""Order of severity: what no retry fixes first, then the table (7), ZooKeeper and brokers (6), last
what passes by itself (4, 8), and interrupts.
"""


def worst_of(errors: Iterable[EtlError]) -> EtlError | None:
    """Return the error to fix first; None without any."""
    return min(errors, key=lambda error: _WORST_FIRST.index(error.exit_code), default=None)
