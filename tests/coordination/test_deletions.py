"""Records of deletions: written with the deletion, and gone once everybody has carried it out."""

from folkmoot.coordination import deletions, paths, topics
from folkmoot.coordination.deletions import CONTROLLER, Deletion
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Create
from tests.coordination.losses import every_loss, write
from tests.memory_zookeeper import MemoryZooKeeper


def test_a_deletion_leaves_a_record_whichever_reply_is_lost() -> None:
    for _, session in every_loss(most=8):
        topic = execute(session, topics.create("t", 2, [1, 2, 3], replicas=2))
        execute(session, topics.delete("t", by="ann@host", at=7.0))
        holders = {broker for replicas in topic.partitions for broker in replicas}
        wanted = Deletion("t", 7.0, "ann@host", (*sorted(holders), CONTROLLER))
        assert execute(session, deletions.topic_ids()) == [topic.topic_id]
        assert execute(session, deletions.read(topic.topic_id)) == wanted


def test_a_record_goes_when_all_have_carried_the_deletion_out_whichever_reply_is_lost() -> None:
    for _, session in every_loss(most=16):
        topic = execute(session, topics.create("t", 1, [1, 2], replicas=2))
        execute(session, topics.delete("t"))
        left = [
            execute(session, deletions.mark_carried_out(topic.topic_id, [broker]))
            for broker in (2, CONTROLLER, 2)
        ]
        assert [each and each.pending for each in left] == [(1, CONTROLLER), (1,), (1,)]
        assert execute(session, deletions.mark_carried_out(topic.topic_id, [1])) is None
        assert execute(session, deletions.topic_ids()) == []
        assert execute(session, deletions.mark_carried_out(topic.topic_id, [1])) is None


def test_a_record_does_not_wait_for_brokers_that_do_not_come_back() -> None:
    session = MemoryZooKeeper().connect()
    for name, at in (("old", 1.0), ("young", 9.0)):
        execute(session, topics.create(name, 1, [1]))
        execute(session, topics.delete(name, at=at))
    write(session, paths.deletion("junk"), b"scribble")
    execute(session, deletions.forget(5.0))
    pending = {
        found.topic: found.pending
        for each in execute(session, deletions.topic_ids())
        if each != "junk" and (found := execute(session, deletions.read(each))) is not None
    }
    assert pending == {"old": (CONTROLLER,), "young": (1, CONTROLLER)}


def test_a_topic_whose_node_was_put_back_by_hand_is_deleted_again() -> None:
    session = MemoryZooKeeper().connect()
    topic = execute(session, topics.create("t", 1, [1]))
    execute(session, topics.delete("t", by="ann"))
    execute(session, Create(paths.topic("t"), topics.written("t", topic, 0).data))
    execute(session, topics.delete("t", by="bob"))
    found = execute(session, deletions.read(topic.topic_id))
    assert found is not None
    assert found.by == "bob"
    assert execute(session, topics.names()) == []


def test_a_node_that_is_no_topic_is_deleted_and_nothing_else_is_by_that() -> None:
    session = MemoryZooKeeper().connect()
    execute(session, topics.create("t", 1, [1]))
    write(session, paths.topic("junk"), b"scribble")
    execute(session, topics.delete("junk"))
    assert execute(session, topics.names()) == ["t"]
    assert execute(session, deletions.topic_ids()) == []
