"""`folkmoot topic`: create, list, describe, configure and delete topics."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields

import click

from folkmoot.console.cluster.replicas import elect, reassign
from folkmoot.console.cluster.restore import restore_topic
from folkmoot.console.cluster.topic_changes import alter, delete_records
from folkmoot.console.confirmation import confirm
from folkmoot.console.options.cluster import Cluster, with_zookeeper
from folkmoot.console.options.names import TOPIC, topic_argument
from folkmoot.console.options.values import COUNT, ParsedType, output_option, pairs, yes_option
from folkmoot.console.tables import show
from folkmoot.protocol.errors import BrokerUnreachable, ConfigError, UnknownTopicOrPartition
from folkmoot.protocol.names import check_name
from folkmoot.protocol.options import unknown_option
from folkmoot.protocol.quantities import counted
from folkmoot.protocol.records import TopicPartition


@click.group()
def command() -> None:
    """Create, list, describe, measure, change and delete topics."""


for _action in (alter, delete_records, elect, reassign, restore_topic):
    command.add_command(_action)


@command.command("create")
# A new topic has a name that completion does not know.
@click.argument("topic", type=ParsedType("topic", lambda name: check_name("topic", name)))
@click.option("--partitions", type=COUNT, metavar="N", default=1, help="How many partitions.")
@click.option(
    "--replicas",
    type=COUNT,
    metavar="N",
    help="Replicas of each partition (default: the brokers' default_replicas: 1, in `folkmoot dev` 3).",
)
@click.option(
    "--min-in-sync",
    type=int,
    metavar="N",
    help="In-sync replicas that must have a record before acks=all acknowledges it (default: 2 of three "
    "or more replicas, else 1).",
)
@click.option(
    *("--config", "options"),
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the topic, such as retention=7d or cleanup_policy=compact; may be repeated.",
)
@with_zookeeper()
def _create(
    cluster: Cluster,
    topic: str,
    partitions: int,
    replicas: int | None,
    min_in_sync: int | None,
    options: tuple[str, ...],
) -> int:
    """Create a topic on the live brokers."""
    from folkmoot.coordination import brokers, topics
    from folkmoot.coordination.cluster.new_partitions import wait_until_led
    from folkmoot.coordination.placement import racks_of
    from folkmoot.coordination.zookeeper.execute import execute

    if min_in_sync is not None:
        options = (*options, f"min_in_sync={min_in_sync}")
    config = _options(options)
    with cluster.session() as session:
        live = execute(session, brokers.usable(), cluster.timeout)
        replicas = replicas or brokers.default_replicas(live)
        creation = topics.create(topic, partitions, racks_of(live), config, replicas=replicas)
        wait_until_led(session, execute(session, creation, cluster.timeout), cluster.timeout)
    replicas_text = f" of {replicas} replicas" if replicas > 1 else ""
    print(f"created topic {topic} with {counted(partitions, 'partition')}{replicas_text}")
    return 0


def _options(words: tuple[str, ...]) -> dict[str, str]:
    """Read options that are known, and in their ranges. Raises ConfigError."""
    from folkmoot.coordination.topic_config import LogConfig, topic_config

    options = pairs(words)
    topic_config(LogConfig(), options)
    return options


@command.command("config")
@topic_argument
@click.argument("changes", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--unset", multiple=True, metavar="NAME", help="Use the broker's default again.")
@output_option
@with_zookeeper()
def _config(
    cluster: Cluster, topic: str, changes: tuple[str, ...], unset: tuple[str, ...], output: str
) -> int:
    """Show a topic's options, or change its own."""
    from folkmoot.coordination import brokers, topics
    from folkmoot.coordination.topic_config import effective
    from folkmoot.coordination.zookeeper.execute import execute

    new_values = _options(changes)
    with cluster.session() as session:
        before = execute(session, topics.read(topic), cluster.timeout)
        if before is not None and (new_values or unset):
            _check_change(before.config, new_values, unset)
        configuring = topics.configure(topic, {**new_values, **dict.fromkeys(unset)})
        after = execute(session, configuring, cluster.timeout)
        live = execute(session, brokers.live(), cluster.timeout)
    hosting = {broker for replicas in after.partitions for broker in replicas}
    options = {broker: found.log for broker, found in live.items() if broker in hosting}
    show(("option", "value", "source"), effective(after.config, options, after.replicas), output)
    return 0


