"""A broker process that stands still for a while under load."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from folkmoot.console.running.processes import BrokerProcess
from folkmoot.coordination import topics
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.network import connection
from folkmoot.network.client import Connections
from folkmoot.protocol.errors import Overloaded
from folkmoot.protocol.messages import Api, HelloRequest, MetadataRequest
from tests.brokers.parts import Peer, into, make_batch, produce
from tests.waiting import eventually

CLIENTS = 40
STANDS_STILL = 2.5


def test_a_broker_that_stood_still_under_acks_0_producers_is_alive(
    tmp_path: Path, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "TCP_USER_TIMEOUT", 1.5)
    broker = BrokerProcess(1, tmp_path / "b", chroot)
    broker.start()
    session = connect(chroot, 30.0)
    topic = execute(session, topics.create("t", 1, [1]))
    session.close()
    with Peer(broker.address) as peer:
        eventually(lambda: peer.call(Api.METADATA, MetadataRequest(None))[0].topics)
    request = produce(into(0, topic_id=topic.topic_id), acks=0)
    payload = [make_batch(b"x")]
    clients = [Connections(str(number)) for number in range(CLIENTS)]

    def send_for(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for client in clients:
                with suppress(Overloaded):
                    for _ in range(4):
                        client.send(
                            broker.address, Api.PRODUCE, request, payload, expect_reply=False
                        )
                client.poll(0.001)

    send_for(1.0)
    os.kill(broker.pid, signal.SIGSTOP)
    send_for(STANDS_STILL)
    os.kill(broker.pid, signal.SIGCONT)
    send_for(1.0)
    for client in clients:
        client.close()
    with Peer(broker.address) as peer:
        peer.call(Api.HELLO, HelloRequest("are you well?"))
    assert broker.is_running
    broker.stop()
