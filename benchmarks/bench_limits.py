"""How far Folkmoot is from what the machine allows: a plain file, the loopback, MessagePack."""

from typing import Any, Final

from benchmarks.harness import Context, Sample, rate_of
from benchmarks.programs import Program

TITLE: Final = "The machine's limits, and the distance to them"

BLOCK: Final = 1_000_000
EXPECTED_BYTES: Final = 400_000_000
EXPECTED_RECORDS: Final = 2_000_000
COLUMNS: Final = "Folkmoot send_batch(), lists, no compression"
ARROW: Final = "Folkmoot send_batch(), Arrow, no compression"
PLAIN: Final = "plain appends of 1 MB"


def run(context: Context) -> None:
    results = context.results
    case = "bytes written"
    contenders = {
        PLAIN: lambda: _append(context),
        COLUMNS: lambda: _columns(context, "columns"),
        ARROW: lambda: _columns(context, "arrow"),
    }
    context.alternate(case, "MB/s", contenders)
    plain = results.find(case, PLAIN)
    for name in (COLUMNS, ARROW):
        results.judge(name, results.find(case, name), plain, times=0.8)
    loopback = {
        f"frames of {size:,} B": lambda size=size: _loopback(context, size)
        for size in (1_000, 64_000, 1_000_000)
    }
    context.alternate("ZeroMQ, DEALER to ROUTER", "MB/s", loopback, 1)
    packing = {how: lambda how=how: _pack(context, how) for how in ("pack", "unpack")}
    context.alternate("MessagePack, columns of 100 B", "records/s", packing, 1)


def _program(context: Context, verb: str, **parameters: Any) -> Program:
    return context.server("folkmoot").client(verb, program="limits", **parameters)


def _append(context: Context) -> Sample:
    count = max(10, int(EXPECTED_BYTES * context.scale.seconds / BLOCK))
    path = str(context.work / "plain")
    outcome = _program(context, "append", path=path, size=BLOCK, count=count).run({})
    return Sample(value=outcome.rate * BLOCK / 1e6)


def _columns(context: Context, how: str) -> Sample:
    count = max(4_000, int(EXPECTED_RECORDS * context.scale.seconds))
    records = context.records.get("small", count)
    keys, values = records.payload(count)
    server, topic = context.server("folkmoot"), context.new_topic("folkmoot", 12)
    warm = min(20_000, count // 4)
    outcome = server.produce(topic, records.path, count, how=how, compression="none", warm=warm)
    server.delete_topic(topic)
    sample = rate_of(outcome)
    rate = sample.value * (keys + values) / count / 1e6
    return Sample(value=rate, facts={"records/s": sample.value, **sample.facts})


def _loopback(context: Context, size: int) -> Sample:
    count = max(100, int(min(40_000, 3e9 / size) * context.scale.seconds))
    with _program(context, "echo") as echo_program:
        port = echo_program.wait_for_event("ready", 30.0)["port"]
        outcome = _program(context, "ask", port=port, size=size, count=count).run({})
    return Sample(value=outcome.rate * size / 1e6, facts={"requests/s": outcome.rate})


def _pack(context: Context, how: str) -> Sample:
    outcome = _program(context, "pack", how=how, seconds=context.scale.seconds).run({})
    return Sample(value=outcome.rate)
