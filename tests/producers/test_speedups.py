"""The compiled appender survives whatever it is given, and keeps nothing of it."""

import gc
import importlib
import itertools
import multiprocessing
import sys
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from folkmoot.producers.columns import RecordColumns
from folkmoot.protocol.columns import BinaryColumn
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import TopicPartition
from tests.producers.appenders import COMPILED, Owner, needs_compiled
from tests.seeds import new_seed

CALLS = 30_000

pytestmark = needs_compiled


class Hostile:
    """An object whose every method does something to the appender that is just looking at it."""

    def __init__(self, act: Callable[[], Any], answer: Any) -> None:
        self._act = act
        self._answer = answer

    def _said(self, *_: Any) -> Any:
        self._act()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    __bool__ = __len__ = __index__ = __int__ = __hash__ = __eq__ = __bytes__ = _said
    __iter__ = __getitem__ = __contains__ = __call__ = __str__ = keys = items = _said


class HostileBytes(bytes):
    def __bytes__(self) -> bytes:
        return b"other"

    def __len__(self) -> int:
        return 1 << 60


class HostileText(str):
    def __hash__(self) -> int:
        return hash("t")

    def __eq__(self, other: object) -> bool:
        raise ArithmeticError


def arguments(random: Random, act: Callable[[], Any]) -> list[Any]:
    """Things that no parameter wants, and things that some want."""
    answers = [ValueError("no"), 0, 1, True, b"", None, "t", [], iter([("a", b"b")]), -1, 2**80]
    endless = [("a", b"b")]
    endless.append(endless)  # type: ignore[arg-type]
    return [
        *(Hostile(act, answer) for answer in answers),
        *(HostileBytes(b"x"), HostileText("t"), HostileText("u"), "\ud800", "t" * 300),
        *(None, True, -1, 0, 1, 2**31, 2**63, -(2**63) - 1, 2**1000, 0.5, float("nan")),
        *(b"", b"x" * 300, bytearray(b"y"), memoryview(b"z")[::-1], memoryview(bytes(8)).cast("d")),
        *([], {}, (), set(), object(), type, len, iter([]), iter([("a", b"b")]), endless),
        *([("a", b"b")], {"a": None}, {"a": HostileBytes(b"x")}, {HostileText("a"): b""}, [("a",)]),
        *([["a", b"b"]], (("a", b"b"),), {b"a": b"b"}, {"a": "b"}, {"\udfff": b""}),
        *(np.int64(1), np.float64(1), np.array([1]), np.array([]), pa.array([b"a"])),
    ]


def test_hostile_arguments_raise_and_change_nothing_that_was_taken() -> None:
    random = Random(new_seed())
    owner = Owner(COMPILED, 3, batch_bytes=500, max_record_bytes=1000)
    taken: list[Any] = []

    def act() -> None:
        what = random.randrange(7)
        appender = owner.appender
        if what == 0:
            taken.append(appender.send("t", b"within", b"key"))
        elif what == 1:
            owner.know("t", random.randint(1, 5))
        elif what == 2 and owner.opened:
            owner.opened[-1].close()
        elif what == 3:
            gc.collect(0)

    columns = RecordColumns([b"a", None] * 50, [b"k", b"l"] * 50)
    for _ in range(CALLS):
        given = arguments(random, act)
        appender = owner.appender
        handle = appender.send("t", b"v")
        taken.append(handle)
        calls: list[tuple[Callable[..., Any], int]] = [
            (appender.send, 7),
            (appender.send, 7),
            (appender.try_send, 7),
            (appender.send_columns, 3),
            (handle.builder.observe, 2),
            (handle.add_done_callback, 1),
            (COMPILED.by_key, 2),
            (appender.set_topic_partitions, 3),
        ]
        call, most = random.choice(calls)
        chosen = random.choices(given, k=random.randint(0, most))
        if call == appender.send and chosen:
            chosen[0] = random.choice(("t", "t", chosen[0]))
        if call == appender.send_columns and len(chosen) > 1:
            chosen[:2] = ["t", columns]
        try:
            answer = call(*chosen)
        except (Exception, FolkmootError):
            continue
        if isinstance(answer, COMPILED.Delivery):
            taken.append(answer)
    count = sum(each.count for batches in owner.batches().values() for each in batches)
    size = sum(each.size for batches in owner.batches().values() for each in batches)
    assert (owner.appender.records, owner.appender.used) == (count, size)
    assert sum(map(len, owner.records().values())) == count, "every body can be read"
    for builders in owner.batches().values():
        for builder in builders:
            for call, _ in builder.finish(0, None):
                assert call is not None
    assert all(handle.result().offset >= 0 for handle in taken)


def counted(things: list[Any]) -> list[int]:
    gc.collect()
    return [sys.getrefcount(thing) for thing in things]


def test_nothing_is_kept_of_what_was_taken_refused_or_failed() -> None:
    value, key, name = bytes(200), b"key" * 5, "name" * 5
    headers, pairs = {name: value}, [(name, value)]
    bad = {name: 7}

    def on_delivery(handle: Any) -> None:
        pass

    things: list[Any] = [value, key, name, headers, pairs, bad, on_delivery]
    before = counted(things)

    def use() -> None:
        owner = Owner(COMPILED, 3, batch_bytes=2000)
        for number in range(500):
            owner.appender.send("t", value, key, None, headers, 7, on_delivery)
            owner.appender.send("t", value, key, number % 3, pairs)
            for refused in ((bad, None), (headers, "no"), (headers, 2**60)):
                with pytest.raises((TypeError, ValueError)):
                    owner.appender.send("t", value, key, None, *refused)
            handle = owner.appender.send("t", value)
            handle.add_done_callback(on_delivery)
        columns = RecordColumns([value] * 100, [key] * 100, headers=[headers] * 100)
        owner.appender.send_columns("t", columns, 0)
        owner.bodies()
        owner.deliver()

    for _ in range(3):
        use()
    assert counted(things) == before


