"""`folkmoot group`: list, describe and delete groups; group_offsets.py moves what they committed."""

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from folkmoot.console.cluster.group_offsets import export, import_offsets, reset
from folkmoot.console.confirmation import confirm
from folkmoot.console.options.cluster import Cluster, with_zookeeper
from folkmoot.console.options.names import TOPIC, group_argument
from folkmoot.console.options.values import COUNT, output_option, yes_option
from folkmoot.console.tables import moment_of, show
from folkmoot.protocol.quantities import counted

if TYPE_CHECKING:
    from folkmoot.coordination.groups.history import Entry
    from folkmoot.coordination.groups.membership import MemberInfo


@click.group()
def command() -> None:
    """List, describe, reset and delete consumer groups.

    \b
    folkmoot group describe billing
    folkmoot group members billing -o json
    folkmoot group events billing -n 5
    folkmoot group reset billing --topic orders --to-earliest        (the plan)
    folkmoot group reset billing --topic orders:0,2 --shift-by -100 --execute
    folkmoot group reset billing --to-datetime 2026-01-31T12:00Z --execute
    folkmoot group reset billing --by-duration 90m --execute
    folkmoot group export billing --file billing.csv
    folkmoot group import billing-2 billing.csv --execute
    """


for _action in (reset, export, import_offsets):
    command.add_command(_action)


@command.command("list")
@output_option
@with_zookeeper()
def _list(cluster: Cluster, output: str) -> int:
    """List all groups."""
    with cluster.admin() as admin:
        found = admin.groups()
    columns = ("group", "state", "members", "partitions", "generation")
    rows = [
        (each.name, each.state, each.members, each.partitions, each.generation) for each in found
    ]
    show(columns, rows, output)
    return 0


@command.command("describe")
@group_argument
@output_option
@with_zookeeper()
def _describe(cluster: Cluster, group: str, output: str) -> int:
    """Show the owner, the committed offset and the lag of each partition of a group.

    `behind` is the age in seconds of the first record that is not committed. Unknown values are -, and
    notes say why. A partition is

    \b
    stable        in order
    draining      being released by its owner
    claiming      about to be taken by its next owner
    reserved      waits for an absent static member
    malformed     not readable: a reset mends it
    truncated     shorter than what is committed: a reset mends it
    deleted       of a topic that does not exist any more
    unsubscribed  not wanted by any member
    unowned       without an owner
    """
    from folkmoot.coordination.groups.membership import assignee

    with cluster.admin() as admin:
        found = admin.describe_group(group, cluster.timeout)
    if output != "json":
        divided = f", divided by {found.assignor}" if found.assignor else ""
        print(
            f"group {found.name} is {found.state}: {counted(len(found.members), 'member')}, "
            f"generation {found.generation}{divided}",
            file=sys.stderr,
        )
    columns = (
        *("topic", "partition", "owner", "host", "pid", "epoch"),
        *("committed", "latest", "lag", "behind", "state"),
    )
    owners = {assignee(each.name): each.info for each in found.members}
    rows = [
        (
            *(each.partition.topic, each.partition.partition, each.owner),
            *_process(owners.get(each.owner or "")),
            *(each.epoch, each.committed, each.latest, each.lag, each.behind, each.state),
        )
        for each in found.partitions
    ]
    show(columns, rows, output)
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _process(info: "MemberInfo | None") -> tuple[str | None, int | None]:
    """Host and process id."""
    return (None, None) if info is None else (info.host or None, info.pid or None)


@command.command("members")
@group_argument
@output_option
@with_zookeeper()
def _members(cluster: Cluster, group: str, output: str) -> int:
    """Show a group's live members; times are in seconds."""
    with cluster.admin() as admin:
        found = admin.describe_group(group, cluster.timeout).members
    columns = (
        *("member", "host", "pid", "instance", "topics", "assignors", "protocol"),
        *("partitions", "age", "revoke timeout"),
    )
    rows = []
    for each in found:
        owned: list[str] = [str(partition) for partition in each.partitions]
        cell: list[str] | int = owned if output == "json" else len(owned)
        info = each.info
        rows.append(
            (
                *(each.name, *_process(info), each.instance_id),
                *(_subscriptions(info), list(info.assignors)),
                *(info.protocol, cell, each.age, info.revoke_timeout),
            )
        )
    show(columns, rows, output)
    return 0


