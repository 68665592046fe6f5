"""Deleting versions and subjects: softly first, then permanently.

A softly deleted version can still be read, and its number is not used again. A permanently deleted one is
gone from its subject, but its id stays in use. A version that live versions refer to is not deleted:
references and deletions write the same node.
"""

from collections.abc import Callable
from typing import Literal

from msgspec.structs import replace

from folkmoot.coordination import paths
from folkmoot.coordination.schemas import settings
from folkmoot.coordination.schemas.lookups import content_of, is_known
from folkmoot.coordination.schemas.names import SubjectName
from folkmoot.coordination.schemas.nodes import Subject, Version, encode, subject_decoder
from folkmoot.coordination.schemas.registering import listing_writes, reference_paths
from folkmoot.coordination.schemas.transaction import Transaction, transact
from folkmoot.coordination.zookeeper.operations import Check, Delete, Recipe, TooLarge
from folkmoot.coordination.zookeeper.recipes import children
from folkmoot.protocol import errors


def delete_version(
    name: SubjectName, version: int | Literal["latest"], *, permanent: bool = False
) -> Recipe[int]:
    """Delete one version, and return its number.

    Raises SubjectNotFound, VersionNotFound, VersionSoftDeleted, VersionNotSoftDeleted,
    ReferenceExists, OperationNotPermitted, Malformed.
    """

    def choose(subject: Subject) -> list[Version]:
        if not subject.versions:
            raise errors.SubjectNotFound(f"subject {name} does not exist")
        candidates = subject.versions if permanent else subject.live()
        if version != "latest":
            candidates = [each for each in subject.versions if each.version == version]
        if not candidates:
            raise errors.VersionNotFound(f"subject {name} has no version {version}")
        chosen = candidates[-1]
        what = f"version {chosen.version} of subject {name}"
        if chosen.deleted and not permanent:
            raise errors.VersionSoftDeleted(f"{what} was deleted before: delete it permanently")
        if permanent and not chosen.deleted:
            raise errors.VersionNotSoftDeleted(f"{what} must be deleted without permanent first")
        return [chosen]

    (number,) = yield from _delete(name, choose, permanent)
    return number


def delete_subject(name: SubjectName, *, permanent: bool = False) -> Recipe[list[int]]:
    """Delete all versions and the settings of a subject, and return the versions deleted now.

    Raises SubjectNotFound, SubjectSoftDeleted, SubjectNotSoftDeleted, ReferenceExists,
    OperationNotPermitted, Malformed.
    """

    def choose(subject: Subject) -> list[Version]:
        live = subject.live()
        if not subject.versions:
            raise errors.SubjectNotFound(f"subject {name} does not exist")
        if permanent and live:
            raise errors.SubjectNotSoftDeleted(
                f"subject {name} must be deleted without permanent first"
            )
        if not permanent and not live:
            raise errors.SubjectSoftDeleted(
                f"subject {name} was deleted before: delete it permanently"
            )
        return list(subject.versions) if permanent else live

    return (yield from _delete(name, choose, permanent, with_settings=True))


def _delete(
    name: SubjectName,
    choose: Callable[[Subject], list[Version]],
    permanent: bool,
    *,
    with_settings: bool = False,
) -> Recipe[list[int]]:
    """Delete the versions that `choose` returns; with `with_settings` also the settings of the subject."""
    if not (yield from is_known(name.context)):
        raise errors.SubjectNotFound(f"subject {name} does not exist")
    path = paths.subject(name.context, name.name)
    chosen: list[Version] = []

    def decide(transaction: Transaction) -> Recipe[None]:
        subject = (yield from transaction.read(subject_decoder, path)) or Subject()
        if transaction.uncertain and chosen and not set(chosen) & set(subject.versions):
            return  # done, by the try without a reply or by another client
        chosen[:] = choose(subject)
        yield from settings.check_writable(transaction, name, subject)
        left = [each for each in subject.versions if each not in chosen]
        unused = {each.id for each in chosen} - {each.id for each in left}
        if not permanent:
            left += [replace(each, deleted=True) for each in chosen]
        after = subject.with_versions(left)
        if with_settings:
            after = replace(after, compatibility=None, mode=None)
        transaction.put(path, encode(after))
        transaction.writes += listing_writes(name, subject, after)
        if permanent:
            uses = [paths.schema_use(name.context, each, name.name) for each in sorted(unused)]
            transaction.writes += map(Delete, uses)
        else:
            yield from _forget_references(transaction, name, chosen)

    try:
        yield from transact(decide)
    except TooLarge as error:
        raise errors.OperationNotPermitted(
            f"subject {name} has more versions than can be deleted at once: delete them one by one "
            f"({error})"
        ) from None
    return [each.version for each in chosen]


def _forget_references(
    transaction: Transaction, name: SubjectName, versions: list[Version]
) -> Recipe[None]:
    """Remove the references of these versions. Raises ReferenceExists if one is referred to itself."""
    own: set[str] = set()
    for version in versions:
        if version.refers:
            content = yield from content_of(name.context, version.id)
            if content is not None:
                own.update(reference_paths(name, version, content.references))
    path = paths.subject(name.context, name.name)
    # After the subject's node was read: later references write that node.
    numbers = {str(each.version) for each in versions}
    for child in sorted((yield from children(path))):
        version_referred_to = child.partition("-")[0]
        if version_referred_to in numbers and f"{path}/{child}" not in own:
            transaction.checks.append(Check(f"{path}/{child}"))
            raise errors.ReferenceExists(
                f"version {version_referred_to} of subject {name} is referred to by the schema "
                f"with id {child.split('-')[1]}: delete that one first"
            )
    transaction.writes += map(Delete, sorted(own))
