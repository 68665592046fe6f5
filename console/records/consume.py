"""`folkmoot consume`: a topic's records, once through or as they come, decoded by their schema."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from folkmoot.console.exit_codes import IncompleteRead
from folkmoot.console.files import read_text
from folkmoot.console.options.cluster import Cluster, with_cluster
from folkmoot.console.options.declared import client_options, set_option
from folkmoot.console.options.monitoring import metrics_options, serve_pages
from folkmoot.console.options.names import GROUP, topic_argument
from folkmoot.console.options.values import (
    COUNT,
    FILE,
    at_most_one,
    partition_option,
    point_in_time,
    schema_context_option,
)
from folkmoot.console.records.formats.record_text import FORMAT_HELP, writer
from folkmoot.console.records.formats.values import Decoder
from folkmoot.protocol.errors import (
    ConfigError,
    OffsetOutOfRange,
    SerializationError,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from folkmoot.consumers.client.consumer import Consumer
    from folkmoot.consumers.group.events import Rebalanced
    from folkmoot.metrics.pages import MetricsSource
    from folkmoot.protocol.records import Record, TopicPartition

POLL = 0.1
MAX_POLL_RECORDS = 500
ELECTION_WAIT = 5.0
"""Seconds that a partition without a leader is waited for, when everything else is read."""


@click.command()
@topic_argument
@click.option("--group", type=GROUP, help="Read as a member of this group, and commit.")
@click.option(
    *("--from", "start"),
    metavar="WHERE",
    help="earliest (default), latest (implies --follow), an offset, or a time (2026-01-31T12:00Z; -15m: 15 "
    "minutes ago). In a group earliest or latest, for partitions without a committed offset.",
)
@click.option("--last", type=COUNT, metavar="N", help="Begin N records before each end.")
@partition_option
@click.option("-f", "--follow", is_flag=True, help="Wait for new records until Ctrl-C.")
@click.option("-n", "--max-records", type=COUNT, metavar="N", help="Stop after N records.")
@click.option(
    "--reader-schema", type=FILE, help="Read values by this schema, not by that of their writer."
)
@click.option("--key-schema", type=FILE, help="Decode keys, too, and read them by this schema.")
@schema_context_option
@click.option(
    *("-o", "--output"),
    type=click.Choice(("text", "json", "raw")),
    help="json: one object a line, which `produce -i json` reads.  [default: text]",
)
@click.option("--format", "form", metavar="TEXT", help=FORMAT_HELP)
@set_option("consumer")
@metrics_options()
@with_cluster
def command(
    cluster: Cluster,
    topic: str,
    group: str | None,
    start: str | None,
    last: int | None,
    partitions: tuple[int, ...],
    follow: bool,
    max_records: int | None,
    reader_schema: Path | None,
    key_schema: Path | None,
    schema_context: str,
    output: str | None,
    form: str | None,
    settings: tuple[str, ...],
    metrics_port: int | None,
    metrics_host: str,
) -> int:
    """Show the records of a topic, once through or as they come."""
    from folkmoot.consumers.client.consumer import Consumer
    from folkmoot.consumers.config import ConsumerConfig

    at_most_one(**{"from": start, "last": last})
    at_most_one(output=output, format=form)
    if group is not None and not cluster.zookeeper:
        raise ConfigError("a group's members find each other in ZooKeeper: use --zookeeper")
    first = _start(start or "earliest", group, last, partitions)
    reading = _Reading(
        *(cluster, topic, group, first, last, partitions),
        follows=follow or (first == "latest" and group is None),
        remaining=max_records,
    )
    # A time, or an offset before the end, may be one whose records are gone by now.
    reset = first if isinstance(first, str) else "error" if isinstance(first, int) else "earliest"
    own: dict[str, Any] = {"client_id": "folkmoot-consume", "auto_offset_reset": reset}
    if group is not None:
        _check_topic(cluster, topic)
        own.update(group=group, topics=[topic], on_rebalance=reading.set_plan)
    own |= cluster.client_options(guarded=group is not None)
    options = client_options(ConsumerConfig, own, settings)
    if not reading.follows:  # a fetch at the end is answered soon, and not when records come
        options.setdefault("fetch_max_wait", POLL)
    decoder = Decoder.of(cluster, schema_context, _reader_schemas(key_schema, reader_schema))
    write = writer((output or "text") if form is None else "", decoder, form or "")
    with decoder, Consumer(**options) as consumer, consumer.leave_on_signals() as was_stopped:

        def metrics() -> "MetricsSource":
            from folkmoot.metrics.clients import ClientMetrics

            return ClientMetrics(consumer)

        with serve_pages(metrics_host, metrics_port, metrics, sys.stderr):
            reading.show_all(consumer, was_stopped, write)
    if was_stopped() and not reading.follows:
        raise KeyboardInterrupt
    return 0


def _reader_schemas(key: Path | None, value: Path | None) -> dict[str, str]:
    """Return the schemas to read by. Raises ConfigError, InvalidSchema."""
    files = {"key": key, "value": value}
    schemas = {field: read_text(path) for field, path in files.items() if path is not None}
    if schemas:
        from folkmoot.schemas.avro.identity import canonical

        for text in schemas.values():
            canonical(text)
    return schemas


def _start(
    start: str, group: str | None, last: int | None, partitions: tuple[int, ...]
) -> int | str | datetime:
    """Return where to start: an offset, earliest, latest or a time. Raises ConfigError."""
    if group is not None and partitions:
        raise ConfigError("a member reads what its group gives it: use --partition without --group")
    if start in ("earliest", "latest") and (group is None or not last):
        return start
    if group is not None:
        raise ConfigError(
            "a member reads where its group is: use --last, and --from an offset or a time, "
            "without --group"
        )
    if start.isdecimal():
        return int(start)
    try:
        return point_in_time(start)
    except ConfigError:
        raise ConfigError(
            f"--from {start!r} is neither earliest, latest, an offset nor a time: write a time as in "
            "2026-01-31T12:00Z, or -15m for a quarter of an hour ago"
        ) from None


def _check_topic(cluster: Cluster, topic: str) -> None:
    """Raise UnknownTopicOrPartition before a group is created for a topic that does not exist."""
    from folkmoot.coordination import topics
    from folkmoot.coordination.zookeeper.execute import execute

    with cluster.session() as session:
        if execute(session, topics.read(topic), cluster.timeout) is None:
            raise UnknownTopicOrPartition(
                f"topic {topic} does not exist: create it with `folkmoot topic create {topic}`"
            )


@dataclass
class _Reading:
    """The partitions to read, their start and their end."""

    cluster: Cluster
    topic: str
    group: str | None
    start: int | str | datetime
    last: int | None
    partitions: tuple[int, ...]
    follows: bool
    remaining: int | None
    """How many records may still be shown, None: all."""
    assigned: "frozenset[TopicPartition] | None" = None
    """The partitions to read, by the group's plan; None while it is unknown."""
    last_unread: object = None
    progress_at: float = 0.0

    def set_plan(self, consumer: "Consumer", plan: "Rebalanced") -> None:
        self.assigned = frozenset(plan.partitions)

    def show_all(
        self,
        consumer: "Consumer",
        was_stopped: Callable[[], object],
        write: "Callable[[Record], None]",
    ) -> None:
        """Write the records until enough are shown, or the end is reached, unless that is followed."""
        if self.group is None:
            self._assign(consumer)
        elif not self.follows:
            # This raises if no broker has metadata: the reading would never end.
            consumer.partitions_of(self.topic, self.cluster.timeout)
        for records in self._polls(consumer, was_stopped):
            for record in records:
                try:
                    write(record)
                except SerializationError as error:
                    where = f"{record.topic}-{record.partition}, offset {record.offset}"
                    raise SerializationError(f"{where}: {error}") from None
            # Before the next poll, which marks them as processed: a reader that is gone is an error.
            sys.stdout.flush()

    def _assign(self, consumer: "Consumer") -> None:
        """Without a group, take all partitions, or those of the command line."""
        all_partitions = consumer.partitions_of(self.topic, self.cluster.timeout)
        selected = [(self.topic, number) for number in self.partitions]
        consumer.assign(selected or all_partitions)
        self.assigned = consumer.assignment()
        if self.last is not None:
            for partition, end in consumer.end_offsets(self.assigned, self.cluster.timeout).items():
                consumer.seek(partition, max(0, end - self.last))
        elif not isinstance(self.start, str):
            for partition in self.assigned:
                consumer.seek(partition, self.start)

    def _polls(
        self, consumer: "Consumer", was_stopped: Callable[[], object]
    ) -> Iterator[list["Record"]]:
        while not was_stopped() and self.remaining != 0:
            limit = (
                MAX_POLL_RECORDS
                if self.remaining is None
                else min(MAX_POLL_RECORDS, self.remaining)
            )
            try:
                records = consumer.poll(POLL, limit)
            except OffsetOutOfRange:
                if not self._seek_to_ends(consumer):
                    raise
                continue
            if self.remaining is not None:
                self.remaining -= len(records)
            yield records
            if not self.follows:
                unread = self._unread(consumer)
                if unread is not None and not unread:
                    return
                if not records and self._has_no_assignment(consumer):
                    print(
                        f"folkmoot: this member shows nothing: group {self.group} has no partition of "
                        f"{self.topic} for it",
                        file=sys.stderr,
                    )
                    return
                self._check_patience(consumer, unread)

    def _seek_to_ends(self, consumer: "Consumer") -> bool:
        """Wait at the end of partitions that end before the offset. False if there are none."""
        start = self.start
        if not isinstance(start, int):
            return False
        shorter = [
            each
            for each in consumer.assignment()
            if consumer.position(each) == start
            and (end := consumer.end_offset(each)) is not None
            and end < start
        ]
        for each in shorter:
            end = consumer.end_offset(each)
            print(f"folkmoot: {each} ends before offset {start}: at {end}", file=sys.stderr)
            consumer.seek(each, "latest")
        return bool(shorter)

    def _unread(self, consumer: "Consumer") -> dict["TopicPartition", int | None] | None:
        """Return the positions in partitions that are not read to their ends.

        None until the member has the partitions that its group's plan gives it.
        """
        partitions = consumer.assignment()
        if not partitions or partitions != self.assigned:
            return None
        positions = {
            each: (consumer.position(each), consumer.end_offset(each)) for each in partitions
        }
        return {
            each: position
            for each, (position, end) in positions.items()
            if position is None or end is None or position < end
        }

    def _check_patience(
        self, consumer: "Consumer", unread: dict["TopicPartition", int | None] | None
    ) -> None:
        """Raise IncompleteRead when there was no progress for too long."""
        from folkmoot.network.leaderless import describe_unreadable, describe_waiting

        now, health = time.monotonic(), consumer.health()
        if unread != self.last_unread or not self.progress_at:
            self.last_unread, self.progress_at = unread, now
        timeout = self.cluster.timeout
        leaderless = {
            each: health.leaderless[each] for each in unread or () if each in health.leaderless
        }
        if leaderless and len(leaderless) == len(unread or ()):
            timeout = min(timeout, ELECTION_WAIT)
        if now - self.progress_at < timeout:
            return
        if unread is None:
            group = f"group {self.group} gave this member nothing to read"
            raise IncompleteRead(f"{group} within {timeout:g} s: it is {health.state.value}")
        unreadable = {each: why for each, why in health.unreadable.items() if each in unread}
        known = leaderless.keys() | unreadable.keys()
        silent = ", ".join(str(each) for each in sorted(unread) if each not in known)
        reasons = [
            *([describe_waiting(leaderless)] if leaderless else []),
            *describe_unreadable(unreadable),
        ]
        reasons += [f"nothing came of {silent} for {timeout:g} s"] if silent else []
        raise IncompleteRead(f"not everything was read: {'; '.join(reasons)}")

    def _has_no_assignment(self, consumer: "Consumer") -> bool:
        """Return whether the group's plan has this member, and gives it nothing."""
        from folkmoot.coordination.groups import planning
        from folkmoot.coordination.groups.membership import assignee
        from folkmoot.coordination.zookeeper.execute import execute

        health = consumer.health()
        if self.assigned or health.assignment or health.member is None or not health.generation:
            return False
        member = assignee(health.member)
        with self.cluster.session() as session:
            plan = execute(session, planning.get(self.group or ""), self.cluster.timeout).plan
        return member in plan.members and not plan.partitions_of(member)
