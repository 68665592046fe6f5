"""`folkmoot group`: groups listed, looked at and deleted; group_offsets.py moves what they committed."""

import argparse
import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from folkmoot.console import group_offsets
from folkmoot.console.options import (
    add_output,
    add_zookeeper,
    admin_of,
    at_least_one,
    confirm,
)
from folkmoot.console.tables import moment_of, show
from folkmoot.protocol.quantities import counted

if TYPE_CHECKING:
    from folkmoot.coordination.groups.history import Entry
    from folkmoot.coordination.groups.membership import MemberInfo

EXAMPLES: Final = """examples:
  folkmoot group describe billing
  folkmoot group members billing -o json
  folkmoot group events billing -n 5
  folkmoot group reset billing --topic orders --to-earliest             what would be done
  folkmoot group reset billing --topic orders:0,2 --shift-by -100 --execute
  folkmoot group reset billing --to-datetime 2026-01-31T12:00Z --execute
  folkmoot group reset billing --by-duration 90m --execute              to 90 minutes ago
  folkmoot group export billing --file billing.csv
  folkmoot group import billing-2 billing.csv --execute"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="all groups")
    listing.set_defaults(act=_list)

    describe = actions.add_parser(
        "describe",
        help="a group's partitions, owners and lag",
        description="Who owns what, and how far it is. `behind` is the age of the first record that "
        "is not committed, in seconds. A partition is stable, draining (its owner is to give it up), "
        "claiming (its next owner is about to take it), kept (for a static member), malformed (a reset "
        "mends it), truncated (its log ends below what is committed: a reset mends it), deleted (its topic "
        "is gone), unsubscribed (no member wants it any more) or unowned. What is not known is -, and notes "
        "say why.",
    )
    describe.set_defaults(act=_describe)

    members = actions.add_parser(
        "members", help="a group's live members", description="Who is there; times in seconds."
    )
    members.set_defaults(act=_members)

    delete = actions.add_parser(
        "delete",
        help="forget all that a group has committed",
        description="Forget all that a group has committed. Refused while members live: with --force "
        "they go on, and start as those of a new group do.",
    )
    delete.add_argument("--yes", action="store_true", help="do not ask for the name again")
    delete.add_argument("--force", action="store_true", help="also while members live")
    delete.set_defaults(act=_delete)

    forget = actions.add_parser(
        "delete-offsets",
        help="forget what a group has committed of one topic",
        description="Forget what a group has committed of one topic, which need not exist any more. Refused "
        "while live members subscribe to it.",
    )
    forget.add_argument("--topic", metavar="TOPIC", required=True)
    forget.add_argument("--yes", action="store_true", help="do not ask for the group's name again")
    forget.set_defaults(act=_delete_offsets)

    events = actions.add_parser(
        "events",
        help="what happened in a group lately",
        description="The group's own record of its last rebalances and resets: who joined or left, "
        "and why as far as it is known, and what moved.",
    )
    events.add_argument(
        "-n", dest="count", type=at_least_one, metavar="N", default=20, help="default: the last 20"
    )
    events.set_defaults(act=_events)

    for action in (describe, members, events, delete, forget):
        action.add_argument("group", metavar="GROUP")
    for action in (listing, describe, members, events, delete, forget):
        add_zookeeper(action)
    for action in (listing, describe, members, events):
        add_output(action)
    group_offsets.add_actions(actions)


def run(args: argparse.Namespace) -> int:
    code: int = args.act(args)
    return code


def _list(args: argparse.Namespace) -> int:
    with admin_of(args) as admin:
        found = admin.groups()
    columns = ("group", "state", "members", "partitions", "generation")
    rows = [
        (each.name, each.state, each.members, each.partitions, each.generation) for each in found
    ]
    show(columns, rows, args.output)
    return 0


def _describe(args: argparse.Namespace) -> int:
    from folkmoot.coordination.groups.membership import assignee

    with admin_of(args) as admin:
        group = admin.describe_group(args.group, args.timeout)
    if args.output != "json":
        divided = f", divided by {group.assignor}" if group.assignor else ""
        print(
            f"group {group.name} is {group.state}: {counted(len(group.members), 'member')}, "
            f"generation {group.generation}{divided}",
            file=sys.stderr,
        )
    columns = (
        "topic",
        "partition",
        "owner",
        "host",
        "pid",
        "epoch",
        "committed",
        "latest",
        "lag",
        "behind",
        "state",
    )
    owners = {assignee(each.name): each.info for each in group.members}
    rows = [
        (
            *(each.partition.topic, each.partition.partition, each.owner),
            *_process(owners.get(each.owner or "")),
            *(each.epoch, each.committed, each.latest, each.lag, each.behind, each.state),
        )
        for each in group.partitions
    ]
    show(columns, rows, args.output)
    for note in group.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _process(info: "MemberInfo | None") -> tuple[str | None, int | None]:
    """Host and process id."""
    return (None, None) if info is None else (info.host or None, info.pid or None)


def _members(args: argparse.Namespace) -> int:
    with admin_of(args) as admin:
        found = admin.describe_group(args.group, args.timeout).members
    columns = (
        *("member", "host", "pid", "instance", "topics", "assignors", "protocol"),
        *("partitions", "age", "revoke timeout"),
    )
    rows = []
    for each in found:
        owned: list[str] = [str(partition) for partition in each.partitions]
        cell: list[str] | int = owned if args.output == "json" else len(owned)
        info = each.info
        rows.append(
            (
                *(
                    each.name,
                    *_process(info),
                    each.instance_id,
                    _wishes(info),
                    list(info.assignors),
                ),
                *(info.protocol, cell, each.age, info.revoke_timeout),
            )
        )
    show(columns, rows, args.output)
    return 0


def _wishes(info: "MemberInfo") -> list[str]:
    return [*info.topics, *([f"/{info.pattern}/"] if info.pattern else [])]


def _events(args: argparse.Namespace) -> int:
    with admin_of(args) as admin:
        found = admin.group_events(args.group)[-args.count :]
    if args.output == "json":
        print(json.dumps([event_of(each) for each in found], indent=2))
        return 0
    if not found:
        print(f"group {args.group} has noted nothing yet", file=sys.stderr)
    for each in found:
        print(headline(each), *(f"    {line}" for line in told_of(each)), sep="\n")
    return 0


def headline(entry: "Entry") -> str:
    """When, and which plan or reset."""
    if not entry.generation and not entry.by:
        what = "nobody has planned since"
    else:
        what = f"generation {entry.generation}" if entry.generation else f"reset by {entry.by}"
    return f"{moment_of(entry.at_ms) if entry.at_ms else 'lately'}  {what}"


def event_of(entry: "Entry") -> dict[str, Any]:
    """An entry as JSON shows it."""
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


def told_of(entry: "Entry") -> list[str]:
    """An entry in words, line by line."""
    if entry.reset:
        said = [f"{each} to {offset}" for each, offset in entry.reset.items()]
        left_out = entry.moved - len(said)
        return said + ([f"and {counted(left_out, 'partition')} more"] if left_out > 0 else [])
    said = [f"{each} joined" + (f" ({why})" if why else "") for each, why in entry.joined.items()]
    said += [f"{each}: {why}" for each, why in entry.left.items()]
    ways = Counter((each.topic, each.old, each.new) for each in entry.moves)
    said += [
        f"{counted(number, 'partition')} of {topic} from {old or 'nobody'} to {new or 'nobody'}"
        for (topic, old, new), number in ways.items()
    ]
    if entry.moved > len(entry.moves):
        said.append(f"{counted(entry.moved, 'partition')} in all")
    return said or ["nothing moved"]


def _delete(args: argparse.Namespace) -> int:
    with admin_of(args) as admin:
        if not args.yes:
            known = len(admin.group_offsets(args.group))
            warning = f"This forgets where {args.group} is in {counted(known, 'partition')}. "
            confirm(warning, "group", args.group, "deleted")
        admin.delete_group(args.group, args.force)
    print(f"deleted group {args.group}")
    return 0


def _delete_offsets(args: argparse.Namespace) -> int:
    with admin_of(args) as admin:
        if not args.yes:
            warning = f"This forgets where {args.group} is in all partitions of {args.topic}. "
            confirm(warning, "group", args.group, "changed")
        admin.delete_group_offsets(args.group, args.topic)
    print(f"deleted the offsets of group {args.group} in topic {args.topic}")
    return 0
