"""`folkmoot consume`: a topic's records, once through or as they come, decoded by their schema."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from folkmoot.console.formats.record_text import FORMAT_HELP, writer
from folkmoot.console.formats.values import Decoder
from folkmoot.console.monitoring.options import add_metrics, served
from folkmoot.console.options import (
    NotReadToTheEnd,
    add_cluster,
    add_schema_context,
    add_set,
    at_least_one,
    cluster_of,
    point_in_time,
    session_of,
    set_of,
    text_of,
    whole_number,
)
from folkmoot.protocol.errors import (
    ConfigError,
    OffsetOutOfRange,
    SerializationError,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.names import check_name

if TYPE_CHECKING:
    from folkmoot.consumers.client.consumer import Consumer
    from folkmoot.consumers.group.events import Rebalanced
    from folkmoot.protocol.records import Record, TopicPartition

POLL = 0.1
MOST_RECORDS = 500
ELECTION_WAIT = 5.0
"""So long a partition that nobody leads is waited for, when everything else is read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    add_cluster(parser)
    parser.add_argument("--group", metavar="NAME", help="read as a member, and commit")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--from",
        dest="start",
        default="earliest",
        metavar="WHERE",
        help="earliest (default), an offset, a time (2026-01-31T12:00Z, or -15m: so long ago), or latest, "
        "which is to follow; in a group only earliest or latest, and only where nothing is committed",
    )
    where.add_argument(
        "--last", type=at_least_one, metavar="N", help="begin N records before each partition's end"
    )
    parser.add_argument(
        "--partition",
        type=whole_number,
        action="append",
        metavar="P",
        help="only this one; may be repeated",
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on as records come, until Ctrl-C"
    )
    parser.add_argument(
        "-n", "--max-records", type=at_least_one, metavar="N", help="stop after N records"
    )
    parser.add_argument(
        "--reader-schema",
        type=Path,
        metavar="FILE.avsc",
        help="values that have a schema are read as this one says (default: as they were written)",
    )
    parser.add_argument(
        "--key-schema",
        type=Path,
        metavar="FILE.avsc",
        help="keys have schemas, too: the same for them",
    )
    add_schema_context(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        *("-o", "--output"),
        choices=("text", "json", "raw"),
        default="text",
        help="default: text; json has an object a line, which `produce -i json` takes",
    )
    shown.add_argument("--format", metavar="TEXT", help=FORMAT_HELP)
    add_set(parser, "consumer")
    add_metrics(parser)


def run(args: argparse.Namespace) -> int:
    from folkmoot.consumers.client.consumer import Consumer
    from folkmoot.consumers.config import ConsumerConfig

    start = _start(args)
    check_name("topic", args.topic)
    cluster = cluster_of(args, guarded=args.group is not None)
    if args.group is not None and not args.zookeeper:
        raise ConfigError("a group's members find each other in ZooKeeper: use --zookeeper")
    reading = _Reading(args, start)
    # A time, or so many before the end, may lie where the records are gone meanwhile.
    reset = start if isinstance(start, str) else "error" if isinstance(start, int) else "earliest"
    options: dict[str, Any] = {"client_id": "folkmoot-consume", "auto_offset_reset": reset}
    if args.group is not None:
        _check_topic(args)
        options.update(group=args.group, topics=[args.topic], on_rebalance=reading.planned)
    options = set_of(args, ConsumerConfig, {**cluster, **options})
    if not reading.follows:  # who has come to the end is told so, and waits for no more
        options.setdefault("fetch_max_wait", POLL)
    decoder = Decoder.of(args, _readers(args))
    write = writer(args.output if args.format is None else "", decoder, args.format or "")
    with (
        decoder,
        Consumer(**options) as consumer,
        consumer.leave_on_signals() as was_stopped,
        _pages(args, consumer),
    ):
        if args.group is None:
            reading.assign(consumer)
        elif not reading.follows:
            # Or says why no broker tells: there would be no end.
            consumer.partitions_of(args.topic, args.timeout)
        for records in reading.polls(consumer, was_stopped):
            for record in records:
                try:
                    write(record)
                except SerializationError as error:
                    where = f"{record.topic}-{record.partition}, offset {record.offset}"
                    raise SerializationError(f"{where}: {error}") from None
            # Before the next poll says that they are processed: a reader that is gone is an error.
            sys.stdout.flush()
    if was_stopped() and not reading.follows:
        raise KeyboardInterrupt
    return 0


def _pages(args: argparse.Namespace, consumer: "Consumer") -> AbstractContextManager[None]:
    if args.metrics_port is None:
        return nullcontext()
    from folkmoot.metrics.clients import ClientMetrics

    return served(args.metrics_host, args.metrics_port, ClientMetrics(consumer), sys.stderr)


def _readers(args: argparse.Namespace) -> dict[str, str]:
    """The schemas to read by. Raises ConfigError, InvalidSchema."""
    files = {"key": args.key_schema, "value": args.reader_schema}
    readers = {field: text_of(path) for field, path in files.items() if path is not None}
    if readers:
        from folkmoot.schemas.avro.identity import canonical

        for text in readers.values():
            canonical(text)
    return readers


