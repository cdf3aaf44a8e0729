"""What is looked up for a run that was asked for by a key or up to a bound: in the ledger, and at
the brokers.
"""

from __future__ import annotations

from etl.decide.run_requests import bounds_to_find
from etl.io.brokers.cluster import Cluster
from etl.io.brokers.offsets import Extents
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.ledger_records import find_key
from etl.model.partitions import BrokerPartition, Isolation
from etl.model.plans import Bound, Plan, Request
from etl.model.snapshot import Asked


def look_up(
    request: Request | None,
    ledger: PlanLedger,
    newest: Plan | None,
    cluster: Cluster,
    found: Extents,
    isolation: Isolation,
) -> Asked | None:
    """What the ledger knows of the key, `newest` having been read before, and where the bounds lie
    in the logs that can be read.

    Raises SettingsError where brokers cannot find a record by its time.
    """
    if request is None:
        return None

    def offsets(bound: Bound | None) -> dict[BrokerPartition, int | None]:
        moment = bound.at_ms if bound else None
        return (
            {}
            if moment is None
            else cluster.first_at(dict.fromkeys(found.extents, moment), isolation=isolation)
        )

    plan, kept = (
        find_key(ledger, request.run_key, newest.number if newest else 0)
        if request.run_key
        else (None, None)
    )
    bounds = bounds_to_find(request, newest, plan)
    return Asked(request, kept, plan, offsets(bounds.start), offsets(bounds.until))
