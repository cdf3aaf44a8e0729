"""The log store class for S3: the shipped jar is built from its source."""

from __future__ import annotations

from pathlib import Path

from etl.io.spark.log_store import jar_path
from tests.log_store_build import JAR, classes, shipped


def test_the_jar_has_the_classes_of_the_source_next_to_it() -> None:
    assert shipped() == classes(), "python -m tests.log_store_build makes it anew"


def test_the_jar_is_a_file_that_a_jvm_can_open() -> None:
    assert jar_path() == JAR and Path(JAR).read_bytes().startswith(b"PK")
