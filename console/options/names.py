"""Names that the cluster knows, as arguments and options that shells complete."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from folkmoot.console.options.cluster import ENVIRONMENT, Cluster
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.names import check_name

COMPLETION_TIMEOUT: Final = 1.0
"""Seconds that a Tab waits for ZooKeeper."""


class ClusterName(click.ParamType):  # type: ignore[type-arg] # older versions of click are not generic
    """The name of a topic, a group or a subject, or a broker's id; `read` checks and converts it."""

    def __init__(self, name: str, read: Callable[[Any], Any] = str) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises InvalidName."""
        return self._read(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        address = ctx.params.get("zookeeper") or os.environ.get(ENVIRONMENT)
        names: list[str] = []
        if address:
            with suppress(FolkmootError):
                names = _names(self.name, address, incomplete)
        return [CompletionItem(each) for each in names if each.startswith(incomplete)]


def _names(kind: str, address: str, incomplete: str) -> list[str]:
    """Read all names of a kind. Raises ZooKeeperUnreachable."""
    from folkmoot.coordination import brokers, topics
    from folkmoot.coordination.groups import inspection
    from folkmoot.coordination.schemas import lookups
    from folkmoot.coordination.schemas.names import parse
    from folkmoot.coordination.zookeeper.execute import execute

    limit = COMPLETION_TIMEOUT
    with Cluster(zookeeper=address, timeout=limit).session() as session:
        if kind == "broker":
            return [str(each) for each in sorted(execute(session, brokers.live(), limit))]
        if kind == "subject":
            subjects = lookups.subjects(parse(incomplete).context)
            return [str(each) for each in execute(session, subjects, limit)]
        names = topics.names() if kind == "topic" else inspection.names()
        return execute(session, names, limit)


TOPIC: Final = ClusterName("topic", partial(check_name, "topic"))
TOPIC_PARTITIONS: Final = ClusterName("topic")
"""A topic's name, and perhaps numbers of partitions: `TOPIC:0,2`."""
GROUP: Final = ClusterName("group", partial(check_name, "group"))
SUBJECT: Final = ClusterName("subject")
BROKER: Final = ClusterName("broker", click.INT)

topic_argument = click.argument("topic", type=TOPIC)
group_argument = click.argument("group", type=GROUP)
