"""Changes between two schemas, for readers and for writers."""

import json
from collections.abc import Iterator

from msgspec import Struct

from folkmoot.protocol.errors import InvalidSchema
from folkmoot.schemas.avro.compatibility import Finding, compatible, some
from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.identity import NAMED, RECORDS
from folkmoot.schemas.avro.parsed import Parsed

AS_BEFORE = "as before"
_LOGICAL = ("logicalType", "precision", "scale")


class Difference(Struct, frozen=True):
    """One change from an old schema to a new one.

    `path` is a JSON pointer into the new schema, or into the old one for what is gone, in which a
    named type stands wherever it is used first; `change` says what changed. `readers` is what those
    see who read with the new schema what was written with the old; `writers` what those bring about
    who write with the new schema while others read with the old.
    """

    path: str
    change: str
    readers: str = AS_BEFORE
    writers: str = AS_BEFORE


def differences(old: str, new: str) -> list[Difference]:
    """Every change from `old` to `new`, both resolved texts; empty if they mean the same.

    Raises InvalidSchema for schemas that are nested too deeply.
    """
    before, after = Parsed(old), Parsed(new)
    try:
        found = list(_Walk(before, after).types(before.root, after.root, "", ""))
    except RecursionError:
        raise InvalidSchema("the schemas are nested too deeply to be compared") from None
    return _with_findings(found, compatible(new, old), compatible(old, new))


def _with_findings(
    found: list[tuple[Difference, str]], reads: list[Finding], writes: list[Finding]
) -> list[Difference]:
    """The differences, with what cannot be read in place of what can; each with its path in the old."""
    made = []
    for each, old_path in found:
        here, there = each.path or "/", old_path or "/"
        readers = [f.message for f in reads if _at(f.path, here) or _at(f.writer_path, there)]
        writers = [f.message for f in writes if _at(f.writer_path, here) or _at(f.path, there)]
        made.append(
            Difference(
                each.path,
                each.change,
                readers[0] if readers else each.readers,
                writers[0] if writers else each.writers,
            )
        )
    return made


def _at(path: str, place: str) -> bool:
    """Return whether a finding is about the place itself: its name, its size, its symbols or a branch."""
    rest = path.removeprefix(place if place != "/" else "")
    if rest == path and place != "/" and path != place:
        return False
    return rest in ("", "/name", "/size", "/symbols") or rest.removeprefix("/").isdigit()


