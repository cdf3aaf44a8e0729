"""What the doctor says of topics, on brokers that tell little."""

from __future__ import annotations

import contextlib

import pytest

from etl.doctor import brokers
from etl.doctor.check import Findings, Verdict
from etl.edges.brokers.cluster import Cluster
from tests.builders import plain_settings
from tests.fakes.broker import FakeBroker


@pytest.mark.parametrize(("configs", "said", "verdicts"), [
    ({}, [], [Verdict.ADVICE, Verdict.OK]), ({}, ["cli.*"], [Verdict.OK]), ({"clicks": {"cleanup.policy": "delete"}}, [], [Verdict.OK])])
def test_topics_whose_cleaning_the_brokers_do_not_tell_are_named(
    configs: dict[str, dict[str, str]], said: list[str], verdicts: list[Verdict],
) -> None:
    with FakeBroker() as broker, contextlib.ExitStack() as closing:
        broker.log("clicks")
        broker.world.configs = configs
        findings = Findings(plain_settings(source={"compacted_topics": said}), closing)
        with Cluster([(broker.host, broker.port)]) as cluster:
            findings.metadata = cluster.describe(None)
        lines = list(brokers.topics("topics", findings))
    assert [line.verdict for line in lines] == verdicts
    if Verdict.ADVICE in verdicts:
        assert "clicks" in lines[0].found and "DescribeConfigs" in lines[0].to_do
