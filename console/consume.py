"""`folkmoot consume`: a topic's records, once through or as they come, decoded by their schema."""

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from folkmoot.console.options import add_cluster, at_least_one, cluster_of, session_of
from folkmoot.protocol.errors import ConfigError, OffsetOutOfRange, UnknownTopicOrPartition
from folkmoot.protocol.names import check_name

if TYPE_CHECKING:
    from folkmoot.consumers.client.consumer import Consumer
    from folkmoot.consumers.group.events import Rebalanced
    from folkmoot.protocol.records import Record, TopicPartition

POLL = 0.1
PLAN_WAIT = 5.0
MOST_RECORDS = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    add_cluster(parser)
    parser.add_argument("--group", metavar="NAME", help="read as a member, and commit")
    parser.add_argument(
        "--from",
        dest="start",
        default="earliest",
        metavar="WHERE",
        help="earliest (default), an offset, or latest, which is to follow; "
        "in a group only earliest or latest, and only where nothing is committed",
    )
    parser.add_argument(
        "--partition", type=int, action="append", metavar="P", help="only this one; may be repeated"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on as records come, until Ctrl-C"
    )
    parser.add_argument(
        "-n", "--max-records", type=at_least_one, metavar="N", help="stop after N records"
    )
    parser.add_argument(
        *("-o", "--output"),
        choices=("text", "json", "raw"),
        default="text",
        help="default: text; json has an object a line, with NaN and the infinities as strings",
    )


def run(args: argparse.Namespace) -> int:
    from folkmoot.console.records import Decoder, writer
    from folkmoot.consumers.client.consumer import Consumer

    start = _start(args)
    check_name("topic", args.topic)
    cluster = cluster_of(args)
    if args.group is not None and not args.zookeeper:
        raise ConfigError("a group's members find each other in ZooKeeper: use --zookeeper")
    reading = _Reading(args, start)
    reset = "error" if isinstance(start, int) else start
    options: dict[str, Any] = {"client_id": "folkmoot-consume", "auto_offset_reset": reset}
    if not reading.follows:
        options["fetch_max_wait"] = (
            POLL  # who has come to the end is told so, and waits for no more
        )
    if args.group is not None:
        _check_topic(args)
        options.update(group=args.group, topics=[args.topic], on_rebalance=reading.planned)
    with (
        Decoder(args.zookeeper) as decoder,
        Consumer(**cluster, **options) as consumer,
        consumer.leave_on_signals() as was_stopped,
    ):
        write = writer(args.output, decoder)
        if args.group is None:
            reading.assign(consumer)
        elif not reading.follows:
            consumer.partitions_of(args.topic)  # or says why no broker tells: there would be no end
        for records in reading.polls(consumer, was_stopped):
            for record in records:
                write(record)
            # Before the next poll says that they are processed: a reader that is gone is an error.
            sys.stdout.flush()
    if was_stopped() and not reading.follows:
        raise KeyboardInterrupt
    return 0


def _start(args: argparse.Namespace) -> int | str:
    """Where to start: an offset, earliest or latest. Raises ConfigError."""
    if args.group is not None and args.partition:
        raise ConfigError("a member reads what its group gives it: use --partition without --group")
    if args.start in ("earliest", "latest"):
        return str(args.start)
    if not args.start.isdecimal():
        raise ConfigError(f"--from {args.start!r} is neither earliest, latest nor an offset")
    if args.group is not None:
        raise ConfigError("a member reads where its group is: use --from OFFSET without --group")
    return int(args.start)


def _check_topic(args: argparse.Namespace) -> None:
    """Before a group comes into being for a topic that does not exist."""
    from folkmoot.coordination import topics
    from folkmoot.coordination.zookeeper.execute import execute as carry_out

    with session_of(args) as session:
        if carry_out(session, topics.read(args.topic)) is None:
            raise UnknownTopicOrPartition(
                f"topic {args.topic} does not exist: "
                f"create it with `folkmoot topic create {args.topic}`"
            )


class _Reading:
    """What is read, from where, and until when."""

    def __init__(self, args: argparse.Namespace, start: int | str) -> None:
        self.follows = args.follow or (start == "latest" and args.group is None)
        self._args = args
        self._start = start
        self._left: int | None = args.max_records
        self._mine: frozenset[TopicPartition] | None = None

    def planned(self, consumer: "Consumer", plan: "Rebalanced") -> None:
        self._mine = frozenset(plan.partitions)

    def assign(self, consumer: "Consumer") -> None:
        """Without a group: all partitions, or those given."""
        topic = self._args.topic
        known = consumer.partitions_of(topic)
        wanted = self._args.partition
        consumer.assign(known if wanted is None else [(topic, number) for number in wanted])
        self._mine = consumer.assignment()
        if isinstance(self._start, int):
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
                if self._at_end(consumer):
                    return
                if not records and self._is_left_out(consumer):
                    said = f"group {self._args.group} has no partition of {self._args.topic} for it"
                    print(f"folkmoot: this member shows nothing: {said}", file=sys.stderr)
                    return

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

    def _at_end(self, consumer: "Consumer") -> bool:
        """All partitions that are ours, be it by the plan of our group, are read to their ends."""
        partitions = consumer.assignment()
        return (
            bool(partitions)
            and partitions == self._mine
            and all(
                (position := consumer.position(each)) is not None
                and (end := consumer.end_offset(each)) is not None
                and position >= end
                for each in partitions
            )
        )

    def _is_left_out(self, consumer: "Consumer") -> bool:
        """The group's plan is made with this member in it, and gives it nothing."""
        from folkmoot.coordination.groups import planning
        from folkmoot.coordination.groups.membership import assignee
        from folkmoot.coordination.zookeeper.execute import execute

        member = consumer.member
        if self._mine or consumer.assignment() or member is None:
            return False
        session, name = member.session, member.name
        if session is None or name is None:
            return False
        plan = execute(session, planning.get(self._args.group), PLAN_WAIT).plan
        return assignee(name) in plan.members and not plan.share(assignee(name))
