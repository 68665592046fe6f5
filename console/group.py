"""`folkmoot group`: groups listed, looked at and deleted; group_offsets.py moves what they committed."""

import argparse
import sys
from typing import TYPE_CHECKING, Final

from folkmoot.console import group_offsets
from folkmoot.console.options import SESSION_TIMEOUT, add_output, add_zookeeper, connecting
from folkmoot.console.tables import show

if TYPE_CHECKING:
    from folkmoot.consumers.admin import Admin
    from folkmoot.consumers.group_views import MemberView

EXAMPLES: Final = """examples:
  folkmoot group describe billing
  folkmoot group members billing -o json
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
        "claiming (its next owner is about to take it), kept (for a static member) or unowned.",
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

    for action in (describe, members, delete):
        action.add_argument("group", metavar="GROUP")
    for action in (listing, describe, members, delete):
        add_zookeeper(action)
    for action in (listing, describe, members):
        add_output(action)
    group_offsets.add_actions(actions)


def run(args: argparse.Namespace) -> int:
    code: int = args.act(args)
    return code


def _admin(args: argparse.Namespace) -> "Admin":
    from folkmoot.consumers.admin import Admin

    return Admin(
        zookeeper=connecting(args), client_id="folkmoot-group", session_timeout=SESSION_TIMEOUT
    )


def _list(args: argparse.Namespace) -> int:
    with _admin(args) as admin:
        found = admin.groups()
    columns = ("group", "state", "members", "partitions", "generation")
    rows = [
        (each.name, each.state, each.members, each.partitions, each.generation) for each in found
    ]
    show(columns, rows, args.output)
    return 0


def _describe(args: argparse.Namespace) -> int:
    with _admin(args) as admin:
        group = admin.describe_group(args.group)
    if args.output != "json":
        divided = f", divided by {group.assignor}" if group.assignor else ""
        print(
            f"group {group.name} is {group.state}: {_count(len(group.members), 'member')}, "
            f"generation {group.generation}{divided}",
            file=sys.stderr,
        )
    columns = ("topic", "partition", "owner", "epoch", "committed", "end", "lag", "behind", "state")
    rows = [
        (
            *(each.partition.topic, each.partition.partition, each.owner, each.epoch),
            *(each.committed, each.end, each.lag, each.behind, each.state),
        )
        for each in group.partitions
    ]
    show(columns, rows, args.output)
    return 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _members(args: argparse.Namespace) -> int:
    with _admin(args) as admin:
        found = admin.describe_group(args.group).members
    columns = (
        *("member", "host", "instance", "topics", "assignors", "protocol"),
        *("partitions", "age", "hand over"),
    )
    rows = []
    for each in found:
        owned: list[str] = [str(partition) for partition in each.partitions]
        cell: list[str] | int = owned if args.output == "json" else len(owned)
        rows.append(
            (
                *(each.name, each.host, each.instance_id, _wishes(each), list(each.assignors)),
                *(each.protocol, cell, each.age, each.hand_over),
            )
        )
    show(columns, rows, args.output)
    return 0


def _wishes(member: "MemberView") -> list[str]:
    return [*member.topics, *([f"/{member.pattern}/"] if member.pattern else [])]


def _delete(args: argparse.Namespace) -> int:
    from folkmoot.protocol.errors import NotConfirmed

    with _admin(args) as admin:
        if not args.yes:
            known = len(admin.group_offsets(args.group))
            print(
                f"This forgets where {args.group} is in {_count(known, 'partition')}. "
                "Type its name to go on: ",
                end="",
                file=sys.stderr,
                flush=True,
            )
            if sys.stdin.readline().strip() != args.group:
                raise NotConfirmed(
                    f"group {args.group} was not deleted: type its name, or use --yes"
                )
        admin.delete_group(args.group, args.force)
    print(f"deleted group {args.group}")
    return 0
