"""Which broker a client asks for metadata, and why it has none."""

import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from folkmoot.network.metadata import Metadata
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    FolkmootError,
    RequestTimeout,
    RetriableError,
)
from folkmoot.protocol.process.thread_log import thread_log

METADATA_TIMEOUT: Final = 5.0
AVOID_FOR: Final = 2.0
SILENCE: Final = 1.0
"""A broker that owes an answer for so long may have been replaced: others are asked, every LOOK_PAUSE."""
LOOK_PAUSE: Final = 0.3

_log = thread_log(__name__)


class BrokerChoice:
    """Any broker that is known, but one that was unreachable in the last AVOID_FOR seconds, that has failed
    to give metadata since there was any, or that owes an answer. If there is none, those that `discover`
    finds.

    Until `discover` has answered once, an error that will not go away is raised: an address or a listener
    is misspelt. Later any error is waited out, as `trouble`.
    """

    def __init__(
        self,
        metadata: Metadata,
        discover: Callable[[], Sequence[str] | None],
        found: Sequence[str] | None,
    ) -> None:
        self.trouble: FolkmootError | None = None
        """Why there is no metadata, or None."""
        self.late: dict[str, dict[int, Any]] = {}
        """Brokers that owe answers, with the requests by their numbers."""
        self.discover = discover
        self._metadata = metadata
        self._found = list(found or ())
        self._has_discovered = found is not None
        self._avoid: dict[str, float] = {}
        # Where metadata was not to be had since it last was: without this, addresses of brokers that
        # have all moved would be tried by turns for ever, each while the others are avoided.
        self.failed: set[str] = set()
        self._silent: set[str] = set()  # all brokers that were known when none of them answered
        self._slack = 1.0  # grows while no broker answers in time: all may be slow

    def addresses(self) -> list[str]:
        """Where the brokers listen that are known. What was found counts until metadata names brokers: one
        that is gone for good is found for ever where addresses were given."""
        return list(self._metadata.addresses() or self._found)

    def choose(self, now: float) -> str | None:
        """A broker to be asked for metadata; None if there is none, or while they are looked for."""
        return self.reachable(now) or self._discovered(now)

    def reachable(self, now: float) -> str | None:
        """Some broker, not one that has just failed."""
        known = set(self.addresses()) - self.failed
        usable = sorted(address for address in known if self._avoid.get(address, now) <= now)
        prompt = [address for address in usable if address not in self.late]
        if not prompt and len(self._metadata.addresses()) > 1:
            prompt = usable
        return random.choice(prompt) if prompt else None

    def _discovered(self, now: float) -> str | None:
        """Some broker that was found just now, even if it has just failed, if there is no other."""
        try:
            found = self.discover()
        except FolkmootError as error:
            if not self._has_discovered and not isinstance(error, RetriableError):
                raise
            self.note(error)
            return None
        if found is None:
            return None
        self._has_discovered = True
        self._found = list(found)
        if not self._found:
            self.note(BrokerUnreachable("no broker is registered: is one running?"))
            return None
        if self.failed.issuperset(self._found):
            # All have failed, these too: any that was known may be back before them, so each has a turn.
            self.failed.clear()
        fresh = [address for address in self._found if address not in self.failed]
        usable = [address for address in fresh if self._avoid.get(address, now) <= now]
        prompt = [address for address in usable if address not in self.late]
        return random.choice(prompt or usable or fresh)

    def wait(self, address: str) -> float:
        """How long (s) a broker may take to answer: where others can be asked, not long at first, and least
        if it owes answers."""
        if len(self.addresses()) < 2:
            return METADATA_TIMEOUT
        patience = LOOK_PAUSE if address in self.late else SILENCE
        return min(METADATA_TIMEOUT, self._slack * patience)

    # -- what became of a request -------------------------------------------------------------------

    def timed_out(self) -> None:
        self._slack *= 2.0

    def fail(self, address: str, error: FolkmootError, now: float) -> None:
        """This broker gave no metadata."""
        if isinstance(error, RequestTimeout):
            self.timed_out()
        self.avoid(address, now)
        self.failed.add(address)
        known = {*self._metadata.addresses(), *self._found}
        if len(known) > 1 and known <= self.failed:
            self._silent = known
            listed = ", ".join(sorted(known))
            error = BrokerUnreachable(f"no broker answers, of {listed}: at last, {error}")
        elif known <= self._silent and isinstance(self.trouble, BrokerUnreachable):
            return  # one of them again: what is known of all says more
        # Where others are asked next, one that is slow is no trouble yet.
        self.note(error, logging.DEBUG if known - self.failed else logging.WARNING)

    def avoid(self, address: str, now: float) -> None:
        """It was not reachable."""
        self._avoid[address] = now + AVOID_FOR

    def answered(self, address: str) -> None:
        self._avoid.pop(address, None)

    def succeeded(self) -> None:
        """There is metadata."""
        self.failed.clear()
        self._silent.clear()
        self._slack, self.trouble = 1.0, None

    def note(self, error: FolkmootError, level: int = logging.WARNING) -> None:
        """Why there is no metadata."""
        if self.trouble is None or str(self.trouble) != str(error):
            _log.log(level, "no metadata: %s", error)
        self.trouble = error
