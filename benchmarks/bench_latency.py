"""How long a record takes from `send()` in one process to the application in another, at fixed rates.

A measurement has a new topic of 12 partitions, a consumer that waits at its end, and a producer that
sends a record when it is due (`clients/pacing.py`). The first quarter is not counted.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf
from typing import Final

from benchmarks.harness import Context, Sample
from benchmarks.measuring import cpu_seconds
from benchmarks.programs import ProgramTimeout, all_ready
from benchmarks.results import Cell, Chart, Results, median_of

TITLE: Final = "Latency: from send() in one process to the application in another"

RATES: Final = (1_000, 50_000, 200_000)
LINGERS: Final = (0.0, 0.005)
PARTITIONS: Final = 12
SIZE: Final = 100
WARM_SHARE: Final = 0.25
PATIENCE: Final = 20.0
NAMES: Final = {"folkmoot": "Folkmoot", "kafka": "Kafka (confluent-kafka)"}
UNIT: Final = "ms (median)"
P99: Final = "p99 ms"
LATE: Final = "records waited when time was up"


def run(context: Context) -> None:
    results = context.results
    peers = {NAMES[peer]: peer for peer in NAMES if context.has(peer)}
    rates = RATES if context.scale.name != "smoke" else RATES[:1]
    for number, (rate, linger) in enumerate(product(rates, LINGERS)):
        case = f"{rate:,} records/s, linger {linger * 1000:g} ms"
        measures = {name: partial(_once, context, peers[name], rate, linger) for name in peers}
        rounds = context.scale.side_rounds
        # Clients are new processes each time, and servers are warm after the first case.
        context.alternate(case, UNIT, measures, rounds, warm_up=number == 0)
    results.notes.append(
        "Counted from when a record was due, not from when it was sent; 100 B, 12 partitions, zstd, "
        f"acks=1. The first quarter is not counted. Where records still waited {PATIENCE:g} s after the last "
        "was sent, all figures are told as that time. The client's CPU is that of both processes."
    )
    _judge(results)
    results.charts += [
        _chart(results, "median", median_of),
        _chart(results, "p99", lambda cell: cell.facts[P99]),
    ]


def _once(context: Context, peer: str, rate: int, linger: float) -> Sample:
    seconds = 2 * context.scale.seconds if context.scale.name != "smoke" else 1.0
    count = round(rate * seconds)
    server = context.server(peer)
    topic = context.new_topic(peer, PARTITIONS)
    parameters = {
        "topic": topic,
        "count": count,
        "rate": rate,
        "size": SIZE,
        "linger": linger,
        "warm": int(count * WARM_SHARE),
    }
    verbs = ("produce", "consume")
    with all_ready(
        server.client(verb, program="paced", **parameters) for verb in verbs
    ) as programs:
        producer, consumer = programs
        # Not `Usage`, which looks at the memory all the time, and would disturb these measurements.
        used = {pid: cpu_seconds(pid) for pid in server.processes().values()}
        consumer.go()
        producer.go()
        sent = producer.wait_done()
        client_cpu, is_late = sent["cpu"], False
        try:
            read = consumer.wait_done(PATIENCE)
            client_cpu += read["cpu"]
            found = {name: (lag - sent["begun"]) / 1e6 for name, lag in read["lags"].items()}
        except ProgramTimeout:
            is_late = True
            found = dict.fromkeys(("p50", "p95", "p99", "p99.9", "max"), PATIENCE * 1000)
        servers = sum(cpu_seconds(pid) - before for pid, before in used.items())
    server.delete_topic(topic)
    facts = {f"{name} ms": at for name, at in found.items() if name != "p50"}
    if is_late:
        facts[LATE] = 1
    facts["client CPU"] = client_cpu / count * 1e6  # of both
    facts["producer CPU"] = sent["cpu"] / count * 1e6
    facts["server CPU"] = servers / count * 1e6
    return Sample(value=found["p50"], facts=facts)


def _judge(results: Results) -> None:
    """The median and p99 against Kafka's in every case."""
    for case in dict.fromkeys(each.case for each in results.cells):
        ours, theirs = (results.find(case, name) for name in NAMES.values())
        if ours is None or theirs is None:
            continue
        for statistic, fact in (("median", ""), ("p99", P99)):
            text = f"latency, {statistic}, {case}"
            if LATE in theirs.facts:
                text += " (Kafka's records still waited when time was up)"
            results.judge(text, ours, theirs, fact=fact, unit="ms", better="lower", times=1.0)
            if LATE in ours.facts:  # never met, whatever Kafka did
                results.targets[-1] = replace(results.targets[-1], figure=inf)


def _chart(results: Results, statistic: str, value: Callable[[Cell], float]) -> Chart:
    cases = list(dict.fromkeys(each.case for each in results.cells))
    return Chart(
        name=f"latency-{statistic}",
        title=f"Latency from end to end, {statistic}",
        kind="lines",
        unit="ms",
        series=results.series(cases, NAMES.values(), value),
        groups=[case.replace(" records", "").replace("linger ", "") for case in cases],
        log_y=True,
    )