def _check_change(
    before: Mapping[str, str], new_values: Mapping[str, str], unset: Sequence[str]
) -> None:
    """Raise ConfigError for options that do not go together: no broker would follow them."""
    from folkmoot.coordination.topic_config import LogConfig, topic_config

    option_names = {field.name for field in fields(LogConfig)} | set(before)
    for name in unset:
        if name in new_values:
            raise ConfigError(f"{name} cannot be given and taken back at once")
        if name not in option_names:
            raise unknown_option(name, option_names)
    after = {**before, **new_values}
    topic_config(LogConfig(), {name: after[name] for name in after if name not in unset})


@command.command("list")
@output_option
@with_zookeeper()
def _list(cluster: Cluster, output: str) -> int:
    """List all topics."""
    from folkmoot.coordination import topics
    from folkmoot.coordination.zookeeper.execute import execute, execute_all

    with cluster.session() as session:
        names = execute(session, topics.names(), cluster.timeout)
        found = execute_all(session, map(topics.read, names), timeout=cluster.timeout)
    rows = [
        (name, len(topic.partitions), topic.topic_id)
        for name, topic in zip(names, found, strict=True)
        if topic is not None
    ]
    show(("topic", "partitions", "id"), rows, output)
    return 0


@command.command("describe")
@click.argument("topic", type=TOPIC, required=False)
@click.option(
    "--under-replicated", is_flag=True, help="Only partitions with replicas that are not in sync."
)
@click.option("--leaderless", is_flag=True, help="Only partitions without a leader.")
@output_option
@with_zookeeper()
def _describe(
    cluster: Cluster, topic: str | None, under_replicated: bool, leaderless: bool, output: str
) -> int:
    """Show the partitions of a topic, or of all: leaders, replicas, and which are in sync."""
    from folkmoot.coordination.cluster.cluster_status import read_cluster

    with cluster.session() as session:
        status = read_cluster(session, cluster.timeout, None if topic is None else [topic])
    rows = []
    for each in status.partitions:
        if under_replicated and not each.is_under_replicated:
            continue
        if leaderless and not each.is_leaderless:
            continue
        leader = None if each.leader is None else status.brokers[each.leader]
        address = None if leader is None else leader.listeners.get("client")
        moved_to = None if each.reassignment is None else each.reassignment.target
        row = (
            *(each.partition, each.leader, address, each.leader_epoch),
            *(each.replicas, each.in_sync, moved_to),
        )
        rows.append(row if topic is not None else (each.topic, *row))
    columns = (
        *("partition", "leader", "address", "leader epoch", "replicas", "in sync"),
        "being moved to",
    )
    show(columns if topic is not None else ("topic", *columns), rows, output)
    return 0


@command.command("offsets")
@topic_argument
@output_option
@with_zookeeper()
def _offsets(cluster: Cluster, topic: str, output: str) -> int:
    """Show where a topic's partitions begin and end, and the bytes of their largest replica.

    `records` counts offsets: compaction leaves fewer records.
    """
    from folkmoot.consumers.offsets.offset_lookup import no_answer
    from folkmoot.network.leaderless import describe_waiting

    with cluster.admin() as admin:
        # Half of the time for each: together they end in time.
        earliest, _ = admin.known_offsets(topic, "earliest", cluster.timeout / 2)
        latest, leaderless = admin.known_offsets(topic, "latest", cluster.timeout / 2)
        sizes = admin.log_sizes([topic])
    largest: dict[TopicPartition, int] = {}
    for each in sizes:
        largest[each.partition] = max(each.bytes, largest.get(each.partition, 0))
    rows = [
        (
            *(each.partition, start, end),
            *(None if start is None or end is None else end - start, largest.get(each)),
        )
        for each, start in earliest.items()
        for end in (latest[each],)
    ]
    show(("partition", "earliest", "latest", "records", "bytes"), rows, output)
    missing = [each for each in latest if None in (earliest[each], latest[each])]
    if missing:
        raise BrokerUnreachable(describe_waiting(leaderless) if leaderless else no_answer(missing))
    return 0


@command.command("delete")
@topic_argument
@yes_option
@with_zookeeper()
def _delete(cluster: Cluster, topic: str, yes: bool) -> int:
    """Delete a topic and all its records."""
    from folkmoot.coordination import topics
    from folkmoot.coordination.deletions import local_user
    from folkmoot.coordination.zookeeper.execute import execute

    with cluster.session() as session:
        if not yes:
            if execute(session, topics.read(topic), cluster.timeout) is None:
                raise UnknownTopicOrPartition(f"topic {topic} does not exist")
            confirm(f"This deletes all records of {topic}. ", "topic", topic, "deleted")
        deletion = topics.delete(topic, by=local_user(), at=time.time())
        execute(session, deletion, cluster.timeout)
    print(f"deleted topic {topic}")
    return 0
