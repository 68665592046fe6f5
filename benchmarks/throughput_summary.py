"""What the throughput comes to: the targets that are met or not, and the charts."""

from collections.abc import Sequence
from typing import Final

from benchmarks.results import Cell, Chart, Results, Series, Target, compared

CONFLUENT_OUT: Final = "confluent-kafka produce()"
CONFLUENT_IN: Final = "confluent-kafka consume(10000)"
JAVA_OUT: Final = "Kafka's ProducerPerformance (Java)"
JAVA_IN: Final = "Kafka's ConsumerPerformance (Java)"
SEND: Final = "Folkmoot send()"
LISTS: Final = "Folkmoot send_batch(), lists"
ARROW: Final = "Folkmoot send_batch(), Arrow"
RECORDS: Final = "Folkmoot, record by record"
COLUMNS: Final = "Folkmoot batches(), columns"
ARROW_IN: Final = "Folkmoot arrow()"

# What is done, ours, at least so many times as confluent-kafka does, at least so many a second.
_LINES: Final = (
    ("produce", LISTS, 6.0, 4e6),
    ("produce", ARROW, 6.0, 4e6),
    ("consume", RECORDS, 3.5, 2.2e6),
    ("consume", COLUMNS, 8.0, 10e6),
    ("consume", ARROW_IN, 8.0, 10e6),
)

_WAYS: Final = ("with one header", "with on_delivery", "with partition=")

# Ahead of Kafka's own tools, with the codec that they are fastest with.
_JAVA_LINES: Final = (
    ("produce", SEND, JAVA_OUT),
    ("produce", LISTS, JAVA_OUT),
    ("consume", RECORDS, JAVA_IN),
    ("consume", COLUMNS, JAVA_IN),
)

# With lz4, which is for those who read much.
_LZ4_LINES: Final = ((COLUMNS, 14.0, 15e6), (ARROW_IN, 14.0, 15e6))

# CPU seconds per million records, of the client and the servers together.
_CPU_LINES: Final = (
    ("produce", SEND, 0.75),
    ("produce", LISTS, 0.40),
    ("produce", ARROW, 0.40),
    ("consume", RECORDS, 0.30),
)


def add(results: Results, case: str) -> None:
    """Targets and charts, as far as who they compare was there. `case` is the main one."""
    unique = case.replace("4,000 keys", "all keys different")
    _judge(results, f"produce: {case}", SEND, 3.0, 1.8e6, ", 4,000 keys")
    _judge(results, f"produce: {unique}", SEND, 3.0, 1.8e6, ", all keys different")
    for way in _WAYS:
        _judge(
            results,
            f"produce: {case.replace(', 12', f', {way}, 12')}",
            *(SEND, 3.0, 1e6, f", 4,000 keys, {way}"),
        )
    for verb, ours, times, rate in _LINES:
        _judge(results, f"{verb}: {case}", ours, times, rate)
    for ours, times, rate in _LZ4_LINES:
        _judge(results, f"consume: {case.replace('zstd', 'lz4')}", ours, times, rate, ", lz4")
    for verb, ours, most in _CPU_LINES:
        _judge_cpu(results, f"{verb}: {case}", ours, most)
    for verb, ours, theirs in _JAVA_LINES:
        mine, best = results.find(f"{verb}: {case}", ours), _fastest(results, theirs)
        if mine is not None and best is not None:
            codec = best.case.rpartition(", ")[2]
            text = f"{verb}, {ours}, beside Kafka's own tool at its best codec ({codec})"
            results.targets.append(compared(text, mine, best, times=1.0))
    best = _fastest(results, CONFLUENT_OUT)
    if best is not None:
        codec = best.case.rpartition(", ")[2]
        results.notes.append(
            f"confluent-kafka produced fastest with codec {codec}: {best.median / 1e6:.2f} M records/s."
        )
    results.charts += [
        _bars(results, f"produce: {case}", "throughput-produce", "Produced"),
        _bars(results, f"consume: {case}", "throughput-consume", "Consumed"),
        *_by_case(results),
        *_cpu(results, case),
    ]


