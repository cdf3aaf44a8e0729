"""The embedded servers end with who started them, and a start that fails is reported."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from etl.errors import SettingsError, Unreachable
from etl.testkit.brokers import Kafka
from etl.testkit.cluster import ZooKeeper
from etl.testkit.server_process import free_port, wait_until
from tests.processes import is_running, that_mention

GONE_WITHIN_S = 20.0


PROGRAM = """
import sys, time
from etl.testkit.cluster import ZooKeeper
with ZooKeeper(sys.argv[1]) as zookeeper:
    print(zookeeper.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_with_the_program_that_started_it(
    tmp_path: Path, how: signal.Signals
) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert program.stdout is not None
    server = int(program.stdout.readline())
    assert is_running(server)
    program.send_signal(how)
    program.wait(GONE_WITHIN_S)
    program.stdout.close()
    assert wait_until(lambda: not is_running(server), GONE_WITHIN_S)
    assert wait_until(lambda: not that_mention(str(tmp_path)), GONE_WITHIN_S)


def test_ctrl_c_on_the_terminal_does_not_reach_a_server(server: ZooKeeper) -> None:
    assert server.pid is not None
    assert os.getpgid(server.pid) != os.getpgid(0)
    assert os.getsid(server.pid) != os.getsid(0)


def test_a_broken_start_names_the_log_file_shows_its_end_and_keeps_it(server: ZooKeeper) -> None:
    broken = Kafka(
        zookeeper=server.connect, chroot="/broken", properties={"log.retention.ms": "soon"}
    )
    with pytest.raises(Unreachable) as failure, broken:
        pytest.fail("a broker started with a setting that is no number")
    assert failure.value.where["log"] == broken.log
    assert "exit code 1" in failure.value.message
    assert "log.retention.ms" in failure.value.action
    assert "log.retention.ms" in broken.log.read_text()
    assert broken.pid is None
    shutil.rmtree(broken.folder)


def test_a_broker_without_zookeeper_reports_it() -> None:
    broker = Kafka(zookeeper=f"127.0.0.1:{free_port()}")
    broker.start_within_s = 1.0
    with pytest.raises(Unreachable, match="ZooKeeper does not answer"):
        broker.start()
    assert broker.pid is None
    assert not broker.folder.exists()


def test_a_version_that_cannot_be_embedded_is_refused_with_those_that_can() -> None:
    with pytest.raises(SettingsError, match="3.9.1"):
        Kafka(zookeeper="127.0.0.1:1", version="0.0.1").start()