def _subscriptions(info: "MemberInfo") -> list[str]:
    return [*info.topics, *([f"/{info.pattern}/"] if info.pattern else [])]


@command.command("events")
@group_argument
@click.option("-n", "count", type=COUNT, metavar="N", default=20, help="Only the last N.")
@output_option
@with_zookeeper()
def _events(cluster: Cluster, group: str, count: int, output: str) -> int:
    """Show the last rebalances and resets of a group: who joined or left and why, and what moved."""
    with cluster.admin() as admin:
        found = admin.group_events(group)[-count:]
    if output == "json":
        print(json.dumps([event_of(each) for each in found], indent=2))
        return 0
    if not found:
        print(f"group {group} has noted nothing yet", file=sys.stderr)
    for each in found:
        print(headline(each), *(f"    {line}" for line in lines_of(each)), sep="\n")
    return 0


def headline(entry: "Entry") -> str:
    """Return when it was, and which plan or reset."""
    if not entry.generation and not entry.by:
        event = "no plan since"
    else:
        event = f"generation {entry.generation}" if entry.generation else f"reset by {entry.by}"
    return f"{moment_of(entry.at_ms) if entry.at_ms else 'lately'}  {event}"


def event_of(entry: "Entry") -> dict[str, Any]:
    """Return an entry as JSON shows it."""
    return {
        "time_ms": entry.at_ms or None,
        "generation": entry.generation or None,
        "by": entry.by,
        "joined": entry.joined,
        "left": entry.left,
        "moved": entry.moved,
        "moves": [
            {"topic": each.topic, "partition": each.partition, "from": each.old, "to": each.new}
            for each in entry.moves
        ],
        "reset": entry.reset,
    }


def lines_of(entry: "Entry") -> list[str]:
    """Return an entry in words, line by line."""
    if entry.reset:
        lines = [f"{each} to {offset}" for each, offset in entry.reset.items()]
        omitted = entry.moved - len(lines)
        return lines + ([f"and {counted(omitted, 'partition')} more"] if omitted > 0 else [])
    lines = [f"{each} joined" + (f" ({why})" if why else "") for each, why in entry.joined.items()]
    lines += [f"{each}: {why}" for each, why in entry.left.items()]
    routes = Counter((each.topic, each.old, each.new) for each in entry.moves)
    lines += [
        f"{counted(number, 'partition')} of {topic} from {old or 'nobody'} to {new or 'nobody'}"
        for (topic, old, new), number in routes.items()
    ]
    if entry.moved > len(entry.moves):
        lines.append(f"{counted(entry.moved, 'partition')} in all")
    return lines or ["nothing moved"]


@command.command("delete")
@group_argument
@yes_option
@click.option("--force", is_flag=True, help="Also while members live.")
@with_zookeeper()
def _delete(cluster: Cluster, group: str, yes: bool, force: bool) -> int:
    """Delete all that a group has committed.

    Refused while members live. With --force running members restart from `auto_offset_reset`.
    """
    with cluster.admin() as admin:
        if not yes:
            count = len(admin.group_offsets(group))
            warning = f"This forgets where {group} is in {counted(count, 'partition')}. "
            confirm(warning, "group", group, "deleted")
        admin.delete_group(group, force)
    print(f"deleted group {group}")
    return 0


@command.command("delete-offsets")
@group_argument
@click.option("--topic", type=TOPIC, required=True)
@yes_option
@with_zookeeper()
def _delete_offsets(cluster: Cluster, group: str, topic: str, yes: bool) -> int:
    """Delete what a group has committed of one topic, which need not exist any more.

    Refused while live members subscribe to it.
    """
    with cluster.admin() as admin:
        if not yes:
            warning = f"This forgets where {group} is in all partitions of {topic}. "
            confirm(warning, "group", group, "changed")
        admin.delete_group_offsets(group, topic)
    print(f"deleted the offsets of group {group} in topic {topic}")
    return 0
