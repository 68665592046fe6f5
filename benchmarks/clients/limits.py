"""What the machine allows: appends to a plain file, ZeroMQ over the loopback, MessagePack."""

import os
import time
from pathlib import Path
from typing import Final

import msgspec
import zmq

from benchmarks.clients.program import Parameters, Stopwatch, main, report_event

IN_FLIGHT: Final = 8


def append(parameters: Parameters) -> None:
    """`count` writes of `size` bytes each to a new file, through the page cache."""
    block = os.urandom(parameters["size"])
    clock = Stopwatch()
    descriptor = os.open(parameters["path"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    clock.start()
    for _ in range(parameters["count"]):
        os.write(descriptor, block)
    clock.stop()
    os.close(descriptor)
    clock.report(parameters["count"])
    Path(parameters["path"]).unlink()


def echo(parameters: Parameters) -> None:
    """The far end of `request`: answers each request with one byte, until its standard input ends."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        report_event("ready", port=socket.bind_to_random_port("tcp://127.0.0.1"))
        while True:
            peer, _ = socket.recv_multipart(copy=False)
            socket.send_multipart([peer, b"k"])


def request(parameters: Parameters) -> None:
    """`count` requests with a frame of `size` bytes, IN_FLIGHT at a time."""
    frame = os.urandom(parameters["size"])
    clock = Stopwatch()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(f"tcp://127.0.0.1:{parameters['port']}")
        for _ in range(IN_FLIGHT):
            socket.send(frame, copy=False)
        for _ in range(IN_FLIGHT):
            socket.recv()
        clock.start()
        for _ in range(IN_FLIGHT):
            socket.send(frame, copy=False)
        for number in range(parameters["count"]):
            socket.recv()
            if number < parameters["count"] - IN_FLIGHT:
                socket.send(frame, copy=False)
        clock.stop()
    clock.report(parameters["count"])


def pack(parameters: Parameters) -> None:
    """Columns of 10,000 records of 100 bytes: packed, and unpacked."""
    rows = 10_000
    columns = (
        [b"user-%04d" % (number % 4_000) for number in range(rows)],
        [os.urandom(50).hex().encode() for _ in range(rows)],
        list(range(rows)),
    )
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes], list[int]]).decode
    packed = encode(columns)

    def work() -> object:
        return encode(columns) if parameters["how"] == "pack" else decode(packed)

    clock = Stopwatch()
    clock.start()
    times, end = 0, time.perf_counter() + parameters["seconds"]
    while time.perf_counter() < end:
        work()
        times += 1
    clock.stop()
    clock.report(times * rows)


if __name__ == "__main__":
    main({"append": append, "echo": echo, "ask": request, "pack": pack})
