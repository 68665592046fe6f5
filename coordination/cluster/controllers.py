"""The controller's election: an ephemeral node for who it is, and an epoch that fences its successors' past.

Both are written in one transaction: whoever holds the node has an epoch of its own, greater than any
before. Everything that a controller writes checks that epoch (`is_in_epoch`), so one that has lost its
session, or was replaced without noticing, writes nothing more.
"""

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import Check, Recipe, WatchCallback

ALONE = -1
"""The `broker` of a controller that runs in a process of its own."""


class Controller(msgspec.Struct, frozen=True):
    """Who the controller is: the broker in whose process it runs, a nonce of its session, its epoch."""

    broker: int
    nonce: str
    epoch: int = 0

    def describe(self) -> str:
        """For people."""
        where = "a process of its own" if self.broker == ALONE else f"broker {self.broker}"
        return f"{where}, epoch {self.epoch}"


_decoder = msgspec.json.Decoder(Controller)


def elect(broker: int, nonce: str, gone: WatchCallback) -> Recipe[Controller]:
    """Become the controller, unless there is one → who is it now. Raises Malformed.

    `gone` is called when that one goes; we are elected if its nonce is ours.
    """
    while True:
        found = yield from current(gone)
        if found is not None:
            return found
        last = yield from recipes.ensured(paths.CONTROLLER_EPOCH)
        mine = Controller(broker, nonce, last.stat.version + 1)
        yield from recipes.begin_epoch(paths.CONTROLLER, mine, paths.CONTROLLER_EPOCH, last)


def current(watch: WatchCallback | None = None) -> Recipe[Controller | None]:
    """Who the controller is, None if there is none. Raises Malformed."""
    found, _ = yield from recipes.read(_decoder, paths.CONTROLLER, watch)
    return found


def is_in_epoch(controller: Controller) -> Check:
    """Refuses a transaction once another controller has been elected."""
    return Check(paths.CONTROLLER_EPOCH, controller.epoch)
