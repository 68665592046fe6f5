"""Compatibility levels and modes of subjects, of contexts, and globally.

In force is the subject's own one, else its context's, else the global one, else BACKWARD and READWRITE.
"""

from typing import Literal

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.schemas import nodes
from folkmoot.coordination.schemas.lookups import sync
from folkmoot.coordination.schemas.names import GLOBAL, SubjectName
from folkmoot.coordination.schemas.nodes import Settings, Subject
from folkmoot.coordination.schemas.transaction import Transaction, transact
from folkmoot.coordination.zookeeper.operations import Check, Create, Delete, Exists, Recipe
from folkmoot.coordination.zookeeper.recipes import (
    children,
    ensure,
    retry_on_connection_loss,
)
from folkmoot.protocol import errors

Setting = Literal["compatibility", "mode"]

MODES = ("READWRITE", "READONLY", "IMPORT")
DEFAULTS: dict[Setting, str] = {"compatibility": "BACKWARD", "mode": "READWRITE"}


def create_parents(context: str) -> Recipe[None]:
    """Create the nodes of a context, the counter last."""
    if (yield from retry_on_connection_loss(Exists(paths.schema_counter(context)))) is not None:
        return
    yield from ensure(paths.SCHEMA_SETTINGS, nodes.encode(Settings()))
    yield from ensure(paths.schema_context(context), nodes.encode(Settings()))
    for parent in ("ids", "guids", "subjects", paths.LIVE_SUBJECTS, paths.DELETED_SUBJECTS):
        yield from ensure(f"{paths.schema_context(context)}/{parent}")
    yield from ensure(paths.schema_counter(context), nodes.encode(nodes.Counter(0)))


def in_force(
    transaction: Transaction, setting: Setting, name: SubjectName, own: Settings
) -> Recipe[str]:
    """Return the level or mode in force for `name`, whose own settings are `own`. Raises Malformed."""
    found: str | None = getattr(own, setting)
    for path in _above(name):
        if found is None:
            above = yield from transaction.read(nodes.settings_decoder, path)
            found = getattr(above, setting, None)
    return found or DEFAULTS[setting]


def check_writable(transaction: Transaction, name: SubjectName, own: Settings) -> Recipe[str]:
    """Return the mode in force. Raises OperationNotPermitted in mode READONLY, Malformed."""
    mode = yield from in_force(transaction, "mode", name, own)
    if mode == "READONLY":
        raise errors.OperationNotPermitted(f"{_called(name)} is in mode READONLY")
    return mode


def get(setting: Setting, name: SubjectName, default_to_global: bool) -> Recipe[str]:
    """Return the own setting of `name`, or with `default_to_global` the one in force.

    Raises NoSubjectCompatibility, NoSubjectMode, Malformed.
    """
    yield from sync()
    reading = Transaction()
    own = (yield from reading.read(*_node(name))) or Settings()
    if getattr(own, setting) is None and name != GLOBAL and not default_to_global:
        raise _missing(setting, name)
    return (yield from in_force(reading, setting, name, own))


def put(
    setting: Setting, value: str | None, name: SubjectName, *, force: bool = False
) -> Recipe[str]:
    """Set a level or mode, or delete it (None), and return the one before.

    `force` permits IMPORT where there are schemas. Raises NoSubjectCompatibility, NoSubjectMode,
    OperationNotPermitted, Malformed.
    """
    yield from create_parents(name.context)
    decoder, path = _node(name)
    before: str | None = None

    def decide(transaction: Transaction) -> Recipe[None]:
        nonlocal before
        found = yield from transaction.read(decoder, path)
        own = found or (Subject() if name.name else Settings())
        if transaction.uncertain and getattr(own, setting) == value:
            return  # done, by the try without a reply or by another client
        before = getattr(own, setting)
        if before is None and value is None and name != GLOBAL:
            raise _missing(setting, name)
        if setting == "compatibility":
            yield from check_writable(transaction, name, own)
        if getattr(own, setting) != value:
            if value == "IMPORT" and not force:
                yield from _check_empty(transaction, name, own)
            transaction.put(path, nodes.encode(msgspec.structs.replace(own, **{setting: value})))

    yield from transact(decide)
    return before or DEFAULTS[setting]


def _check_empty(transaction: Transaction, name: SubjectName, own: Settings) -> Recipe[None]:
    """Raises OperationNotPermitted if there are schemas that imported ones may contradict."""
    used = isinstance(own, Subject) and bool(own.live())
    if not name.name:
        contexts = [paths.quoted(name.context)]
        if name == GLOBAL:
            contexts = yield from children(paths.SCHEMA_CONTEXTS)
        for context in contexts:
            live = f"{paths.SCHEMA_CONTEXTS}/{context}/{paths.LIVE_SUBJECTS}"
            for subject in (yield from children(live))[:1]:
                used = True
                transaction.checks.append(Check(f"{live}/{subject}"))
            # ZooKeeper deletes only empty nodes.
            transaction.writes += (Delete(live), Create(live))
    if used:
        raise errors.OperationNotPermitted(
            f"{_called(name)} has schemas, which imported ones may contradict: "
            "delete them, or use force"
        )


def _node(name: SubjectName) -> tuple[msgspec.json.Decoder[Settings], str]:
    if name == GLOBAL:
        return nodes.settings_decoder, paths.SCHEMA_SETTINGS
    if not name.name:
        return nodes.settings_decoder, paths.schema_context(name.context)
    return nodes.subject_decoder, paths.subject(name.context, name.name)  # type: ignore[return-value]


def _above(name: SubjectName) -> list[str]:
    """Return the nodes that a name inherits settings from, the nearest first."""
    if name == GLOBAL:
        return []
    if not name.name or name.context == GLOBAL.context:
        return [paths.SCHEMA_SETTINGS]
    return [paths.schema_context(name.context), paths.SCHEMA_SETTINGS]


def _called(name: SubjectName) -> str:
    if name == GLOBAL:
        return "the registry"
    return f"subject {name}" if name.name else f"context {name.context}"


def _missing(
    setting: Setting, name: SubjectName
) -> errors.NoSubjectCompatibility | errors.NoSubjectMode:
    if setting == "mode":
        return errors.NoSubjectMode(f"{_called(name)} has no mode of its own")
    return errors.NoSubjectCompatibility(f"{_called(name)} has no compatibility level of its own")
