"""Copying schemas between registries and files: ids and versions stay what they are."""

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final, NamedTuple

from folkmoot.console.files import read_text, write_text
from folkmoot.console.schema.registries import (
    RegistrySource,
    RegistryTarget,
    convert_response,
    matches_prefix,
    parse_version,
    version_json,
)
from folkmoot.console.signals import sigterm_like_ctrl_c
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


def collect(source: RegistrySource, prefix: str) -> Schemas:
    """Return all versions of the subjects that begin with this, and of those that they refer to."""
    versions: list[SchemaVersion] = []
    seen: set[str] = set()
    pending = sorted(source.subjects(prefix))
    while pending:
        seen.update(pending)
        found = source.versions(pending)
        versions += found
        pending = sorted({name for each in found for name, _ in _referred(each)} - seen)
    return Schemas(sorted(versions, key=_key), source.levels(sorted(seen)))


def check(schemas: Schemas, *, skip_invalid: bool = False) -> Schemas:
    """Return what this cluster's registry can take: all of it, or without what is invalid.

    With `skip_invalid` each version that is left out gets a line on stderr, as do those that refer to
    it. Without it, raises RegistryError that names all of them.
    """
    valid, invalid = dict[_Key, SchemaVersion](), dict[_Key, str]()
    dependencies: dict[_Key, list[_Key]] = {}
    """The references of each schema, also indirect ones, in order."""
    for each in sort_versions(schemas.versions):
        key, referred = _key(each), _referred(each)
        missing = [other for other in referred if other in invalid]
        try:
            if missing:
                raise RegistryError(f"it refers to {_name(missing[0])}")
            parse_subject(each.subject)
            dependencies[key] = list(
                dict.fromkeys(n for other in referred for n in (*dependencies[other], other))
            )
            resolve(each.schema, [valid[other].schema for other in dependencies[key]])
        except RegistryError as error:
            invalid[key] = str(error)
        else:
            valid[key] = each
    lines = [f"{_name(key)}: {reason}" for key, reason in invalid.items()]
    if lines and not skip_invalid:
        raise RegistryError(
            "nothing was copied: mend these in their registry, or leave them out with --skip-invalid: "
            + "; ".join(lines)
        )
    for line in lines:
        print(f"folkmoot: left out {line}", file=sys.stderr)
    return Schemas(sorted(valid.values(), key=_key), schemas.levels)


def import_schemas(schemas: Schemas, target: RegistryTarget, *, force: bool = False) -> int:
    """Write to a registry the versions that it lacks. → how many these are.

    All conflicts of ids and numbers are found before anything is written. Raises RegistryError.
    """
    subjects = sorted({each.subject for each in schemas.versions})
    existing = {_key(each): each for each in target.versions(subjects)}
    missing, to_delete = [], []
    for each in sort_versions(schemas.versions):
        existing_version = existing.get(_key(each))
        if existing_version is not None and existing_version.id != each.id:
            raise _conflict(each, f"that version is the schema {existing_version.id}")
        text = target.text(each) if existing_version is None else existing_version.schema
        if text is not None and json.loads(text) != json.loads(each.schema):
            raise _conflict(each, f"{each.id} is another schema")
        if existing_version is None:
            missing.append(each)
        if each.deleted and (existing_version is None or not existing_version.deleted):
            to_delete.append(each)
    with sigterm_like_ctrl_c(), ExitStack() as stack:
        for subject in sorted({each.subject for each in missing}):
            stack.callback(_restore_mode, target, subject, target.mode(subject))
            target.set_mode(subject, IMPORT, force=force)
        for each in missing:
            target.put(each)
        for each in reversed(to_delete):
            target.delete(each)
    levels = target.levels(list(schemas.levels))
    for subject, level in schemas.levels.items():
        if levels.get(subject) != level:
            target.set_level(subject, level)
    for subject in subjects:
        if target.mode(subject) == IMPORT:
            print(
                f"folkmoot: {subject} is in mode IMPORT, as it was before: new versions need ids until "
                f" `folkmoot schema mode {subject} --unset`",
                file=sys.stderr,
            )
    return len(missing)


def _restore_mode(target: RegistryTarget, subject: str, mode: str | None) -> None:
    """Set a subject's mode again; it was not changed if that was refused, or interrupted."""
    if target.mode(subject) != mode:
        target.set_mode(subject, mode)


def _conflict(version: SchemaVersion, reason: str) -> RegistryError:
    return RegistryError(
        f"{version.subject} version {version.version} is the schema {version.id}, but {reason} at the "
        "target: nothing was copied; leave subjects out with --prefix"
    )


def sort_versions(versions: Iterable[SchemaVersion]) -> list[SchemaVersion]:
    """Sort each behind what it refers to, and behind its subject's earlier versions.

    Raises RegistryError.
    """
    graph: dict[_Key, list[_Key]] = {}
    by_key = {_key(each): each for each in versions}
    earlier: dict[str, list[_Key]] = {}
    for key in sorted(by_key):
        subject, _ = key
        graph[key] = _referred(by_key[key])
        for other in graph[key]:
            if other not in by_key:
                raise RegistryError(f"{_name(key)} refers to {_name(other)}, which is missing")
        graph[key] += earlier.get(subject, ())
        earlier[subject] = [key]
    try:
        return [by_key[key] for key in TopologicalSorter(graph).static_order()]
    except CycleError as error:
        raise RegistryError(f"{_name(error.args[1][0])} refers to itself through others") from None


def _key(version: SchemaVersion) -> _Key:
    return version.subject, version.version


def _referred(version: SchemaVersion) -> list[_Key]:
    """Return what a version refers to: in its own context, unless the reference names another."""
    context = parse(version.subject).context
    return [(str(parse(other.subject, context)), other.version) for other in version.references]


def _name(key: _Key) -> str:
    return f"{key[0]} version {key[1]}"


def save(schemas: Schemas, path: Path) -> None:
    """A JSON object a line: first the versions, then the levels. Raises ConfigError."""
    lines = [version_json(each) for each in sort_versions(schemas.versions)]
    lines += [{"subject": name, "compatibility": level} for name, level in schemas.levels.items()]
    write_text(path, "".join(f"{json.dumps(each)}\n" for each in lines))


def load(path: Path) -> "SchemaFile":
    """Read what `save` has written. Raises ConfigError, RegistryError with the line's number."""
    file = SchemaFile({}, {})
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            fields = convert_response(json.loads(line), dict[str, Any])
            if "compatibility" in fields:
                level = convert_response(fields, dict[str, str])
                file.by_level[level["subject"]] = level["compatibility"]
            else:
                each = parse_version(fields)
                file.by_subject.setdefault(each.subject, []).append(each)
        except json.JSONDecodeError as error:
            raise RegistryError(f"{path}, line {number}: this is not JSON: {error.msg}") from None
        except (ValueError, KeyError, RegistryError) as error:
            raise RegistryError(f"{path}, line {number}: {error}") from None
    return file


class SchemaFile(NamedTuple):
    """The schemas and levels of a file."""

    by_subject: dict[str, list[SchemaVersion]]
    by_level: dict[str, str]

    def subjects(self, prefix: str) -> list[str]:
        return [each for each in self.by_subject if matches_prefix(each, prefix)]

    def versions(self, subjects: Sequence[str]) -> list[SchemaVersion]:
        return [each for subject in subjects for each in self.by_subject.get(subject, ())]

    def levels(self, subjects: Sequence[str]) -> dict[str, str]:
        return {each: self.by_level[each] for each in subjects if each in self.by_level}
