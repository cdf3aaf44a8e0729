"""The settings of a backfill: those of its pipeline, with what is another one's.

A backfill reads beside the live pipeline, so it owns no logs, and moves no offset for a monitor to
look at. What one plan of it takes on is bounded also where the conf says nothing: a driver that
dies has then lost no more than that.
"""

from __future__ import annotations

import re

from etl.errors import SettingsError
from etl.model.snapshot import backfill_pipeline
from etl.settings.fetch_sizes import BACKFILL_PLAN_BYTES
from etl.settings.policies import HandOverAt, OnLiveGroup, OwnershipMode
from etl.settings.section import NAME
from etl.settings.sections import Settings


def settings_of_backfill(settings: Settings, name: str) -> Settings:
    """Those by which the plans of the backfill are made and executed. Raises SettingsError for a
    name that is none.
    """
    if not re.fullmatch(NAME, name):
        check = "letters, digits, `.`, `_` and `-`, and not dots alone"
        raise SettingsError(f"{name!r} is no name for a backfill", key="--name", check=check)
    limits = settings.limits
    if limits.max_bytes_per_run is None:
        limits = limits.model_copy(update={"max_bytes_per_run": BACKFILL_PLAN_BYTES})
    ownership = settings.ownership.model_copy(
        update={
            "mode": OwnershipMode.OBSERVE,
            "on_live_group": OnLiveGroup.UNOWNED,
            "hand_over": HandOverAt.PLAN,
        }
    )
    return settings.model_copy(
        update={
            "pipeline": backfill_pipeline(settings.pipeline, name),
            "limits": limits,
            "ownership": ownership,
            "mirror_group": None,
            "metrics_path": None,
        }
    )
