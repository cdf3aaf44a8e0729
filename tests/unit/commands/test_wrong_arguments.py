"""Which arguments do errors of operators' commands name, and what do they accept?"""

from __future__ import annotations

import pytest

from etl.commands.inherit_pipeline import _find_pipeline
from etl.commands.operator_decisions import _reject_another_version
from etl.errors import SettingsError
from etl.model.snapshot import OtherPipeline

PIPELINES = (
    OtherPipeline("etl/one/group/clicks", 3),
    OtherPipeline("etl/two/group/clicks", 4),
    OtherPipeline("etl/one/group/orders", 5),
)


def test_another_version_is_rejected_under_the_name_of_the_argument() -> None:
    with pytest.raises(SettingsError, match=r"There is no table \(pass `none`\)") as refused:
        _reject_another_version("3", None)
    assert refused.value.where == {"key": "UP_TO_VERSION"}
    _reject_another_version("none", None)


@pytest.mark.parametrize("name", ["orders", "group/orders", "one/group/orders"])
def test_a_predecessor_is_found_by_as_much_of_its_name_as_is_unique(name: str) -> None:
    assert _find_pipeline(name, PIPELINES) is PIPELINES[2]
    assert _find_pipeline("two/group/clicks", PIPELINES) is PIPELINES[1]


@pytest.mark.parametrize(
    ("name", "message", "names"),
    [
        (
            "group/clicks",
            "Several pipelines group/clicks have loaded into the table",
            "one/group/clicks, two/group/clicks",
        ),
        (
            "visits",
            "No pipeline visits has loaded into the table",
            "one/group/clicks, one/group/orders, two/group/clicks",
        ),
    ],
)
def test_the_forms_of_a_predecessor_are_named(name: str, message: str, names: str) -> None:
    with pytest.raises(SettingsError) as refused:
        _find_pipeline(name, PIPELINES)
    assert (refused.value.message, refused.value.where) == (message, {"key": "--predecessor"})
    assert refused.value.action == (
        f"Pass NAME, GROUP/NAME or CLUSTER/GROUP/NAME, as far as only one of these has it: {names}"
    )


def test_no_predecessor_is_offered_where_there_is_none() -> None:
    with pytest.raises(SettingsError) as refused:
        _find_pipeline("clicks", ())
    assert refused.value.action == "Check table.path: no pipeline has loaded into the table"
