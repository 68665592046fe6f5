"""Schemas of tests: a text is a set of letters, and whoever has them all reads it."""

from collections.abc import Sequence
from hashlib import sha256

from folkmoot.coordination.schemas.lookups import content_of
from folkmoot.coordination.schemas.names import SubjectName
from folkmoot.coordination.schemas.nodes import Content, StoredReference
from folkmoot.coordination.schemas.versions import Reference
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.protocol.errors import IncompatibleSchema


def fits(level: str, new: str, previous: Sequence[str]) -> bool:
    """Whether a text may follow others. What stands behind a dot in it says nothing."""
    letters = set(new.partition(".")[0])
    for old in previous if level.endswith("_TRANSITIVE") else previous[-1:]:
        before = set(old.partition(".")[0])
        if level.startswith(("BACKWARD", "FULL")) and not letters >= before:
            return False
        if level.startswith(("FORWARD", "FULL")) and not letters <= before:
            return False
    return True


class TextDraft:
    """A draft of such a text."""

    def __init__(self, text: str, references: Sequence[Reference] = (), context: str = ".") -> None:
        self.text = text
        self.references = tuple(references)
        self._context = context

    def content(self, references: tuple[StoredReference, ...]) -> Recipe[Content]:
        yield from ()
        return Content(self.text, guid_of(self.text, references), references)

    def judge(self, level: str, previous: Sequence[int]) -> Recipe[None]:
        texts = []
        for number in previous:
            content = yield from content_of(self._context, number)
            assert content is not None
            texts.append(content.schema)
        if not fits(level, self.text, texts):
            raise IncompatibleSchema(f"{self.text} may not follow {texts} at {level}")

    def warn(self, subject: SubjectName, level: str, deleted: Sequence[int]) -> Recipe[None]:
        yield from ()


def guid_of(text: str, references: Sequence[StoredReference] = ()) -> str:
    return sha256(repr((text, sorted(map(repr, references)))).encode()).hexdigest()[:32]


def named(name: str, context: str = ".") -> SubjectName:
    return SubjectName(context, name)
