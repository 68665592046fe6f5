"""What the throughput comes to: the targets that are met or not, and the charts."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from benchmarks.results import Cell, Chart, Results, Series, series_of

CONFLUENT_OUT: Final = "confluent-kafka produce()"
CONFLUENT_IN: Final = "confluent-kafka consume(10000)"
JAVA_OUT: Final = "Kafka's ProducerPerformance (Java)"
JAVA_IN: Final = "Kafka's ConsumerPerformance (Java)"
SEND: Final = "Folkmoot send()"
LISTS: Final = "Folkmoot send_batch(), lists"
ARROW: Final = "Folkmoot send_batch(), Arrow"
RECORDS: Final = "Folkmoot, record by record"
POLL: Final = "Folkmoot poll()"
COLUMNS: Final = "Folkmoot batches(), columns"
ARROW_IN: Final = "Folkmoot arrow()"
MILLION: Final = 1e6
_CONFLUENT: Final = {"produce": CONFLUENT_OUT, "consume": CONFLUENT_IN}

# What is done, ours, what is other than in the main case, at least so many times as confluent-kafka does, at
# least so many a second. lz4 is for topics that are read often.
_LINES: Final = (
    ("produce", SEND, "4,000 keys", 3.0, 1.8e6),
    ("produce", SEND, "all keys different", 3.0, 1.8e6),
    ("produce", SEND, "4,000 keys, with one header", 3.0, 1e6),
    ("produce", SEND, "4,000 keys, with on_delivery", 3.0, 1e6),
    ("produce", SEND, "4,000 keys, with partition=", 3.0, 1e6),
    ("produce", LISTS, "", 6.0, 4e6),
    ("produce", ARROW, "", 6.0, 4e6),
    ("consume", RECORDS, "", 3.5, 2.2e6),
    ("consume", COLUMNS, "", 8.0, 10e6),
    ("consume", ARROW_IN, "", 8.0, 10e6),
    ("consume", COLUMNS, "lz4", 14.0, 15e6),
    ("consume", ARROW_IN, "lz4", 14.0, 15e6),
)
# CPU seconds per million records, of the client and the servers together.
_CPU_LINES: Final = (
    ("produce", SEND, 0.75),
    ("produce", LISTS, 0.40),
    ("produce", ARROW, 0.40),
    ("consume", RECORDS, 0.30),
)
# Ahead of Kafka's own tools, with the codec that they are fastest with.
_JAVA_LINES: Final = (
    ("produce", SEND, JAVA_OUT),
    ("produce", LISTS, JAVA_OUT),
    ("consume", RECORDS, JAVA_IN),
    ("consume", COLUMNS, JAVA_IN),
)


def add(results: Results, case: str) -> None:
    """Targets and charts, as far as their contenders were there. `case` is the main one."""
    for verb, ours, kind, times, rate in _LINES:
        other = case.replace("zstd" if kind == "lz4" else "4,000 keys", kind) if kind else case
        theirs = results.find(f"{verb}: {other}", _CONFLUENT[verb])
        text = f"{verb}, {ours}{f', {kind}' if kind else ''}"
        results.judge(
            text, results.find(f"{verb}: {other}", ours), theirs, wanted=rate, times=times
        )
    for verb, ours, most in _CPU_LINES:
        if (our_cell := results.find(f"{verb}: {case}", ours)) is not None:
            cpu = our_cell.facts["client CPU"] + our_cell.facts["server CPU"]
            text = f"{verb}, {ours}: CPU of client and servers"
            results.limit(text, cpu, most, "s/M records")
    for verb, ours, tool in _JAVA_LINES:
        if (best := _fastest(results, tool)) is not None:
            text = f"{verb}, {ours}, beside Kafka's own tool at its best codec ({_codec(best)})"
            results.judge(text, results.find(f"{verb}: {case}", ours), best, times=1.0)
    if (best := _fastest(results, CONFLUENT_OUT)) is not None:
        figure = f"{best.median / MILLION:.2f} M records/s"
        results.notes.append(
            f"confluent-kafka produced fastest with codec {_codec(best)}: {figure}."
        )
    for verb, title in (("produce", "Produced"), ("consume", "Consumed")):
        cells = [cell for cell in results.cells if cell.case == f"{verb}: {case}"]
        rates = [series_of("", cells, spread=True, scale=MILLION)]
        groups = [cell.contender for cell in cells]
        results.charts.append(
            _bars(f"throughput-{verb}", f"{title}: {case}", "million records/s", groups, rates)
        )
    cases = [c for c in dict.fromkeys(cell.case for cell in results.cells) if c[:7] == "produce"]
    if len(cases) > 1:
        groups = [each.partition(": ")[2] for each in cases]
        contenders = (SEND, LISTS, CONFLUENT_OUT)
        rates = results.series(cases, contenders, spread=True, scale=MILLION)
        title = "Produced: other records, partitions and codecs"
        results.charts.append(_bars("throughput-cases", title, "million records/s", groups, rates))
    results.charts += [_cpu(results, "produce", case), _cpu(results, "consume", case)]


def _fastest(results: Results, contender: str) -> Cell | None:
    """Of a contender's cells with the main records and partitions, whatever the codec."""
    cells = [cell for cell in results.cells if cell.contender == contender]
    same_records = [cell for cell in cells if "100 B, 4,000 keys, 12 partitions" in cell.case]
    return max(same_records, key=lambda cell: cell.median, default=None)


def _codec(cell: Cell) -> str:
    return cell.case.rpartition(", ")[2]


def _cpu(results: Results, verb: str, case: str) -> Chart:
    """CPU seconds for a million records, of client and servers: Folkmoot's and Kafka's ways."""
    cells = [
        cell
        for cell in results.cells
        if cell.case == f"{verb}: {case}" and not cell.contender.startswith(("Redis", "NATS"))
    ]
    name, title = f"throughput-cpu-{verb}", {"produce": "producing", "consume": "consuming"}[verb]
    title = f"CPU time, {title} (Redis and NATS: see the table)"
    series = [series_of(fact, cells, partial(_fact, fact)) for fact in ("client CPU", "server CPU")]
    groups = [cell.contender for cell in cells]
    return _bars(name, title, "seconds per million records", groups, series)


def _bars(
    name: str, title: str, unit: str, groups: Sequence[str], series: Sequence[Series]
) -> Chart:
    return Chart(name=name, title=title, kind="bars", unit=unit, groups=groups, series=series)


def _fact(name: str, cell: Cell) -> float:
    return cell.facts[name]
