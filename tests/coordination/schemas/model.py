"""The registry as it would be in the memory of one process, without faults: what recipes have to equal."""

from dataclasses import dataclass, field
from typing import Any, Literal

from folkmoot.coordination.schemas.versions import Reference
from folkmoot.protocol import errors
from tests.coordination.schemas.drafts import fits

Place = tuple[str, str]
"""A context and a subject; without the subject the context itself, and (".", "") the whole registry."""

Identity = tuple[str, tuple[tuple[Reference, int], ...]]
"""A text, and what its references mean."""


@dataclass
class SubjectModel:
    versions: dict[int, tuple[int, bool]] = field(default_factory=dict)  # id, deleted
    set: dict[str, str] = field(default_factory=dict)

    def live(self) -> dict[int, int]:
        return {v: number for v, (number, deleted) in sorted(self.versions.items()) if not deleted}


class Model:
    def __init__(self) -> None:
        self.subjects: dict[Place, SubjectModel] = {}
        self.set: dict[Place, dict[str, str]] = {}
        self.ids: dict[str, dict[int, Identity]] = {}
        self.last: dict[str, int] = {}

    def apply(self, what: str, *args: Any) -> Any:
        """What the operation returns, or the class of the error that it raises, which changes nothing."""
        try:
            return getattr(self, what)(*args)
        except errors.RegistryError as error:
            return type(error)

    def register(
        self,
        place: Place,
        text: str,
        references: tuple[Reference, ...] = (),
        number: int | None = None,
        version: int | None = None,
    ) -> tuple[int, int]:
        subject = self._subject(place)
        identity = text, tuple((each, self._referred(place, each)) for each in references)
        ids = self.ids.setdefault(place[0], {})
        known = next((id for id, each in ids.items() if each == identity), None)
        if known is not None and number in (None, known):
            same = [v for v, id in subject.live().items() if id == known and version in (None, v)]
            if same:
                return same[-1], known
        mode = self._writable(place)
        if mode == "IMPORT" and number is None:
            raise errors.OperationNotPermitted
        if mode != "IMPORT":
            if number is not None or version is not None:
                raise errors.OperationNotPermitted
            before = [ids[id][0] for id in subject.live().values()]
            if not fits(self.in_force("compatibility", place), text, before):
                raise errors.IncompatibleSchema("no")
        if number is not None and (known or number) != number:
            raise errors.OperationNotPermitted
        if known is None and number in ids:
            raise errors.OperationNotPermitted
        following = version or max(subject.versions, default=0) + 1
        if following in subject.versions:
            raise errors.OperationNotPermitted
        id = known or number or self.last.get(place[0], 0) + 1
        self.last[place[0]] = max(self.last.get(place[0], 0), id)
        ids[id] = identity
        subject.versions[following] = id, False
        return following, id

    def delete_version(
        self, place: Place, version: int | Literal["latest"], permanent: bool
    ) -> int:
        subject = self._subject(place)
        if not subject.versions:
            raise errors.SubjectNotFound
        candidates = list(sorted(subject.versions) if permanent else subject.live())
        if version == "latest" and candidates:
            version = candidates[-1]
        if version == "latest" or version not in subject.versions:
            raise errors.VersionNotFound
        deleted = subject.versions[version][1]
        if deleted and not permanent:
            raise errors.VersionSoftDeleted
        if permanent and not deleted:
            raise errors.VersionNotSoftDeleted
        self._delete(place, [version], permanent)
        return version

    def delete_subject(self, place: Place, permanent: bool) -> list[int]:
        subject = self._subject(place)
        if not subject.versions:
            raise errors.SubjectNotFound
        if permanent and subject.live():
            raise errors.SubjectNotSoftDeleted
        if not permanent and not subject.live():
            raise errors.SubjectSoftDeleted
        chosen = sorted(subject.versions) if permanent else list(subject.live())
        self._delete(place, chosen, permanent)
        subject.set.clear()
        return chosen

    def put(self, setting: str, value: str | None, place: Place, force: bool) -> str:
        own = self._subject(place).set if place[1] else self.set.setdefault(place, {})
        before = own.get(setting)
        if before is None and value is None and place != (".", ""):
            raise errors.NoSubjectMode if setting == "mode" else errors.NoSubjectCompatibility
        if setting == "compatibility":
            self._writable(place)
        if value == "IMPORT" and before != value and not force:
            mine = [
                each
                for at, each in self.subjects.items()
                if at == place or (not place[1] and place[0] in (".", at[0]))
            ]
            if any(each.live() for each in mine):
                raise errors.OperationNotPermitted
        if value is None:
            own.pop(setting, None)
        else:
            own[setting] = value
        return before or {"mode": "READWRITE", "compatibility": "BACKWARD"}[setting]

    def in_force(self, setting: str, place: Place) -> str:
        chain = [self._subject(place).set] if place[1] else []
        chain += [self.set.get((place[0], ""), {}), self.set.get((".", ""), {})]
        default = {"mode": "READWRITE", "compatibility": "BACKWARD"}[setting]
        return next((each[setting] for each in chain if setting in each), default)

    def referrers(self, place: Place, version: int) -> list[tuple[Place, int]]:
        """The live versions that refer to one."""
        return [
            (at, v)
            for at, subject in self.subjects.items()
            for v, id in subject.live().items()
            for reference, _ in self.ids[at[0]][id][1]
            if ((at[0], reference.subject), reference.version) == (place, version)
        ]

    def _subject(self, place: Place) -> SubjectModel:
        return self.subjects.setdefault(place, SubjectModel())

    def _referred(self, place: Place, reference: Reference) -> int:
        live = self._subject((place[0], reference.subject)).live()
        if reference.version not in live:
            raise errors.InvalidSchema
        return live[reference.version]

    def _writable(self, place: Place) -> str:
        mode = self.in_force("mode", place)
        if mode == "READONLY":
            raise errors.OperationNotPermitted
        return mode

    def _delete(self, place: Place, chosen: list[int], permanent: bool) -> None:
        self._writable(place)
        versions = self._subject(place).versions
        for version in chosen:
            leaving = {(place, each) for each in chosen}
            if not permanent and set(self.referrers(place, version)) - leaving:
                raise errors.ReferenceExists
        for version in chosen:
            if permanent:
                del versions[version]
            else:
                versions[version] = versions[version][0], True
