"""What callers give as offsets: whole numbers of any type get through, nothing else reaches a group."""

from typing import Any

import numpy as np
import pytest

from folkmoot.consumers.client.async_consumer import AsyncConsumer
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.offsets.validation import check_int
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.records import TopicPartition
from tests.consumers.parts import PARTITIONS, Bench
from tests.consumers.tasks import take
from tests.surfaces import both, eventually, run

NO_OFFSETS = [
    1.5,
    10 / 2,
    True,
    np.bool_(True),
    2**63,
    2**70,
    -1,
    None,
    "7",
    b"7",
    [],
    float("nan"),
]


@pytest.mark.parametrize("given", [0, 7, 2**63 - 1, np.int64(7), np.uint8(7), np.array(7)])
def test_whole_numbers_of_any_type_become_ints(given: Any) -> None:
    assert (check_int("it", given), type(check_int("it", given))) == (int(given), int)


@pytest.mark.parametrize("given", NO_OFFSETS)
def test_anything_else_is_refused_by_name_with_what_to_give(given: Any) -> None:
    with pytest.raises(
        ConfigError, match=f"^the hat is .*: give a whole number from 0 to {2**63 - 1}"
    ):
        check_int("the hat", given)


@both(Consumer, AsyncConsumer)
def test_what_is_no_offset_is_not_committed_and_nor_is_what_came_with_it(
    client: Any, bench: Bench
) -> None:
    bench.send(range(3))
    first, second = bench.partition(0), bench.partition(1)

    async def scenario() -> None:
        async with client(
            zookeeper=bench.zookeeper, **bench.settings(auto_commit=False)
        ) as consumer:

            async def owns_all() -> bool:
                await consumer.poll(0.05, 1)
                return len(consumer.assignment()) == PARTITIONS

            await eventually(owns_all, 20.0)
            for given in NO_OFFSETS:
                with pytest.raises(ConfigError, match=f"the offset to commit for {second} is "):
                    await consumer.commit({first: 1, second: given})
            for wrong in (TopicPartition(bench.topic, True), bench.topic):
                with pytest.raises(TypeError, match="a partition is a topic and a number"):
                    await consumer.commit({first: 1, wrong: 2})
            with pytest.raises(ConfigError, match="max_records is '5': give a whole number from 1"):
                await consumer.poll(0.0, "5")
            assert await consumer.committed(first) is None
            await consumer.commit({first: np.int64(2), (bench.topic, np.int32(1)): np.uint8(0)})
            assert await consumer.committed(first) == 2
            await consumer.seek(first, np.int64(1))
            assert await take(consumer, 2) == [1, 2]

    run(scenario)
    assert (bench.committed(0), bench.committed(1)) == (2, 0)
