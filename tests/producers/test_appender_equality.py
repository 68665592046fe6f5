"""The compiled appender does what the plain one does, byte for byte, whatever it is given."""

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from folkmoot.producers.columns import RecordColumns
from tests.producers.appenders import COMPILED, PLAIN, Owner, needs_compiled
from tests.seeds import new_seed

APPENDS = 2_000  # in a round
T = 1_700_000_000_000

pytestmark = needs_compiled


def cells(random: Random, count: int) -> list[bytes]:
    """Keys or values of kinds that a batch writes differently."""
    longest = random.choice((1, 8, 60, 254, 255, 300))
    if random.random() < 0.4:
        return [random.randbytes(longest) for _ in range(count)]
    return [random.randbytes(random.randint(0, longest)) for _ in range(count)]


def header_kinds(random: Random) -> list[Any]:
    names = ["", "a", "trace", "ü" * 20, "n" * 31, "n" * 32, "n" * 300]
    some = [
        (
            random.choice(names),
            random.choice([None, b"", random.randbytes(random.choice((5, 300)))]),
        )
        for _ in range(random.choice((1, 1, 2, 20)))
    ]
    return [
        *(None, {}, (), [], dict(some), tuple(some), list(some)),
        *([list(pair) for pair in some], {"view": b"x"}.items()),
    ]


BAD: list[tuple[Any, ...]] = [
    ("t", "text"),
    ("t", 1),
    ("t", b"v", "key"),
    ("t", b"v", None, 99),
    ("t", b"v", None, -1),
    ("t", b"v", None, 2**80),
    ("t", b"v", None, True),
    ("t", b"v", None, "0"),
    ("t", b"v", None, 0.0),
    ("t", b"v", None, None, {"a": "b"}),
    ("t", b"v", None, None, {1: b"b"}),
    ("t", b"v", None, None, [("a",)]),
    ("t", b"v", None, None, {"\ud800": b""}),
    ("t", b"v", None, None, 7),
    ("t", b"v", None, None, [("a", b"b"), None]),
    ("t", b"v", None, None, None, 2**50 + 1),
    ("t", b"v", None, None, None, -(2**70)),
    ("t", b"v", None, None, None, "now"),
    ("t", b"v", None, None, None, 1.5),
    ("t", b"v", None, None, None, False),
    ("t", b"v", None, None, None, None, "not callable"),
    ("t", bytes(5000)),
    ("t", b"v", bytes(5000)),
    ("t", b"v", None, None, {"h": bytes(5000)}),
    ("missing", b"v"),
    (None, b"v"),
    (7, b"v"),
    ((), b"v"),
    ([], b"v"),
]


