"""The key `transform.record_batch`: which keys exclude it, and plans that were stored with another
one.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.decide.plan import may_be_transformed, shape_of_rows
from etl.errors import SettingsError
from tests.builders import plain_plan, plain_settings

NAMES = st.sampled_from([None, "m:f", "m:g"])


def test_a_conf_has_one_transform_at_most() -> None:
    with pytest.raises(
        SettingsError, match="excludes transform.dataframe.*key transform.record_batch"
    ):
        plain_settings(transform={"dataframe": "m:f", "record_batch": "m:g"})
    both = plain_settings(transform={"dataframe": None, "record_batch": "m:g"})
    assert both.transform.function == "m:g"


@pytest.mark.parametrize("name", ["shaped", "m:", ":f", "m:f()", "a b:c", 7])
def test_a_name_of_another_form_is_refused_with_the_one_that_it_has(name: object) -> None:
    with pytest.raises(SettingsError, match="package.module:function") as raised:
        plain_settings(transform={"record_batch": name})
    assert raised.value.where["key"] == "transform.record_batch"


@given(NAMES, NAMES)
def test_rows_of_a_stored_plan_are_those_of_the_same_function_of_the_same_kind(
    transform: str | None, arrow: str | None
) -> None:
    if transform and arrow:
        return
    here = plain_settings(transform={"dataframe": transform, "record_batch": arrow})
    plan = plain_plan(shape=shape_of_rows(here))
    assert may_be_transformed(plan, here) is (here.transform.function is not None)
    for other in (
        plain_settings(),
        plain_settings(transform="m:f"),
        plain_settings(transform={"record_batch": "m:f"}),
    ):
        is_same = (other.transform.dataframe, other.transform.record_batch) == (transform, arrow)
        assert (shape_of_rows(other) == plan.shape) is is_same


def test_plans_stored_before_arrow_transforms_continue() -> None:
    """Their hash is in ZooKeeper."""
    assert [
        shape_of_rows(plain_settings(transform={"dataframe": name})) for name in (None, "m:f")
    ] == BEFORE


BEFORE = ["e185f091c68f8a68", "4acda0c7ebba8d6d"]
