"""`folkmoot topic`: create, list, describe, configure and delete topics."""

import argparse
import time
from collections.abc import Mapping
from dataclasses import fields

from folkmoot.console import replicas, restore, topic_changes
from folkmoot.console.options import (
    add_output,
    add_zookeeper,
    admin_of,
    confirm,
    session_of,
    whole_number,
)
from folkmoot.console.tables import show
from folkmoot.protocol.errors import BrokerUnreachable, ConfigError, UnknownTopicOrPartition
from folkmoot.protocol.names import check_name
from folkmoot.protocol.options import unknown_option
from folkmoot.protocol.quantities import counted
from folkmoot.protocol.records import TopicPartition

DEFAULT_PARTITIONS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    create = _add_create(actions)
    config = actions.add_parser("config", help="show a topic's options, or change its own")
    config.add_argument("topic", metavar="TOPIC")
    config.add_argument("changes", metavar="NAME=VALUE", nargs="*", help="options to set")
    config.add_argument(
        "--unset",
        action="append",
        default=[],
        metavar="NAME",
        help="back to the broker's default; may be given several times",
    )
    config.set_defaults(act=_config)

    listing = actions.add_parser("list", help="all topics")
    listing.set_defaults(act=_list)

    describe = actions.add_parser(
        "describe", help="the partitions of a topic, or of all, who leads them, and who is in sync"
    )
    describe.add_argument("topic", metavar="TOPIC", nargs="?")
    describe.add_argument(
        "--under-replicated",
        action="store_true",
        help="only partitions with replicas that are not in sync",
    )
    describe.add_argument(
        "--leaderless", action="store_true", help="only partitions that nobody leads"
    )
    describe.set_defaults(act=_describe)

    offsets = actions.add_parser(
        "offsets",
        help="where a topic's partitions begin and end, and how large they are",
        description="Where partitions begin and end, and the bytes of their largest replica, as their "
        "brokers say. `records` counts offsets: fewer are left where compaction took some.",
    )
    offsets.add_argument("topic", metavar="TOPIC")
    offsets.set_defaults(act=_offsets)

    delete = actions.add_parser("delete", help="delete a topic and all its records")
    delete.add_argument("topic", metavar="TOPIC")
    delete.add_argument("--yes", action="store_true", help="do not ask for the name again")
    delete.set_defaults(act=_delete)

    topic_changes.add_actions(actions)
    replicas.add_elect(actions)
    restore.add_topic(actions)
    replicas.add_reassign(actions)
    for action in (create, config, listing, describe, offsets, delete):
        add_zookeeper(action)
    for action in (config, listing, describe, offsets):
        add_output(action)


def _add_create(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> argparse.ArgumentParser:
    create = actions.add_parser("create", help="create a topic on the live brokers")
    create.add_argument("topic", metavar="TOPIC")
    create.add_argument(
        "--partitions",
        type=whole_number,
        metavar="N",
        default=DEFAULT_PARTITIONS,
        help="default: 1",
    )
    create.add_argument(
        "--replicas",
        type=whole_number,
        metavar="N",
        help="brokers that hold each partition (default: the brokers' default_replicas, which is 1 unless "
        "they are told another, and 3 in `folkmoot dev`)",
    )
    create.add_argument(
        "--min-in-sync",
        type=whole_number,
        metavar="N",
        help="so many of them must have a record before it is acknowledged with acks=all (default: 2 "
        "of three or more replicas, else 1)",
    )
    create.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the topic's own, such as retention=7d, retention_bytes=10GiB or "
        "cleanup_policy=compact (or compact,delete); may be given several times",
    )
    create.set_defaults(act=_create)
    return create


def run(args: argparse.Namespace) -> int:
    if getattr(args, "topic", None) is not None:
        check_name("topic", args.topic)
    code: int = args.act(args)
    return code


def _create(args: argparse.Namespace) -> int:
    from folkmoot.coordination import brokers, topics
    from folkmoot.coordination.cluster.new_partitions import wait_until_led
    from folkmoot.coordination.placement import racks_of
    from folkmoot.coordination.zookeeper.execute import execute

    if args.partitions < 1:
        raise ConfigError(f"--partitions {args.partitions} is not possible: use at least 1")
    if args.replicas is not None and args.replicas < 1:
        raise ConfigError(f"--replicas {args.replicas} is not possible: use at least 1")
    words = list(args.config)
    if args.min_in_sync is not None:
        words.append(f"min_in_sync={args.min_in_sync}")
    config = _options(words)
    with session_of(args) as session:
        live = execute(session, brokers.usable(), args.timeout)
        replicas = args.replicas or brokers.default_replicas(live)
        creation = topics.create(
            args.topic, args.partitions, racks_of(live), config, replicas=replicas
        )
        wait_until_led(session, execute(session, creation, args.timeout), args.timeout)
    of_each = f" of {replicas} replicas" if replicas > 1 else ""
    print(f"created topic {args.topic} with {counted(args.partitions, 'partition')}{of_each}")
    return 0


