"""Changes between two schemas, for readers and for writers."""

import json
from collections.abc import Iterator

from msgspec import Struct

from folkmoot.protocol.errors import InvalidSchema
from folkmoot.schemas.avro.compatibility import Finding, abbreviate, compatible
from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.identity import NAMED, RECORDS
from folkmoot.schemas.avro.parsed import ParsedSchema

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
    before, after = ParsedSchema(old), ParsedSchema(new)
    try:
        found = list(_Walk(before, after).types(before.root, after.root, "", ""))
    except RecursionError:
        raise InvalidSchema("the schemas are nested too deeply to be compared") from None
    return _add_findings(found, compatible(new, old), compatible(old, new))


def _add_findings(
    found: list[tuple[Difference, str]], reads: list[Finding], writes: list[Finding]
) -> list[Difference]:
    """The differences, with what cannot be read in place of what can; each with its path in the old."""
    result = []
    for each, old_path in found:
        new_pointer, old_pointer = each.path or "/", old_path or "/"
        readers = [
            f.message
            for f in reads
            if _is_at(f.path, new_pointer) or _is_at(f.writer_path, old_pointer)
        ]
        writers = [
            f.message
            for f in writes
            if _is_at(f.writer_path, new_pointer) or _is_at(f.path, old_pointer)
        ]
        result.append(
            Difference(
                each.path,
                each.change,
                readers[0] if readers else each.readers,
                writers[0] if writers else each.writers,
            )
        )
    return result


def _is_at(path: str, target: str) -> bool:
    """Return whether a finding is about the target itself: its name, its size, its symbols or a branch."""
    suffix = path.removeprefix(target if target != "/" else "")
    if suffix == path and target != "/" and path != target:
        return False
    return suffix in ("", "/name", "/size", "/symbols") or suffix.removeprefix("/").isdigit()


