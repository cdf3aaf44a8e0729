"""Ports of servers that are about to start."""

from __future__ import annotations

from etl.testkit.server_process import free_port


def test_no_two_servers_that_are_about_to_start_are_given_one_port() -> None:
    ports = [free_port() for _ in range(900)]
    assert len(set(ports)) == len(ports)
