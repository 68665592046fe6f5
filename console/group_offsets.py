"""`folkmoot group reset|export|import`: where a group is, moved or kept in a file."""

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from folkmoot.console.formats import offset_files
from folkmoot.console.options import (
    add_output,
    add_zookeeper,
    admin_of,
    point_in_time,
    whole_number,
    write_text,
)
from folkmoot.console.tables import show
from folkmoot.protocol.errors import ConfigError, StaleTopicId
from folkmoot.protocol.quantities import counted, duration
from folkmoot.protocol.records import TopicPartition

if TYPE_CHECKING:
    from folkmoot.admin.admin import Admin
    from folkmoot.admin.offset_reset import Planned, Target


def add_actions(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    reset = actions.add_parser(
        "reset",
        help="have a group go on somewhere else, also while it runs",
        description="Have a group go on somewhere else, also while it runs: its members drop what "
        "they have under way in these partitions, which is not committed, and go on at the new "
        "offsets at once. Without --execute nothing is changed: the plan is printed.",
    )
    where = reset.add_mutually_exclusive_group(required=True)
    where.add_argument("--to-earliest", action="store_true", help="to the first record there is")
    where.add_argument("--to-latest", action="store_true", help="behind the last record")
    where.add_argument(
        "--to-offset", type=whole_number, metavar="N", help="to this offset, which must exist"
    )
    where.add_argument(
        "--to-datetime",
        metavar="TIME",
        help="to the first record of this time or later: 2026-01-31T12:00+01:00 (UTC if it names no "
        "zone), -15m for so long ago, or milliseconds since 1970",
    )
    where.add_argument(
        "--by-duration", metavar="D", help="to so long ago: 90s, 15m, 1h30m, 2d, or PT1H30M"
    )
    where.add_argument(
        "--shift-by",
        type=whole_number,
        metavar="N",
        help="so many records on from what is committed, or back (-N), as far as there are any",
    )
    where.add_argument(
        "--from-file",
        dest="file",
        metavar="FILE",
        help="to the offsets in a file that `export` wrote; - is the standard input",
    )
    reset.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC[:P,P…]",
        help="only this topic, or these partitions of it; may be given several times (default: all "
        "topics of the group)",
    )
    reset.add_argument("group", metavar="GROUP")
    reset.set_defaults(act=_reset)
    export, importing = _add_files(actions)
    for action in (reset, importing):
        action.add_argument("--execute", action="store_true", help="do it; else it is only shown")
        add_output(action)
    for action in (reset, export, importing):
        add_zookeeper(action)


def _add_files(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    export = actions.add_parser(
        "export",
        help="write a group's offsets to a file",
        description="Write what a group has committed, in a form that `import` and `reset "
        "--from-file` read: lines of topic,partition,offset,topic_id, or JSON.",
    )
    export.add_argument("group", metavar="GROUP")
    export.add_argument("--file", metavar="FILE", default="-", help="default: standard output")
    export.add_argument(
        "--format", choices=("csv", "json"), help="default: by the file's name, else csv"
    )
    export.set_defaults(act=_export)

    importing = actions.add_parser(
        "import",
        help="take a group's offsets from a file",
        description="Have a group, which need not exist, go on at the offsets of a file that "
        "`export` wrote. The same as `reset --from-file`.",
    )
    importing.add_argument("group", metavar="GROUP")
    importing.add_argument("file", metavar="FILE", help="- is the standard input")
    importing.set_defaults(act=_reset, topic=[])
    return export, importing


def _reset(args: argparse.Namespace) -> int:
    topics, partitions = _scope(args.topic)
    topic_ids: Mapping[TopicPartition, str] = {}
    to: Target | Mapping[TopicPartition, int]
    if args.file is not None:
        if topics or partitions:
            raise ConfigError("a file says which partitions are reset: leave --topic out")
        to, topic_ids = offset_files.read(args.file)
    else:
        to = _target(args)
    deadline = time.monotonic() + args.timeout
    with admin_of(args) as admin:
        scope = topics if topics or partitions else None
        left = deadline - time.monotonic()
        plan = admin.plan_reset(args.group, to, scope, partitions, left)
        _check_topic_ids(admin, topic_ids)
        if args.execute:
            offsets = {each.partition: each.new for each in plan}
            admin.reset_offsets(args.group, offsets, deadline - time.monotonic())
    _show(plan, args.output)
    if not args.execute:
        print("nothing was reset: add --execute to do it", file=sys.stderr)
    return 0


def _check_topic_ids(admin: "Admin", known: Mapping[TopicPartition, str]) -> None:
    """Raises StaleTopicId if a topic is not the one any more that offsets were noted of."""
    ids = admin.topic_ids(each.topic for each in known)
    for each, topic_id in known.items():
        if ids.get(each.topic, topic_id) != topic_id:
            raise StaleTopicId(
                f"topic {each.topic} was made anew since: old offsets mean nothing in it"
            )


def _show(plan: "list[Planned]", output: str) -> None:
    columns = ("topic", "partition", "committed", "new", "earliest", "latest")
    rows = [
        (*each.partition, each.committed, each.new, each.earliest, each.latest) for each in plan
    ]
    show(columns, rows, output)


def _scope(words: list[str]) -> tuple[list[str], list[TopicPartition]]:
    """Whole topics, and partitions of others."""
    topics, partitions = [], []
    for word in words:
        topic, colon, numbers = word.partition(":")
        if not colon:
            topics.append(topic)
            continue
        for number in numbers.split(","):
            if not number.strip().isdecimal():
                raise ConfigError(
                    f"{word!r} is not understood: write TOPIC or TOPIC:0,2 with numbers of partitions"
                )
            partitions.append(TopicPartition(topic, int(number)))
    return topics, partitions


def _target(args: argparse.Namespace) -> "Target":
    from folkmoot.admin.offset_reset import Shift

    if args.to_earliest:
        return "earliest"
    if args.to_latest:
        return "latest"
    if args.to_offset is not None:
        return int(args.to_offset)
    if args.shift_by is not None:
        return Shift(args.shift_by)
    if args.by_duration is not None:
        return duration(args.by_duration)
    return point_in_time(args.to_datetime)


def _export(args: argparse.Namespace) -> int:
    form = args.format or ("json" if Path(args.file).suffix == ".json" else "csv")
    with admin_of(args) as admin:
        ids = admin.topic_ids(each.topic for each in admin.group_offsets(args.group))
        offsets = admin.group_offsets(args.group)  # no older than the ids
    text = offset_files.text_of(offsets, ids, form)
    if args.file == "-":
        print(text, end="")
        return 0
    write_text(Path(args.file), text)
    print(
        f"wrote {counted(len(offsets), 'offset')} of group {args.group} to {args.file}",
        file=sys.stderr,
    )
    return 0
