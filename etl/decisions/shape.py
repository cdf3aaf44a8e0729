"""What shapes the rows of a plan: settings under which it may be executed again. Pure functions of
values.
"""

from __future__ import annotations

import hashlib
import json

from etl.model.partitions import Isolation
from etl.model.plans import Plan
from etl.settings.sections import Settings


def shape_of_rows(settings: Settings) -> str:
    """Hash of the settings that shape the rows."""
    shaping = [
        settings.source.isolation.value,
        settings.transform,
        list(settings.table.partition_by),
    ]
    if (
        settings.arrow_transform is not None
    ):  # plans that were stored before there was one keep their hash
        shaping.append(settings.arrow_transform)
    return hashlib.sha256(json.dumps(shaping).encode()).hexdigest()[:16]


def may_be_transformed(plan: Plan, settings: Settings) -> bool:
    """Whether a transform may have made the plan's rows. Of what shaped them a plan keeps the hash
    alone, so: unless it is that of none.
    """
    untouched = settings.model_copy(update={"transform": None, "arrow_transform": None})
    sources = (
        settings.source.model_copy(update={"isolation": isolation}) for isolation in Isolation
    )
    return all(
        plan.shape != shape_of_rows(untouched.model_copy(update={"source": source}))
        for source in sources
    )
