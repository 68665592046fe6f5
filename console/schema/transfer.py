"""Copying schemas between registries and files: ids and versions stay what they are."""

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final, NamedTuple

from folkmoot.console.options import sigterm_like_ctrl_c, text_of, write_text
from folkmoot.console.schema.places import Place, Source, begins, json_of, made, version_of
from folkmoot.coordination.schemas.names import parse, parse_subject
from folkmoot.coordination.schemas.versions import SchemaVersion
from folkmoot.protocol.errors import RegistryError
from folkmoot.schemas.avro.references import resolve

IMPORT: Final = "IMPORT"

_Key = tuple[str, int]
"""A subject, and the number of a version."""


class Schemas(NamedTuple):
    """Versions, deleted ones, too, and the levels of subjects that have their own."""

    versions: list[SchemaVersion]
    levels: dict[str, str]


def gather(source: Source, prefix: str) -> Schemas:
    """All versions of the subjects that begin so, and of those that they refer to."""
    versions: list[SchemaVersion] = []
    seen: set[str] = set()
    wanted = sorted(source.subjects(prefix))
    while wanted:
        seen.update(wanted)
        found = source.versions(wanted)
        versions += found
        wanted = sorted({name for each in found for name, _ in _referred(each)} - seen)
    return Schemas(sorted(versions, key=_key), source.levels(sorted(seen)))


def check(schemas: Schemas, *, skip_invalid: bool = False) -> Schemas:
    """Return what this cluster's registry can take: all of it, or without what is invalid.

    With `skip_invalid` each version that is left out gets a line on stderr, as do those that refer to
    it. Without it, raises RegistryError that names all of them.
    """
    kept, invalid = dict[_Key, SchemaVersion](), dict[_Key, str]()
    below: dict[_Key, list[_Key]] = {}
    """What each refers to, through others too; every one behind those that it refers to itself."""
    for each in ordered(schemas.versions):
        key, referred = _key(each), _referred(each)
        missing = [other for other in referred if other in invalid]
        try:
            if missing:
                raise RegistryError(f"it refers to {_said(missing[0])}")
            parse_subject(each.subject)
            below[key] = list(
                dict.fromkeys(n for other in referred for n in (*below[other], other))
            )
            resolve(each.schema, [kept[other].schema for other in below[key]])
        except RegistryError as error:
            invalid[key] = str(error)
        else:
            kept[key] = each
    lines = [f"{_said(key)}: {reason}" for key, reason in invalid.items()]
    if lines and not skip_invalid:
        raise RegistryError(
            "nothing was copied: mend these in their registry, or leave them out with --skip-invalid: "
            + "; ".join(lines)
        )
    for line in lines:
        print(f"folkmoot: left out {line}", file=sys.stderr)
    return Schemas(sorted(kept.values(), key=_key), schemas.levels)


def spread(schemas: Schemas, place: Place, *, force: bool = False) -> int:
    """Have a registry have them all. → how many versions it did not have.

    Whatever the registry has for another id or number is found before anything is written.
    Raises RegistryError.
    """
    subjects = sorted({each.subject for each in schemas.versions})
    there = {_key(each): each for each in place.versions(subjects)}
    missing, to_delete = [], []
    for each in ordered(schemas.versions):
        known = there.get(_key(each))
        if known is not None and known.id != each.id:
            raise _conflict(each, f"that version is the schema {known.id}")
        text = place.text(each) if known is None else known.schema
        if text is not None and json.loads(text) != json.loads(each.schema):
            raise _conflict(each, f"{each.id} is another schema")
        if known is None:
            missing.append(each)
        if each.deleted and (known is None or not known.deleted):
            to_delete.append(each)
    with sigterm_like_ctrl_c(), ExitStack() as stack:
        for subject in sorted({each.subject for each in missing}):
            stack.callback(_open_again, place, subject, place.mode(subject))
            place.set_mode(subject, IMPORT, force=force)
        for each in missing:
            place.put(each)
        for each in reversed(to_delete):
            place.delete(each)
    levels = place.levels(list(schemas.levels))
    for subject, level in schemas.levels.items():
        if levels.get(subject) != level:
            place.set_level(subject, level)
    for subject in subjects:
        # As somebody wants it, or a copy that was killed has left it:
        if place.mode(subject) == IMPORT:
            print(
                f"folkmoot: {subject} is in mode IMPORT, as it was before: nobody can register without ids "
                f"until `folkmoot schema mode {subject} --unset`",
                file=sys.stderr,
            )
    return len(missing)


