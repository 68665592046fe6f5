"""Random histories: many clients whose requests, replies, sessions and lives are lost, against the model.

One thread takes the steps of all, in an order that follows from the seed, so a history can be had again.
What a transaction writes takes effect when it is executed; that is when the model is asked the same.
"""

import random
from collections import Counter
from copy import deepcopy
from typing import Any, Final

from folkmoot.coordination import paths
from folkmoot.coordination.schemas import deletion, settings
from folkmoot.coordination.schemas.names import SubjectName
from folkmoot.coordination.schemas.nodes import (
    content_decoder,
    counter_decoder,
    number_decoder,
    settings_decoder,
    subject_decoder,
)
from folkmoot.coordination.schemas.registering import reference_paths, register
from folkmoot.coordination.schemas.versions import Reference
from folkmoot.coordination.zookeeper.execute import advance, execute
from folkmoot.coordination.zookeeper.operations import (
    Check,
    ConnectionLost,
    Create,
    Delete,
    Multi,
    Operation,
    Recipe,
    ZooKeeperError,
)
from folkmoot.coordination.zookeeper.session import Outcome
from folkmoot.protocol.errors import RegistryError
from tests.coordination.schemas.drafts import TextDraft
from tests.coordination.schemas.model import Model
from tests.memory_zookeeper import MemoryZooKeeper

TEXTS: Final = [f"{letters}.{n}" for letters in ("a", "ab", "ac", "abc", "d") for n in range(3)]
SUBJECTS: Final = ["s", "t", "u"]
CONTEXTS: Final = [".", ".", ".c"]
LEVELS: Final = ["NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL"]
AT_ONCE: Final = 6
STEPS: Final = 400

Call = tuple[str, tuple[Any, ...]]
"""What is asked of registry and model."""


