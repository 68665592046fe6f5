"""A replicated message log with consumer groups for Python and Spark.

What stands in `__all__` is public, all else is not. Names are loaded when they are first used, so that
`import folkmoot` (and with it `folkmoot --help`) stays fast.
"""

import re
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

with open(f"{__file__}i", encoding="utf-8") as stub:  # where type checkers find them, too
    _HOMES = {
        name: home for home, name in re.findall(r"^from (\S+) import (\w+) as", stub.read(), re.M)
    }
del stub

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'folkmoot' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
