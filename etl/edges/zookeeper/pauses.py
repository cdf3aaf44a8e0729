"""What operators paused, in the ledger of a pipeline: one document, written by version."""

from __future__ import annotations

from collections.abc import Iterable

from etl.edges.zookeeper.ledger import PlanLedger
from etl.errors import Owned
from etl.ledger.documents import parse_pauses, render_pauses
from etl.model.snapshot import Pause


def read_pauses(ledger: PlanLedger) -> tuple[Pause, ...]:
    """What is paused. Raises LedgersDisagree where the znode does not say."""
    return read_pauses_at(ledger)[0]


def read_pauses_at(ledger: PlanLedger) -> tuple[tuple[Pause, ...], int | None]:
    """The same, and the version of its znode; None: there is none, and nothing was ever paused."""
    path = ledger.paths.paused
    stored = ledger.documents.read(path)
    return (parse_pauses(stored[0], path=path), stored[1]) if stored else ((), None)


def write_pauses(ledger: PlanLedger, pauses: Iterable[Pause], version: int | None) -> None:
    """Keep these and no others, in the place of those that were read at that version.

    Raises Owned where somebody else wrote meanwhile; said again, what was done is found done.
    """
    path, payload = ledger.paths.paused, render_pauses(pauses)
    ledger.zookeeper.require_session()
    if not ledger.documents.replace(path, payload, version=version):
        raise Owned(
            "somebody else paused or resumed at this moment",
            znode=path,
            check="nothing; say it again",
        )