def _start(args: argparse.Namespace) -> int | str | datetime:
    """Where to start: an offset, earliest, latest or a time. Raises ConfigError."""
    if args.group is not None and args.partition:
        raise ConfigError("a member reads what its group gives it: use --partition without --group")
    if args.start in ("earliest", "latest") and (args.group is None or not args.last):
        return str(args.start)
    if args.group is not None:
        raise ConfigError(
            "a member reads where its group is: use --last, and --from an offset or a time, "
            "without --group"
        )
    if args.start.isdecimal():
        return int(args.start)
    try:
        return point_in_time(args.start)
    except ConfigError:
        raise ConfigError(
            f"--from {args.start!r} is neither earliest, latest, an offset nor a time: write a time as in "
            "2026-01-31T12:00Z, or -15m for a quarter of an hour ago"
        ) from None


def _check_topic(args: argparse.Namespace) -> None:
    """Before a group comes into being for a topic that does not exist."""
    from folkmoot.coordination import topics
    from folkmoot.coordination.zookeeper.execute import execute as carry_out

    with session_of(args) as session:
        if carry_out(session, topics.read(args.topic), args.timeout) is None:
            raise UnknownTopicOrPartition(
                f"topic {args.topic} does not exist: "
                f"create it with `folkmoot topic create {args.topic}`"
            )


class _Reading:
    """What is read, from where, and until when."""

    def __init__(self, args: argparse.Namespace, start: int | str | datetime) -> None:
        self.follows = args.follow or (start == "latest" and args.group is None)
        self._args = args
        self._start = start
        self._left: int | None = args.max_records
        self._mine: frozenset[TopicPartition] | None = None
        self._seen: object = None
        self._seen_at = 0.0

    def planned(self, consumer: "Consumer", plan: "Rebalanced") -> None:
        self._mine = frozenset(plan.partitions)

    def assign(self, consumer: "Consumer") -> None:
        """Without a group: all partitions, or those given."""
        topic = self._args.topic
        known = consumer.partitions_of(topic, self._args.timeout)
        wanted = self._args.partition
        consumer.assign(known if wanted is None else [(topic, number) for number in wanted])
        self._mine = consumer.assignment()
        if self._args.last is not None:
            for partition, end in consumer.end_offsets(self._mine, self._args.timeout).items():
                consumer.seek(partition, max(0, end - self._args.last))
        elif not isinstance(self._start, str):
            for partition in self._mine:
                consumer.seek(partition, self._start)

    def polls(
        self, consumer: "Consumer", was_stopped: Callable[[], object]
    ) -> Iterator[list["Record"]]:
        """Records as they come, until enough are there, or the end is, unless that is followed."""
        while not was_stopped() and self._left != 0:
            limit = MOST_RECORDS if self._left is None else min(MOST_RECORDS, self._left)
            try:
                records = consumer.poll(POLL, limit)
            except OffsetOutOfRange:
                if not self._go_to_ends(consumer):
                    raise
                continue
            if self._left is not None:
                self._left -= len(records)
            yield records
            if not self.follows:
                unread = self._unread(consumer)
                if unread is not None and not unread:
                    return
                if not records and self._is_left_out(consumer):
                    said = f"group {self._args.group} has no partition of {self._args.topic} for it"
                    print(f"folkmoot: this member shows nothing: {said}", file=sys.stderr)
                    return
                self._check_patience(consumer, unread)

    def _go_to_ends(self, consumer: "Consumer") -> bool:
        """Partitions that end before the offset have nothing to show yet. False if there are none."""
        start = self._start
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
        """Where we are in those partitions of ours that are not read to their ends; None as long as we do
        not have what is ours by the plan of our group."""
        partitions = consumer.assignment()
        if not partitions or partitions != self._mine:
            return None
        places = {each: (consumer.position(each), consumer.end_offset(each)) for each in partitions}
        return {
            each: position
            for each, (position, end) in places.items()
            if position is None or end is None or position < end
        }

    def _check_patience(
        self, consumer: "Consumer", unread: dict["TopicPartition", int | None] | None
    ) -> None:
        """Raises NotReadToTheEnd when nothing has gone on for too long."""
        from folkmoot.network.leaderless import said_of, unreadable_said

        now, health = time.monotonic(), consumer.health()
        if unread != self._seen or not self._seen_at:
            self._seen, self._seen_at = unread, now
        timeout = self._args.timeout
        dead = {each: health.leaderless[each] for each in unread or () if each in health.leaderless}
        if dead and len(dead) == len(unread or ()):
            timeout = min(timeout, ELECTION_WAIT)
        if now - self._seen_at < timeout:
            return
        if unread is None:
            group = f"group {self._args.group} gave this member nothing to read"
            raise NotReadToTheEnd(f"{group} within {timeout:g} s: it is {health.state.value}")
        unreadable = {each: why for each, why in health.unreadable.items() if each in unread}
        known = dead.keys() | unreadable.keys()
        silent = ", ".join(str(each) for each in sorted(unread) if each not in known)
        reasons = [*([said_of(dead)] if dead else []), *unreadable_said(unreadable)]
        reasons += [f"nothing came of {silent} for {timeout:g} s"] if silent else []
        raise NotReadToTheEnd(f"not everything was read: {'; '.join(reasons)}")

    def _is_left_out(self, consumer: "Consumer") -> bool:
        """The group's plan is made with this member in it, and gives it nothing."""
        from folkmoot.coordination.groups import planning
        from folkmoot.coordination.groups.membership import assignee
        from folkmoot.coordination.zookeeper.execute import execute

        health = consumer.health()
        if self._mine or health.assignment or health.member is None or not health.generation:
            return False
        me = assignee(health.member)
        with session_of(self._args) as session:
            plan = execute(session, planning.get(self._args.group), self._args.timeout).plan
        return me in plan.members and not plan.share(me)
