"""Looks at every state that a model can reach, or walks through it at random where there are too many."""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Generic, Protocol, TypeVar

from tests.models.group_model import GroupModel
from tests.models.group_state import State

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class Broken(AssertionError):
    """A promise does not hold; the message has the shortest way there."""


class StepTo(Protocol[S_co]):
    """Something that can happen, what it leads to, and what it breaks."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> S_co: ...
    @property
    def violation(self) -> str | None: ...


class Model(Protocol[S]):
    """Where it begins, what can happen in a state, and what is wrong with one."""

    def initial(self) -> S: ...
    def steps(self, state: S) -> Iterator[StepTo[S]]: ...
    def violation(self, state: S) -> str | None: ...


@dataclass
class Explored(Generic[S]):
    """`ways` has each state with the step and the state that first led to it."""

    ways: dict[S, tuple[S, str] | None] = field(default_factory=dict)
    transitions: int = 0
    steps: Counter[str] = field(default_factory=Counter)

    def way_to(self, state: S) -> str:
        names = []
        way = self.ways[state]
        while way is not None:
            state, name = way
            names.append(name)
            way = self.ways[state]
        return " → ".join(reversed(names))


def explore(model: Model[S]) -> Explored[S]:
    """Every reachable state, nearest first. Raises Broken, with a shortest way."""
    first = model.initial()
    explored: Explored[S] = Explored({first: None})
    queue = deque([first])
    while queue:
        state = queue.popleft()
        for step in model.steps(state):
            explored.transitions += 1
            explored.steps[kind(step.name)] += 1
            is_new = step.state not in explored.ways
            if not is_new and step.violation is None:
                continue
            violation = step.violation or model.violation(step.state)
            if violation:
                raise Broken(f"{violation}: {explored.way_to(state)} → {step.name}")
            if is_new:
                explored.ways[step.state] = (state, step.name)
                queue.append(step.state)
    return explored


def longest_way_to_rest(model: GroupModel, explored: Explored[State]) -> int:
    """How many steps it takes at most, from any state, once faults end. Raises Broken.

    The graph of steps without faults must have no cycle, and every state without a next step must be
    at rest: then every order of steps, from every reachable state, ends at rest.
    """
    distance: dict[State, int] = {}
    longest = 0
    for root in explored.ways:
        if root not in distance:
            longest = max(longest, _descend(model, root, distance, explored))
    return longest


def _descend(
    model: GroupModel, root: State, distance: dict[State, int], explored: Explored[State]
) -> int:
    """Depth first, without recursion: a frame is a state, its next ones, and its longest way so far."""
    frames = [(root, iter(_next(model, root)), [0])]
    path = {root: ""}
    while frames:
        state, following, longest = frames[-1]
        name, after = next(following, ("", None))
        if after is None:
            if not longest[0] and not model.is_at_rest(state):
                raise Broken(
                    f"stuck, and not at rest: {explored.ways.get(state) and explored.way_to(state)}"
                )
            distance[state] = longest[0]
            frames.pop()
            del path[state]
            if frames:
                before = frames[-1][2]
                before[0] = max(before[0], longest[0] + 1)
        elif after in path:
            states = list(path)
            cycle = [path[each] for each in states[states.index(after) + 1 :]]
            raise Broken(f"goes round and round: {' → '.join([*cycle, name])}")
        elif after in distance:
            longest[0] = max(longest[0], distance[after] + 1)
        else:
            frames.append((after, iter(_next(model, after)), [0]))
            path[after] = name
    return distance[root]


def _next(model: GroupModel, state: State) -> list[tuple[str, State]]:
    steps = model.steps(state, faults=False, processing=False)
    return [(step.name, step.state) for step in steps if step.state != state]


def walk(model: GroupModel, random: Random, most: int) -> Counter[str]:
    """At most `most` steps at random, with faults, and then on without them until all is at rest.

    Returns how often each kind of step was taken. Raises Broken.
    """
    state = model.initial()
    taken: Counter[str] = Counter()
    names: list[str] = []
    for number in range(2 * most):
        faults = number < most
        steps = list(model.steps(state, faults=faults, processing=faults))
        if not steps:
            break
        step = random.choice(steps)
        names.append(step.name)
        taken[kind(step.name)] += 1
        violation = step.violation or model.violation(step.state)
        if violation:
            raise Broken(f"{violation}: {' → '.join(names)}")
        state = step.state
    if not model.is_at_rest(state):
        raise Broken(f"not at rest after {len(names)} steps: {' → '.join(names)}")
    return taken


def kind(name: str) -> str:
    """The step's name without the member and the partition."""
    return " ".join(word for word in name.split() if not word[0].isdigit())
