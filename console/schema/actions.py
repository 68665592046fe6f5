"""What the actions of `folkmoot schema` do."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from folkmoot.console.options import confirm, connecting, text_of
from folkmoot.console.schema.places import Here, is_url, remote
from folkmoot.console.schema.transfer import check, gather, load, save, spread
from folkmoot.console.tables import show
from folkmoot.coordination.schemas.versions import Reference, SchemaVersion
from folkmoot.protocol.errors import ConfigError, InvalidSchema, SubjectNotFound, VersionNotFound
from folkmoot.protocol.quantities import counted
from folkmoot.schemas.avro.compatibility import Finding
from folkmoot.schemas.avro.differences import differences
from folkmoot.schemas.avro.references import resolve
from folkmoot.schemas.registry.schema_registry import SchemaRegistry


def _register(args: argparse.Namespace, registry: SchemaRegistry) -> int:
    text, references = text_of(args.file), _references(args.reference)
    made = registry.register(args.subject, text, references=references, normalize=args.normalize)
    if args.output == "json":
        print(json.dumps({"subject": made.subject, "version": made.version, "id": made.id}))
    else:
        print(f"{made.subject} version {made.version} has the id {made.id}")
    return 0


def _get(args: argparse.Namespace, registry: SchemaRegistry) -> int:
    if args.id is None and args.subject is None:
        raise ConfigError("give a SUBJECT or --id ID")
    if args.id is not None and args.version is not None:
        raise ConfigError("an id names one schema: leave out --version")
    found = (
        registry.get(args.id, subject=args.subject)
        if args.id is not None
        else registry.version(args.subject, args.version or "latest", deleted=args.deleted)
    )
    text = registry.resolved(found.id, subject=args.subject) if args.resolved else found.schema
    if args.output == "json":
        place = (
            {"subject": found.subject, "version": found.version}
            if isinstance(found, SchemaVersion)
            else {}
        )
        print(json.dumps({**place, "id": found.id, "schema": text, **_besides(found.references)}))
    else:
        print(text)
    return 0


def _besides(references: Sequence[Reference]) -> dict[str, object]:
    named = [{"name": e.name, "subject": e.subject, "version": e.version} for e in references]
    return {"references": named} if named else {}


def _list(args: argparse.Namespace, registry: SchemaRegistry) -> int:
    rows = [
        (subject, len(versions), versions[-1], level)
        for subject, versions, level in registry.listing(args.prefix, deleted=args.deleted)
    ]
    show(("subject", "versions", "latest", "compatibility"), rows, args.output)
    return 0


def _versions(args: argparse.Namespace, registry: SchemaRegistry) -> int:
    found = registry.schemas_of([args.subject], deleted=args.deleted)
    if not found:
        raise SubjectNotFound(f"subject {args.subject} has no schema")
    rows = []
    for each in found:
        references = [f"{other.subject}:{other.version}" for other in each.references]
        rows.append((each.version, each.id, references, "yes" if each.deleted else "no"))
    show(("version", "id", "references", "deleted"), rows, args.output)
    return 0


def _check(args: argparse.Namespace, registry: SchemaRegistry) -> int:
    findings = registry.check(
        args.subject, text_of(args.file), args.version, references=_references(args.reference)
    )
    _show(findings, args.output)
    if any(not each.warning for each in findings):
        return 1
    if args.output == "table":
        print(f"{args.subject} takes it")
    return 0


def _show(findings: Sequence[Finding], output: str) -> None:
    if output == "json":
        columns = ("kind", "path", "writer path", "message", "warning")
        rows = [(e.kind, e.path, e.writer_path, e.message, e.warning) for e in findings]
        show(columns, rows, output)
        return
    for each in findings:
        print(
            f"{'warning' if each.warning else 'error'}: {each.path or '/'}: {each.message} ({each.kind})"
        )


def _diff(args: argparse.Namespace, registry: SchemaRegistry) -> int:
    if args.file is not None and args.new is not None:
        raise ConfigError("give either FILE.avsc or --to N")
    versions = registry.versions(args.subject)
    new: int | None = None
    if args.file is None:
        new = args.new or versions[-1]
        earlier = [each for each in versions if each < new]
        if args.old is None and not earlier:
            raise VersionNotFound(
                f"{args.subject} has no version before {new}: give FILE.avsc or --from N"
            )
        text = registry.resolved(registry.version(args.subject, new).id, subject=args.subject)
    else:
        earlier = versions
        text = _resolved(args, registry)
    before = registry.version(args.subject, args.old or earlier[-1])
    old = registry.resolved(before.id, subject=args.subject)
    rows = [
        (each.path or "/", each.change, each.readers, each.writers)
        for each in differences(old, text)
    ]
    show(("path", "change", "for readers", "for writers"), rows, args.output)
    return 0


def _resolved(args: argparse.Namespace, registry: SchemaRegistry) -> str:
    """The text of the file with what it refers to."""
    texts = []
    for each in _references(args.reference):
        number = registry.version(each.subject, each.version).id
        texts.append(registry.resolved(number, subject=each.subject))
    return resolve(text_of(args.file), texts)


def _compat(args: argparse.Namespace, registry: SchemaRegistry) -> int:
    if args.given is not None:
        registry.set_compatibility(args.given, args.subject)
    elif args.unset:
        registry.delete_compatibility(args.subject)
    level = registry.compatibility(args.subject, default_to_global=True)
    return _say("compatibility", args, level)


def _mode(args: argparse.Namespace, registry: SchemaRegistry) -> int:
    if args.given is not None:
        registry.set_mode(args.given, args.subject, force=args.force)
    elif args.unset:
        registry.delete_mode(args.subject)
    return _say("mode", args, registry.mode(args.subject, default_to_global=True))


def _say(name: str, args: argparse.Namespace, value: str) -> int:
    if args.output == "json":
        print(json.dumps({"subject": args.subject, name: value}))
    else:
        print(value)
    return 0


def _delete(args: argparse.Namespace, registry: SchemaRegistry) -> int:
    what = args.subject if args.version is None else f"version {args.version} of {args.subject}"
    if args.permanent and not args.yes:
        registry.versions(args.subject, deleted=True)
        warning = f"This deletes {what} for good: nothing written by it may be readable any more. "
        confirm(warning, "subject", args.subject, "deleted")
    if args.version is None:
        gone = registry.delete_subject(args.subject, permanent=args.permanent)
        print(f"deleted {what} ({counted(len(gone), 'version')})")
    else:
        registry.delete_version(args.subject, args.version, permanent=args.permanent)
        print(f"deleted {what}")
    return 0


def _export(args: argparse.Namespace, registry: SchemaRegistry) -> int:
    schemas = gather(Here(registry), args.prefix)
    copied = len(schemas.versions)
    if is_url(args.place):
        with remote(args.place, args.timeout) as place:
            copied = spread(schemas, place, force=args.force)
    else:
        save(schemas, Path(args.place))
    return _copied(copied, len(schemas.versions))


def _import(args: argparse.Namespace, registry: SchemaRegistry) -> int:
    if is_url(args.place):
        with remote(args.place, args.timeout) as place:
            schemas = gather(place, args.prefix)
    else:
        schemas = gather(load(Path(args.place)), args.prefix)
    found = len(schemas.versions)
    schemas = check(schemas, skip_invalid=args.skip_invalid)
    copied = spread(schemas, Here(registry), force=args.force)
    left_out = found - len(schemas.versions)
    return _copied(copied, len(schemas.versions), left_out)


def _copied(copied: int, found: int, left_out: int = 0) -> int:
    """Exit code 1 where versions were left out."""
    without = f"; {left_out} were left out" if left_out else ""
    print(f"copied {counted(copied, 'version')}; {found - copied} were there{without}")
    return 1 if left_out else 0


def _references(words: Sequence[str]) -> list[Reference]:
    found = []
    for word in words:
        name, equals, place = word.partition("=")
        subject, _, version = place.rpartition(":")
        if not (name and equals and subject and version.isdecimal()):
            raise ConfigError(f"--reference {word!r} is not NAME=SUBJECT:VERSION")
        found.append(Reference(name, subject, int(version)))
    return found


_Act = Callable[[argparse.Namespace, SchemaRegistry], int]
ACTIONS: Final[dict[str, _Act]] = {
    "register": _register,
    "get": _get,
    "list": _list,
    "versions": _versions,
    "check": _check,
    "diff": _diff,
    "compat": _compat,
    "mode": _mode,
    "delete": _delete,
    "export": _export,
    "import": _import,
}


def run(args: argparse.Namespace) -> int:
    """Whichever of them it is, on the registry at `--zookeeper`."""
    with SchemaRegistry(connecting(args), timeout=args.timeout) as registry:
        try:
            return ACTIONS[args.action](args, registry)
        except InvalidSchema as error:
            file = getattr(args, "file", None)
            raise InvalidSchema(f"{file}: {error}" if file else str(error)) from None
