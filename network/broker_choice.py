"""The broker that a client asks for metadata, and why it has no metadata."""

import logging
import random
from collections.abc import Callable, Collection, Sequence
from typing import Final

from folkmoot.network.metadata import Metadata
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    FolkmootError,
    RequestTimeout,
    RetriableError,
)
from folkmoot.protocol.process.thread_log import thread_log

METADATA_TIMEOUT: Final = 5.0
SILENCE: Final = 1.0
"""Seconds after which a broker that owes an answer may have been replaced: others are asked."""

_log = thread_log(__name__)


class BrokerChoice:
    """Chooses any known broker that has not failed since it last answered, if possible none that owes an
    answer; without one, `discover` finds others. If all have failed, the one that failed first is next.

    A broker fails when it is not reachable or gives no metadata.

    Until `discover` has answered once, an error that is not retriable is raised: an address or a listener
    is misspelt. Later any error is waited out, as `metadata_error`.
    """

    def __init__(
        self,
        metadata: Metadata,
        discover: Callable[[], Sequence[str] | None],
        discovered: Sequence[str] | None,
    ) -> None:
        self.metadata_error: FolkmootError | None = None
        """Why there is no metadata, or None."""
        self.failed: dict[str, None] = {}
        """The addresses that have failed, in order. One that answers is taken out."""
        self.late: Collection[str] = ()
        """The addresses of brokers that owe answers."""
        self.discover = discover
        self._metadata = metadata
        self._discovered = list(discovered or ())
        self._has_discovered = discovered is not None
        self._slack = 1.0  # grows while no broker answers in time: all may be slow

    def addresses(self) -> list[str]:
        """The addresses of all known brokers. Those that metadata names replace those that were found: a
        given address may be dead for good."""
        return list(self._metadata.addresses() or self._discovered)

    def reachable(self) -> str | None:
        """A known broker that has not failed."""
        known = self.addresses()
        usable = sorted(set(known) - self.failed.keys())
        prompt = [address for address in usable if address not in self.late]
        if not prompt and len(known) > 1:
            prompt = usable
        return random.choice(prompt) if prompt else None

    def choose(self) -> str | None:
        """The broker to ask for metadata; None if there is none, or while `discover` looks for one."""
        if (known := self.reachable()) is not None:
            return known
        try:
            discovered = self.discover()
        except FolkmootError as error:
            if not self._has_discovered and not isinstance(error, RetriableError):
                raise
            self.note(error)
            return None
        if discovered is None:
            return None
        self._has_discovered = True
        self._discovered = list(discovered)
        if not self._discovered:
            self.note(BrokerUnreachable("no broker is registered: is one running?"))
            return None
        usable = [address for address in self._discovered if address not in self.failed]
        if usable:
            return random.choice(
                [address for address in usable if address not in self.late] or usable
            )
        candidates = {*self._metadata.addresses(), *self._discovered}
        return next(address for address in self.failed if address in candidates)

    def wait(self) -> float:
        """Seconds that a broker gets to answer: fewer where others can be asked."""
        if len(self.addresses()) < 2:
            return METADATA_TIMEOUT
        return min(METADATA_TIMEOUT, self._slack * SILENCE)

    # -- outcomes of requests -----------------------------------------------------------------------

    def timed_out(self) -> None:
        self._slack *= 2.0

    def fail(self, address: str, error: FolkmootError) -> None:
        """This broker gave no metadata."""
        if isinstance(error, RequestTimeout):
            self.timed_out()
        self.failed.pop(address, None)
        self.avoid(address)
        known = {*self._metadata.addresses(), *self._discovered}
        all_failed = known <= self.failed.keys()
        if all_failed and len(known) > 1:
            none_answers = f"no broker answers, of {', '.join(sorted(known))}"
            if str(self.metadata_error).startswith(none_answers):
                return
            error = BrokerUnreachable(f"{none_answers}: at last, {error}")
        # While another broker can be asked, a slow one is no trouble.
        self.note(error, logging.WARNING if all_failed else logging.DEBUG)

    def avoid(self, address: str) -> None:
        """This broker is not reachable."""
        self.failed.setdefault(address)

    def succeeded(self) -> None:
        """There is metadata."""
        known = {*self._metadata.addresses(), *self._discovered}
        failed = [address for address in self.failed if address in known]
        # The one that failed first is tried again: it may be back, and this one may have been replaced.
        self.failed = dict.fromkeys(failed[1:])
        self._slack, self.metadata_error = 1.0, None

    def note(self, error: FolkmootError, level: int = logging.WARNING) -> None:
        """Why there is no metadata."""
        if self.metadata_error is None or str(self.metadata_error) != str(error):
            _log.log(level, "no metadata: %s", error)
        self.metadata_error = error
