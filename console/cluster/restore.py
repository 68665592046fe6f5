"""`cluster restore`, `topic restore`, `log inventory`: what ZooKeeper has lost, from brokers' directories."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from folkmoot.console.options.cluster import SESSION_TIMEOUT, Cluster, with_zookeeper
from folkmoot.console.options.names import topic_argument
from folkmoot.console.options.values import FILE
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
    from folkmoot.coordination.cluster.restoring import ReplicaOnDisk
    from folkmoot.coordination.zookeeper.session import Session

_paths_argument = click.argument("paths", metavar="PATH...", type=FILE, nargs=-1, required=True)
_without_option = click.option(
    "--without",
    type=int,
    multiple=True,
    metavar="ID",
    help="This broker's directory is gone for good, with what only it had; may be repeated.",
)


@click.command("inventory")
@click.argument("path", type=FILE)
def inventory(path: Path) -> int:
    """Print what a data directory knows of its cluster, for `cluster restore` elsewhere."""
    import msgspec

    print(msgspec.json.encode(_read_inventory(path)).decode())
    return 0


def _read_inventory(path: Path) -> "Inventory":
    import msgspec

    from folkmoot.brokers.server.inventory import Inventory, take_inventory

    try:
        if path.is_dir():
            return take_inventory(path)
        return msgspec.json.decode(path.read_bytes(), type=Inventory)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} is neither a data directory nor an inventory: {error}") from None


def _read_inventories(paths: Iterable[Path]) -> "list[Inventory]":
    """Raises ConfigError if they are not of one cluster, or two are of one broker."""
    inventories = [_read_inventory(each) for each in paths]
    clusters = sorted({each.cluster for each in inventories})
    if len(clusters) > 1 or not clusters[0]:
        raise ConfigError(f"these directories are not of one cluster, but of {clusters}")
    brokers = [each.broker for each in inventories]
    if len(set(brokers)) < len(brokers):
        raise ConfigError(f"these directories are of brokers {sorted(brokers)}: give each one once")
    return inventories


@click.command("restore")
@topic_argument
@click.option("--id", "topic_id", metavar="ID", help="Which topic, if several have the name.")
@click.option("--as", "new_name", metavar="NAME", help="The new name of the topic.")
@_paths_argument
@_without_option
@with_zookeeper()
def restore_topic(
    cluster: Cluster,
    topic: str,
    topic_id: str | None,
    new_name: str | None,
    paths: tuple[Path, ...],
    without: tuple[int, ...],
) -> int:
    """Put back a topic that ZooKeeper has lost.

    It gets its id, its options and its replicas from brokers' data directories, or from what `folkmoot log
    inventory` has made of them. Their brokers may run. A deletion within delete_delay is taken back, too.
    """
    from folkmoot.coordination import layout
    from folkmoot.coordination.zookeeper.execute import execute

    inventories = _read_inventories(paths)
    name = new_name or topic
    check_name("topic", name)
    replicas = [
        each
        for broker_inventory in inventories
        for each in broker_inventory.replicas
        if each.topic == topic and topic_id in (None, each.topic_id)
    ]
    ids = sorted({each.topic_id for each in replicas})
    if not ids:
        raise UnknownTopicOrPartition(f"topic {topic} is in none of these directories")
    if len(ids) > 1:
        raise ConfigError(f"topic {topic} was made several times: choose one by --id: {ids}")
    with cluster.session() as session:
        cluster_id = execute(session, layout.cluster_id(), cluster.timeout)
        if cluster_id != inventories[0].cluster:
            raise ConfigError(f"ZooKeeper has cluster {cluster_id}, not {inventories[0].cluster}")
        source = Source({each.broker for each in inventories}, without, cluster.timeout)
        print(f"topic {name} {_restore_topic(session, name, replicas, source)}")
    return 0


class Source(NamedTuple):
    """Which brokers' directories there are, and which are gone; seconds that ZooKeeper may take."""

    brokers: Collection[int]
    without: Collection[int]
    timeout: float


def _restore_topic(
    session: "Session", name: str, replicas: "list[ReplicaOnDisk]", source: Source
) -> str:
    from folkmoot.coordination.cluster.restoring import restore, topic_of
    from folkmoot.coordination.zookeeper.execute import execute

    topic, states = topic_of(name, replicas, source.without, source.brokers)
    restored = execute(session, restore(name, topic, states), source.timeout)
    return "was there already" if restored is None else "is restored"


@click.command("restore")
@_paths_argument
@_without_option
@with_zookeeper()
def restore_cluster(cluster: Cluster, paths: tuple[Path, ...], without: tuple[int, ...]) -> int:
    """Put back what an emptied ZooKeeper has lost: the cluster's id and its topics.

    They come from brokers' data directories, or from what `folkmoot log inventory` has made of them; the
    brokers are stopped for that. Offsets of groups and schemas were only in ZooKeeper; the output names
    them.
    """
    from folkmoot.coordination import brokers, layout, producer_ids
    from folkmoot.coordination.schemas import registering
    from folkmoot.coordination.zookeeper import kazoo_adapter
    from folkmoot.coordination.zookeeper.execute import execute

    inventories = _read_inventories(paths)
    for each in inventories:
        if not each.stopped:
            raise DirectoryLocked(
                f"the directory of broker {each.broker} is in use: stop the brokers first"
            )
    timeout = cluster.timeout
    # Its layout is not checked: it is one of the things that may be gone.
    session = kazoo_adapter.connect(
        cluster.address, SESSION_TIMEOUT, connect_timeout=timeout, create=True
    )
    try:
        execute(session, layout.restore_cluster_id(inventories[0].cluster), timeout)
        next_producer_id = max(each.producer_id for each in inventories) + 1
        execute(session, producer_ids.allocate(0, next_producer_id), timeout)
        last_schema_id = max(each.schema_id for each in inventories)
        execute(session, registering.note_seen(last_schema_id), timeout)
        for each in inventories:
            execute(session, brokers.note_directory(each.broker, each.directory), timeout)
        source = Source({each.broker for each in inventories}, without, timeout)
        rows, failed = _restore_topics(session, inventories, source)
        missing = execute(session, layout.missing(), timeout)
    finally:
        session.close()
    show(("topic", "id", "state"), rows, "text")
    if missing:
        print(f"gone for good unless it is put back otherwise: {', '.join(missing)}")
    return int(failed)


def _restore_topics(
    session: "Session", inventories: "list[Inventory]", source: Source
) -> tuple[list[tuple[object, ...]], bool]:
    from folkmoot.coordination import deletions
    from folkmoot.coordination.zookeeper.execute import execute

    by_id: dict[str, list[ReplicaOnDisk]] = {}
    for broker_inventory in inventories:
        for each in broker_inventory.replicas:
            by_id.setdefault(each.topic_id, []).append(each)
    names = {
        topic_id: next((each.topic for each in replicas if each.topic), topic_id)
        for topic_id, replicas in by_id.items()
    }
    rows: list[tuple[object, ...]] = []
    failed = False
    for topic_id, name in sorted(names.items(), key=lambda each: each[::-1]):
        is_ambiguous = sum(each == name for each in names.values()) > 1
        try:
            deletion = execute(session, deletions.read(topic_id), source.timeout)
            if deletion is not None:
                state = f"was deleted: `folkmoot topic restore {name}` takes that back"
                rows.append((name, topic_id, state))
                continue
            if is_ambiguous:
                raise ConfigError(
                    f"made several times: `folkmoot topic restore {name} --id {topic_id}`"
                )
            state = _restore_topic(session, name, by_id[topic_id], source)
        except FolkmootError as error:
            state, failed = str(error), True
        rows.append((name, topic_id, state))
    return rows, failed
