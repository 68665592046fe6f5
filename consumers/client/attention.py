"""Wakes a consumer's owner: for its group, a due commit, or `stop`."""

from folkmoot.coordination.wakeup import Wakeup


class Attention:
    """A descriptor that `want` makes readable, from any thread or signal handler."""

    def __init__(self, *, has_poller: bool) -> None:
        """With a poller of its own, the owner waits for the descriptor there."""
        self.wakeup = Wakeup()
        self.waits_for = None if has_poller else self.wakeup
        """A wait for brokers also ends by this."""
        self.is_wanted = False
        self.has_waited = True
        """The owner has waited since `take`: the wakeup may be readable."""

    def want(self) -> None:
        self.is_wanted = True
        self.wakeup.wake()

    def take(self) -> None:
        """The owner serves now. Later wakes end its next wait."""
        if self.is_wanted or self.has_waited:
            self.is_wanted = self.has_waited = False
            self.wakeup.clear()

    def close(self) -> None:
        self.wakeup.close()