def _fastest(results: Results, contender: str) -> Cell | None:
    """Of a contender's cells with the main records and partitions, whatever the codec."""
    cells = [cell for cell in results.cells if cell.contender == contender]
    like = [cell for cell in cells if "100 B, 4,000 keys, 12 partitions" in cell.case]
    return max(like, key=lambda cell: cell.median, default=None)


def _judge(
    results: Results, case: str, ours: str, times: float, rate: float, kind: str = ""
) -> None:
    """Against confluent-kafka at the same, and by itself."""
    verb = case.partition(":")[0]
    theirs = CONFLUENT_OUT if verb == "produce" else CONFLUENT_IN
    mine, peer = results.find(case, ours), results.find(case, theirs)
    if mine is not None:
        text = f"{verb}, {ours}{kind}"
        results.targets.append(compared(text, mine, peer, wanted=rate, times=times))


def _judge_cpu(results: Results, case: str, ours: str, most: float) -> None:
    """By what it costs, which other work on the machine disturbs least."""
    cell = results.find(case, ours)
    if cell is not None:
        cpu = cell.facts["client CPU"] + cell.facts["server CPU"]
        text = f"{case.partition(':')[0]}, {ours}: CPU of client and servers"
        line = Target(text=text, figure=cpu, unit="s/M records", better="lower", wanted=most)
        results.targets.append(line)


def _bars(results: Results, case: str, name: str, title: str) -> Chart:
    cells = [cell for cell in results.cells if cell.case == case]
    return Chart(
        name=name,
        title=f"{title}: {case.partition(': ')[2]}",
        kind="bars",
        unit="million records/s",
        groups=[cell.contender for cell in cells],
        series=[
            Series(
                name="",
                points=[(place, cell.median / 1e6) for place, cell in enumerate(cells)],
                spread=[(min(cell.values) / 1e6, max(cell.values) / 1e6) for cell in cells],
            )
        ],
    )


def _by_case(results: Results) -> Sequence[Chart]:
    """One group of bars a case, for those that take part in most."""
    cases = [c for c in dict.fromkeys(cell.case for cell in results.cells) if c[:7] == "produce"]
    if len(cases) < 2:
        return []
    series = []
    for name in (SEND, LISTS, CONFLUENT_OUT):
        cells = [(place, results.find(case, name)) for place, case in enumerate(cases)]
        points = [(place, cell.median / 1e6) for place, cell in cells if cell is not None]
        spread = [(min(cell.values) / 1e6, max(cell.values) / 1e6) for _, cell in cells if cell]
        if points:
            series.append(Series(name=name, points=points, spread=spread))
    return [
        Chart(
            name="throughput-cases",
            title="Produced: other records, partitions and codecs",
            kind="bars",
            unit="million records/s",
            groups=[case.partition(": ")[2] for case in cases],
            series=series,
        )
    ]


def _cpu(results: Results, case: str) -> Sequence[Chart]:
    """CPU seconds for a million records, of client and servers: Folkmoot's and Kafka's ways."""
    charts = []
    for verb, title in (("produce", "producing"), ("consume", "consuming")):
        cells = [
            cell
            for cell in results.cells
            if cell.case == f"{verb}: {case}" and not cell.contender.startswith(("Redis", "NATS"))
        ]
        series = [
            Series(name=who, points=[(n, cell.facts[who]) for n, cell in enumerate(cells)])
            for who in ("client CPU", "server CPU")
        ]
        charts.append(
            Chart(
                name=f"throughput-cpu-{verb}",
                title=f"CPU time, {title} (Redis and NATS: see the table)",
                kind="bars",
                unit="seconds per million records",
                groups=[cell.contender for cell in cells],
                series=series,
            )
        )
    return charts
