"""Passwords are checked in turns: guessing does not keep users out."""

import asyncio
import base64
from threading import Event

import pytest

from folkmoot.protocol.errors import Overloaded
from folkmoot.schemas.rest.passwords import MAX_WAITING, PasswordChecks
from folkmoot.schemas.rest.users import Users, credentials

ATTACKER, OFFICE = "192.0.2.1", "192.0.2.2"
DEADLINE = 10.0


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class ScriptedUsers(Users):
    """Users alice and bob, whose password is "right"; checks wait for `release`, and are listed."""

    def __init__(self) -> None:
        super().__init__({})
        self.checked: list[tuple[str, str]] = []
        self.release = Event()

    def has(self, name: str) -> bool:
        return name in ("alice", "bob")

    def admits(self, authorization: str) -> bool:
        assert self.release.wait(DEADLINE)
        name, password = credentials(authorization) or ("", "")
        self.checked.append((name, password))
        is_right = self.has(name) and password == "right"
        if is_right:
            self._admitted[self._digest(authorization)] = None
        return is_right


async def guess(checks: PasswordChecks, name: str, address: str) -> list[asyncio.Task[bool]]:
    """As many wrong passwords as may wait, all of them waiting."""
    tasks = [
        asyncio.create_task(checks.is_right(basic(name, f"guess {number}"), address))
        for number in range(MAX_WAITING)
    ]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize("address", [ATTACKER, OFFICE])
def test_a_user_waits_for_one_guess_of_each_lane(address: str) -> None:
    async def run() -> None:
        users = ScriptedUsers()
        checks = PasswordChecks(users)
        guesses = await guess(checks, "alice", ATTACKER) + await guess(checks, "mallory", ATTACKER)
        user = asyncio.create_task(checks.is_right(basic("bob", "right"), address))
        await asyncio.sleep(0)
        users.release.set()
        assert await user
        assert users.checked.index(("bob", "right")) <= 3
        assert not any(await asyncio.gather(*guesses))

    asyncio.run(run())


def test_guesses_under_many_names_share_one_lane() -> None:
    async def run() -> None:
        users = ScriptedUsers()
        checks = PasswordChecks(users)
        guesses = await guess(checks, "mallory", ATTACKER)
        with pytest.raises(Overloaded):
            await checks.is_right(basic("trudy", "guess"), ATTACKER)
        assert not await checks.is_right("", ATTACKER)  # clients ask without credentials first
        users.release.set()
        assert not any(await asyncio.gather(*guesses))
        assert not await checks.is_right(basic("trudy", "guess"), ATTACKER)

    asyncio.run(run())


def test_a_password_that_many_requests_bring_at_once_is_checked_once() -> None:
    async def run() -> None:
        users = ScriptedUsers()
        checks = PasswordChecks(users)
        users.release.set()
        header = basic("alice", "right")
        assert all(await asyncio.gather(*(checks.is_right(header, OFFICE) for _ in range(10))))
        assert users.checked == [("alice", "right")]
        assert not checks._locks
        assert not checks._waiting

    asyncio.run(run())