class Kinds:
    """What records are made of in one round."""

    def __init__(self, random: Random) -> None:
        self.random = random
        count = random.choice((1, 3, 200))
        views = [bytearray(b"array"), memoryview(b"a view"), memoryview(bytes(8)).cast("I")]
        self.values: list[Any] = cells(random, count) + random.choice(([], [None], views))
        self.keys: list[Any] = cells(random, count) + random.choice(([], [None], [None] * count))
        if random.random() < 0.2:
            self.keys = [None]
        self.partitions: list[Any] = [None]
        if random.random() < 0.3:
            self.partitions = [None, 0, np.int64(1)]
        self.headers: list[Any] = [None] if random.random() < 0.7 else header_kinds(random)
        spread = random.choice((0, 100, 60_000, 10**9, 2**49))
        self.stamps: list[Any] = [T + random.randint(-spread, spread) for _ in range(50)]
        self.stamps += [np.int64(T), np.uint8(3), -5]
        if random.random() < 0.5:
            number = random.choice((7, 8)).to_bytes(4, "big")
            self.values = [
                None if each is None else b"\0%b%b" % (number, each) for each in self.values
            ]

    def records(self, count: int) -> list[tuple[Any, ...]]:
        some = self.random.choices
        fields = (self.values, self.keys, self.partitions, self.headers, self.stamps)
        records: list[Any] = list(
            zip(["t"] * count, *(some(field, k=count) for field in fields), strict=True)
        )
        for bad in some(BAD, k=count // 50):
            records[self.random.randrange(count)] = bad
        return records

    def columns(self, count: int) -> dict[str, Any]:
        some = self.random.choices
        values: Any = some(self.values, k=count)
        keys: Any = some(self.keys, k=count)
        if self.random.random() < 0.5:
            plain = [None if cell is None else bytes(cell) for cell in values]
            kind = self.random.choice((pa.binary(), pa.large_binary()))
            values = pa.array([b"no", *plain], kind).slice(1)
            keys = pa.array(keys, pa.binary())
        return {
            "values": values,
            "keys": self.random.choice((keys, None)),
            "timestamps": some([int(stamp) for stamp in self.stamps], k=count),
            "headers": self.random.choice((None, some([None, *self.headers], k=count))),
            "partition": self.random.choice((None, None, 0, np.int32(1))),
            "framed": self.random.random() < 0.8,
        }


def attempt(call: Any, *arguments: Any) -> Any:
    """What it returns, or what it raises, to be compared."""
    try:
        return call(*arguments)
    except Exception as error:
        return (type(error), str(error))


def strategy(random: Random) -> Any:
    def own(topic: str, keys: Any, partitions: int) -> list[int]:
        listed = keys.to_pylist() if hasattr(keys, "to_pylist") else keys
        return [len(key or b"") % partitions for key in listed]

    return random.choice(("key-hash", "key-hash", "sticky", "round-robin", own))


def carry_out(owner: Owner, seed: int, count: int) -> list[Any]:
    """One round of random operations; what they returned or raised."""
    random = Random(seed)
    kinds = Kinds(random)
    seen: list[Any] = []
    deliveries: list[Any] = []
    while owner.appender.records < count:
        step = random.random()
        if owner.appender.used >= owner.appender.limit and step < 0.8:
            owner.appender.released(owner.appender.used)
        elif step < 0.7:
            send = owner.appender.send
            for record in kinds.records(random.choice((1, 10, 100, 300))):
                try:
                    deliveries.append(send(*record))
                except Exception as error:
                    seen.append((type(error), str(error)))
        elif step < 0.85:
            columns = RecordColumns(**kinds.columns(random.choice((1, 50, 500))))
            row = 0
            while row < len(columns):
                taken = attempt(owner.appender.send_columns, "t", columns, row)
                seen.append(taken[0])
                if isinstance(taken[0], type):
                    break
                row = taken[0]
                seen.append(sorted((str(b.topic_partition), first, n) for b, first, n in taken[1]))
        elif step < 0.9:
            for _, builders in sorted(owner.batches().items()):
                if random.random() < 0.3:
                    builders[-1].close()
        elif step < 0.94:
            partitions = random.randint(1, 6)
            owner.know("t", partitions, *random.sample(range(partitions), random.randint(0, 1)))
    seen.append((owner.appender.used, owner.appender.records))
    seen.append(owner.bodies())
    owner.deliver()
    seen.append([delivery.result(0) for delivery in deliveries])
    return seen


@pytest.mark.parametrize("rounds", [25, pytest.param(500, marks=pytest.mark.slow)])
def test_random_appends_give_the_same_batches_handles_and_errors(rounds: int) -> None:
    first = new_seed()
    for seed in range(first, first + rounds):
        random = Random(seed)
        options = {
            "partitions": random.randint(1, 6),
            "batch_bytes": random.choice((100, 3000, 50_000)),
            "buffer_bytes": random.choice((100_000, 1 << 40)),
            "max_record_bytes": 4000,
            "strategy": strategy(random),
            "framed": random.random() < 0.5,
        }
        plain, compiled = (
            carry_out(Owner(each, seed=seed, **options), seed, APPENDS)
            for each in (PLAIN, COMPILED)
        )
        for one, other in zip(plain, compiled, strict=True):
            assert one == other, f"FOLKMOOT_SEED={seed} {options}"
