"""What is made of a catalog's word on a table: values in, a place or a refusal out."""

from __future__ import annotations

import pytest

from etl.decisions.named_tables import as_written, place_in, refuse_another_place
from etl.errors import NeedsDecision, NotOurTable
from etl.model.named_table import CatalogEntry

NAME = "lake.clicks"


def entry(kind: str = "MANAGED", provider: str = "delta", location: str | None = "file:/wh/clicks", *properties: str) -> CatalogEntry:
    return CatalogEntry("spark_catalog", kind, provider, location, frozenset(properties))


@pytest.mark.parametrize(("location", "written"), [
    ("file:/wh/clicks", "/wh/clicks"), ("file:///wh/cl icks", "/wh/cl icks"), ("s3a://bucket/clicks", "s3a://bucket/clicks"),
    ("abfss://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/t"), ("hdfs://name:8020/t", "hdfs://name:8020/t")])
def test_a_place_is_told_as_a_conf_would_write_it(location: str, written: str) -> None:
    assert as_written(location) == written == place_in(NAME, entry("EXTERNAL", location=location))


@pytest.mark.parametrize(("name", "found", "said"), [
    (NAME, entry("VIEW", "", None), "is a view"),
    (NAME, entry(provider="parquet"), "no Delta table, but one of parquet"),
    (NAME, entry(provider="hive"), "no Delta table, but one of hive"),
    (NAME, entry(location=None), "no place"),
    (NAME, entry("MANAGED", "delta", "s3://b/t", "delta.feature.catalogManaged", "fs.s3a.access.key"), "managed by its catalog"),
    (NAME, entry("MANAGED", "delta", "s3://b/t", "delta.feature.catalogOwned-preview"), "managed by its catalog"),
    (NAME, entry("EXTERNAL", "delta", "s3://b/t", "fs.s3a.session.token"), "credentials that its catalog lends to Spark alone"),
    (NAME, entry("EXTERNAL", "delta", "s3://b/t", "option.fs.s3a.access.key"), "credentials that its catalog lends to Spark alone"),
    ("global_temp.clicks", entry(), "temporary view"),
])
def test_what_no_run_may_commit_to_by_a_path_is_refused_by_its_name(name: str, found: CatalogEntry, said: str) -> None:
    with pytest.raises(NotOurTable) as refused:
        place_in(name, found)
    assert refused.value.exit_code == 2 and refused.value.where["key"] == "table.name" and refused.value.check
    assert said in refused.value.what and name in refused.value.what


def test_a_name_that_leads_elsewhere_by_now_or_nowhere_is_for_a_person_to_decide() -> None:
    refuse_another_place(NAME, "/wh/clicks", "/wh/clicks/")
    for now, said in (("/wh/others", "at /wh/others by now"), (None, "no table lake.clicks any more")):
        with pytest.raises(NeedsDecision, match="etl table resolve CONF") as refused:
            refuse_another_place(NAME, "/wh/clicks", now)
        assert said in refused.value.what and "/wh/clicks" in refused.value.what