def test_a_producer_that_is_dropped_with_records_in_it_is_freed() -> None:
    class Marker:
        pass

    marker = Marker()
    before = counted([marker])
    for _ in range(3):
        owner = Owner(COMPILED, 3)
        owner.marker = marker  # type: ignore[attr-defined]
        handles = [owner.appender.send("t", b"value", b"key") for _ in range(100)]
        del owner, handles
    assert counted([marker]) == before


def test_wherever_memory_is_wanting_a_record_is_taken_as_a_whole_or_not_at_all() -> None:
    # In a process of its own: the interpreter denies memory to every thread, and this one has others.
    pytest.importorskip("_testcapi")
    process = multiprocessing.get_context("spawn").Process(target=send_while_memory_is_wanting)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def send_while_memory_is_wanting() -> None:
    testing = importlib.import_module("_testcapi")
    owner = Owner(COMPILED, 2, batch_bytes=3000)
    owner.appender.send("t", b"first")
    refused = taken = 0
    told: list[Any] = []
    records = [
        ("t", b"%d" % number * 30, b"key", None, {"h": b"%d" % number}, 7, told.append)
        for number in range(2000)
    ]
    for number, record in enumerate(records):
        wanting = number % 40
        handle = None
        testing.set_nomemory(wanting, wanting + 1)
        try:
            handle = owner.appender.send(*record)
        except MemoryError:
            pass
        finally:
            testing.remove_mem_hooks()
        refused += handle is None
        taken += handle is not None
    owner.appender.register_interrupted()
    assert refused > 100
    assert taken > 100
    assert sum(map(len, owner.records().values())) == owner.appender.records
    builders = list(itertools.chain.from_iterable(owner.batches().values()))
    assert sum(builder.size for builder in builders) == owner.appender.used
    owner.deliver()
    assert len(told) == owner.appender.records - 1, "one callback for each record that was taken"


def test_what_lies_outside_of_a_column_is_not_read() -> None:
    owner = Owner(COMPILED, 1)
    for offsets in ([0, 5], [-1, 1], [2, 1], [2**40, 2**40 + 1], [0, -5]):
        columns = RecordColumns([b"v"])
        columns.values = BinaryColumn(np.array(offsets), b"four")
        with pytest.raises(ValueError, match="outside"):
            owner.appender.send_columns("t", columns, 0)
    for column, change in (
        (RecordColumns([b"v"] * 3), {"timestamps": np.zeros(2, np.int64)}),
        (RecordColumns([b"v"] * 3), {"keys": [b"k"]}),
        (RecordColumns([b"v"] * 3), {"headers": [b""]}),
        (RecordColumns([b"v"] * 3), {"keys": BinaryColumn(np.zeros(2, np.int64), b"")}),
    ):
        for name, other in change.items():
            setattr(column, name, other)
        with pytest.raises((ValueError, IndexError)):
            owner.appender.send_columns("t", column, 0)
    assert owner.appender.records == 0


def test_keys_of_columns_are_read_only_where_they_are() -> None:
    for keys, error in (
        (BinaryColumn(np.array([0, 5]), b"four"), ValueError),
        (RecordColumns(pa.array([b"k", None])).values, TypeError),
        ([b"k", None], TypeError),
        ([b"k", "text"], TypeError),
        ("text", AttributeError),
    ):
        with pytest.raises(error):
            COMPILED.by_key(keys, 3)
    for count in (0, -1, 1 << 40):
        with pytest.raises(ValueError, match="cannot have"):
            COMPILED.by_key([b"k"], count)


def test_what_is_made_by_hand_breaks_nothing() -> None:
    with pytest.raises(TypeError):
        COMPILED.Delivery()
    owner = Owner(COMPILED)
    part = COMPILED.BatchBuilder(TopicPartition("t", 0), owner, 5)
    with pytest.raises(TypeError):
        part.__init__(TopicPartition("t", 0), owner)
    with pytest.raises(ValueError, match="records"):
        COMPILED.BatchBuilder(TopicPartition("t", 0), owner, -1)
    with pytest.raises(TypeError):
        owner.appender.__init__(owner, batch_bytes=1, buffer_bytes=1, max_record_bytes=1)
    kinds = COMPILED.Delivery, COMPILED.BatchBuilder, COMPILED.Appender
    for empty in (*(kind.__new__(kind) for kind in kinds), part):
        for name in dir(empty):
            if not name.startswith("__"):
                for arguments in (
                    (),
                    (1,),
                    ("t", b"v"),
                    (0, None),
                    ("t", RecordColumns([b"v"]), 0),
                ):
                    with suppress(Exception):
                        getattr(empty, name)(*arguments)


def test_a_body_keeps_its_bytes_while_anybody_looks_at_them() -> None:
    """Its memory goes to later batches only then."""
    owner = Owner(COMPILED, 1, batch_bytes=200_000)
    seen: list[tuple[Any, bytes]] = []
    for number in range(100):
        while not owner.full:
            owner.appender.send("t", b"%d" % number * 100, b"%d" % number)
        builder = owner.full.pop()
        (body,) = builder.body().body
        assert memoryview(body).readonly
        if number % 3:
            seen.append((body, bytes(body)))
        builder.release()
        del body
        builder.finish(0, None)
    assert all(bytes(body) == copy for body, copy in seen)
