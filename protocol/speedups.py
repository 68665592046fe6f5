"""Chooses compiled modules, if a compiler has built them, or plain Python.

Each compiled module has a twin in plain Python. Only columns of Avro values have none:
`schemas/columns/extra.py` imports their module. `FOLKMOOT_PURE=1` in the environment chooses the twins. So
does a Python without the global lock, which the compiled modules need: it keeps two threads from changing
one object at once.
"""

import importlib
import os
import sys
from typing import Any, Final

IS_WANTED: Final = (
    os.environ.get("FOLKMOOT_PURE", "") in ("", "0")
    and getattr(sys, "_is_gil_enabled", lambda: True)()
)


def compiled(module: str) -> Any:
    """Return the compiled module of that name; None if its twin must be used."""
    if not IS_WANTED:
        return None
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
