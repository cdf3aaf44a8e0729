"""What the sections of a conf file have in common: frozen, no unknown key, `true` or `false` where
declared, how large a number may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

DAY_S, TEN_YEARS_S, INT64 = 86_400, 10 * 366 * 86_400, 2**63 - 1
"""Clocks and requests take no number of any size; offsets and sizes are int64 (Kafka protocol,
"Primitive Types").
"""
NAME = r"^[A-Za-z0-9._-]*[A-Za-z0-9_-][A-Za-z0-9._-]*$"
"""What may name a znode and a group: not dots alone, which ZooKeeper refuses in a path."""


class Section(BaseModel):
    """Keys and what they may hold."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _boolean_where_declared(cls, value: Any, info: ValidationInfo) -> Any:
        """Few keys are true or false, but YAML reads `yes`, `no`, `on` and `off` as such, and
        pydantic true as 1 and 1 as true.
        """
        declared = cls.model_fields[str(info.field_name)].annotation
        if declared in (bool, bool | None):
            if not isinstance(value, bool) and (value is not None or declared is bool):
                raise ValueError(
                    "must be true or false" if declared is bool else "must be true, false or null"
                )
        elif isinstance(value, bool):
            raise ValueError(
                "is true or false, which this key never is; YAML takes yes, no, on and off for it: put the value in quotes"
            )
        return value

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's. Raises KeyError for what is no field, of which pydantic would make
        nothing, without a word.
        """
        unknown = (update or {}).keys() - type(self).model_fields.keys()
        if unknown:
            raise KeyError(f"{type(self).__name__} has no field {sorted(unknown)[0]}")
        return super().model_copy(update=update, deep=deep)


def one_or_several(value: Any) -> Any:
    """`allow: clicks` is a list of one."""
    return (value,) if isinstance(value, str) and value else value
