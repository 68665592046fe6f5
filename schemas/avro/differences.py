"""Changes between two schemas, for readers and for writers."""

import json
import re
from typing import NamedTuple

from msgspec import Struct

from folkmoot.protocol.errors import InvalidSchema
from folkmoot.schemas.avro.compatibility import abbreviate, compatible
from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.identity import INNER, NAMED, RECORDS
from folkmoot.schemas.avro.parsed import ParsedSchema

AS_BEFORE = "as before"
_LOGICAL = ("logicalType", "precision", "scale")
_TEXTS = {
    "doc": "the documentation changes",
    "aliases": "the aliases change",
    "order": "the order changes",
}
_ITSELF = re.compile(r"(/name|/size|/symbols|/\d+)?")
"""What follows the pointer to a type in a finding about the type itself, or about a branch of it."""


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
    walk = _Walk(old, new)
    try:
        walk.compare_roots()
    except RecursionError:
        raise InvalidSchema("the schemas are nested too deeply to be compared") from None
    return walk.found


class _Place(NamedTuple):
    """JSON pointers into the old schema and into the new one."""

    old: str = ""
    new: str = ""

    def within(self, old: object, new: object) -> "_Place":
        return _Place(f"{self.old}/{old}", f"{self.new}/{new}")

    def has(self, old: str, new: str) -> bool:
        """Return whether a finding with these pointers is about what is here."""
        ends = ((self.old, old), (self.new, new))
        return any(
            path.startswith(here) and _ITSELF.fullmatch(path, len(here)) for here, path in ends
        )


class _Walk:
    def __init__(self, old: str, new: str) -> None:
        self._old = ParsedSchema(old)
        self._new = ParsedSchema(new)
        self._reads = compatible(new, old)
        self._writes = compatible(old, new)
        self._seen: set[tuple[str, str]] = set()
        self.found: list[Difference] = []

    def compare_roots(self) -> None:
        self._types(self._old.root, self._new.root, _Place())

    def _add(
        self, at: _Place, change: str, readers: str = AS_BEFORE, writers: str = AS_BEFORE
    ) -> None:
        """Note a change, and what cannot be read because of it in place of what can."""
        reads = [each.message for each in self._reads if at.has(each.writer_path, each.path)]
        writes = [each.message for each in self._writes if at.has(each.path, each.writer_path)]
        self.found.append(Difference(at.new, change, [*reads, readers][0], [*writes, writers][0]))

    def _types(self, old: Json, new: Json, at: _Place) -> None:
        old, new = self._old.of(old), self._new.of(new)
        if isinstance(old, list) or isinstance(new, list) or old["type"] != new["type"]:
            self._type_change(old, new, at)
            return
        names = old.get("name", ""), new.get("name", "")
        if names[0]:
            if names in self._seen:
                return
            self._seen.add(names)
            if names[0] != names[1]:
                self._add(at, f"the name {names[0]} becomes {names[1]}")
        before, after = ({k: each[k] for k in _LOGICAL if k in each} for each in (old, new))
        if before != after:
            texts = (" ".join(map(str, each.values())) or "none" for each in (before, after))
            self._add(at, "the logical type {} becomes {}".format(*texts))
        self._texts(old, new, at, "doc", "aliases")
        kind = new["type"]
        if kind in INNER:
            inner = INNER[kind]
            self._types(old[inner], new[inner], at.within(inner, inner))
        elif kind in RECORDS:
            self._fields(old, new, at)
        elif kind == "enum":
            self._symbols(old, new, at)
        elif kind == "fixed" and old["size"] != new["size"]:
            self._add(at, f"the size {old['size']} becomes {new['size']}")

    def _texts(self, old: Json, new: Json, at: _Place, *names: str) -> None:
        for name in names:
            if old.get(name) != new.get(name):
                self._add(at, _TEXTS[name])

    def _type_change(self, old: Json, new: Json, at: _Place) -> None:
        before, after = (each if isinstance(each, list) else [each] for each in (old, new))
        ours = [_describe(self._old.of(each)) for each in before]
        theirs = [_describe(self._new.of(each)) for each in after]
        if len(before) == len(after) == 1 and ours != theirs:
            self._add(at, f"the type {ours[0]} becomes {theirs[0]}")
            return
        removed, added = _changes(ours, theirs)
        if removed or added:
            changes = [f"{each} is gone" for each in removed]
            changes += [f"{each} is added" for each in added]
            self._add(at, f"of the union, {abbreviate(changes)}")
        elif ours != theirs:
            self._add(at, "the branches of the union stand in another order")
        elif isinstance(old, list) != isinstance(new, list):
            self._add(at, f"the type {ours[0]} becomes a union, or was one")
        for number, branch in enumerate(before):
            if ours[number] in theirs:
                index = theirs.index(ours[number])
                inside = _Place(
                    f"{at.old}/{number}" if isinstance(old, list) else at.old,
                    f"{at.new}/{index}" if isinstance(new, list) else at.new,
                )
                self._types(branch, after[index], inside)

    def _symbols(self, old: Json, new: Json, at: _Place) -> None:
        removed, added = _changes(old["symbols"], new["symbols"])
        if removed:
            change = f"the symbols {abbreviate(removed)} are gone"
            self._add(at, change, f"get {new.get('default')} instead")
        if added:
            change = f"the symbols {abbreviate(added)} are added"
            self._add(at, change, AS_BEFORE, f"old readers get {old.get('default')} instead")
        if old.get("default") != new.get("default"):
            self._add(at, f"the default {old.get('default')} becomes {new.get('default')}")

    def _fields(self, old: Json, new: Json, at: _Place) -> None:
        unmatched = {field["name"]: number for number, field in enumerate(old["fields"])}
        direct = {field["name"]: unmatched.pop(field["name"], None) for field in new["fields"]}
        for number, field in enumerate(new["fields"]):
            name, index = field["name"], direct[field["name"]]
            if index is None:
                aliases = (unmatched.pop(each, None) for each in field.get("aliases", ()))
                index = next((each for each in aliases if each is not None), None)
            if index is None:
                place = at.within("-", f"fields/{number}")
                default = f"get {_json(field.get('default'))} from old values"
                self._add(place, f"the field {name} is added", default, "old readers pass it over")
                continue
            before, place = old["fields"][index], at.within(f"fields/{index}", f"fields/{number}")
            if before["name"] != name:
                change = f"the field {before['name']} becomes {name}"
                self._add(place, change, AS_BEFORE, _old_readers(before))
            defaults = [
                _json(each["default"]) if "default" in each else "none" for each in (before, field)
            ]
            if defaults[0] != defaults[1]:
                self._add(place, "the default {} becomes {}".format(*defaults))
            self._texts(before, field, place, "doc", "aliases", "order")
            self._types(before["type"], field["type"], place.within("type", "type"))
        for name, number in unmatched.items():
            pointer, field = f"{at.old}/fields/{number}", old["fields"][number]
            change = f"the field {name} is gone"
            self._add(_Place(pointer, pointer), change, "pass it over", _old_readers(field))


def _changes(old: list[str], new: list[str]) -> tuple[list[str], list[str]]:
    """Removed and added items."""
    before, after = set(old), set(new)
    return [each for each in old if each not in after], [each for each in new if each not in before]


def _old_readers(field: Json) -> str:
    return f"old readers get {_json(field.get('default'))} for {field['name']}"


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _describe(kind: Json) -> str:
    """A type by its kind and its name, if it has one."""
    if isinstance(kind, list):
        return "union"
    return f"{kind['type']} {kind['name']}" if kind["type"] in NAMED else str(kind["type"])
