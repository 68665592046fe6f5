"""The controller's election: an ephemeral node for the controller, and an epoch that fences earlier ones.

One transaction writes both, so each controller has an epoch of its own, above all earlier ones. Everything
that a controller writes checks its epoch (`is_in_epoch`). So a controller that has lost its session, or was
replaced without noticing, writes nothing more.
"""

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import Check, Recipe, WatchCallback

ALONE = -1
"""The `broker` of a controller that runs in a process of its own."""


class Controller(msgspec.Struct, frozen=True):
    """A controller: the broker in whose process it runs, a nonce of its session, its epoch."""

    broker: int
    nonce: str
    epoch: int = 0

    def describe(self) -> str:
        """Name it for people."""
        where = "a process of its own" if self.broker == ALONE else f"broker {self.broker}"
        return f"{where}, epoch {self.epoch}"


_decoder = msgspec.json.Decoder(Controller)


def elect(broker: int, nonce: str, watch: WatchCallback) -> Recipe[Controller]:
    """Become the controller unless there is one, and return the present one. Raises Malformed.

    We are elected if its nonce is ours. `watch` is called when it goes.
    """
    while True:
        found = yield from current(watch)
        if found is not None:
            return found
        last = yield from recipes.get_or_create(paths.CONTROLLER_EPOCH)
        mine = Controller(broker, nonce, last.stat.version + 1)
        yield from recipes.begin_epoch(paths.CONTROLLER, mine, paths.CONTROLLER_EPOCH, last)


def current(watch: WatchCallback | None = None) -> Recipe[Controller | None]:
    """Return the controller, None if there is none. Raises Malformed."""
    found, _ = yield from recipes.read(_decoder, paths.CONTROLLER, watch)
    return found


def is_in_epoch(controller: Controller) -> Check:
    """Return a check that refuses a transaction once another controller has been elected."""
    return Check(paths.CONTROLLER_EPOCH, controller.epoch)
