"""The pages of `docs/worlds`: each conf can be copied unchanged, and each page lists the tested and
the untested environments.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from etl.settings.load import load_settings
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
