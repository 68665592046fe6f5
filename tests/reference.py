"""Writes `docs/reference.md`, every public name with its docstring: `python -m tests.reference`."""

import inspect
import os
import re
from collections.abc import Iterator
from typing import Any, Final

os.environ["FOLKMOOT_PURE"] = "1"  # what is compiled has no signatures

import folkmoot
from tests.tree import ROOT

PAGE: Final = ROOT / "docs" / "reference.md"

BEGINNING: Final = """# Reference

Every public name, made from the docstrings.
Options of clients are in [Configuration](configuration.md), what is raised in [Errors](errors.md).
Times are in seconds unless a name ends in `_ms`; offsets and sizes are whole numbers.
"""

# What a reader looks for first; the rest follows by name.
FIRST: Final = (
    *("Producer", "AsyncProducer", "Consumer", "AsyncConsumer", "Admin", "AsyncAdmin"),
    *("Record", "RecordBatchView", "Delivery", "BatchDelivery", "Health"),
)


def page() -> str:
    public = {name: getattr(folkmoot, name) for name in folkmoot.__all__}
    names = [name for name in public if not _is_error(public[name]) and name not in FIRST]
    lines = (line for name in (*FIRST, *names) for line in _described(name, public[name]))
    return "\n".join([BEGINNING, *lines])


def _is_error(public: Any) -> bool:
    return isinstance(public, type) and issubclass(public, Exception)


def _described(name: str, public: Any) -> Iterator[str]:
    yield from (f"## {name}", "")
    if not isinstance(public, type):  # a name for a type
        yield from (f"`{_short(str(public))}`", "")
        return
    yield from (inspect.getdoc(public) or "", "")
    fields = [each for each in inspect.get_annotations(public).items() if each[0][0] != "_"]
    if fields:
        yield from ("| field | type |", "|---|---|")
        yield from (f"| `{field}` | `{_cell(kind)}` |" for field, kind in fields)
        yield ""
    for member, found in inspect.getmembers_static(public):
        if member.startswith("_") or not (documented := inspect.getdoc(found)):
            continue
        if isinstance(found, property):
            yield from (f"### {name}.{member}", "", documented, "")
        elif inspect.isfunction(found):
            begins = "async def" if inspect.iscoroutinefunction(found) else "def"
            signature = _short(str(inspect.signature(found)))
            yield from (f"### {name}.{member}", "", "```python", f"{begins} {member}{signature}")
            yield from ("```", "", documented, "")


def _short(annotation: str) -> str:
    """Without the modules that its names are from."""
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)|~", "", annotation)


def _cell(kind: Any) -> str:
    return _short(inspect.formatannotation(kind)).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
