"""`folkmoot group`: list groups, and show who owns what and how far it is."""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from folkmoot.console.options import add_output, add_zookeeper, store_of
from folkmoot.console.tables import show
from folkmoot.protocol.errors import UnknownGroup
from folkmoot.protocol.names import check_name

if TYPE_CHECKING:
    from folkmoot.coordination.groups import GroupState, PartitionState
    from folkmoot.coordination.store import Store
    from folkmoot.protocol.records import TopicPartition

_ENDS_WAIT = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="all groups")
    listing.set_defaults(act=_list)

    describe = actions.add_parser("describe", help="a group's partitions, owners and lag")
    describe.add_argument("group", metavar="GROUP")
    describe.set_defaults(act=_describe)

    for action in (listing, describe):
        add_zookeeper(action)
        add_output(action)


def run(args: argparse.Namespace) -> int:
    code: int = args.act(args)
    return code


def _list(args: argparse.Namespace) -> int:
    from folkmoot.coordination import groups
    from folkmoot.coordination.store import run

    rows = []
    with store_of(args) as store:
        for name in run(store, groups.names()):
            group = run(store, groups.describe(name))
            if group is not None:
                size = len(group.partitions)
                rows.append((name, group.state, len(group.members), size, group.generation))
    show(("group", "state", "members", "partitions", "generation"), rows, args.output)
    return 0


def _describe(args: argparse.Namespace) -> int:
    from folkmoot.coordination import groups
    from folkmoot.coordination.store import run

    check_name("group", args.group)
    with store_of(args) as store:
        group = run(store, groups.describe(args.group))
        if group is None:
            raise UnknownGroup(f"group {args.group} does not exist: see `folkmoot group list`")
        ends = _ends(store, [each.partition for each in group.partitions])
    columns = ("topic", "partition", "owner", "epoch", "committed", "end", "lag", "state")
    show(columns, _rows(group, ends), args.output)
    return 0


def _rows(
    group: "GroupState", ends: Mapping["TopicPartition", int]
) -> Sequence[Sequence[str | int | None]]:
    rows = []
    for each in group.partitions:
        committed = None if each.offset is None else each.offset.offset
        end = ends.get(each.partition)
        lag = None if committed is None or end is None else max(0, end - committed)
        owner = None if each.owner is None else each.owner.member
        epoch = None if each.offset is None else each.offset.epoch
        rows.append((*each.partition, owner, epoch, committed, end, lag, _state(group, each)))
    return rows


def _state(group: "GroupState", each: "PartitionState") -> str:
    """How ownership stands against the plan, whose members may be gone by now."""
    owner = None if each.owner is None else each.owner.member
    if each.planned is None:
        return "unplanned"
    if owner == each.planned:
        return "owned"
    return "unowned" if owner is None and each.planned not in group.members else "moving"


def _ends(store: "Store", partitions: Sequence["TopicPartition"]) -> dict["TopicPartition", int]:
    """The ends of partitions, as far as their leaders answer in time."""
    from folkmoot.coordination import brokers, topics
    from folkmoot.coordination.store import run
    from folkmoot.network.lookups import Lookups

    def discover() -> list[str]:
        live = run(store, brokers.live())
        return [each.listeners["client"] for each in live.values() if "client" in each.listeners]

    ids = {}
    for name in {partition.topic for partition in partitions}:
        topic = run(store, topics.read(name))
        if topic is not None:
            ids[name] = topic.topic_id
    wanted = {each: ids[each.topic] for each in partitions if each.topic in ids}
    if not wanted or not discover():
        return {}
    lookups = Lookups("folkmoot-group", "client", discover)
    try:
        return lookups.ends(wanted, _ENDS_WAIT)
    finally:
        lookups.close()
