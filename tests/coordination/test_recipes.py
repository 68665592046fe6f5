"""The recipe by which nodes are changed: also one that is missing."""

import msgspec
import pytest

from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.recipes import get_node, update
from folkmoot.coordination.zookeeper.session import Session
from tests.coordination.steps import ENOUGH, Steps

_decoder = msgspec.json.Decoder(list[int])


def refuse(_before: list[int]) -> list[int]:
    raise ValueError("this change is refused")


def test_a_node_that_is_missing_is_created_with_its_parents(admin: Session) -> None:
    change = update(_decoder, "/some/where", lambda before: [*before, 1], missing=[0])
    assert execute(admin, change) == [0, 1]
    change = update(_decoder, "/some/where", lambda before: [*before, 2], missing=[0])
    assert execute(admin, change) == [0, 1, 2]


def test_a_change_that_is_refused_or_changes_nothing_creates_nothing(admin: Session) -> None:
    assert execute(admin, update(_decoder, "/some/where", lambda before: before, [0])) == [0]
    with pytest.raises(ValueError, match="refused"):
        execute(admin, update(_decoder, "/some/where", refuse, missing=[0]))
    with pytest.raises(zk.NoNode):
        execute(admin, update(_decoder, "/some/where", lambda before: [*before, 1]))
    assert execute(admin, get_node("/some")) is None


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
def test_a_change_is_made_whichever_reply_is_lost(admin: Session, executed: bool) -> None:
    for lost in range(ENOUGH):
        path, steps = f"/parent-{lost}/node", Steps(admin)
        change = update(
            _decoder, path, lambda before: [*before, 1] if 1 not in before else before, [0]
        )
        assert steps.run(change, lost, executed=executed) == [0, 1]
        node = execute(admin, get_node(path))
        assert node is not None
        assert node.data == b"[0,1]"
        if steps.taken <= lost:
            return
    pytest.fail("this recipe does not end")