class Client:
    """One call under way. `due`: what the model says to it, as of its last transaction."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.recipe = recipe_of(call)
        self.operation: Operation = next(self.recipe)
        self.due: Any = None
        self.has_written = False
        self.is_uncertain = False


class History:
    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._ensemble = MemoryZooKeeper(clock=lambda: 0.0)
        self._session = self._ensemble.connect()
        self.model = Model()
        self.seen: Counter[str] = Counter()
        self._writer: Client | None = None

    def run(self) -> None:
        clients: list[Client] = []
        for _ in range(STEPS):
            while len(clients) < AT_ONCE:
                clients.append(Client(self._call()))
            client = self._chance.choice(clients)
            if not self._step(client):
                clients.remove(client)
        check_tree(self._ensemble, self.model)

    def _step(self, client: Client) -> bool:
        """One operation, perhaps lost on its way or back. False: the call is over, or its process."""
        fate = self._chance.random()
        error: ZooKeeperError | None = None
        result: Any = None
        try:
            if fate < 0.03:
                client.is_uncertain |= is_write(client.operation)
                raise ConnectionLost("lost on the way there")
            result = self._execute(client)
            if fate > 0.97:
                client.is_uncertain |= is_write(client.operation)
                raise ConnectionLost("lost on the way back")
        except ZooKeeperError as raised:
            error = raised
        if 0.5 < fate < 0.505:
            client.recipe.close()
            self.seen["deaths"] += 1
            return False
        try:
            client.operation = advance(client.recipe, Outcome(result, error))
        except StopIteration as stop:
            self._compare(client, answer_of(stop.value))
            return False
        except RegistryError as refusal:
            self._compare(client, type(refusal))
            return False
        return True

    def _execute(self, client: Client) -> Any:
        result = execute(self._session, client.operation)
        if isinstance(client.operation, Multi):
            what, args = client.call
            if is_write(client.operation):
                # A reply was lost, and what had been done was undone before it was looked for.
                assert not client.has_written or self._writer is not client, client.call
                self._writer = client
                client.has_written = True
                client.due = self.model.apply(what, *args)
                self.seen["writes"] += 1
            elif not client.has_written:
                # What only checks is to change nothing in the model either, unless it takes for its
                # own work what somebody else has done after a write of its own got lost.
                model = deepcopy(self.model) if client.is_uncertain else self.model
                client.due = model.apply(what, *args)
        return result

    def _compare(self, client: Client, answer: Any) -> None:
        if client.due is not None and not self._is_unknown(client):
            assert answer == client.due, f"{client.call}: {answer}, the model says {client.due}"
        self.seen[answer.__name__ if isinstance(answer, type) else client.call[0]] += 1

    def _is_unknown(self, client: Client) -> bool:
        """Whether the client cannot know, after a lost reply, what it was that others have undone or done."""
        if not client.is_uncertain or self._writer is client:
            return False
        return client.has_written or client.call[0] != "register"

    def _call(self) -> Call:
        chance = self._chance
        place = chance.choice(CONTEXTS), chance.choice(SUBJECTS)
        match chance.randrange(10):
            case 0:
                return "delete_subject", (place, chance.random() < 0.5)
            case 1 | 2:
                version = chance.choice((1, 2, 3, "latest"))
                return "delete_version", (place, version, chance.random() < 0.4)
            case 3:
                at = chance.choice((place, (place[0], ""), (".", "")))
                if chance.random() < 0.6:
                    return "put", ("compatibility", chance.choice((*LEVELS, None)), at, False)
                modes = ("READWRITE", "READONLY", "IMPORT", None, None, None)
                return "put", ("mode", chance.choice(modes), at, chance.random() < 0.5)
            case 4:
                imported = chance.randrange(1, 30), chance.choice((None, 1, 2, 9))
                return "register", (place, chance.choice(TEXTS), (), *imported)
            case 5 | 6:
                reference = Reference("r", chance.choice(SUBJECTS), chance.choice((1, 1, 2, 3)))
                return "register", (place, chance.choice(TEXTS), (reference,))
            case _:
                return "register", (place, chance.choice(TEXTS))


def recipe_of(call: Call) -> Recipe[Any]:
    what, args = call
    if what == "register":
        place, text, *more = args
        draft = TextDraft(text, more[0] if more else (), place[0])
        number, version = more[1:] or (None, None)
        return register(SubjectName(*place), draft, number=number, version=version)
    if what == "put":
        setting, value, place, force = args
        return settings.put(setting, value, SubjectName(*place), force=force)
    if what == "delete_version":
        place, version, permanent = args
        return deletion.delete_version(SubjectName(*place), version, permanent=permanent)
    place, permanent = args
    return deletion.delete_subject(SubjectName(*place), permanent=permanent)


def answer_of(returned: Any) -> Any:
    if isinstance(returned, tuple):  # of register
        return returned[0].version, returned[0].id
    return returned


def is_write(multi: Operation) -> bool:
    """Whether it is a transaction that leaves anything behind, besides what it only looks for."""
    if not isinstance(multi, Multi):
        return False
    left: Counter[str] = Counter()
    for write in multi.writes:
        if isinstance(write, Create):
            left[write.path] += 1
        elif isinstance(write, Delete):
            left[write.path] -= 1
        elif not isinstance(write, Check):
            return True
    return any(left.values())


def check_tree(ensemble: MemoryZooKeeper, model: Model) -> None:
    """That the nodes say what the model does, each of them, and nothing else."""
    tree = ensemble.snapshot()
    data = {path: node.data for path, node in tree.items()}

    def below(path: str) -> set[str]:
        return {each for each in tree if each.startswith(f"{path}/")}

    for context in {at for at, _ in model.subjects} | set(model.ids):
        base = paths.schema_context(context)
        if base not in tree:
            assert not model.ids.get(context)
            continue
        ids = model.ids.get(context, {})
        assert counter_decoder.decode(data[f"{base}/counter"]).last == model.last.get(context, 0)
        expected = {paths.schema_id(context, id) for id in ids}
        contents = {}
        for id, (text, references) in ids.items():
            contents[id] = content = content_decoder.decode(data[paths.schema_id(context, id)])
            assert content.schema == text
            assert [each.id for each in content.references] == [number for _, number in references]
            known = number_decoder.decode(data[paths.schema_guid(context, content.guid)])
            assert known.id == id
        assert len(below(f"{base}/guids")) == len(ids)
        listed: dict[str, set[str]] = {"live": set(), "deleted": set()}
        nodes = set()
        for (at, name), subject in model.subjects.items():
            path = paths.subject(context, name)
            if at != context or path not in tree:
                assert at != context or not subject.versions
                continue
            found = subject_decoder.decode(data[path])
            nodes.add(path)
            versions = {each.version: (each.id, each.deleted) for each in found.versions}
            assert list(versions) == sorted(subject.versions)
            assert versions == subject.versions, f"{path}: {versions} {subject.versions}"
            for setting in ("mode", "compatibility"):
                assert getattr(found, setting) == subject.set.get(setting)
            expected |= {paths.schema_use(context, id, name) for id, _ in versions.values()}
            for version in found.versions:
                content = contents[version.id]
                assert version.refers == bool(content.references)
                if not version.deleted:
                    nodes.update(
                        reference_paths(SubjectName(at, name), version, content.references)
                    )
            if versions:
                kind = "live" if subject.live() else "deleted"
                listed[kind].add(f"{base}/{kind}/{paths.quoted(name)}")
        assert below(f"{base}/ids") == expected
        assert below(f"{base}/subjects") == nodes | {
            each for each in tree if each in nodes or _is_empty_subject(each, base, data)
        }
        for kind, names in listed.items():
            assert below(f"{base}/{kind}") == names
    for (context, _), values in model.set.items():
        path = paths.SCHEMA_SETTINGS if context == "." else paths.schema_context(context)
        if path in tree:
            set_there = settings_decoder.decode(data[path])
            assert (set_there.compatibility, set_there.mode) == (
                values.get("compatibility"),
                values.get("mode"),
            )


def _is_empty_subject(path: str, base: str, data: dict[str, bytes]) -> bool:
    """One that somebody has referred to, or set something for and taken back."""
    return path.startswith(f"{base}/subjects/") and data[path] == b"{}"
