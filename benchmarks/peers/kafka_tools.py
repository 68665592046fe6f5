"""Kafka's own measuring tools, ProducerPerformance and ConsumerPerformance: Java on both ends.

The producer takes the values from a file, at random and so with repetitions, and sends no keys; the
file has half a million, since it holds them as objects and 4 million would fill its 1 GB of heap. Both
are counted at their best: the producer's rate is that after its warm-up of a quarter of the records,
the consumer's leaves out the time that it takes to join its group. Batches of 256 kB, 20 ms of
linger, 256 MB of buffer and zstd's level 1 are for throughput, as confluent-kafka's settings are; its
defaults are 16 kB, 5 ms, 32 MB and level 3.
"""

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.peers.kafka import HEAP, KafkaServer, java_command
from benchmarks.programs import Outcome, Program, ProgramFailed

VALUES: Final = 500_000
PACKAGE: Final = "org.apache.kafka.tools"
_STEADY: Final = re.compile(
    r"^(\d+) steady state records sent, ([\d.]+) records/sec .* 99\.9th", re.M
)


def produce(server: KafkaServer, topic: str, count: int, compression: str, values: Path) -> Outcome:
    """Sends `count` records, of which the last three quarters make the rate."""
    settings = ["acks=1", f"compression.type={compression}", "linger.ms=20", "batch.size=262144"]
    settings += ["compression.zstd.level=1"] if compression == "zstd" else []
    output, result = _run(
        server,
        "ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--warmup-records", str(count // 4)),
        *("--throughput", "-1", "--payload-file", str(values)),
        *("--command-property", *settings, "buffer.memory=268435456"),
        count=count,
    )
    found = _STEADY.search(output)
    if found is None:
        raise ProgramFailed(f"ProducerPerformance printed no rate: {output[-500:]}")
    return replace(result, seconds=count / float(found[2]))


def consume(server: KafkaServer, topic: str, count: int) -> Outcome:
    """Reads `count` records; `reported` has the rate with the time to join, too."""
    arguments = ("--topic", topic, "--num-records", str(count))
    output, result = _run(server, "ConsumerPerformance", *arguments, count=count)
    # It pads its table, and may warn before and after it.
    lines = [line for line in output.splitlines() if line.count(",") >= 9]
    if len(lines) < 2:
        raise ProgramFailed(f"ConsumerPerformance printed no rate: {output[-500:]}")
    head, row = csv.reader([lines[0], lines[-1]], skipinitialspace=True)
    columns = dict(zip(head, row, strict=True))
    return replace(
        result,
        records=int(columns["data.consumed.in.nMsg"]),
        seconds=count / float(columns["fetch.nMsg.sec"]),
        reported={"with joining": float(columns["nMsg.sec"])},
    )


def _run(server: KafkaServer, tool: str, *arguments: str, count: int) -> tuple[str, Outcome]:
    where = ("--bootstrap-server", server.address)
    command = java_command(server.jars, HEAP, f"{PACKAGE}.{tool}", *where, *arguments)
    program = Program(command, server.directory / "clients.log")
    return program.run_tool(server.processes(), count)
