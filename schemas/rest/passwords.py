"""Checks passwords so that a client with wrong ones does not keep other clients out."""

import asyncio
from collections import Counter
from typing import Final

from folkmoot.protocol.errors import Overloaded, RequestTimeout
from folkmoot.schemas.rest.users import Users, credentials
from folkmoot.schemas.rest.workers import Workers

TIMEOUT: Final = 10.0
"""Seconds that a request waits for its check."""
MAX_WAITING: Final = 20
"""Requests of one lane that may wait; further ones are refused at once."""

_Lane = tuple[str | None, str]


class PasswordChecks:
    """Runs `Users.admits` on one thread: guessing passwords costs one processor at most.

    A lane is a user (None for all names that do not exist) and a client's address. One check of each lane
    is queued at a time, so a request waits for one check of every other lane, however many requests
    those have. A full lane refuses its own requests alone. Called on one event loop.
    """

    def __init__(self, users: Users) -> None:
        self._users = users
        self._thread = Workers(1, TIMEOUT)
        self._locks: dict[_Lane, asyncio.Lock] = {}
        self._waiting: Counter[_Lane] = Counter()

    async def is_right(self, authorization: str, address: str) -> bool:
        """Return whether the header `authorization` names a user and that user's password.

        Raises Overloaded, and RequestTimeout after 10 s.
        """
        users = self._users
        if users.is_remembered(authorization):
            return True
        found = credentials(authorization)
        if found is None:
            return False
        name, _ = found
        lane = name if users.has(name) else None, address
        if self._waiting[lane] >= MAX_WAITING:
            raise Overloaded(
                f"{MAX_WAITING} passwords of this user and address are being checked: try again later"
            )
        self._waiting[lane] += 1
        lock = self._locks.setdefault(lane, asyncio.Lock())
        try:
            async with asyncio.timeout(TIMEOUT), lock:
                # Another request with the same password may have passed in the meantime.
                if users.is_remembered(authorization):
                    return True
                return await self._thread.run(lambda: users.admits(authorization))
        except TimeoutError:
            raise RequestTimeout(f"the password was not checked within {TIMEOUT:g} s") from None
        finally:
            self._waiting[lane] -= 1
            if not self._waiting[lane]:
                del self._waiting[lane], self._locks[lane]
