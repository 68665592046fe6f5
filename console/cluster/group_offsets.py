"""`folkmoot group reset|export|import`: a group's offsets, moved or kept in a file."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from folkmoot.console.cluster import offset_files
from folkmoot.console.files import STANDARD, write_text
from folkmoot.console.options.cluster import Cluster, with_zookeeper
from folkmoot.console.options.names import TOPIC_PARTITIONS, group_argument
from folkmoot.console.options.values import (
    at_most_one,
    execute_option,
    output_option,
    point_in_time,
)
from folkmoot.console.tables import show
from folkmoot.protocol.errors import ConfigError, StaleTopicId
from folkmoot.protocol.quantities import counted, duration
from folkmoot.protocol.records import TopicPartition

if TYPE_CHECKING:
    from folkmoot.admin.admin import Admin
    from folkmoot.admin.offset_reset import Target


@click.command("reset")
@group_argument
@click.option("--to-earliest", is_flag=True, help="To the first record there is.")
@click.option("--to-latest", is_flag=True, help="After the last record.")
@click.option("--to-offset", type=int, metavar="N", help="To this offset, which must exist.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="To the first record of this time or later: 2026-01-31T12:00+01:00 (UTC without a zone), -15m for "
    "15 minutes ago, or milliseconds since 1970.",
)
@click.option("--by-duration", metavar="D", help="To this long ago: 90s, 1h30m, 2d, or PT1H30M.")
@click.option(
    "--shift-by", type=int, metavar="N", help="N records on from what is committed, or back (-N)."
)
@click.option(
    "--from-file",
    metavar="FILE",
    help="To the offsets in a file that `export` wrote; - is the standard input.",
)
@click.option(
    *("--topic", "topics"),
    type=TOPIC_PARTITIONS,
    multiple=True,
    metavar="TOPIC[:P,P…]",
    help="Only this topic, or these partitions of it; may be repeated (default: all of the group).",
)
@execute_option
@output_option
@with_zookeeper()
def reset(
    cluster: Cluster,
    group: str,
    topics: tuple[str, ...],
    execute: bool,
    output: str,
    from_file: str | None,
    **target: Any,
) -> int:
    """Move the committed offsets of a group, also while it runs.

    Its members drop records that they have not committed, and continue at the new offsets at once.
    """
    at_most_one(from_file=from_file, **target)
    entire_topics, partitions = _scope(topics)
    if from_file is not None:
        if topics:
            raise ConfigError("a file says which partitions are reset: leave --topic out")
        return _import(cluster, group, from_file, execute, output)
    scope = entire_topics if topics else None
    return _reset(cluster, group, _target(**target), scope, partitions, execute, output)


@click.command("import")
@group_argument
@click.argument("file")
@execute_option
@output_option
@with_zookeeper()
def import_offsets(cluster: Cluster, group: str, file: str, execute: bool, output: str) -> int:
    """Move a group, which need not exist, to the offsets of a file that `export` wrote.

    The same as `reset --from-file`; - is the standard input.
    """
    return _import(cluster, group, file, execute, output)


def _import(cluster: Cluster, group: str, file: str, execute: bool, output: str) -> int:
    to, topic_ids = offset_files.read(file)
    return _reset(cluster, group, to, None, [], execute, output, topic_ids)


def _reset(
    cluster: Cluster,
    group: str,
    to: "Target | Mapping[TopicPartition, int]",
    topics: list[str] | None,
    partitions: list[TopicPartition],
    execute: bool,
    output: str,
    topic_ids: Mapping[TopicPartition, str] | None = None,
) -> int:
    deadline = time.monotonic() + cluster.timeout
    with cluster.admin() as admin:
        plan = admin.plan_reset(group, to, topics, partitions, cluster.timeout)
        _check_topic_ids(admin, topic_ids or {})
        if execute:
            offsets = {each.partition: each.new for each in plan}
            admin.reset_offsets(group, offsets, deadline - time.monotonic())
    columns = ("topic", "partition", "committed", "new", "earliest", "latest")
    rows = [
        (*each.partition, each.committed, each.new, each.earliest, each.latest) for each in plan
    ]
    show(columns, rows, output)
    if not execute:
        print("nothing was reset: add --execute to do it", file=sys.stderr)
    return 0


def _check_topic_ids(admin: "Admin", exported_ids: Mapping[TopicPartition, str]) -> None:
    """Raise StaleTopicId if a topic was deleted and created again since its offsets were exported."""
    ids = admin.topic_ids(each.topic for each in exported_ids)
    for each, topic_id in exported_ids.items():
        if ids.get(each.topic, topic_id) != topic_id:
            raise StaleTopicId(
                f"topic {each.topic} was made anew since: old offsets mean nothing in it"
            )


def _scope(words: tuple[str, ...]) -> tuple[list[str], list[TopicPartition]]:
    """Read whole topics, and partitions of others. Raises ConfigError."""
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


def _target(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    shift_by: int | None,
) -> "Target":
    """Return the one target that is given."""
    from folkmoot.admin.offset_reset import Shift

    if to_earliest or to_latest:
        return "earliest" if to_earliest else "latest"
    if to_offset is not None:
        return to_offset
    if shift_by is not None:
        return Shift(shift_by)
    if by_duration is not None:
        return duration(by_duration)
    if to_datetime is None:
        raise click.UsageError("Say where to: --to-earliest, --to-latest, --to-offset or another.")
    return point_in_time(to_datetime)


@click.command("export")
@group_argument
@click.option("--file", metavar="FILE", default=STANDARD, help="- is the standard output.")
@click.option(
    *("--format", "form"),
    type=click.Choice(("csv", "json")),
    help="Default: by the file's name, else csv.",
)
@with_zookeeper()
def export(cluster: Cluster, group: str, file: str, form: str | None) -> int:
    """Write what a group has committed, in a form that `import` and `reset --from-file` read.

    That is lines of topic,partition,offset,topic_id, or JSON.
    """
    form = form or ("json" if Path(file).suffix == ".json" else "csv")
    with cluster.admin() as admin:
        ids = admin.topic_ids(each.topic for each in admin.group_offsets(group))
        offsets = admin.group_offsets(group)  # no older than the ids
    text = offset_files.format_offsets(offsets, ids, form)
    if file == STANDARD:
        print(text, end="")
        return 0
    write_text(Path(file), text)
    print(f"wrote {counted(len(offsets), 'offset')} of group {group} to {file}", file=sys.stderr)
    return 0
