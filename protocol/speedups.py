"""Whether compiled modules are in use: where a compiler has built them, and nobody wants plain Python.

Each has a twin in plain Python that does the same, and importers ask here for it. Only columns of Avro
values have no twin: `schemas/columns/extra.py` imports their module.
`FOLKMOOT_PURE=1` in the environment chooses the twins. So does a Python without the global lock, on
which the compiled ones rely: it is what keeps two threads from the inside of one object.
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
    """The compiled module of that name; None where its twin is to be used."""
    if not IS_WANTED:
        return None
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
