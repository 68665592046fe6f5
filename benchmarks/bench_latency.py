"""How long a record takes from `send()` in one process to the application in another, at fixed rates.

A measurement has a new topic of 12 partitions, a consumer that waits at its end, and a producer that
sends a record when it is due (`clients/pacing.py`). The first quarter is not counted.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from math import inf
from typing import Final

from benchmarks.harness import Context, Estimate, Sample, cell
from benchmarks.measuring import cpu_seconds
from benchmarks.programs import NotInTime
from benchmarks.results import Chart, Results, Series, Target

NAME: Final = "latency"
TITLE: Final = "Latency: from send() in one process to the application in another"
ESTIMATE: Final = Estimate(seconds=0, per_round=90, quick_seconds=70, disk=2e9)

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


def run(context: Context) -> Results:
    results = Results(name=NAME, title=TITLE)
    peers = {NAMES[peer]: peer for peer in NAMES if context.has(peer)}
    rates = RATES if context.scale.name != "smoke" else RATES[:1]
    for number, (rate, linger) in enumerate(product(rates, LINGERS)):
        case = f"{rate:,} records/s, linger {linger * 1000:g} ms"
        context.say(f"-- {case}")
        taken: dict[str, list[Sample]] = {name: [] for name in peers}
        # Clients are new processes each time, and servers are warm after the first case.
        rounds = context.scale.side_rounds
        for name, counts in context.turns(list(peers), rounds, warm_up=number == 0):
            measure = partial(_once, context, peers[name], rate, linger)
            sample = context.attempt(f"{case}, {name}", measure)
            if sample is None:
                continue
            context.say(f"   {name}: {sample.value:.3g} ms, p99 {sample.facts[P99]:.3g} ms")
            if counts:
                taken[name].append(sample)
        found = {name: samples for name, samples in taken.items() if samples}
        results.cells += [cell(case, name, UNIT, samples) for name, samples in found.items()]
    results.notes.append(
        "Counted from when a record was due, not from when it was sent; 100 B, 12 partitions, zstd, "
        f"acks=1. The first quarter is not counted. Where records still waited {PATIENCE:g} s after the last "
        "was sent, all figures are told as that time. The client's CPU is that of both processes."
    )
    _judge(results)
    results.charts += [_chart(results, "median", None), _chart(results, "p99", P99)]
    return results


def _once(context: Context, peer: str, rate: int, linger: float) -> Sample:
    seconds = 2 * context.scale.seconds if context.scale.name != "smoke" else 1.0
    count = round(rate * seconds)
    server = context.server(peer)
    topic = context.new_topic(peer, PARTITIONS)
    module = f"benchmarks.clients.{peer}_latency"
    told = {
        "topic": topic,
        "count": count,
        "rate": rate,
        "size": SIZE,
        "linger": linger,
        "warm": int(count * WARM_SHARE),
    }
    with ExitStack() as stack:
        consumer = stack.enter_context(server.client("consume", module=module, **told))
        producer = stack.enter_context(server.client("produce", module=module, **told))
        # The producer writes to every partition before the consumer looks for their ends.
        producer.wait_ready()
        consumer.wait_ready()
        # Not `Usage`, which looks at the memory all the time: nobody disturbs these measurements.
        used = {pid: cpu_seconds(pid) for pid in server.processes().values()}
        consumer.go()
        producer.go()
        sent = producer.wait_done()
        own, late = sent["cpu"], False
        try:
            read = consumer.wait_done(PATIENCE)
            own += read["cpu"]
            found = {name: (lag - sent["begun"]) / 1e6 for name, lag in read["lags"].items()}
        except NotInTime:
            late = True
            found = dict.fromkeys(("p50", "p95", "p99", "p99.9", "max"), PATIENCE * 1000)
        servers = sum(cpu_seconds(pid) - before for pid, before in used.items())
    server.delete_topic(topic)
    facts = {f"{name} ms": at for name, at in found.items() if name != "p50"}
    if late:
        facts[LATE] = 1
    facts["client CPU"] = own / count * 1e6  # of both
    facts["producer CPU"] = sent["cpu"] / count * 1e6
    facts["server CPU"] = servers / count * 1e6
    return Sample(value=found["p50"], facts=facts)


def _judge(results: Results) -> None:
    """The median and p99 against Kafka's in every case."""
    for case in dict.fromkeys(each.case for each in results.cells):
        ours, theirs = (results.find(case, name) for name in NAMES.values())
        if ours is None or theirs is None:
            continue
        for what, fact in (("median", None), ("p99", P99)):
            text = f"latency, {what}, {case}"
            if LATE in theirs.facts:
                text += " (Kafka's records still waited when time was up)"
            figure = ours.median if fact is None else ours.facts[fact]
            results.targets.append(
                Target(
                    text=text,
                    figure=inf if LATE in ours.facts else figure,  # never met, whatever Kafka did
                    unit="ms",
                    better="lower",
                    spread=(min(ours.values), max(ours.values)) if fact is None else None,
                    rival=theirs.contender,
                    beside=theirs.median if fact is None else theirs.facts[fact],
                    times=1.0,
                    facts=ours.facts,
                )
            )


def _chart(results: Results, what: str, fact: str | None) -> Chart:
    cases: Sequence[str] = list(dict.fromkeys(each.case for each in results.cells))
    series = []
    for name in NAMES.values():
        cells = [(place, results.find(case, name)) for place, case in enumerate(cases)]
        points = [
            (place, found.median if fact is None else found.facts[fact])
            for place, found in cells
            if found is not None
        ]
        if points:
            series.append(Series(name=name, points=points))
    return Chart(
        name=f"latency-{what}",
        title=f"Latency from end to end, {what}",
        kind="lines",
        unit="ms",
        series=series,
        groups=[case.replace(" records", "").replace("linger ", "") for case in cases],
        log_y=True,
    )
