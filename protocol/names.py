"""Which names topics, groups and members may have.

They become znode paths and parts of directory names, so the rule is Kafka's (`Topic.java`):
`[a-zA-Z0-9._-]`, at most 249 characters, neither "." nor "..".
"""

import re
from typing import Annotated

from msgspec import Meta

from folkmoot.protocol.errors import InvalidName

MAX_NAME_CHARACTERS = 249
_PATTERN = r"^(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z"
_LEGAL = re.compile(_PATTERN)

Name = Annotated[str, Meta(pattern=_PATTERN, max_length=MAX_NAME_CHARACTERS)]


def check_name(kind: str, name: object) -> str:
    """Return `name` if it is legal for a `kind` ("topic", "group", …), else raise InvalidName."""
    if not isinstance(name, str) or not _LEGAL.fullmatch(name):
        raise InvalidName(
            f"{kind} name {name!r} is not allowed: use 1 to {MAX_NAME_CHARACTERS} of "
            "letters, digits, '.', '_' and '-', but not '.' or '..'"
        )
    return name
