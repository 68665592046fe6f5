"""`folkmoot topic elect`, `topic reassign` and `broker drain`: leaders, and where replicas are."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from folkmoot.console.confirmation import confirm
from folkmoot.console.options.cluster import Cluster, with_zookeeper
from folkmoot.console.options.names import BROKER, topic_argument
from folkmoot.console.options.values import (
    SIZE,
    at_most_one,
    execute_option,
    output_option,
    partition_option,
)
from folkmoot.console.tables import show
from folkmoot.protocol.errors import ConfigError, UnknownTopicOrPartition
from folkmoot.protocol.quantities import counted

if TYPE_CHECKING:
    from folkmoot.admin.replica_moves import PlannedMove, RunningMove

POLL_INTERVAL = 0.5
PLAN = ("topic", "partition", "from", "to", "bytes to copy")

_wait_option = click.option("--wait", is_flag=True, help="Wait until all moves have ended.")
_throttle_option = click.option(
    "--throttle",
    type=SIZE,
    help="Bytes a second that each broker copies at most, such as 50MB; 0: no limit.",
)


@click.command("reassign")
@topic_argument
@partition_option
@click.option(
    "--brokers",
    metavar="ID,...",
    help="Place replicas on these brokers, the preferred leader first; the partitions of a topic take "
    "turns in that.",
)
@click.option(
    "--replicas",
    type=int,
    metavar="N",
    help="Target replication factor; moves as few replicas as possible.",
)
@click.option("--cancel", is_flag=True, help="Undo the moves that are running; nothing is lost.")
@execute_option
@_wait_option
@_throttle_option
@output_option
@with_zookeeper()
def reassign(
    cluster: Cluster,
    topic: str,
    partitions: tuple[int, ...],
    brokers: str | None,
    replicas: int | None,
    cancel: bool,
    execute: bool,
    wait: bool,
    throttle: int | None,
    output: str,
) -> int:
    """Move replicas to other brokers, or change how many there are.

    Without --brokers, --replicas or --cancel, show the running moves and how much is copied. --throttle
    alone changes the limit of running moves.
    """
    at_most_one(brokers=brokers, replicas=replicas, cancel=cancel)
    with cluster.admin() as admin:
        if cancel:
            numbers = admin.cancel_reassignments(topic, partitions or None)
            print(f"back to where they were: {counted(len(numbers), 'partition')} of {topic}")
        elif brokers is not None or replicas is not None:
            on = None if brokers is None else _numbers(brokers)
            plan = admin.plan_reassignment(topic, partitions or None, brokers=on, replicas=replicas)
            if execute:
                targets = {each.partition.partition: each.target for each in plan}
                admin.reassign(topic, targets, throttle=throttle or 0)
            _show_plan(plan, output, is_executed=execute)
        elif execute:
            raise ConfigError("say where to: either --brokers, or --replicas")
        elif throttle is not None:
            numbers = admin.throttle_reassignments(topic, throttle)
            print(f"copied at {throttle} bytes/s: {counted(len(numbers), 'partition')} of {topic}")
        elif not wait:
            _show_running(admin.reassignments([topic]), output)
        if wait:
            _wait(lambda: admin.reassignments([topic]))
    return 0


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise ConfigError(f"--brokers {text!r} is not understood: write 1,2,3") from None


def _show_plan(plan: Sequence["PlannedMove"], output: str, *, is_executed: bool) -> None:
    rows = [(*each.partition, each.original, each.target, each.bytes) for each in plan]
    show(PLAN, rows, output)
    if not is_executed:
        print("nothing was moved: add --execute to do it", file=sys.stderr)


def _show_running(moves: Sequence["RunningMove"], output: str) -> None:
    rows = [
        (
            *(*each.partition, each.original, each.target, each.in_sync, each.copied, each.bytes),
            *(each.throttle or None, "yes" if each.is_cancelled else None),
        )
        for each in moves
    ]
    columns = ("topic", "partition", "from", "to", "in sync", "copied", "bytes", "throttle")
    show((*columns, "cancelled"), rows, output)


def _wait(list_moves: Callable[[], Sequence["RunningMove"]]) -> None:
    """Wait until nothing is moved; the standard error shows how far it is."""
    last_line = ""
    while moves := list_moves():
        copied = sum(each.copied or 0 for each in moves)
        total = sum(each.bytes or 0 for each in moves)
        partitions = counted(len(moves), "partition")
        line = f"being moved: {partitions}, {copied} of {total} bytes are there"
        if line != last_line:
            print(line, file=sys.stderr, flush=True)
            last_line = line
        time.sleep(POLL_INTERVAL)


@click.command("drain")
@click.argument("broker", metavar="ID", type=BROKER)
@click.option("--cancel", is_flag=True, help="Let it get replicas again; it keeps what it has.")
@execute_option
@_wait_option
@_throttle_option
@output_option
@with_zookeeper()
def drain(
    cluster: Cluster,
    broker: int,
    cancel: bool,
    execute: bool,
    wait: bool,
    throttle: int | None,
    output: str,
) -> int:
    """Move everything away from a broker, which gets no replicas until --cancel."""
    if cancel and execute:
        raise ConfigError("--cancel takes a drain back: leave --execute out")
    if throttle is not None and not execute:
        raise ConfigError("--throttle goes with --execute; `topic reassign --throttle` changes it")
    with cluster.admin() as admin:
        if cancel:
            back = counted(len(admin.cancel_drain(broker)), "partition")
            print(f"broker {broker} gets replicas again, and keeps {back}")
        elif execute:
            _show_plan(admin.drain(broker, throttle=throttle or 0), output, is_executed=True)
        elif not wait:
            _show_plan(admin.plan_drain(broker), output, is_executed=False)
        if wait:
            _wait(lambda: [each for each in admin.reassignments() if broker in each.original])
    return 0


@click.command("elect")
@topic_argument
@partition_option
@click.option(
    "--unclean",
    type=BROKER,
    metavar="ID",
    help="Have this replica lead though it was not in sync, when no in-sync replica is alive: RECORDS THAT "
    "ONLY OTHERS HAVE ARE LOST, acknowledged ones too; asks for the partition's name.",
)
@with_zookeeper()
def elect(cluster: Cluster, topic: str, partitions: tuple[int, ...], unclean: int | None) -> int:
    """Have the first replica of each partition lead, where it is in sync."""
    from folkmoot.coordination import topics
    from folkmoot.coordination.cluster.elections import (
        check_unclean,
        elect_preferred,
        elect_unclean,
    )
    from folkmoot.coordination.partition_states import TopicIdPartition
    from folkmoot.coordination.zookeeper.execute import execute
    from folkmoot.protocol.records import TopicPartition

    if unclean is not None and len(partitions) != 1:
        raise ConfigError("--unclean needs exactly one --partition")
    with cluster.session() as session:
        found = execute(session, topics.read(topic), cluster.timeout)
        if found is None:
            raise UnknownTopicOrPartition(f"topic {topic} does not exist")
        numbers = partitions or range(len(found.partitions))
        for number in numbers:
            if not 0 <= number < len(found.partitions):
                raise UnknownTopicOrPartition(f"topic {topic} has no partition {number}")
        elected = 0
        for number in numbers:
            topic_partition = TopicPartition(topic, number)
            partition = TopicIdPartition(found.topic_id, number)
            replicas = found.partitions[number]
            if unclean is not None:
                name = f"{topic}-{number}"
                checking = check_unclean(topic_partition, partition, replicas, unclean)
                execute(session, checking, cluster.timeout)
                warning = f"Records of {name} that broker {unclean} does not have are lost. "
                confirm(warning, "partition", name, "given another leader")
                election = elect_unclean(topic_partition, partition, replicas, unclean)
                execute(session, election, cluster.timeout)
                elected += 1
            elif len(replicas) > 1:
                elected += execute(
                    session, elect_preferred(topic_partition, partition, replicas), cluster.timeout
                )
    print(f"elected leaders of {counted(elected, 'partition')} of {topic}")
    return 0
