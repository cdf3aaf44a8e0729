"""Open transactions: who writes to a log, and since when (KIP-664)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kafka.protocol.admin import DescribeProducersRequest

from etl.model.partitions import BrokerPartition, OpenTransaction
from etl.protocol.generations.kafka.small_messages import by_topic

_YEAR_10000_MS = 253_402_300_800_000
"""No date can be written from there on."""


def producers_fields(logs: Collection[BrokerPartition]) -> dict[str, Any]:
    """The question who writes to these logs, for their leader."""
    wanted = DescribeProducersRequest.TopicRequest
    return {
        "topics": [
            wanted(name=topic, partition_indexes=[log.partition for log in found])
            for topic, found in by_topic(logs).items()
        ]
    }


def parse_open_transactions(response: Any) -> dict[BrokerPartition, OpenTransaction]:
    """The open transaction that began first in each log; a log without one, or of which we may not
    ask, is left out.
    """
    found: dict[BrokerPartition, OpenTransaction] = {}
    for topic in response.topics:
        for each in topic.partitions:
            started = [
                (p.current_txn_start_offset, p.producer_id)
                for p in each.active_producers
                if p.current_txn_start_offset >= 0
            ]
            if each.error_code == 0 and started:
                first_offset, producer_id = min(started)
                found[BrokerPartition(topic.name, each.partition_index)] = OpenTransaction(
                    producer_id, first_offset
                )
    return found


def list_transactions_fields(producer_ids: Collection[int]) -> dict[str, Any]:
    return {"state_filters": [], "producer_id_filters": sorted(producer_ids), "duration_filter": -1}


def parse_transactional_ids(response: Any) -> list[str]:
    """The transactional ids that this broker coordinates and we may see."""
    return (
        []
        if response.error_code
        else [each.transactional_id for each in response.transaction_states]
    )


def describe_transactions_fields(transactional_ids: Collection[str]) -> dict[str, Any]:
    return {"transactional_ids": sorted(transactional_ids)}


def parse_transactions(response: Any) -> dict[int, tuple[str, int | None]]:
    """Producer id -> transactional id, and when its transaction began in milliseconds since 1970."""
    return {
        each.producer_id: (
            each.transactional_id,
            each.transaction_start_time_ms
            if 0 < each.transaction_start_time_ms < _YEAR_10000_MS
            else None,
        )
        for each in response.transaction_states
        if each.error_code == 0
    }
