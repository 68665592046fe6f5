"""Subjects and the contexts they lie in: `:.context:subject`, or `subject` in the default context."""

from msgspec import Struct

from folkmoot.protocol.errors import InvalidSubject

DEFAULT_CONTEXT = "."
MAX_CHARACTERS = 512


class SubjectName(Struct, frozen=True):
    """`context` is "." or ".name"; with `name` "" it is the context itself that is meant.

    What is set for the default context itself is set globally.
    """

    context: str
    name: str

    def __str__(self) -> str:
        return self.name if self.context == DEFAULT_CONTEXT else f":{self.context}:{self.name}"


GLOBAL = SubjectName(DEFAULT_CONTEXT, "")


def parse(subject: str, context: str = DEFAULT_CONTEXT) -> SubjectName:
    """What a subject's name means, where those without a context lie in `context`.

    Raises InvalidSubject.
    """
    if not (len(subject) <= MAX_CHARACTERS and subject.isprintable()):
        raise _invalid(subject, "")
    name = subject
    if subject.startswith((":.", ":*:")):
        context, colon, name = subject[1:].partition(":")
        if not colon or context == "*":
            raise _invalid(subject, ", after its context, as in :.context:subject")
    return SubjectName(context, name)


def parse_subject(subject: str, context: str = DEFAULT_CONTEXT) -> SubjectName:
    """As `parse`; a context alone is refused, too."""
    name = parse(subject, context)
    if not name.name:
        raise _invalid(subject, "")
    return name


def context_of(subject: str | None) -> str:
    """The context that a subject lies in; None: the default one. Raises InvalidSubject."""
    return DEFAULT_CONTEXT if subject is None else parse(subject).context


def _invalid(subject: str, more: str) -> InvalidSubject:
    return InvalidSubject(
        f"subject {subject[:80]!r} is not allowed: use 1 to {MAX_CHARACTERS} printable "
        f"characters{more}"
    )
