"""`folkmoot topic alter` and `folkmoot topic delete-records`: changes of a topic for good."""

import sys
from typing import Literal

import click

from folkmoot.console.confirmation import confirm
from folkmoot.console.files import read_text
from folkmoot.console.options.cluster import Cluster, with_zookeeper
from folkmoot.console.options.names import topic_argument
from folkmoot.console.options.values import (
    execute_option,
    output_option,
    point_in_time,
    yes_option,
)
from folkmoot.console.tables import show
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.quantities import counted
from folkmoot.protocol.records import TopicPartition

_Targets = dict[TopicPartition, "int | Literal['latest']"]


@click.command("alter")
@topic_argument
@click.option("--partitions", type=int, metavar="N", required=True, help="The new number.")
@yes_option
@with_zookeeper()
def alter(cluster: Cluster, topic: str, partitions: int, yes: bool) -> int:
    """Give a topic more partitions."""
    with cluster.admin() as admin:
        before = len(admin.partitions_of(topic))
        if not yes and partitions > before:
            warning = (
                f"With {partitions} partitions instead of {before}, most keys of {topic} map to other "
                "partitions. What is\nwritten stays where it is: a key's records may then be in two "
                "partitions, with no order between them,\nand a compacted topic keeps a value in both. "
                "There is no way back.\n"
            )
            confirm(warning, "topic", topic, "changed")
        admin.add_partitions(topic, partitions)
    print(f"topic {topic} has {counted(partitions, 'partition')} now, {before} before")
    return 0


@click.command("delete-records")
@topic_argument
@click.option(
    "--before",
    multiple=True,
    metavar="PARTITION=OFFSET",
    help="Up to this offset, or to the `latest`; may be repeated.",
)
@click.option("--file", metavar="FILE", help="The same, one a line; - is the standard input.")
@click.option(
    "--before-time",
    metavar="TIME",
    help="In all partitions, up to the first record of this time or later: 2026-01-31T12:00+01:00 (UTC "
    "without a zone), or -15m for 15 minutes ago.",
)
@execute_option
@output_option
@with_zookeeper()
def delete_records(
    cluster: Cluster,
    topic: str,
    before: tuple[str, ...],
    file: str | None,
    before_time: str | None,
    execute: bool,
    output: str,
) -> int:
    """Delete all records before an offset or a time, for good."""
    timeout = cluster.timeout
    words = [*before, *(() if file is None else _lines(file))]
    if bool(words) == bool(before_time):
        raise ConfigError("say up to where: either --before or --file, or --before-time")
    with cluster.admin() as admin:
        if before_time:
            at = point_in_time(before_time)
            ends = admin.offsets(topic, "latest", timeout)  # later records stay
            found = admin.offsets_for_times(dict.fromkeys(ends, at), timeout)
            targets: _Targets = {
                each: ends[each] if at is None else at for each, at in found.items()
            }
        else:
            targets = _offsets(topic, words)
        offsets = admin.plan_delete_records(targets, timeout)
        earliest = admin.offsets(offsets, "earliest", timeout)
        if execute:
            offsets = admin.delete_records(offsets, timeout)
        latest = admin.offsets(offsets, "latest", timeout)
    rows = []
    for each, offset in offsets.items():
        new = max(earliest[each], offset)
        rows.append((each.partition, earliest[each], new, latest[each], new - earliest[each]))
    show(("partition", "earliest", "new earliest", "latest", "given up"), rows, output)
    if not execute:
        print("nothing was deleted: add --execute to do it", file=sys.stderr)
    return 0


def _lines(file: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in read_text(file).splitlines())
    return [line for line in lines if line]


def _offsets(topic: str, words: list[str]) -> _Targets:
    targets: _Targets = {}
    for word in words:
        number, equals, offset = (part.strip() for part in word.partition("="))
        if not (equals and number.isdecimal()):
            raise ConfigError(f"{word!r} is not understood: write PARTITION=OFFSET, such as 0=100")
        partition = TopicPartition(topic, int(number))
        if partition in targets:
            raise ConfigError(f"partition {partition.partition} is named twice: name each once")
        if offset != "latest" and not offset.isdecimal():
            raise ConfigError(f"{offset!r} in {word!r} is no offset: use a number, or latest")
        targets[partition] = int(offset) if offset.isdecimal() else "latest"
    return targets
