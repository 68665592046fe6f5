"""What a producer says that it did."""

import pytest

from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import CorruptBatch
from tests.producers.fakes import FakeCluster
from tests.producers.parts import Bench
from tests.waiting import eventually


def test_delivered_records_batches_and_bytes_are_counted(cluster: FakeCluster) -> None:
    with Producer(zookeeper=cluster.connect) as producer:
        assert not any(producer.metrics().values())
        producer.send_batch("t", [b"v" * 100] * 1000, partition=0).result(10)
        for _ in range(10):
            producer.send("t", b"one", partition=1)
        producer.flush(10)
        counted = producer.metrics()
    assert (counted["records_delivered"], counted["records_failed"]) == (1010, 0)
    assert counted["batches_delivered"] == counted["batches_sent"] == len(cluster.payloads)
    assert counted["bytes_sent"] == counted["bytes_compressed"] == sum(map(len, cluster.payloads))
    assert counted["bytes_packed"] > 100_000 > 10 * counted["bytes_compressed"]
    assert counted["requests_sent"] == cluster.requests
    assert (counted["buffered_records"], counted["buffered_bytes"]) == (0, 0)


def test_what_waits_and_what_fails_is_counted(cluster: FakeCluster) -> None:
    cluster.failing = CorruptBatch.code
    with Producer(zookeeper=cluster.connect, linger=60.0) as producer:
        producer.send("t", b"value")
        eventually(lambda: producer.metrics()["buffered_records"] == 1)
        assert producer.metrics()["buffered_bytes"] > 0
        with pytest.raises(CorruptBatch):
            producer.flush(10)
        counted = producer.metrics()
    assert (counted["records_delivered"], counted["records_failed"]) == (0, 1)
    assert counted["buffered_bytes"] == 0


def test_a_batch_that_is_sent_again_is_counted_again_and_packed_once() -> None:
    bench = Bench(linger=0.0)
    bench.stage(b"value")
    bench.take()
    bench.now += 3.0
    (first,) = bench.ship()
    bench.answer(*first, 11)
    bench.now += 10.0
    (second,) = bench.ship()
    bench.answer(*second)
    counters = bench.sender.counters
    assert (counters.batches_sent, counters.batches_retried, counters.requests_sent) == (2, 1, 2)
    assert counters.bytes_sent == 2 * counters.bytes_compressed
    assert (counters.batches_delivered, counters.records_delivered) == (1, 1)
    assert counters.queue_seconds == 3.0


def test_a_higher_compression_level_makes_smaller_batches(cluster: FakeCluster) -> None:
    values = [b"%d,%d,%d" % (n, n * 7919 % 10_007, n * n % 997) for n in range(20_000)]
    sizes = []
    for level in (-5, None, 19):
        # In one batch: what is sent while records come depends on the machine.
        with Producer(
            zookeeper=cluster.connect, compression_level=level, batch_bytes=2**21, linger=60.0
        ) as producer:
            producer.send_batch("t", values, partition=0)
            producer.flush()
            sizes.append(producer.metrics()["bytes_compressed"])
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[1] > sizes[2]
