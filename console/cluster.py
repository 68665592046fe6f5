"""`folkmoot cluster`: whether everything is led, replicated and in sync."""

import argparse
from collections import Counter
from typing import TYPE_CHECKING, Any

from folkmoot.console import restore
from folkmoot.console.options import (
    DEGRADED,
    add_output,
    add_zookeeper,
    admin_of,
    at_least_one,
    session_of,
    whole_number,
)
from folkmoot.console.tables import moment_of, show

if TYPE_CHECKING:
    from folkmoot.coordination.cluster.cluster_status import ClusterStatus


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    status = actions.add_parser(
        "status",
        help="what is missing, if anything",
        description="Exit code 0: every partition has a leader and all of its replicas in sync; "
        f"{DEGRADED}: something is missing.",
    )
    status.add_argument(
        "--broker",
        type=whole_number,
        metavar="N",
        help="only whether this broker is registered, and in sync wherever it has a replica",
    )
    status.add_argument(
        "--sizes", action="store_true", help="ask the brokers, too, how many bytes each has"
    )
    status.set_defaults(act=_status)
    add_zookeeper(status)
    add_output(status)
    history = actions.add_parser(
        "events",
        help="the last changes of brokers, leaders, in-sync replicas and topics",
        description="Oldest first, as the controller saw them. What changed while there was no controller is "
        "missing.",
    )
    history.add_argument(
        "-n", dest="count", type=at_least_one, metavar="N", default=50, help="default: the last 50"
    )
    history.set_defaults(act=_events)
    add_zookeeper(history)
    add_output(history)
    restore.add_cluster(actions)


def run(args: argparse.Namespace) -> int:
    code: int = args.act(args)
    return code


def _status(args: argparse.Namespace) -> int:
    from folkmoot.coordination.cluster.cluster_status import read_cluster

    with session_of(args) as session:
        cluster = read_cluster(session, args.timeout)
    if args.broker is not None:
        return _status_of(args.broker, cluster, args.output)
    partitions = cluster.partitions
    missing = sorted({each for one in partitions for each in one.replicas} - cluster.brokers.keys())
    leaderless = sum(each.is_leaderless for each in partitions)
    under_replicated = sum(each.is_under_replicated for each in partitions)
    below_minimum = sum(each.is_below_minimum for each in partitions)
    controller = None if cluster.controller is None else cluster.controller.describe()
    row: dict[str, Any] = {
        "controller": controller,
        "brokers": sorted(cluster.brokers),
        "missing brokers": missing,
        "partitions": len(partitions),
        "leaderless": leaderless,
        "under-replicated": under_replicated,
        "below min-in-sync": below_minimum,
        "being moved": sum(each.reassignment is not None for each in partitions),
        "versions": sorted({each.version or "unknown" for each in cluster.brokers.values()}),
    }
    if args.sizes:
        row["bytes"] = _bytes(args, cluster)
    show(tuple(row), [tuple(row.values())], args.output)
    well = controller is not None and cluster.brokers and not missing
    return 0 if well and not (leaderless or under_replicated or below_minimum) else DEGRADED


def _events(args: argparse.Namespace) -> int:
    with admin_of(args) as admin:
        found = admin.cluster_events()[-args.count :]
    if args.output == "json":
        rows = [
            (each.at_ms, each.kind, each.topic, each.partition, each.broker, each.text)
            for each in found
        ]
        show(("time_ms", "kind", "topic", "partition", "broker", "text"), rows, args.output)
        return 0
    for each in found:
        print(f"{moment_of(each.at_ms)}  {each.text}")
    return 0


def _bytes(args: argparse.Namespace, cluster: "ClusterStatus") -> dict[str, int | None]:
    """What each live broker has; None: it has nothing, or does not answer."""
    with admin_of(args) as found:
        sizes = found.log_sizes()
    told = Counter[int]()
    for each in sizes:
        told[each.broker] += each.bytes
    return {str(number): told.get(number) for number in sorted(cluster.brokers)}


def _status_of(broker: int, cluster: "ClusterStatus", output: str) -> int:
    is_registered = broker in cluster.brokers
    held = [each for each in cluster.partitions if broker in each.replicas]
    behind = sum(broker not in each.in_sync for each in held)
    row = (broker, is_registered, len(held), behind)
    show(("broker", "registered", "replicas", "out of sync"), [row], output)
    return 0 if is_registered and not behind else DEGRADED
