"""The admin for event loops: the same words with `await`, around the same admin in a thread."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from folkmoot.admin.admin import Admin
from folkmoot.admin.config import AdminConfig
from folkmoot.protocol.options import configured, options_of

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[Admin, P], T],
) -> "Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, T]]":
    """The admin's method, done by its thread and awaited."""

    @wraps(method)
    async def call(self: "AsyncAdmin", /, *args: P.args, **options: P.kwargs) -> T:
        return await self._do(partial(method, self._core, *args, **options))

    return call


class AsyncAdmin:
    """An `Admin` for tasks of event loops.

    ```
    async with AsyncAdmin(zookeeper="localhost:2181") as admin:
        await admin.create_topic("orders", partitions=3)
    ```

    Options, rules and errors are those of `Admin`, which this one holds in a thread: calls are done
    there one after another. One whose task is cancelled may come to pass.

    Options: docs/configuration.md.
    """

    @configured(AdminConfig)
    def __init__(self, config: AdminConfig) -> None:
        self.config = config
        self._core = Admin(**options_of(config))
        self._thread = ThreadPoolExecutor(1, "folkmoot-admin")

    async def _do(self, call: Callable[[], T]) -> T:
        self._core._check_process()
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def start(self) -> Self:
        """Connect to ZooKeeper. Raises ZooKeeperUnreachable."""
        await self._do(self._core.start)
        return self

    async def close(self) -> None:
        if not self._core._is_forked:
            await self._do(self._core.close)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    cluster = _awaited(Admin.cluster)
    cluster_events = _awaited(Admin.cluster_events)
    topics = _awaited(Admin.topics)
    partitions_of = _awaited(Admin.partitions_of)
    create_topic = _awaited(Admin.create_topic)
    topic_options = _awaited(Admin.topic_options)
    set_topic_options = _awaited(Admin.set_topic_options)
    describe_topics = _awaited(Admin.describe_topics)
    describe_brokers = _awaited(Admin.describe_brokers)
    add_partitions = _awaited(Admin.add_partitions)
    delete_topic = _awaited(Admin.delete_topic)
    plan_reassignment = _awaited(Admin.plan_reassignment)
    reassign = _awaited(Admin.reassign)
    throttle_reassignments = _awaited(Admin.throttle_reassignments)
    cancel_reassignments = _awaited(Admin.cancel_reassignments)
    reassignments = _awaited(Admin.reassignments)
    plan_drain = _awaited(Admin.plan_drain)
    drain = _awaited(Admin.drain)
    cancel_drain = _awaited(Admin.cancel_drain)
    log_sizes = _awaited(Admin.log_sizes)
    offsets = _awaited(Admin.offsets)
    known_offsets = _awaited(Admin.known_offsets)
    offsets_for_times = _awaited(Admin.offsets_for_times)
    delete_records = _awaited(Admin.delete_records)
    plan_delete_records = _awaited(Admin.plan_delete_records)
    group_names = _awaited(Admin.group_names)
    groups = _awaited(Admin.groups)
    describe_group = _awaited(Admin.describe_group)
    describe_groups = _awaited(Admin.describe_groups)
    group_offsets = _awaited(Admin.group_offsets)
    group_events = _awaited(Admin.group_events)
    plan_reset = _awaited(Admin.plan_reset)
    reset_offsets = _awaited(Admin.reset_offsets)
    topic_ids = _awaited(Admin.topic_ids)
    delete_group = _awaited(Admin.delete_group)
    delete_group_offsets = _awaited(Admin.delete_group_offsets)