def _options(words: list[str]) -> dict[str, str]:
    """Options written NAME=VALUE, each known and within its range. Raises ConfigError."""
    from folkmoot.coordination.topic_config import LogConfig, topic_config

    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"{word!r} is not understood: write NAME=VALUE")
        options[name] = value
    topic_config(LogConfig(), options)
    return options


def _config(args: argparse.Namespace) -> int:
    from folkmoot.coordination import brokers, topics
    from folkmoot.coordination.topic_config import effective
    from folkmoot.coordination.zookeeper.execute import execute

    given = _options(args.changes)
    changes: dict[str, str | None] = {**given, **dict.fromkeys(args.unset)}
    with session_of(args) as session:
        before = execute(session, topics.read(args.topic), args.timeout)
        if before is not None and changes:
            _check_change(before.config, given, args.unset)
        topic = execute(session, topics.configure(args.topic, changes), args.timeout)
        live = execute(session, brokers.live(), args.timeout)
    holding = {broker for replicas in topic.partitions for broker in replicas}
    options = {broker: found.log for broker, found in live.items() if broker in holding}
    rows = effective(topic.config, options, topic.replicas)
    show(("option", "value", "source"), rows, args.output)
    return 0


def _check_change(before: Mapping[str, str], given: Mapping[str, str], unset: list[str]) -> None:
    """That a topic's options will go with each other, or no broker would follow. Raises ConfigError."""
    from folkmoot.coordination.topic_config import LogConfig, topic_config

    known = {field.name for field in fields(LogConfig)} | set(before)
    for name in unset:
        if name in given:
            raise ConfigError(f"{name} cannot be given and taken back at once")
        if name not in known:
            raise unknown_option(name, known)
    after = {**before, **given}
    topic_config(LogConfig(), {name: after[name] for name in after if name not in unset})


def _list(args: argparse.Namespace) -> int:
    from folkmoot.coordination import topics
    from folkmoot.coordination.zookeeper.execute import execute, execute_all

    with session_of(args) as session:
        names = execute(session, topics.names(), args.timeout)
        found = execute_all(session, map(topics.read, names), timeout=args.timeout)
    rows = [
        (name, len(topic.partitions), topic.topic_id)
        for name, topic in zip(names, found, strict=True)
        if topic is not None
    ]
    show(("topic", "partitions", "id"), rows, args.output)
    return 0


def _describe(args: argparse.Namespace) -> int:
    from folkmoot.coordination.cluster.cluster_status import read_cluster

    with session_of(args) as session:
        cluster = read_cluster(session, args.timeout, None if args.topic is None else [args.topic])
    rows = []
    for each in cluster.partitions:
        if args.under_replicated and not each.is_under_replicated:
            continue
        if args.leaderless and not each.is_leaderless:
            continue
        leader = None if each.leader is None else cluster.brokers[each.leader]
        address = None if leader is None else leader.listeners.get("client")
        moved_to = None if each.reassignment is None else each.reassignment.target
        row = (
            *(each.partition, each.leader, address, each.leader_epoch),
            *(each.replicas, each.in_sync, moved_to),
        )
        rows.append(row if args.topic is not None else (each.topic, *row))
    columns = (
        *("partition", "leader", "address", "leader epoch", "replicas", "in sync"),
        "being moved to",
    )
    show(columns if args.topic is not None else ("topic", *columns), rows, args.output)
    return 0


def _offsets(args: argparse.Namespace) -> int:
    from folkmoot.consumers.offsets.offset_lookup import no_answer
    from folkmoot.network.leaderless import said_of

    with admin_of(args) as found:
        # Half of the time for each: together they end in time.
        earliest, _ = found.known_offsets(args.topic, "earliest", args.timeout / 2)
        latest, leaderless = found.known_offsets(args.topic, "latest", args.timeout / 2)
        sizes = found.log_sizes([args.topic])
    largest: dict[TopicPartition, int] = {}
    for each in sizes:
        largest[each.partition] = max(each.bytes, largest.get(each.partition, 0))
    rows = [
        (
            *(each.partition, start, end),
            *(None if start is None or end is None else end - start, largest.get(each)),
        )
        for each, start in earliest.items()
        for end in (latest[each],)
    ]
    show(("partition", "earliest", "latest", "records", "bytes"), rows, args.output)
    missing = [each for each in latest if None in (earliest[each], latest[each])]
    if missing:
        raise BrokerUnreachable(said_of(leaderless) if leaderless else no_answer(missing))
    return 0


def _delete(args: argparse.Namespace) -> int:
    from folkmoot.coordination import topics
    from folkmoot.coordination.deletions import asked_by
    from folkmoot.coordination.zookeeper.execute import execute

    with session_of(args) as session:
        if not args.yes:
            if execute(session, topics.read(args.topic), args.timeout) is None:
                raise UnknownTopicOrPartition(f"topic {args.topic} does not exist")
            warning = f"This deletes all records of {args.topic}. "
            confirm(warning, "topic", args.topic, "deleted")
        deletion = topics.delete(args.topic, by=asked_by(), at=time.time())
        execute(session, deletion, args.timeout)
    print(f"deleted topic {args.topic}")
    return 0