class _Walk:
    def __init__(self, old: Parsed, new: Parsed) -> None:
        self._old = old
        self._new = new
        self._seen: set[tuple[str, str]] = set()

    def types(self, old: Json, new: Json, was: str, path: str) -> Iterator[tuple[Difference, str]]:
        """The differences of two types, at `was` in the old schema and `path` in the new."""
        old, new = self._old.of(old), self._new.of(new)
        if isinstance(old, list) or isinstance(new, list) or old["type"] != new["type"]:
            yield from self._other_types(old, new, was, path)
            return
        names = old.get("name", ""), new.get("name", "")
        if names[0]:
            if names in self._seen:
                return
            self._seen.add(names)
            if names[0] != names[1]:
                yield Difference(path, f"the name {names[0]} becomes {names[1]}"), was
        yield from self._attributes(old, new, was, path)
        yield from self._inside(old, new, was, path)

    def _other_types(
        self, old: Json, new: Json, was: str, path: str
    ) -> Iterator[tuple[Difference, str]]:
        before, after = _branches(old), _branches(new)
        ours = [_shown(self._old.of(each)) for each in before]
        theirs = [_shown(self._new.of(each)) for each in after]
        if len(before) == len(after) == 1 and ours != theirs:
            yield Difference(path, f"the type {ours[0]} becomes {theirs[0]}"), was
            return
        places = {each: number for number, each in enumerate(theirs)}
        gone, come = _changes(ours, theirs)
        if gone or come:
            changes = [f"{each} is gone" for each in gone] + [f"{each} is added" for each in come]
            yield Difference(path, f"of the union, {some(changes)}"), was
        elif ours != theirs:
            yield Difference(path, "the branches of the union stand in another order"), was
        elif isinstance(old, list) != isinstance(new, list):
            yield Difference(path, f"the type {ours[0]} becomes a union, or was one"), was
        for number, branch in enumerate(before):
            there = places.get(ours[number])
            if there is not None:
                yield from self.types(
                    branch,
                    after[there],
                    f"{was}/{number}" if isinstance(old, list) else was,
                    f"{path}/{there}" if isinstance(new, list) else path,
                )

    def _attributes(
        self, old: Json, new: Json, was: str, path: str
    ) -> Iterator[tuple[Difference, str]]:
        before, after = ({k: each[k] for k in _LOGICAL if k in each} for each in (old, new))
        if before != after:
            shown = (" ".join(map(str, each.values())) or "none" for each in (before, after))
            change = "the logical type {} becomes {}".format(*shown)
            yield Difference(path, change), was
        for name in ("doc", "aliases"):
            if old.get(name) != new.get(name):
                yield Difference(path, _of_attribute(name)), was

    def _inside(
        self, old: Json, new: Json, was: str, path: str
    ) -> Iterator[tuple[Difference, str]]:
        kind = new["type"]
        if kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            yield from self.types(old[inner], new[inner], f"{was}/{inner}", f"{path}/{inner}")
        elif kind in RECORDS:
            yield from self._fields(old, new, was, path)
        elif kind == "fixed" and old["size"] != new["size"]:
            yield Difference(path, f"the size {old['size']} becomes {new['size']}"), was
        elif kind == "enum":
            gone, come = _changes(old["symbols"], new["symbols"])
            if gone:
                instead = f"get {new.get('default')} instead"
                yield Difference(path, f"the symbols {some(gone)} are gone", instead), was
            if come:
                instead = f"old readers get {old.get('default')} instead"
                change = f"the symbols {some(come)} are added"
                yield Difference(path, change, AS_BEFORE, instead), was
            if old.get("default") != new.get("default"):
                change = f"the default {old.get('default')} becomes {new.get('default')}"
                yield Difference(path, change), was

    def _fields(
        self, old: Json, new: Json, was: str, path: str
    ) -> Iterator[tuple[Difference, str]]:
        left = {field["name"]: number for number, field in enumerate(old["fields"])}
        direct = {field["name"]: left.pop(field["name"], None) for field in new["fields"]}
        for number, field in enumerate(new["fields"]):
            name, here = field["name"], f"{path}/fields/{number}"
            found = direct[name]
            if found is None:
                aliases = (left.pop(each, None) for each in field.get("aliases", ()))
                found = next((each for each in aliases if each is not None), None)
            if found is None:
                instead = (
                    f"get {json.dumps(field.get('default'), ensure_ascii=False)} from old values"
                )
                change = f"the field {name} is added"
                yield Difference(here, change, instead, "old readers pass it over"), f"{was}/-"
                continue
            before, there = old["fields"][found], f"{was}/fields/{found}"
            if before["name"] != name:
                change = f"the field {before['name']} becomes {name}"
                yield Difference(here, change, AS_BEFORE, _old_readers(before)), there
            yield from self._field(before, field, there, here)
        for name, number in left.items():
            there = f"{was}/fields/{number}"
            writers = _old_readers(old["fields"][number])
            yield Difference(there, f"the field {name} is gone", "pass it over", writers), there

    def _field(self, old: Json, new: Json, was: str, path: str) -> Iterator[tuple[Difference, str]]:
        if ("default" in old, old.get("default")) != ("default" in new, new.get("default")):
            shown = (
                json.dumps(each["default"], ensure_ascii=False) if "default" in each else "none"
                for each in (old, new)
            )
            change = "the default {} becomes {}".format(*shown)
            yield Difference(path, change), was
        for name in ("doc", "aliases", "order"):
            if old.get(name) != new.get(name):
                yield Difference(path, _of_attribute(name)), was
        yield from self.types(old["type"], new["type"], f"{was}/type", f"{path}/type")


def _changes(old: list[str], new: list[str]) -> tuple[list[str], list[str]]:
    """Removed and added items."""
    before, after = set(old), set(new)
    return [each for each in old if each not in after], [each for each in new if each not in before]


def _old_readers(field: Json) -> str:
    default = json.dumps(field.get("default"), ensure_ascii=False)
    return f"old readers get {default} for {field['name']}"


def _of_attribute(name: str) -> str:
    if name == "aliases":
        return "the aliases change"
    return "the documentation changes" if name == "doc" else "the order changes"


def _shown(kind: Json) -> str:
    """A type by its kind and its name, if it has one."""
    if isinstance(kind, list):
        return "union"
    return f"{kind['type']} {kind['name']}" if kind["type"] in NAMED else str(kind["type"])


def _branches(kind: Json) -> list[Json]:
    return kind if isinstance(kind, list) else [kind]
