"""How many records a second: sent until the last acknowledgement, then read back and counted.

Each measurement has a new topic. What a producer wrote is read back at once by the consumers that are
compared, which also count it: every record must be there, once, and no byte may be missing.
"""

from functools import partial
from typing import Any, Final

from benchmarks.harness import Context, Sample, rate_of
from benchmarks.results import Results

NAME: Final = "throughput"
TITLE: Final = "Throughput: records a second, one producer or one consumer"


def run(context: Context) -> Results:
    results = Results(name=NAME, title=TITLE)

    def once(peer: str, how: str, back: str) -> Sample:
        records = context.records.get("small", 300_000)
        server = context.server(peer)
        topic = context.new_topic(peer, 12)
        told: dict[str, Any] = {"topic": topic, "count": records.count, "warm": 20_000}
        produce = server.client(
            "produce", how=how, compression="zstd", records=str(records.path), **told
        )
        made = produce.run(server.processes())
        read = server.client("consume", how=back, **told).run(server.processes())
        if read.records != records.count:
            raise ValueError(f"{peer}: {read.records} records read, {records.count} sent")
        server.delete_topic(topic)
        return rate_of(made)

    ways = {
        "folkmoot send()": ("folkmoot", "send", "records"),
        "folkmoot columns": ("folkmoot", "columns", "columns"),
        "confluent-kafka": ("kafka", "", "consume"),
    }
    contenders = {name: partial(once, *way) for name, way in ways.items() if context.has(way[0])}
    results.cells += context.alternate("produce", "records/s", contenders)
    return results