def _open_again(place: Place, subject: str, mode: str | None) -> None:
    """Its mode may not have been changed: it was refused, or interrupted."""
    if place.mode(subject) != mode:
        place.set_mode(subject, mode)


def _conflict(each: SchemaVersion, found: str) -> RegistryError:
    return RegistryError(
        f"{each.subject} version {each.version} is the schema {each.id}, but {found} where it is to be "
        "copied to: nothing was copied; leave subjects out with --prefix"
    )


def ordered(versions: Iterable[SchemaVersion]) -> list[SchemaVersion]:
    """Each behind those that it refers to, and behind its subject's earlier ones. Raises RegistryError."""
    graph: dict[_Key, list[_Key]] = {}
    named = {_key(each): each for each in versions}
    earlier: dict[str, list[_Key]] = {}
    for key in sorted(named):
        subject, _ = key
        graph[key] = _referred(named[key])
        for other in graph[key]:
            if other not in named:
                raise RegistryError(f"{_said(key)} refers to {_said(other)}, which is missing")
        graph[key] += earlier.get(subject, ())
        earlier[subject] = [key]
    try:
        return [named[key] for key in TopologicalSorter(graph).static_order()]
    except CycleError as error:
        raise RegistryError(f"{_said(error.args[1][0])} refers to itself through others") from None


def _key(each: SchemaVersion) -> _Key:
    return each.subject, each.version


def _referred(each: SchemaVersion) -> list[_Key]:
    """What it refers to lies in its own context, unless that says another one."""
    context = parse(each.subject).context
    return [(str(parse(other.subject, context)), other.version) for other in each.references]


def _said(key: _Key) -> str:
    return f"{key[0]} version {key[1]}"


def save(schemas: Schemas, path: Path) -> None:
    """A JSON object a line: first the versions, then the levels. Raises ConfigError."""
    lines = [json_of(each) for each in ordered(schemas.versions)]
    lines += [{"subject": name, "compatibility": level} for name, level in schemas.levels.items()]
    write_text(path, "".join(f"{json.dumps(each)}\n" for each in lines))


def load(path: Path) -> "Lines":
    """What `save` has written. Raises ConfigError, RegistryError with the line's number."""
    found = Lines({}, {})
    for number, line in enumerate(text_of(path).splitlines(), start=1):
        try:
            told = made(json.loads(line), dict[str, Any])
            if "compatibility" in told:
                level = made(told, dict[str, str])
                found.by_level[level["subject"]] = level["compatibility"]
            else:
                each = version_of(told)
                found.by_subject.setdefault(each.subject, []).append(each)
        except json.JSONDecodeError as error:
            raise RegistryError(f"{path}, line {number}: this is not JSON: {error.msg}") from None
        except (ValueError, KeyError, RegistryError) as error:
            raise RegistryError(f"{path}, line {number}: {error}") from None
    return found


class Lines(NamedTuple):
    """What a file has."""

    by_subject: dict[str, list[SchemaVersion]]
    by_level: dict[str, str]

    def subjects(self, prefix: str) -> list[str]:
        return [each for each in self.by_subject if begins(each, prefix)]

    def versions(self, subjects: Sequence[str]) -> list[SchemaVersion]:
        return [each for subject in subjects for each in self.by_subject.get(subject, ())]

    def levels(self, subjects: Sequence[str]) -> dict[str, str]:
        return {each: self.by_level[each] for each in subjects if each in self.by_level}