class _Walk:
    def __init__(self, old: ParsedSchema, new: ParsedSchema) -> None:
        self._old = old
        self._new = new
        self._seen: set[tuple[str, str]] = set()

    def types(
        self, old: Json, new: Json, old_path: str, path: str
    ) -> Iterator[tuple[Difference, str]]:
        """The differences of two types, at `old_path` in the old schema and `path` in the new."""
        old, new = self._old.of(old), self._new.of(new)
        if isinstance(old, list) or isinstance(new, list) or old["type"] != new["type"]:
            yield from self._type_change(old, new, old_path, path)
            return
        names = old.get("name", ""), new.get("name", "")
        if names[0]:
            if names in self._seen:
                return
            self._seen.add(names)
            if names[0] != names[1]:
                yield Difference(path, f"the name {names[0]} becomes {names[1]}"), old_path
        yield from self._attributes(old, new, old_path, path)
        yield from self._inside(old, new, old_path, path)

    def _type_change(
        self, old: Json, new: Json, old_path: str, path: str
    ) -> Iterator[tuple[Difference, str]]:
        before, after = _branches(old), _branches(new)
        ours = [_describe(self._old.of(each)) for each in before]
        theirs = [_describe(self._new.of(each)) for each in after]
        if len(before) == len(after) == 1 and ours != theirs:
            yield Difference(path, f"the type {ours[0]} becomes {theirs[0]}"), old_path
            return
        indexes = {each: number for number, each in enumerate(theirs)}
        removed, added = _changes(ours, theirs)
        if removed or added:
            changes = [f"{each} is gone" for each in removed] + [
                f"{each} is added" for each in added
            ]
            yield Difference(path, f"of the union, {abbreviate(changes)}"), old_path
        elif ours != theirs:
            yield Difference(path, "the branches of the union stand in another order"), old_path
        elif isinstance(old, list) != isinstance(new, list):
            yield Difference(path, f"the type {ours[0]} becomes a union, or was one"), old_path
        for number, branch in enumerate(before):
            index = indexes.get(ours[number])
            if index is not None:
                yield from self.types(
                    branch,
                    after[index],
                    f"{old_path}/{number}" if isinstance(old, list) else old_path,
                    f"{path}/{index}" if isinstance(new, list) else path,
                )

    def _attributes(
        self, old: Json, new: Json, old_path: str, path: str
    ) -> Iterator[tuple[Difference, str]]:
        before, after = ({k: each[k] for k in _LOGICAL if k in each} for each in (old, new))
        if before != after:
            texts = (" ".join(map(str, each.values())) or "none" for each in (before, after))
            change = "the logical type {} becomes {}".format(*texts)
            yield Difference(path, change), old_path
        for name in ("doc", "aliases"):
            if old.get(name) != new.get(name):
                yield Difference(path, _describe_attribute(name)), old_path

    def _inside(
        self, old: Json, new: Json, old_path: str, path: str
    ) -> Iterator[tuple[Difference, str]]:
        kind = new["type"]
        if kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            yield from self.types(old[inner], new[inner], f"{old_path}/{inner}", f"{path}/{inner}")
        elif kind in RECORDS:
            yield from self._fields(old, new, old_path, path)
        elif kind == "fixed" and old["size"] != new["size"]:
            yield Difference(path, f"the size {old['size']} becomes {new['size']}"), old_path
        elif kind == "enum":
            removed, added = _changes(old["symbols"], new["symbols"])
            if removed:
                instead = f"get {new.get('default')} instead"
                yield (
                    Difference(path, f"the symbols {abbreviate(removed)} are gone", instead),
                    old_path,
                )
            if added:
                instead = f"old readers get {old.get('default')} instead"
                change = f"the symbols {abbreviate(added)} are added"
                yield Difference(path, change, AS_BEFORE, instead), old_path
            if old.get("default") != new.get("default"):
                change = f"the default {old.get('default')} becomes {new.get('default')}"
                yield Difference(path, change), old_path

    def _fields(
        self, old: Json, new: Json, old_path: str, path: str
    ) -> Iterator[tuple[Difference, str]]:
        unmatched = {field["name"]: number for number, field in enumerate(old["fields"])}
        direct = {field["name"]: unmatched.pop(field["name"], None) for field in new["fields"]}
        for number, field in enumerate(new["fields"]):
            name, field_path = field["name"], f"{path}/fields/{number}"
            index = direct[name]
            if index is None:
                aliases = (unmatched.pop(each, None) for each in field.get("aliases", ()))
                index = next((each for each in aliases if each is not None), None)
            if index is None:
                instead = (
                    f"get {json.dumps(field.get('default'), ensure_ascii=False)} from old values"
                )
                change = f"the field {name} is added"
                yield (
                    Difference(field_path, change, instead, "old readers pass it over"),
                    f"{old_path}/-",
                )
                continue
            before, old_field_path = old["fields"][index], f"{old_path}/fields/{index}"
            if before["name"] != name:
                change = f"the field {before['name']} becomes {name}"
                yield (
                    Difference(field_path, change, AS_BEFORE, _old_readers(before)),
                    old_field_path,
                )
            yield from self._field(before, field, old_field_path, field_path)
        for name, number in unmatched.items():
            old_field_path = f"{old_path}/fields/{number}"
            writers = _old_readers(old["fields"][number])
            yield (
                Difference(old_field_path, f"the field {name} is gone", "pass it over", writers),
                old_field_path,
            )

    def _field(
        self, old: Json, new: Json, old_path: str, path: str
    ) -> Iterator[tuple[Difference, str]]:
        if ("default" in old, old.get("default")) != ("default" in new, new.get("default")):
            texts = (
                json.dumps(each["default"], ensure_ascii=False) if "default" in each else "none"
                for each in (old, new)
            )
            change = "the default {} becomes {}".format(*texts)
            yield Difference(path, change), old_path
        for name in ("doc", "aliases", "order"):
            if old.get(name) != new.get(name):
                yield Difference(path, _describe_attribute(name)), old_path
        yield from self.types(old["type"], new["type"], f"{old_path}/type", f"{path}/type")


def _changes(old: list[str], new: list[str]) -> tuple[list[str], list[str]]:
    """Removed and added items."""
    before, after = set(old), set(new)
    return [each for each in old if each not in after], [each for each in new if each not in before]


def _old_readers(field: Json) -> str:
    default = json.dumps(field.get("default"), ensure_ascii=False)
    return f"old readers get {default} for {field['name']}"


def _describe_attribute(name: str) -> str:
    if name == "aliases":
        return "the aliases change"
    return "the documentation changes" if name == "doc" else "the order changes"


def _describe(kind: Json) -> str:
    """A type by its kind and its name, if it has one."""
    if isinstance(kind, list):
        return "union"
    return f"{kind['type']} {kind['name']}" if kind["type"] in NAMED else str(kind["type"])


def _branches(kind: Json) -> list[Json]:
    return kind if isinstance(kind, list) else [kind]
