"""What a backfill commits is no stranger's deed to its pipeline, and what the pipeline replaces is
none to the backfill.
"""

from __future__ import annotations

import json

from etl.io.delta.loaded_plans import loads_of_others
from etl.io.delta.log import judge, parse_commit
from etl.ledger.plan_document import render_commit_metadata, with_id
from etl.model.partitions import BrokerPartition
from etl.model.plans import OffsetRange
from tests.builders import plain_plan
from tests.fakes.outside import APP_ID

OTHER = f"{APP_ID}-2"
LOG = BrokerPartition("clicks", 0)


def commit_of(app_id: str, *, removes: bool = False) -> bytes:
    plan = with_id(plain_plan(3, loaded_until={LOG: 9}, ranges=(OffsetRange(LOG, 0, 9),)))
    actions = [
        {
            "commitInfo": {
                "operation": "WRITE",
                "userMetadata": render_commit_metadata(plan, app_id),
            }
        },
        {"txn": {"appId": app_id, "version": 3}},
        *([{"remove": {"path": "f", "dataChange": True}}] if removes else []),
    ]
    return "\n".join(map(json.dumps, actions)).encode()


def loads_seen(app_id: str, by: str) -> int:
    since = [parse_commit(5, commit_of(by))]
    found = loads_of_others(  # only the rows of the predecessor are read from files
        None, 5, app_id, lambda topic: True, plan=None, since=since, made_at=None, newest={}
    )
    return len(found)


def test_loads_of_the_same_pipeline_are_not_those_of_another_one() -> None:
    assert loads_seen(APP_ID, APP_ID) == 0
    assert loads_seen(APP_ID, OTHER) == 1


def test_rows_that_a_replay_of_the_pipeline_removes_are_not_removed_by_another_writer() -> None:
    replayed = parse_commit(5, commit_of(APP_ID, removes=True))
    assert judge(replayed, APP_ID, None) is None
    assert judge(replayed, OTHER, None) is not None
