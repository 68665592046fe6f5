"""`folkmoot cluster`: whether everything is led, replicated and in sync."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from folkmoot.console.cluster.restore import restore_cluster
from folkmoot.console.exit_codes import DEGRADED
from folkmoot.console.options.cluster import Cluster, with_zookeeper
from folkmoot.console.options.names import BROKER
from folkmoot.console.options.values import COUNT, output_option
from folkmoot.console.tables import moment_of, show

if TYPE_CHECKING:
    from folkmoot.coordination.cluster.cluster_status import ClusterStatus


@click.group()
def command() -> None:
    """Show whether every partition has a leader and all of its replicas in sync."""


command.add_command(restore_cluster)


@command.command("status")
@click.option(
    "--broker",
    type=BROKER,
    metavar="ID",
    help="Only whether this broker is registered, and in sync wherever it has a replica.",
)
@click.option("--sizes", is_flag=True, help="Ask the brokers, too, how many bytes each has.")
@output_option
@with_zookeeper()
def _status(cluster: Cluster, broker: int | None, sizes: bool, output: str) -> int:
    """Show what is missing, if anything.

    The exit code is 0 if every partition has a leader and all of its replicas in sync, else 5.
    """
    from folkmoot.coordination.cluster.cluster_status import read_cluster

    with cluster.session() as session:
        status = read_cluster(session, cluster.timeout)
    if broker is not None:
        return _status_of(broker, status, output)
    partitions = status.partitions
    missing = sorted(
        {each for partition in partitions for each in partition.replicas} - status.brokers.keys()
    )
    leaderless = sum(each.is_leaderless for each in partitions)
    under_replicated = sum(each.is_under_replicated for each in partitions)
    below_minimum = sum(each.is_below_minimum for each in partitions)
    controller = None if status.controller is None else status.controller.describe()
    row: dict[str, Any] = {
        "controller": controller,
        "brokers": sorted(status.brokers),
        "missing brokers": missing,
        "partitions": len(partitions),
        "leaderless": leaderless,
        "under-replicated": under_replicated,
        "below min-in-sync": below_minimum,
        "being moved": sum(each.reassignment is not None for each in partitions),
        "versions": sorted({each.version or "unknown" for each in status.brokers.values()}),
    }
    if sizes:
        row["bytes"] = _bytes(cluster, status)
    show(tuple(row), [tuple(row.values())], output)
    is_healthy = controller is not None and status.brokers and not missing
    return 0 if is_healthy and not (leaderless or under_replicated or below_minimum) else DEGRADED


@command.command("events")
@click.option("-n", "count", type=COUNT, metavar="N", default=50, help="Only the last N.")
@output_option
@with_zookeeper()
def _events(cluster: Cluster, count: int, output: str) -> int:
    """Show the last changes of brokers, leaders, in-sync replicas and topics, oldest first.

    They are as the controller saw them: changes while there was no controller are missing.
    """
    with cluster.admin() as admin:
        found = admin.cluster_events()[-count:]
    if output == "json":
        rows = [
            (each.at_ms, each.kind, each.topic, each.partition, each.broker, each.text)
            for each in found
        ]
        show(("time_ms", "kind", "topic", "partition", "broker", "text"), rows, output)
        return 0
    for each in found:
        print(f"{moment_of(each.at_ms)}  {each.text}")
    return 0


def _bytes(cluster: Cluster, status: "ClusterStatus") -> dict[str, int | None]:
    """Return how much each live broker has, None if it has nothing, or does not answer."""
    with cluster.admin() as admin:
        sizes = admin.log_sizes()
    totals = Counter[int]()
    for each in sizes:
        totals[each.broker] += each.bytes
    return {str(number): totals.get(number) for number in sorted(status.brokers)}


def _status_of(broker: int, status: "ClusterStatus", output: str) -> int:
    is_registered = broker in status.brokers
    hosted = [each for each in status.partitions if broker in each.replicas]
    out_of_sync = sum(broker not in each.in_sync for each in hosted)
    row = (broker, is_registered, len(hosted), out_of_sync)
    show(("broker", "registered", "replicas", "out of sync"), [row], output)
    return 0 if is_registered and not out_of_sync else DEGRADED
