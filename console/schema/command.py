"""`folkmoot schema`: schemas registered, shown, checked, compared, deleted and copied."""

import json
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from folkmoot.console.confirmation import confirm
from folkmoot.console.files import read_text
from folkmoot.console.options.cluster import Cluster, with_zookeeper
from folkmoot.console.options.names import SUBJECT
from folkmoot.console.options.values import COUNT, FILE, at_most_one, output_option, yes_option
from folkmoot.console.tables import show
from folkmoot.protocol.errors import ConfigError, InvalidSchema, SubjectNotFound, VersionNotFound
from folkmoot.protocol.quantities import counted

if TYPE_CHECKING:
    from folkmoot.coordination.schemas.versions import Reference
    from folkmoot.schemas.avro.compatibility import Finding
    from folkmoot.schemas.registry.schema_registry import SchemaRegistry

LEVELS: Final = (
    *("BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE"),
    *("FULL", "FULL_TRANSITIVE", "NONE"),
)
MODES: Final = ("READWRITE", "READONLY", "IMPORT")

_subject_argument = click.argument("subject", type=SUBJECT)
_optional_subject = click.argument("subject", type=SUBJECT, required=False)
_file_argument = click.argument("file", metavar="FILE.avsc", type=FILE)
_references_option = click.option(
    *("--reference", "references"),
    multiple=True,
    metavar="NAME=SUBJECT:VERSION",
    help="The version that defines a type which the schema names; may be repeated.",
)
_deleted_option = click.option("--deleted", is_flag=True, help="Deleted ones, too.")
_unset_option = click.option("--unset", is_flag=True, help="Use the global default again.")


