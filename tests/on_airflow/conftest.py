"""Fixtures of the tests on Airflow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.on_airflow.home import ENVIRONMENT
from tests.on_airflow.running import IS_2, dag_bag
from tests.on_airflow.stand_in import StandIn


@pytest.fixture(scope="session")
def database() -> None:
    from airflow.utils.db import initdb

    if IS_2:
        initdb(load_connections=False)
        dag_bag().sync_to_db()
    else:
        initdb()


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """The environment with Spark, as scripts with prepared answers that record their calls."""
    ENVIRONMENT.forget()
    yield ENVIRONMENT
    ENVIRONMENT.forget()
