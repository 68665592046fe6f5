"""`folkmoot topic elect`, `topic reassign` and `broker drain`: who leads, and where replicas are."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from folkmoot.console.options import (
    add_output,
    add_zookeeper,
    admin_of,
    confirm,
    session_of,
    typed,
    whole_number,
)
from folkmoot.console.tables import show
from folkmoot.protocol.errors import ConfigError, UnknownTopicOrPartition
from folkmoot.protocol.quantities import counted, size

if TYPE_CHECKING:
    from folkmoot.admin.replica_moves import PlannedMove, RunningMove

LOOK = 0.5
PLAN = ("topic", "partition", "from", "to", "bytes to copy")


def add_reassign(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    reassign = actions.add_parser(
        "reassign",
        help="move replicas to other brokers, or have more or fewer of them",
        description="Without --execute nothing is moved: the plan is printed. Without a target, what is "
        "being moved is printed, with how much of it is there.",
    )
    reassign.add_argument("topic", metavar="TOPIC")
    reassign.add_argument(
        "--partition",
        type=whole_number,
        action="append",
        metavar="P",
        help="only this one; may be given several times",
    )
    what = reassign.add_mutually_exclusive_group()
    what.add_argument(
        "--brokers",
        metavar="ID,...",
        help="on these, the preferred leader first; for a whole topic they take turns in that",
    )
    what.add_argument(
        "--replicas", type=whole_number, metavar="N", help="so many, moving as little as possible"
    )
    what.add_argument(
        "--cancel", action="store_true", help="take back what is being moved: nothing is lost"
    )
    add_execution(reassign)
    reassign.set_defaults(act=_reassign)
    add_zookeeper(reassign)
    add_output(reassign)


def add_execution(parser: argparse.ArgumentParser) -> None:
    """`--execute`, `--wait`, `--throttle`."""
    parser.add_argument("--execute", action="store_true", help="do it; else it is only shown")
    parser.add_argument("--wait", action="store_true", help="until it has ended")
    parser.add_argument(
        "--throttle",
        type=typed(size),
        metavar="SIZE",
        help="so much a second each broker copies at most, such as 50MB, 0: no limit; alone, it "
        "changes that of what is being moved",
    )


def _reassign(args: argparse.Namespace) -> int:
    with admin_of(args) as found:
        if args.cancel:
            numbers = found.cancel_reassignments(args.topic, args.partition)
            print(f"back to where they were: {counted(len(numbers), 'partition')} of {args.topic}")
        elif args.brokers is not None or args.replicas is not None:
            on = None if args.brokers is None else _numbers(args.brokers)
            plan = found.plan_reassignment(
                args.topic, args.partition, brokers=on, replicas=args.replicas
            )
            if args.execute:
                targets = {each.partition.partition: each.target for each in plan}
                found.reassign(args.topic, targets, throttle=args.throttle or 0)
            show_plan(plan, args)
        elif args.execute:
            raise ConfigError("say where to: either --brokers, or --replicas")
        elif args.throttle is not None:
            numbers = found.throttle_reassignments(args.topic, args.throttle)
            print(
                f"copied at {args.throttle} bytes/s: {counted(len(numbers), 'partition')} of {args.topic}"
            )
        elif not args.wait:
            show_running(found.reassignments([args.topic]), args)
        if args.wait:
            wait(lambda: found.reassignments([args.topic]))
    return 0


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise ConfigError(f"--brokers {text!r} is not understood: write 1,2,3") from None


def show_plan(plan: Sequence["PlannedMove"], args: argparse.Namespace) -> None:
    rows = [(*each.partition, each.original, each.target, each.bytes) for each in plan]
    show(PLAN, rows, args.output)
    if not args.execute:
        print("nothing was moved: add --execute to do it", file=sys.stderr)


def show_running(moves: Sequence["RunningMove"], args: argparse.Namespace) -> None:
    rows = [
        (
            *(*each.partition, each.original, each.target, each.in_sync, each.copied, each.bytes),
            *(each.throttle or None, "yes" if each.is_cancelled else None),
        )
        for each in moves
    ]
    columns = ("topic", "partition", "from", "to", "in sync", "copied", "bytes", "throttle")
    show((*columns, "cancelled"), rows, args.output)


def wait(moving: Callable[[], Sequence["RunningMove"]]) -> None:
    """Until nothing is moved any more; says on the standard error how far it is."""
    said = ""
    while moves := moving():
        copied, whole = (
            sum(each.copied or 0 for each in moves),
            sum(each.bytes or 0 for each in moves),
        )
        line = (
            f"being moved: {counted(len(moves), 'partition')}, {copied} of {whole} bytes are there"
        )
        if line != said:
            print(line, file=sys.stderr, flush=True)
            said = line
        time.sleep(LOOK)


# -- drain -----------------------------------------------------------------------------------------


def add_drain(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    drain = actions.add_parser(
        "drain",
        help="move everything away from a broker, which gets nothing new until --cancel",
        description="Without --execute nothing is moved: the plan is printed.",
    )
    drain.add_argument("broker", type=whole_number, metavar="ID")
    drain.add_argument(
        "--cancel",
        action="store_true",
        help="have it get replicas again, and keep what it still has",
    )
    add_execution(drain)
    drain.set_defaults(act=_drain)
    add_zookeeper(drain)
    add_output(drain)


def _drain(args: argparse.Namespace) -> int:
    if args.cancel and args.execute:
        raise ConfigError("--cancel takes a drain back: leave --execute out")
    if args.throttle is not None and not args.execute:
        raise ConfigError("--throttle goes with --execute; `topic reassign --throttle` changes it")
    with admin_of(args) as found:
        if args.cancel:
            back = found.cancel_drain(args.broker)
            print(
                f"broker {args.broker} gets replicas again, and keeps {counted(len(back), 'partition')}"
            )
        elif args.execute:
            show_plan(found.drain(args.broker, throttle=args.throttle or 0), args)
        elif not args.wait:
            show_plan(found.plan_drain(args.broker), args)
        if args.wait:
            wait(lambda: [each for each in found.reassignments() if args.broker in each.original])
    return 0


# -- elect -----------------------------------------------------------------------------------------


def add_elect(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    elect = actions.add_parser(
        "elect",
        help="have preferred leaders lead, or lose records by an unclean election",
        description="Have the first replica of each partition lead, where it is in sync.",
    )
    elect.add_argument("topic", metavar="TOPIC")
    elect.add_argument(
        "--partition",
        type=whole_number,
        action="append",
        metavar="P",
        help="only this one; may be given several times",
    )
    elect.add_argument(
        "--unclean",
        type=whole_number,
        metavar="BROKER",
        help="have this replica lead though it was not in sync, when no other is alive that was: RECORDS "
        "THAT ONLY OTHERS HAVE ARE LOST, acknowledged ones too; asks for the partition's name",
    )
    elect.set_defaults(act=_elect)
    add_zookeeper(elect)


def _elect(args: argparse.Namespace) -> int:
    from folkmoot.coordination import topics
    from folkmoot.coordination.cluster.elections import (
        check_unclean,
        elect_preferred,
        elect_unclean,
    )
    from folkmoot.coordination.partition_states import TopicIdPartition
    from folkmoot.coordination.zookeeper.execute import execute
    from folkmoot.protocol.records import TopicPartition

    if args.unclean is not None and (args.partition is None or len(args.partition) != 1):
        raise ConfigError("--unclean needs exactly one --partition")
    with session_of(args) as session:
        topic = execute(session, topics.read(args.topic), args.timeout)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {args.topic} does not exist")
        numbers = range(len(topic.partitions)) if args.partition is None else args.partition
        for number in numbers:
            if not 0 <= number < len(topic.partitions):
                raise UnknownTopicOrPartition(f"topic {args.topic} has no partition {number}")
        elected = 0
        for number in numbers:
            named = TopicPartition(args.topic, number)
            partition = TopicIdPartition(topic.topic_id, number)
            replicas = topic.partitions[number]
            if args.unclean is not None:
                name = f"{args.topic}-{number}"
                checking = check_unclean(named, partition, replicas, args.unclean)
                execute(session, checking, args.timeout)
                warning = f"Records of {name} that broker {args.unclean} does not have are lost. "
                confirm(warning, "partition", name, "given another leader")
                election = elect_unclean(named, partition, replicas, args.unclean)
                execute(session, election, args.timeout)
                elected += 1
            elif len(replicas) > 1:
                elected += execute(
                    session, elect_preferred(named, partition, replicas), args.timeout
                )
    print(f"elected leaders of {counted(elected, 'partition')} of {args.topic}")
    return 0
