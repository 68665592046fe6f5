"""What is said of a member that does not leave in order. For people: the group's chronicle takes note."""

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper.operations import Create
from folkmoot.coordination.zookeeper.session import Guarded, Outcome, Session


class LastWords:
    """Of the members that one process has been in a group, one after the other.

    Nothing waits for them, and if they are not heard nothing is lost. Owned by the group thread.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._name = ""

    def joined(self, session: Session, name: str) -> None:
        """From now on the guardian of the session, if it has one, can say who has died."""
        self._name = name
        if isinstance(session, Guarded):
            session.note_death(paths.left(self._group), paths.left(self._group, name))

    def give_up(self, session: Session, why: str) -> None:
        """The member is about to end its session, and says so before."""
        if self._name:
            session.submit(Create(paths.left(self._group, self._name), why.encode()), _nobody)
            self._name = ""


def _nobody(outcome: Outcome) -> None:
    """Nobody waits for it."""