def _version_option(default: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    return click.option("--version", type=COUNT, metavar="N", help=f"Default: {default}.")


def with_registry(function: Callable[..., int]) -> Callable[..., int]:
    """As `with_zookeeper`; the function takes the schema registry there first."""

    @with_zookeeper()
    @wraps(function)
    def command(cluster: Cluster, **options: Any) -> int:
        from folkmoot.schemas.registry.schema_registry import SchemaRegistry

        with SchemaRegistry(cluster.connect(), timeout=cluster.timeout) as registry:
            try:
                return function(registry, **options)
            except InvalidSchema as error:
                file = options.get("file")
                raise InvalidSchema(f"{file}: {error}" if file else str(error)) from None

    return command


@click.group()
def command() -> None:
    """Register, check, compare, delete and copy schemas."""


@command.command("register")
@_subject_argument
@_file_argument
@_references_option
@click.option("--normalize", is_flag=True, help="Schemas that mean the same are the same schema.")
@output_option
@with_registry
def _register(
    registry: "SchemaRegistry",
    subject: str,
    file: Path,
    references: tuple[str, ...],
    normalize: bool,
    output: str,
) -> int:
    """Make a schema a subject's next version."""
    parsed_references = _references(references)
    registered = registry.register(
        subject, read_text(file), references=parsed_references, normalize=normalize
    )
    if output == "json":
        print(
            json.dumps(
                {"subject": registered.subject, "version": registered.version, "id": registered.id}
            )
        )
    else:
        print(f"{registered.subject} version {registered.version} has the id {registered.id}")
    return 0


@command.command("get")
@_optional_subject
@_version_option("latest")
@click.option(
    "--id",
    "number",
    type=COUNT,
    metavar="ID",
    help="The schema of this id, in the context of SUBJECT: :.name:",
)
@click.option("--resolved", is_flag=True, help="With all types that it refers to.")
@_deleted_option
@output_option
@with_registry
def _get(
    registry: "SchemaRegistry",
    subject: str | None,
    version: int | None,
    number: int | None,
    resolved: bool,
    deleted: bool,
    output: str,
) -> int:
    """Show a schema, by SUBJECT or by --id."""
    if number is not None and version is not None:
        raise ConfigError("an id names one schema: leave out --version")
    fields: dict[str, object] = {}
    if number is not None:
        stored = registry.get(number, subject=subject)
        schema, references = stored.schema, stored.references
    elif subject is not None:
        found = registry.version(subject, version or "latest", deleted=deleted)
        number, schema, references = found.id, found.schema, found.references
        fields = {"subject": found.subject, "version": found.version}
    else:
        raise ConfigError("give a SUBJECT or --id ID")
    if resolved:
        schema = registry.resolved(number, subject=subject)
    if output == "json":
        fields |= {"id": number, "schema": schema}
        if references:
            fields["references"] = [
                {"name": each.name, "subject": each.subject, "version": each.version}
                for each in references
            ]
        print(json.dumps(fields))
    else:
        print(schema)
    return 0


@command.command("list")
@click.argument("prefix", type=SUBJECT, default="")
@_deleted_option
@output_option
@with_registry
def _list(registry: "SchemaRegistry", prefix: str, deleted: bool, output: str) -> int:
    """List all subjects, or those that begin with PREFIX."""
    rows = [
        (subject, len(versions), versions[-1], level)
        for subject, versions, level in registry.listing(prefix, deleted=deleted)
    ]
    show(("subject", "versions", "latest", "compatibility"), rows, output)
    return 0


@command.command("versions")
@_subject_argument
@_deleted_option
@output_option
@with_registry
def _versions(registry: "SchemaRegistry", subject: str, deleted: bool, output: str) -> int:
    """List the versions of a subject and their ids."""
    found = registry.schemas_of([subject], deleted=deleted)
    if not found:
        raise SubjectNotFound(f"subject {subject} has no schema")
    rows = []
    for each in found:
        references = [f"{other.subject}:{other.version}" for other in each.references]
        rows.append((each.version, each.id, references, "yes" if each.deleted else "no"))
    show(("version", "id", "references", "deleted"), rows, output)
    return 0


@command.command("check")
@_subject_argument
@_file_argument
@_references_option
@_version_option("those that the compatibility level names")
@output_option
@with_registry
def _check(
    registry: "SchemaRegistry",
    subject: str,
    file: Path,
    references: tuple[str, ...],
    version: int | None,
    output: str,
) -> int:
    """Check whether a schema may become a subject's next version.

    The exit code is 0 if `register` would take it, else 1, with the reasons.
    """
    parsed_references = _references(references)
    findings = registry.check(subject, read_text(file), version, references=parsed_references)
    _show_findings(findings, output)
    if any(not each.warning for each in findings):
        return 1
    if output == "table":
        print(f"{subject} takes it")
    return 0


def _show_findings(findings: "Sequence[Finding]", output: str) -> None:
    if output == "json":
        columns = ("kind", "path", "writer path", "message", "warning")
        rows = [(e.kind, e.path, e.writer_path, e.message, e.warning) for e in findings]
        show(columns, rows, output)
        return
    for each in findings:
        severity = "warning" if each.warning else "error"
        print(f"{severity}: {each.path or '/'}: {each.message} ({each.kind})")


@command.command("diff")
@_subject_argument
@click.argument("file", metavar="[FILE.avsc]", type=FILE, required=False)
@click.option("--from", "old", type=COUNT, metavar="N", help="The old version.")
@click.option("--to", "new", type=COUNT, metavar="N", help="The new version.")
@_references_option
@output_option
@with_registry
def _diff(
    registry: "SchemaRegistry",
    subject: str,
    file: Path | None,
    old: int | None,
    new: int | None,
    references: tuple[str, ...],
    output: str,
) -> int:
    """Show what changes for readers and for writers.

    From a version to the schema of a file, or to another version. Without any of them from the version
    before the last to the last.
    """
    from folkmoot.schemas.avro.differences import differences
    from folkmoot.schemas.avro.references import resolve

    if file is not None and new is not None:
        raise ConfigError("give either FILE.avsc or --to N")

    def resolved(name: str, version: int) -> str:
        return registry.resolved(registry.version(name, version).id, subject=name)

    earlier = versions = registry.versions(subject)
    if file is None:
        new = new or versions[-1]
        earlier = [each for each in versions if each < new]
        if old is None and not earlier:
            raise VersionNotFound(
                f"{subject} has no version before {new}: give FILE.avsc or --from N"
            )
        text = resolved(subject, new)
    else:
        parts = [resolved(each.subject, each.version) for each in _references(references)]
        text = resolve(read_text(file), parts)
    before = resolved(subject, old or earlier[-1])
    rows = [
        (each.path or "/", each.change, each.readers, each.writers)
        for each in differences(before, text)
    ]
    show(("path", "change", "for readers", "for writers"), rows, output)
    return 0


@command.command("compat")
@_optional_subject
@click.option("--set", "level", type=click.Choice(LEVELS))
@_unset_option
@output_option
@with_registry
def _compat(
    registry: "SchemaRegistry", subject: str | None, level: str | None, unset: bool, output: str
) -> int:
    """Show or set the compatibility level of a subject, or without SUBJECT the global default."""
    at_most_one(set=level, unset=unset)
    if level is not None:
        registry.set_compatibility(level, subject)
    elif unset:
        registry.delete_compatibility(subject)
    level = registry.compatibility(subject, default_to_global=True)
    return _show_setting("compatibility", level, subject, output)


@command.command("mode")
@_optional_subject
@click.option("--set", "mode", type=click.Choice(MODES))
@_unset_option
@click.option("--force", is_flag=True, help="IMPORT also where there are schemas already.")
@output_option
@with_registry
def _mode(
    registry: "SchemaRegistry",
    subject: str | None,
    mode: str | None,
    unset: bool,
    force: bool,
    output: str,
) -> int:
    """Show or set whether schemas may be registered, in a subject, or without SUBJECT in all."""
    at_most_one(set=mode, unset=unset)
    if mode is not None:
        registry.set_mode(mode, subject, force=force)
    elif unset:
        registry.delete_mode(subject)
    return _show_setting("mode", registry.mode(subject, default_to_global=True), subject, output)


def _show_setting(name: str, value: str, subject: str | None, output: str) -> int:
    print(json.dumps({"subject": subject, name: value}) if output == "json" else value)
    return 0


@command.command("delete")
@_subject_argument
@click.option("--version", type=COUNT, metavar="N", help="Only this version.")
@click.option("--permanent", is_flag=True, help="For good; it was deleted before.")
@yes_option
@with_registry
def _delete(
    registry: "SchemaRegistry", subject: str, version: int | None, permanent: bool, yes: bool
) -> int:
    """Delete a subject, or a version of it.

    Deleted versions are not listed, and new versions are not checked against them. It can still be read
    by its id. With --permanent what was deleted before is gone for good.
    """
    target = subject if version is None else f"version {version} of {subject}"
    if permanent and not yes:
        registry.versions(subject, deleted=True)
        warning = f"This deletes {target} for good: records written by it may become unreadable. "
        confirm(warning, "subject", subject, "deleted")
    if version is None:
        deleted = registry.delete_subject(subject, permanent=permanent)
        print(f"deleted {target} ({counted(len(deleted), 'version')})")
    else:
        registry.delete_version(subject, version, permanent=permanent)
        print(f"deleted {target}")
    return 0


_target_argument = click.argument("target", metavar="URL|FILE")
_prefix_option = click.option("--prefix", default="", help="Only subjects that begin with this.")
_force_option = click.option(
    "--force", is_flag=True, help="Also into subjects that have schemas already."
)


@command.command("export")
@_target_argument
@_prefix_option
@_force_option
@with_registry
def _export(registry: "SchemaRegistry", target: str, prefix: str, force: bool) -> int:
    """Copy schemas to another registry with Confluent's interface, or to a file.

    A URL is http://[USER:PASSWORD@]HOST:PORT. Subjects, versions, ids and levels are kept, deleted versions
    are copied, too. Existing versions stay; copying again changes nothing.
    """
    from folkmoot.console.schema.registries import LocalRegistry, is_url, open_remote
    from folkmoot.console.schema.transfer import collect, import_schemas, save

    schemas = collect(LocalRegistry(registry), prefix)
    copied = len(schemas.versions)
    if is_url(target):
        with open_remote(target, _timeout()) as remote_registry:
            copied = import_schemas(schemas, remote_registry, force=force)
    else:
        save(schemas, Path(target))
    return _print_copied(copied, len(schemas.versions))


@command.command("import")
@_target_argument
@_prefix_option
@_force_option
@click.option(
    "--skip-invalid",
    is_flag=True,
    help="Leave out versions that are no valid schemas here, and those that refer to them.",
)
@with_registry
def _import(
    registry: "SchemaRegistry", target: str, prefix: str, force: bool, skip_invalid: bool
) -> int:
    """Copy schemas from another registry with Confluent's interface, or from a file, as `export` does."""
    from folkmoot.console.schema.registries import LocalRegistry, is_url, open_remote
    from folkmoot.console.schema.transfer import check, collect, import_schemas, load

    if is_url(target):
        with open_remote(target, _timeout()) as remote_registry:
            schemas = collect(remote_registry, prefix)
    else:
        schemas = collect(load(Path(target)), prefix)
    found = len(schemas.versions)
    schemas = check(schemas, skip_invalid=skip_invalid)
    copied = import_schemas(schemas, LocalRegistry(registry), force=force)
    return _print_copied(copied, len(schemas.versions), found - len(schemas.versions))


def _timeout() -> float:
    timeout: float = click.get_current_context().find_root().obj.timeout
    return timeout


def _print_copied(copied: int, found: int, omitted: int = 0) -> int:
    """→ exit code 1 where versions were left out."""
    suffix = f"; {omitted} were left out" if omitted else ""
    print(f"copied {counted(copied, 'version')}; {found - copied} were there{suffix}")
    return 1 if omitted else 0


def _references(words: Sequence[str]) -> "list[Reference]":
    from folkmoot.coordination.schemas.versions import Reference

    found = []
    for word in words:
        name, equals, target = word.partition("=")
        subject, _, version = target.rpartition(":")
        if not (name and equals and subject and version.isdecimal()):
            raise ConfigError(f"--reference {word!r} is not NAME=SUBJECT:VERSION")
        found.append(Reference(name, subject, int(version)))
    return found
