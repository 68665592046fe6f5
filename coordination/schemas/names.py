"""Subjects and their contexts: `:.context:subject`, or `subject` in the default context."""

from msgspec import Struct

from folkmoot.protocol.errors import InvalidSubject

DEFAULT_CONTEXT = "."
MAX_CHARACTERS = 512


class SubjectName(Struct, frozen=True):
    """A subject in a context, "." or ".name"; without a `name` the context itself.

    Settings of the default context itself are global.
    """

    context: str
    name: str

    def __str__(self) -> str:
        return self.name if self.context == DEFAULT_CONTEXT else f":{self.context}:{self.name}"


GLOBAL = SubjectName(DEFAULT_CONTEXT, "")


def parse(subject: str, context: str = DEFAULT_CONTEXT) -> SubjectName:
    """Parse a subject's name; without a context it is in `context`. Raises InvalidSubject."""
    if not (len(subject) <= MAX_CHARACTERS and subject.isprintable()):
        raise _invalid(subject, "")
    name = subject
    if subject.startswith((":.", ":*:")):
        context, colon, name = subject[1:].partition(":")
        if not colon or context == "*":
            raise _invalid(subject, ", after its context, as in :.context:subject")
    return SubjectName(context, name)


def parse_subject(subject: str, context: str = DEFAULT_CONTEXT) -> SubjectName:
    """Parse a subject's name as `parse` does, but refuse a context alone."""
    name = parse(subject, context)
    if not name.name:
        raise _invalid(subject, "")
    return name


def context_of(subject: str | None) -> str:
    """Return the context of a subject, the default one for None. Raises InvalidSubject."""
    return DEFAULT_CONTEXT if subject is None else parse(subject).context


def _invalid(subject: str, more: str) -> InvalidSubject:
    return InvalidSubject(
        f"subject {subject[:80]!r} is not allowed: use 1 to {MAX_CHARACTERS} printable "
        f"characters{more}"
    )
