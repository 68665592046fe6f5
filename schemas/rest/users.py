"""Users of the server: names and passwords, by HTTP's basic authentication."""

import base64
import binascii
import hashlib
import hmac
import os
import re
from pathlib import Path
from typing import Final, NamedTuple, Self

from folkmoot.protocol.errors import ConfigError

LOG_N: Final = 14
BLOCK: Final = 8
SALT_BYTES: Final = 16
KEY_BYTES: Final = 32
REMEMBERED: Final = 1_000

_LINE: Final = re.compile(
    r"(?P<name>[^:\s]+):\$scrypt\$ln=(?P<log_n>\d{1,2}),r=(?P<block>\d{1,2}),p=1"
    r"\$(?P<salt>[\w+/]+)\$(?P<key>[\w+/]+)",
    re.ASCII,
)


class Password(NamedTuple):
    """A password as it is kept: scrypt's parameters, a salt, and what scrypt made of it."""

    log_n: int
    block: int
    salt: bytes
    key: bytes

    def derive_key(self, password: str) -> bytes:
        n = 1 << self.log_n
        return hashlib.scrypt(
            password.encode(),
            salt=self.salt,
            n=n,
            r=self.block,
            p=1,
            maxmem=256 * self.block * n,
            dklen=len(self.key),
        )

    def matches(self, password: str) -> bool:
        return hmac.compare_digest(self.derive_key(password), self.key)


class Users:
    """Names and passwords of one file, and who has been let in.

    Hashing a password takes a twentieth of a second on purpose: `admits` is for a thread, and what it
    has admitted is remembered (as a hash under a key of this process) for `is_remembered`.
    """

    def __init__(self, passwords: dict[str, Password]) -> None:
        self._passwords = passwords
        self._nobody = Password(LOG_N, BLOCK, bytes(SALT_BYTES), bytes(KEY_BYTES))
        self._key = os.urandom(32)
        self._admitted: dict[bytes, None] = {}

    @classmethod
    def read(cls, file: Path) -> Self:
        """A file of lines that `line_for` has made; empty lines and those with # are passed over.

        Raises ConfigError, with the line.
        """
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"the users' file {file} cannot be read: {reason}") from None
        passwords: dict[str, Password] = {}
        for number, line in enumerate(lines, start=1):
            if line.strip() and not line.startswith("#"):
                name, password = _parse_line(line.strip(), f"{file}:{number}")
                passwords[name] = password
        if not passwords:
            raise ConfigError(f"the users' file {file} has no user, so no client could connect")
        return cls(passwords)

    def is_remembered(self, authorization: str) -> bool:
        return self._digest(authorization) in self._admitted

    def has(self, name: str) -> bool:
        return name in self._passwords

    def admits(self, authorization: str) -> bool:
        """Return whether the header `Authorization` names a user and the right password."""
        found = credentials(authorization)
        if found is None:
            return False
        name, password = found
        # Unknown names take as long as known ones, so the time does not reveal names.
        is_right = self._passwords.get(name, self._nobody).matches(password)
        if is_right and name in self._passwords:
            self._admitted[self._digest(authorization)] = None
            if len(self._admitted) > REMEMBERED:
                self._admitted.pop(next(iter(self._admitted)), None)
            return True
        return False

    def _digest(self, authorization: str) -> bytes:
        return hashlib.blake2b(authorization.encode(), key=self._key, digest_size=16).digest()


def credentials(authorization: str) -> tuple[str, str] | None:
    """Return name and password of HTTP's basic authentication, None for anything else."""
    scheme, _, encoded = authorization.partition(" ")
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if scheme.lower() == "basic" and colon else None


def line_for(name: str, password: str) -> str:
    """The line of a users' file for one user. Raises ConfigError."""
    if not name or re.search(r"[:\s]|^#", name):
        raise ConfigError(
            f"{name!r} is no name of a user: it is empty, or has spaces, colons or a #"
        )
    if not password:
        raise ConfigError("the password is empty")
    empty = Password(LOG_N, BLOCK, os.urandom(SALT_BYTES), bytes(KEY_BYTES))
    salt, key = (_text(each) for each in (empty.salt, empty.derive_key(password)))
    return f"{name}:$scrypt$ln={LOG_N},r={BLOCK},p=1${salt}${key}"


def _parse_line(line: str, where: str) -> tuple[str, Password]:
    match = _LINE.fullmatch(line)
    if match is None or not 1 <= int(match["log_n"]) <= 20 or not int(match["block"]):
        raise ConfigError(
            f"{where} is no user: write what `folkmoot registry --hash-password NAME` prints"
        )
    try:
        salt, key = _bytes(match["salt"]), _bytes(match["key"])
    except binascii.Error as error:
        raise ConfigError(f"{where} is no user: {error}") from None
    return match["name"], Password(int(match["log_n"]), int(match["block"]), salt, key)


def _text(data: bytes) -> str:
    """Base64 without padding, as in passwords of this format ($scrypt$) everywhere."""
    return base64.b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
