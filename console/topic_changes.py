"""`folkmoot topic alter` and `folkmoot topic delete-records`: what changes a topic for good."""

import argparse
import sys
from typing import Literal

from folkmoot.console.formats.offset_files import text_in
from folkmoot.console.options import (
    add_output,
    add_zookeeper,
    admin_of,
    confirm,
    point_in_time,
    whole_number,
)
from folkmoot.console.tables import show
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.quantities import counted
from folkmoot.protocol.records import TopicPartition

_Before = dict[TopicPartition, "int | Literal['latest']"]


def add_actions(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    alter = actions.add_parser("alter", help="give a topic more partitions")
    alter.add_argument("topic", metavar="TOPIC")
    alter.add_argument(
        "--partitions", type=whole_number, metavar="N", required=True, help="how many it shall have"
    )
    alter.add_argument("--yes", action="store_true", help="do not ask whether keys may map anew")
    alter.set_defaults(act=_alter)

    delete = actions.add_parser(
        "delete-records",
        help="give up the oldest records of a topic",
        description="Give up all records before an offset or a time, for good. Without --execute "
        "nothing is deleted: the plan is printed.",
    )
    delete.add_argument("topic", metavar="TOPIC")
    delete.add_argument(
        "--before",
        action="append",
        default=[],
        metavar="PARTITION=OFFSET",
        help="up to this offset, or to the `latest`; may be given several times",
    )
    delete.add_argument(
        "--file", metavar="FILE", help="the same, one per line; - is the standard input"
    )
    delete.add_argument(
        "--before-time",
        metavar="TIME",
        help="in all partitions, up to the first record of this time or later "
        "(2026-01-31T12:00+01:00, UTC if it names no zone; -15m: so long ago)",
    )
    delete.add_argument("--execute", action="store_true", help="do it; else it is only shown")
    delete.set_defaults(act=_delete_records)

    for action in (alter, delete):
        add_zookeeper(action)
    add_output(delete)


# -- alter -----------------------------------------------------------------------------------------


def _alter(args: argparse.Namespace) -> int:
    with admin_of(args) as admin:
        before = len(admin.partitions_of(args.topic))
        if not args.yes and args.partitions > before:
            warning = (
                f"With {args.partitions} partitions instead of {before}, most keys of {args.topic} map to "
                "other partitions. What is\nwritten stays where it is: a key's records may then be in two "
                "partitions, with no order between them,\nand a compacted topic keeps a value in both. "
                "There is no way back.\n"
            )
            confirm(warning, "topic", args.topic, "changed")
        admin.add_partitions(args.topic, args.partitions)
    print(f"topic {args.topic} has {counted(args.partitions, 'partition')} now, {before} before")
    return 0


# -- delete-records --------------------------------------------------------------------------------


def _delete_records(args: argparse.Namespace) -> int:
    words = list(args.before)
    if args.file is not None:
        words += _lines(args.file)
    if bool(words) == bool(args.before_time):
        raise ConfigError("say up to where: either --before or --file, or --before-time")
    with admin_of(args) as admin:
        if args.before_time:
            at = point_in_time(args.before_time)
            ends = admin.offsets(args.topic, "latest", args.timeout)  # what comes later stays
            found = admin.offsets_for_times(dict.fromkeys(ends, at), args.timeout)
            wanted: _Before = {each: ends[each] if at is None else at for each, at in found.items()}
        else:
            wanted = _offsets(args.topic, words)
        offsets = admin.plan_delete_records(wanted, args.timeout)
        earliest = admin.offsets(offsets, "earliest", args.timeout)
        if args.execute:
            offsets = admin.delete_records(offsets, args.timeout)
        latest = admin.offsets(offsets, "latest", args.timeout)
    rows = []
    for each, offset in offsets.items():
        new = max(earliest[each], offset)
        rows.append((each.partition, earliest[each], new, latest[each], new - earliest[each]))
    show(("partition", "earliest", "new earliest", "latest", "given up"), rows, args.output)
    if not args.execute:
        print("nothing was deleted: add --execute to do it", file=sys.stderr)
    return 0


def _lines(file: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in text_in(file).splitlines())
    return [line for line in lines if line]


def _offsets(topic: str, words: list[str]) -> _Before:
    wanted: _Before = {}
    for word in words:
        number, equals, offset = word.partition("=")
        if not (equals and number.strip().isdecimal()):
            raise ConfigError(f"{word!r} is not understood: write PARTITION=OFFSET, such as 0=100")
        partition = TopicPartition(topic, int(number))
        if partition in wanted:
            raise ConfigError(f"partition {partition.partition} is named twice: name each once")
        if offset.strip() == "latest":
            wanted[partition] = "latest"
        elif offset.strip().isdecimal():
            wanted[partition] = int(offset)
        else:
            raise ConfigError(f"{offset!r} in {word!r} is no offset: use a number, or latest")
    return wanted
