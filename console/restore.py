"""`cluster restore`, `topic restore`, `log inventory`: what ZooKeeper has lost, from brokers' directories."""

import argparse
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from folkmoot.console.options import (
    SESSION_TIMEOUT,
    add_zookeeper,
    session_of,
    whole_number,
)
from folkmoot.console.tables import show
from folkmoot.protocol.errors import (
    ConfigError,
    DirectoryLocked,
    FolkmootError,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.names import check_name

if TYPE_CHECKING:
    from folkmoot.brokers.server.inventory import Inventory
    from folkmoot.coordination.cluster.restoring import FoundReplica
    from folkmoot.coordination.zookeeper.session import Session

_PATHS = "brokers' data directories, or files that `folkmoot log inventory` has made of them"


def add_topic(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    restore = actions.add_parser(
        "restore",
        help="put a topic back that ZooKeeper has lost",
        description="Puts a topic back as the brokers' directories know it: with its id, its options, its "
        "replicas. Their brokers may run. A deletion within delete_delay is taken back by it, too.",
    )
    restore.add_argument("topic", metavar="TOPIC")
    restore.add_argument(
        "--id", metavar="ID", help="which one, where directories have several of that name"
    )
    restore.add_argument("--as", dest="new_name", metavar="NAME", help="the name it is to have")
    _add_sources(restore)
    restore.set_defaults(act=_restore_topic)
    add_zookeeper(restore)


def add_cluster(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    restore = actions.add_parser(
        "restore",
        help="put back what an emptied ZooKeeper has lost",
        description="Puts the cluster's id and its topics back as the brokers' directories know them; their "
        "brokers are stopped for that. What only ZooKeeper had is gone, and is named: offsets of groups, "
        "schemas. May be done again at any time.",
    )
    _add_sources(restore)
    restore.set_defaults(act=_restore_cluster)
    add_zookeeper(restore)


def add_inventory(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    inventory = actions.add_parser(
        "inventory",
        help="what a data directory knows of its cluster, for `cluster restore` elsewhere",
    )
    inventory.add_argument("path", type=Path, metavar="PATH", help="a data directory")
    inventory.set_defaults(act=_inventory)


def _add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", type=Path, metavar="PATH", nargs="+", help=_PATHS)
    parser.add_argument(
        "--without",
        type=whole_number,
        action="append",
        default=[],
        metavar="BROKER",
        help="this broker's directory is gone for good, with what only it had; may be given several times",
    )


def _inventory(args: argparse.Namespace) -> int:
    import msgspec

    print(msgspec.json.encode(_read(args.path)).decode())
    return 0


def _read(path: Path) -> "Inventory":
    import msgspec

    from folkmoot.brokers.server.inventory import Inventory, take_inventory

    try:
        if path.is_dir():
            return take_inventory(path)
        return msgspec.json.decode(path.read_bytes(), type=Inventory)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} is neither a data directory nor an inventory: {error}") from None


def _read_all(paths: Iterable[Path]) -> "list[Inventory]":
    """Raises ConfigError if they are not of one cluster, or two are of one broker."""
    found = [_read(each) for each in paths]
    clusters = sorted({each.cluster for each in found})
    if len(clusters) > 1 or not clusters[0]:
        raise ConfigError(f"these directories are not of one cluster, but of {clusters}")
    brokers = [each.broker for each in found]
    if len(set(brokers)) < len(brokers):
        raise ConfigError(f"these directories are of brokers {sorted(brokers)}: give each one once")
    return found


def _restore_topic(args: argparse.Namespace) -> int:
    from folkmoot.coordination import layout
    from folkmoot.coordination.zookeeper.execute import execute

    found = _read_all(args.paths)
    name = args.new_name or args.topic
    check_name("topic", name)
    replicas = [
        each
        for one in found
        for each in one.replicas
        if each.topic == args.topic and args.id in (None, each.topic_id)
    ]
    ids = sorted({each.topic_id for each in replicas})
    if not ids:
        raise UnknownTopicOrPartition(f"topic {args.topic} is in none of these directories")
    if len(ids) > 1:
        raise ConfigError(f"topic {args.topic} was made several times: choose one by --id: {ids}")
    with session_of(args) as session:
        cluster = execute(session, layout.cluster_id(), args.timeout)
        if cluster != found[0].cluster:
            raise ConfigError(f"ZooKeeper has cluster {cluster}, not {found[0].cluster}")
        given = {each.broker for each in found}
        print(f"topic {name} {_put_back(session, name, replicas, given, args)}")
    return 0


def _put_back(
    session: "Session",
    name: str,
    replicas: "list[FoundReplica]",
    given: Collection[int],
    args: argparse.Namespace,
) -> str:
    from folkmoot.coordination.cluster.restoring import restore, topic_of
    from folkmoot.coordination.zookeeper.execute import execute

    topic, states = topic_of(name, replicas, args.without, given)
    restored = execute(session, restore(name, topic, states), args.timeout)
    return "was there already" if restored is None else "is restored"


def _restore_cluster(args: argparse.Namespace) -> int:
    from folkmoot.coordination import brokers, layout, producer_ids
    from folkmoot.coordination.schemas import registering
    from folkmoot.coordination.zookeeper import kazoo_adapter
    from folkmoot.coordination.zookeeper.execute import execute

    found = _read_all(args.paths)
    for each in found:
        if not each.stopped:
            raise DirectoryLocked(
                f"the directory of broker {each.broker} is in use: stop the brokers first"
            )
    # Without a look at its layout, which is one of the things that may be gone.
    session = kazoo_adapter.connect(
        args.zookeeper, SESSION_TIMEOUT, connect_timeout=args.timeout, create=True
    )
    try:
        execute(session, layout.take_back(found[0].cluster), args.timeout)
        above = max(each.producer_id for each in found) + 1
        execute(session, producer_ids.take(0, above), args.timeout)
        seen = max(each.schema_id for each in found)
        execute(session, registering.note_seen(seen), args.timeout)
        for each in found:
            execute(session, brokers.note_directory(each.broker, each.directory), args.timeout)
        rows, failed = _put_all_back(session, found, args)
        gone = execute(session, layout.missing(), args.timeout)
    finally:
        session.close()
    show(("topic", "id", "state"), rows, "text")
    if gone:
        print(f"gone for good unless it is put back otherwise: {', '.join(gone)}")
    return int(failed)


def _put_all_back(
    session: "Session", found: "list[Inventory]", args: argparse.Namespace
) -> tuple[list[tuple[object, ...]], bool]:
    from folkmoot.coordination import deletions
    from folkmoot.coordination.zookeeper.execute import execute

    by_id: dict[str, list[FoundReplica]] = {}
    for one in found:
        for each in one.replicas:
            by_id.setdefault(each.topic_id, []).append(each)
    names = {
        topic_id: next((each.topic for each in replicas if each.topic), topic_id)
        for topic_id, replicas in by_id.items()
    }
    given = {each.broker for each in found}
    rows: list[tuple[object, ...]] = []
    failed = False
    for topic_id, name in sorted(names.items(), key=lambda each: each[::-1]):
        several = sum(each == name for each in names.values()) > 1
        try:
            deletion = execute(session, deletions.read(topic_id), args.timeout)
            if deletion is not None:
                rows.append(
                    (
                        name,
                        topic_id,
                        f"was deleted: `folkmoot topic restore {name}` takes that back",
                    )
                )
                continue
            if several:
                raise ConfigError(
                    f"made several times: `folkmoot topic restore {name} --id {topic_id}`"
                )
            said = _put_back(session, name, by_id[topic_id], given, args)
        except FolkmootError as error:
            said, failed = str(error), True
        rows.append((name, topic_id, said))
    return rows, failed
