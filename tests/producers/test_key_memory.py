"""What is remembered of keys, and when that is given up."""

import pytest

from folkmoot.producers import key_memory
from folkmoot.producers.key_memory import KeyMemory
from folkmoot.producers.partitioners import by_key

FEW = [b"key %d" % (number % 20) for number in range(100)]
DIFFERENT = [b"key %d" % number for number in range(100)]


def learn(memory: KeyMemory, keys: list[bytes], count: int = 12) -> None:
    memory.learn(keys, by_key(keys, count), count)


def known(memory: KeyMemory, keys: list[bytes], count: int = 12) -> bool:
    partitions = memory.recall(keys, count)
    if partitions is None:
        return False
    assert partitions.tolist() == by_key(keys, count).tolist()
    return True


def test_keys_that_repeat_are_known_from_then_on() -> None:
    memory = KeyMemory()
    assert not known(memory, FEW)
    learn(memory, FEW)
    assert known(memory, FEW)
    assert not known(memory, [*FEW, b"new"])
    assert memory.recall([*FEW, None], 12) is None


def test_with_another_number_of_partitions_nothing_is_known() -> None:
    memory = KeyMemory()
    learn(memory, FEW)
    assert not known(memory, FEW, 13)
    learn(memory, FEW, 13)
    assert known(memory, FEW, 13)
    assert not known(memory, FEW, 12)
    learn(memory, FEW, 257)
    assert not known(memory, FEW, 257)


def test_keys_are_learnt_that_come_again_in_the_next_chunk() -> None:
    memory = KeyMemory()
    learn(memory, DIFFERENT)
    assert not known(memory, DIFFERENT)
    learn(memory, DIFFERENT)
    assert known(memory, DIFFERENT)


def test_keys_that_do_not_repeat_are_not_learnt_and_looked_at_ever_more_rarely() -> None:
    memory = KeyMemory()
    looks = []
    for number in range(100):
        before = memory._look_again_at
        learn(memory, [b"%d %d" % (number, key) for key in range(100)])
        if memory._look_again_at != before:
            looks.append(number)
    assert looks == [0, 1, 3, 7, 15, 31, 63]
    assert not known(memory, DIFFERENT)


def test_no_more_keys_are_known_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_memory, "KEYS_KNOWN", 30)
    memory = KeyMemory()
    learn(memory, FEW)
    learn(memory, DIFFERENT[20:40] * 2)
    assert len(memory._known[1]) == 40
    learn(memory, DIFFERENT[40:60] * 2)
    assert len(memory._known[1]) == 0
