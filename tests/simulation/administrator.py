"""An administrator with a session of its own, who resets offsets, deletes groups, and may be cut off."""

from typing import Any

from folkmoot.coordination.groups import group_deletion
from folkmoot.coordination.groups import offset_admin as resets
from folkmoot.coordination.zookeeper.operations import Operation, Recipe, SessionLost
from folkmoot.coordination.zookeeper.session import Outcome, SessionState
from folkmoot.protocol.errors import GroupNotEmpty, UnknownGroup
from folkmoot.protocol.records import TopicPartition
from tests.simulation.line import Line
from tests.simulation.world import World

SESSION_TIMEOUT = 3.0
NAME = "admin"


class Administrator:
    """One command: a session, a recipe, and perhaps a lost reply or a death in the middle."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._line = Line(world, NAME, SESSION_TIMEOUT)

    @property
    def is_at_work(self) -> bool:
        """It has neither come to an end nor died."""
        return self._line.state is not SessionState.LOST

    def reset(self, group: str, partition: TopicPartition, topic_id: str, offset: int) -> None:
        """Move an offset while the group runs."""
        mark = f"{self._world.random.getrandbits(64):016x}"
        self._begin(
            f"reset of {partition} to {offset}",
            resets.reset(group, partition, topic_id, offset, mark),
        )

    def delete(self, group: str, force: bool) -> None:
        """Have the group forget all, members or not."""
        self._begin("deletion", group_deletion.delete(group, force))

    def _begin(self, what: str, recipe: Recipe[Any]) -> None:
        self._world.note(f"{NAME} begins a {what}")
        trouble = self._world.random.choice(("", "", "break", "break", "death"))
        pause = self._world.random.uniform(0.0, 0.3)
        if trouble == "break":
            self._line.ambush = lambda: self._line.break_off(pause)
        elif trouble == "death":
            self._line.ambush = self._line.vanish
        self._go_on(what.split()[0], recipe, None)

    def _go_on(self, what: str, recipe: Recipe[Any], outcome: Outcome | None) -> None:
        try:
            operation: Operation
            if outcome is None:
                operation = next(recipe)
            elif outcome.error is not None:
                operation = recipe.throw(outcome.error)
            else:
                operation = recipe.send(outcome.result)
        except (StopIteration, SessionLost, UnknownGroup, GroupNotEmpty) as end:
            self._world.seen[f"{type(end).__name__} of a {what}"] += 1
            self._line.close()
        else:
            self._line.submit(operation, lambda answer: self._go_on(what, recipe, answer))
