"""The path of a table: equal and different places, and invalid ones."""

from __future__ import annotations

import pytest

from etl.settings.choices import check_place, lies_in, place_of


@pytest.mark.parametrize(
    "path",
    [
        "/warehouse/clicks/",
        "/warehouse//clicks",
        "/warehouse/old/../clicks",
        "file:///warehouse/clicks",
    ],
)
def test_a_folder_is_the_same_place_however_it_is_written(path: str) -> None:
    assert place_of(path) == place_of("/warehouse/clicks")


def test_an_object_stores_url_is_the_same_place_with_a_slash_at_its_end() -> None:
    assert place_of("s3://bucket/clicks/") == place_of("s3://bucket/clicks")
    assert place_of("s3://bucket/clicks") != place_of("s3://bucket/clicks2")


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("s3a://b/clicks", "s3://b/clicks"),
        ("s3://b/clicks/_delta_log", "s3a://b/clicks"),
        ("abfs://c@a/x", "abfss://c@a/x/"),
    ],
)
def test_a_place_in_a_store_lies_in_another_one_whichever_scheme_names_them(
    path: str, other: str
) -> None:
    assert lies_in(path, other) and not lies_in(path, other.replace("c", "d"))


@pytest.mark.parametrize(
    "path",
    [
        " s3://bucket/clicks",
        "s3://bucket/clicks ",
        "/a\0b",
        "~/clicks",
        "s3:/bucket/clicks",
        "dbfs:/clicks",
        "file:clicks",
        "file://host/clicks",
        "://clicks",
        "a b://clicks",
        "memory:///clicks",
        "/a\\b/clicks",
        "/a\tb",
        "/a\nb",
        "S3://bucket/clicks",
        "s3://bucket/a%20b",
        "s3://bucket/a?b",
        "s3://bucket/a#b",
        "s3://bucket/a\\b",
        "abfss://c@a.dfs.core.windows.net/a%b",
        "s3://bucket//clicks",
        "s3://key:word@bucket/a",
        "s3a://key@bucket/a",
        "abfss://c:word@a.dfs.core.windows.net/a",
        "s3://bucket/a/../b",
        "hdfs://host:9000/./a",
        "s3://bucket/a//b/",
    ],
)
def test_what_would_be_taken_for_another_place_than_was_meant_is_refused(path: str) -> None:
    with pytest.raises(ValueError):
        check_place(path)


@pytest.mark.parametrize(
    "path",
    [
        "clicks",
        "/a b",
        "a:b/c",
        "s3://bucket/clicks",
        "file:///clicks",
        "file:/clicks",
        "x/s3:/y",
        "50%",
        "s3://bucket",
        "s3://bucket/a b/c-d_e=f/",
        "s3://bucket/ü",
        "s3://bucket/a@b",
        "hdfs://host:9000/a",
        "abfss://c@a.dfs.core.windows.net/a",
    ],
)
def test_what_can_only_be_meant_in_one_way_is_taken(path: str) -> None:
    assert check_place(path) == path
