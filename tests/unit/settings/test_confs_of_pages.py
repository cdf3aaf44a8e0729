"""The confs on the pages of `docs/worlds` and of the page on networks and stores."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from etl.model.security import (
    Acl,
)
from etl.settings.load import load_settings, parse_settings
from etl.settings.table import kind_of

FOLDER = Path(__file__).parents[3] / "docs" / "worlds"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
CONFS = [
    pytest.param(text, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, text in enumerate(
        re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    )
]
OF_BROKERS = {
    "CONFLUENT_CLOUD": "PLAIN",
    "MSK": "OAUTHBEARER",
    "EVENT_HUBS": "PLAIN",
    "KERBEROS": "GSSAPI",
}
OF_TABLES = {"S3": "S3", "AZURE": "Azure", "HDFS": "HDFS", "GCS": "other"}


@pytest.mark.parametrize("text", CONFS)
def test_a_conf_of_a_page_is_taken_whole_where_none_of_its_secrets_is(
    text: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "conf.yaml").write_text(text)
    settings = load_settings(tmp_path / "conf.yaml")
    page = request.node.callspec.id.rpartition("-")[0]
    way_in = settings.source.way_in
    if page in OF_BROKERS:
        assert way_in.protocol.is_encrypted
        assert way_in.login
        assert way_in.login.mechanism.value == OF_BROKERS[page]
    else:
        kind = kind_of(settings.table.path)
        assert kind and kind.value == OF_TABLES[page]


def test_each_environment_has_its_page_with_its_tests_and_a_link_from_the_first_one() -> None:
    assert {page.stem for page in PAGES} == {*OF_BROKERS, *OF_TABLES}
    contents = (FOLDER / "README.md").read_text()
    for page in PAGES:
        text = page.read_text()
        assert (
            "**Tested**: " in text and "**Not tested**: " in text and f"({page.name})" in contents
        ), page.name


PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "networks-and-stores.md").read_text()


LEAST = {
    "pipeline": "clicks",
    "group": "etl-clicks",
    "zookeeper": {"connect": "a:2181/kafka"},
    "source": {"topics": ["clicks"]},
    "table": {"path": "warehouse/clicks"},
}
SECTIONS = [
    yaml.safe_load(text)
    for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize("copied", SECTIONS)
def test_a_conf_of_the_page_on_networks_and_stores_can_be_copied(copied: dict[str, Any]) -> None:
    settings = parse_settings({**LEAST, **copied})
    if "source" in copied:
        way_in = settings.source.way_in
        assert way_in.protocol.is_encrypted and (way_in.login or way_in.tls.cert_file)
    elif "zookeeper" in copied:
        access = settings.zookeeper.access
        assert access.tls and access.auth and access.acl is Acl.CREATOR
    else:
        assert settings.table.name or settings.table.store.keys_set
    sections = [next(iter(each)) for each in SECTIONS]
    assert sections == ["source", "source", "zookeeper", "table", "table"]
