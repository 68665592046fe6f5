"""A broker or a client of one release, as a process of its own or within a test.

`python -m tests.brokers.server.one_release serve DIRECTORY` prints its address and serves until its input
ends; `ask ADDRESS` prints what `ask` returns, and `use ZOOKEEPER TOPIC` what `use` returns, as JSON.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

import folkmoot  # loads clients only where they are used
from folkmoot.brokers.server.event_loop import EventLoop
from folkmoot.network.client import Connections
from folkmoot.network.server import ServerSocket
from folkmoot.protocol import messages
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.messages import Api
from tests.brokers.parts import fetch, into, make_batch, make_handlers, make_logs, out_of, produce

IS_NEXT = messages.APIS[Api.LOG_SIZES].highest > 0
PARTITIONS = 4


@contextmanager
def serve(directory: Path) -> Iterator[str]:
    """The address of an event loop."""
    with make_logs(directory) as logs:
        socket = ServerSocket()
        address = f"127.0.0.1:{socket.bind('127.0.0.1', 0)}"
        loop = EventLoop(socket, make_handlers(logs), lambda error: None)
        loop.start()
        yield address
        loop.stop()


def ask(address: str) -> dict[str, Any]:
    """The answers to one request of each kind, or the errors: all are sent before the broker has greeted.

    Of the logs it gives the partition and the segments.
    """
    with Connections("client") as connections:
        asked = {
            "produce": (Api.PRODUCE, produce(into(0), into(1)), [make_batch(b"a")] * 2),
            "fetch": (Api.FETCH, fetch(out_of(1)), []),
            "metadata": (Api.METADATA, messages.MetadataRequest(["t"]), []),
            "logs": (Api.LOG_SIZES, messages.LogSizesRequest(None), []),
        }
        if IS_NEXT:
            some: Any = messages.LogSizesRequest
            asked["some logs"] = Api.LOG_SIZES, some(None, partitions=[1]), []
        sent = {
            connections.send(address, api, request, payloads): name
            for name, (api, request, payloads) in asked.items()
        }
        answers: dict[str, Any] = {}
        while len(answers) < len(sent):
            for reply in connections.poll(30.0):
                answers[sent[reply.correlation_id]] = _answer(reply.response, reply.error)
        return answers


def _answer(response: Any, error: FolkmootError | None) -> Any:
    if error is not None:
        return f"{type(error).__name__}: {error}"
    if hasattr(response, "logs"):
        return [[log.partition, getattr(log, "segments", None)] for log in response.logs]
    return msgspec.to_builtins(response)


def use(zookeeper: str, topic: str) -> list[int]:
    """Write a record to each partition, acknowledged by all in-sync replicas, and read all that is there.

    Returns how many records each partition has, and how many replicas the brokers name.
    """
    with folkmoot.Producer(zookeeper=zookeeper, acks="all") as producer:
        for number in range(PARTITIONS):
            producer.send(topic, b"a", partition=number)
        producer.flush(30.0)
    with folkmoot.Consumer(zookeeper=zookeeper) as consumer:
        partitions = [folkmoot.TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(dict.fromkeys(partitions, 0))
        found = consumer.end_offsets(partitions)
        ends = [found[partition] for partition in partitions]
        missing = sum(ends)
        while missing:
            missing -= len(consumer.poll(timeout=30.0))
    with folkmoot.Admin(zookeeper=zookeeper) as admin:
        return [*ends, len(admin.log_sizes([topic]))]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", directory]:
            with serve(Path(directory)) as address:
                print(address, flush=True)
                sys.stdin.read()
        case ["ask", address]:
            print(json.dumps(ask(address)))
        case ["use", zookeeper, topic]:
            print(json.dumps(use(zookeeper, topic)))
