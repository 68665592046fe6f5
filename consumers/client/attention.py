"""What ends the wait of a consumer's owner: its group, a commit that is due, `stop`."""

from folkmoot.coordination.wakeup import Wakeup


class Attention:
    """A descriptor that becomes readable by `want`, from any thread or signal handler."""

    def __init__(self, *, has_poller: bool) -> None:
        """With a poller of its own the owner waits for the descriptor there."""
        self.wakeup = Wakeup()
        self.waits_for = None if has_poller else self.wakeup
        """What a wait for brokers ends by, too."""
        self.is_wanted = False
        self._has_waited = True

    def want(self) -> None:
        self.is_wanted = True
        self.wakeup.wake()

    def waits(self) -> None:
        """The owner waits now: the wakeup may end that, and is to be silenced then."""
        self._has_waited = True

    def take(self) -> None:
        """It is served now: what wakes us later ends the next wait."""
        if self.is_wanted or self._has_waited:
            self.is_wanted = self._has_waited = False
            self.wakeup.clear()

    def close(self) -> None:
        self.wakeup.close()
