"""Deleting versions and subjects: softly first, then permanently.

A version that is softly deleted counts for nothing and can still be read; its number is not given
again. After a permanent deletion it is gone from its subject, and ids stay what they are for ever. What
live versions refer to is not deleted: those who refer and those who delete write the same node.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from folkmoot.coordination import paths
from folkmoot.coordination.schemas import settings
from folkmoot.coordination.schemas.lookups import content_of, is_known
from folkmoot.coordination.schemas.names import SubjectName
from folkmoot.coordination.schemas.nodes import Subject, Version, encode, subject_decoder
from folkmoot.coordination.schemas.registering import listing_writes, reference_paths
from folkmoot.coordination.schemas.transaction import Transaction, decided
from folkmoot.coordination.zookeeper.operations import Delete, Recipe, TooLarge
from folkmoot.coordination.zookeeper.recipes import children
from folkmoot.protocol.errors import (
    OperationNotPermitted,
    ReferenceExists,
    SubjectNotFound,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    VersionNotFound,
    VersionNotSoftDeleted,
    VersionSoftDeleted,
)


def delete_version(
    name: SubjectName, version: int | Literal["latest"], *, permanent: bool = False
) -> Recipe[int]:
    """Delete one version → its number.

    Raises SubjectNotFound, VersionNotFound, VersionSoftDeleted, VersionNotSoftDeleted,
    ReferenceExists, OperationNotPermitted, Malformed.
    """

    def choose(subject: Subject) -> list[Version]:
        if not subject.versions:
            raise SubjectNotFound(f"subject {name} does not exist")
        candidates = subject.versions if permanent else subject.live()
        if version != "latest":
            candidates = [each for each in subject.versions if each.version == version]
        if not candidates:
            raise VersionNotFound(f"subject {name} has no version {version}")
        chosen = candidates[-1]
        what = f"version {chosen.version} of subject {name}"
        if chosen.deleted and not permanent:
            raise VersionSoftDeleted(f"{what} was deleted before: delete it permanently")
        if permanent and not chosen.deleted:
            raise VersionNotSoftDeleted(f"{what} is to be deleted without permanent first")
        return [chosen]

    (number,) = yield from _delete(_Deletion(name, choose, permanent, whole=False))
    return number


def delete_subject(name: SubjectName, *, permanent: bool = False) -> Recipe[list[int]]:
    """Delete all versions, and what was set for the subject → the numbers of those deleted now.

    Raises SubjectNotFound, SubjectSoftDeleted, SubjectNotSoftDeleted, ReferenceExists,
    OperationNotPermitted, Malformed.
    """

    def choose(subject: Subject) -> list[Version]:
        live = subject.live()
        if not subject.versions:
            raise SubjectNotFound(f"subject {name} does not exist")
        if permanent and live:
            raise SubjectNotSoftDeleted(f"subject {name} is to be deleted without permanent first")
        if not permanent and not live:
            raise SubjectSoftDeleted(f"subject {name} was deleted before: delete it permanently")
        return list(subject.versions) if permanent else live

    return (yield from _delete(_Deletion(name, choose, permanent, whole=True)))


def _delete(deletion: "_Deletion") -> Recipe[list[int]]:
    if not (yield from is_known(deletion.name.context)):
        raise SubjectNotFound(f"subject {deletion.name} does not exist")
    try:
        return (yield from decided(deletion.decide))
    except TooLarge as error:
        raise OperationNotPermitted(
            f"subject {deletion.name} has more versions than can be deleted at once: delete them one "
            f"by one ({error})"
        ) from None


@dataclass
class _Deletion:
    """`choose` says which versions; `whole`: what was set for the subject goes with them."""

    name: SubjectName
    choose: Callable[[Subject], list[Version]]
    permanent: bool
    whole: bool
    chosen: list[Version] = field(default_factory=list)

    def decide(self, transaction: Transaction) -> Recipe[list[int]]:
        name = self.name
        path = paths.subject(name.context, name.name)
        subject = (yield from transaction.read(subject_decoder, path)) or Subject()
        if not (transaction.uncertain and self.chosen and self._is_done(subject)):
            self.chosen = self.choose(subject)
            yield from settings.check_writable(transaction, name, subject)
            after = self._without(subject)
            transaction.put(path, encode(after))
            transaction.writes += listing_writes(name, subject, after)
            if self.permanent:
                unused = {each.id for each in self.chosen} - {each.id for each in after.versions}
                uses = [paths.schema_use(name.context, each, name.name) for each in sorted(unused)]
                transaction.writes += map(Delete, uses)
            else:
                yield from self._forget_references(transaction)
        return [each.version for each in self.chosen]

    def _is_done(self, subject: Subject) -> bool:
        """By the try whose reply was lost, or by somebody else meanwhile."""
        return not set(self.chosen) & set(subject.versions)

    def _without(self, subject: Subject) -> Subject:
        left = [each for each in subject.versions if each not in self.chosen]
        if not self.permanent:
            left += [replace(each, deleted=True) for each in self.chosen]
        after = subject.with_versions(left)
        return replace(after, compatibility=None, mode=None) if self.whole else after

    def _forget_references(self, transaction: Transaction) -> Recipe[None]:
        """Those of the versions chosen; those to them must not be. Raises ReferenceExists."""
        name = self.name
        own: set[str] = set()
        for version in self.chosen:
            if version.refers:
                content = yield from content_of(name.context, version.id)
                if content is not None:
                    own.update(reference_paths(name, version, content.references))
        path = paths.subject(name.context, name.name)
        # After the subject's node was read: who refers later has written that.
        chosen = {str(each.version) for each in self.chosen}
        for child in sorted((yield from children(path))):
            version_referred_to = child.partition("-")[0]
            if version_referred_to in chosen and f"{path}/{child}" not in own:
                transaction.rely_on(f"{path}/{child}")
                raise ReferenceExists(
                    f"version {version_referred_to} of subject {name} is referred to by the schema "
                    f"with id {child.split('-')[1]}: delete that one first"
                )
        transaction.writes += map(Delete, sorted(own))
