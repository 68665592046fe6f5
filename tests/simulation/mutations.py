"""Rules of the protocol taken away, one at a time: each must be missed by a check."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from folkmoot.consumers.assignors import next_plan as assignment
from folkmoot.consumers.group import member_state
from folkmoot.consumers.group.group_view import GroupView
from folkmoot.consumers.group.liveness import Liveness
from folkmoot.consumers.group.member_state import GroupMember
from folkmoot.consumers.group.owned_partitions import OwnedPartitions
from folkmoot.consumers.offsets.progress import Positions
from folkmoot.coordination import paths
from folkmoot.coordination.groups import group_deletion, membership, ownership, planning
from folkmoot.coordination.groups import offset_admin as resets
from folkmoot.coordination.groups.ownership import Claim, OffsetState
from folkmoot.coordination.groups.plan import Plan
from folkmoot.coordination.zookeeper.operations import (
    ANY_VERSION,
    Check,
    Delete,
    Multi,
    MultiFailed,
    Node,
    Operation,
    Recipe,
    Set,
    Write,
    ZooKeeperError,
)
from folkmoot.protocol.records import TopicPartition
from tests.simulation.application import Application, Reading

Change = Callable[[Multi], tuple[Write, ...]]


def _rewritten(recipe: Recipe[Any], change: Change) -> Recipe[Any]:
    """The recipe with other transactions. Writes that are added at the end are hidden from it."""
    try:
        operation = next(recipe)
        while True:
            sent: Operation = operation
            if isinstance(operation, Multi):
                sent = Multi(change(operation))
            try:
                result = yield sent
            except MultiFailed as refusal:
                assert isinstance(operation, Multi)
                failed = min(refusal.failed, len(operation.writes) - 1)
                operation = recipe.throw(MultiFailed(failed, refusal.cause))
            except ZooKeeperError as error:
                operation = recipe.throw(error)
            else:
                shown = result[: len(operation.writes)] if isinstance(operation, Multi) else result
                operation = recipe.send(shown)
    except StopIteration as stop:
        return stop.value


def _each(change: Callable[[Write], Write]) -> Change:
    return lambda multi: tuple(change(write) for write in multi.writes)


def _no_condition(write: Write) -> Write:
    """Neither the version nor, as a second fence, that the writer is a member."""
    return Check(paths.GROUPS, ANY_VERSION) if isinstance(write, Check) else _any_version(write)


def _any_version(write: Write) -> Write:
    return msgspec.structs.replace(write, version=ANY_VERSION) if isinstance(write, Set) else write


def _any_plan_version(write: Write) -> Write:
    return Check(write.path, ANY_VERSION) if isinstance(write, Check) else write


def _only_look_at_the_offset(write: Write) -> Write:
    return Check(write.path, write.version) if isinstance(write, Set) else write


def _no_member(write: Write) -> Write:
    return Check(paths.GROUPS, ANY_VERSION) if isinstance(write, Check) else write


def _with_a_check_of_the_owner(multi: Multi) -> tuple[Write, ...]:
    """The obvious fence, and why it is none: a node deleted and created again has version 0 again."""
    sets = [write for write in multi.writes if isinstance(write, Set)]
    checks = (Check(write.path.replace("/offsets/", "/owners/"), 0) for write in sets)
    return (*_each(_no_condition)(multi), *checks)


def _delete_without_fence(multi: Multi) -> tuple[Write, ...]:
    return tuple(
        write if isinstance(write, Delete) else Check(paths.GROUPS, ANY_VERSION)
        for write in multi.writes
    )


def _change_verb(patch: pytest.MonkeyPatch, name: str, change: Change) -> None:
    original = getattr(ownership, name)

    def changed(*given: Any, **options: Any) -> Recipe[Any]:
        recipe = original(*given, **options)
        return recipe if options else _rewritten(recipe, change)  # a release is a commit with one

    patch.setattr(ownership, name, changed)


def _commit_unconditionally(patch: pytest.MonkeyPatch) -> None:
    _change_verb(patch, "commit", _each(_no_condition))


def _commit_without_the_own_node(patch: pytest.MonkeyPatch) -> None:
    """The fence of a group that was deleted, and made anew, comes to the same version again."""
    _change_verb(patch, "commit", _each(_no_member))


def _plan_without_the_own_node(patch: pytest.MonkeyPatch) -> None:
    """So do the versions of its plan."""
    write = planning.write
    patch.setattr(planning, "write", lambda *given: _rewritten(write(*given), _each(_no_member)))


def _commit_by_a_check_of_the_owner(patch: pytest.MonkeyPatch) -> None:
    _change_verb(patch, "commit", _with_a_check_of_the_owner)


def _claim_without_the_plan(patch: pytest.MonkeyPatch) -> None:
    _change_verb(patch, "claim", _each(_any_plan_version))


def _read_the_offset_before_the_claim(patch: pytest.MonkeyPatch) -> None:
    _change_verb(patch, "claim", _each(_any_version))


def _claim_without_moving_the_fence(patch: pytest.MonkeyPatch) -> None:
    _change_verb(patch, "claim", _each(_only_look_at_the_offset))


def _release_unconditionally(patch: pytest.MonkeyPatch) -> None:
    _change_verb(patch, "release", _delete_without_fence)


def _reset_without_an_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(resets, "next_epoch", lambda state, _: state.epoch)


def _do_not_tell_the_owner_of_a_reset(patch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object) -> Recipe[None]:
        yield from ()

    patch.setattr(resets, "owner_of", nobody)


def _delete_offsets_under_members_feet(patch: pytest.MonkeyPatch) -> None:
    """A claim that has read an offset would meet the next one in its place, at the same version."""
    delete = group_deletion.delete

    def change(multi: Multi) -> tuple[Write, ...]:
        return tuple(
            write
            if isinstance(write, Set) or "/offsets/" in write.path or "/owners/" in write.path
            else Check(paths.GROUPS, ANY_VERSION)
            for write in multi.writes
        )

    patch.setattr(group_deletion, "delete", lambda *given: _rewritten(delete(*given), change))


def _do_not_watch_the_own_node(patch: pytest.MonkeyPatch) -> None:
    def always(*_: object) -> Recipe[bool]:
        yield from ()
        return True

    patch.setattr(ownership, "verify", always)


def _take_a_lost_reply_for_success(patch: pytest.MonkeyPatch) -> None:
    def is_done(part: Any, _refused: object) -> Recipe[None]:
        yield from ()
        part.answer = Claim(part.state, part.version)

    patch.setattr(ownership._Part, "look", is_done)


def _commit_under_whatever_epoch_is_held(patch: pytest.MonkeyPatch) -> None:
    original = OwnedPartitions.commit

    def commit(
        self: OwnedPartitions, token: int, offsets: Mapping[Any, tuple[int, int]], metadata: Any
    ) -> None:
        held = {each: owned.claim.state.epoch for each, owned in self._owned.items()}
        given = {each: (held.get(each, epoch), at) for each, (epoch, at) in offsets.items()}
        original(self, token, given, metadata)

    patch.setattr(OwnedPartitions, "commit", commit)


def _release_while_a_commit_is_under_way(patch: pytest.MonkeyPatch) -> None:
    original = OwnedPartitions.release_drained

    def release(self: OwnedPartitions) -> dict[Any, Any]:
        committing, self._committing = self._committing, None
        due = original(self)
        self._committing = committing
        return due

    patch.setattr(OwnedPartitions, "release_drained", release)


def _claim_without_the_own_node(patch: pytest.MonkeyPatch) -> None:
    """Whoever was removed could steal back what another process has taken in its seat."""

    def change(multi: Multi) -> tuple[Write, ...]:
        always = Check(paths.GROUPS, ANY_VERSION)
        return tuple(always if "/ids/" in write.path else write for write in multi.writes)

    _change_verb(patch, "claim", change)


def _take_an_old_topics_offset_for_the_new_ones(patch: pytest.MonkeyPatch) -> None:
    original = ownership.state_of

    def state(path: str, node: Node) -> OffsetState:
        return msgspec.structs.replace(original(path, node), topic_id="")

    patch.setattr(ownership, "state_of", state)


def _steal_without_waiting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupMember, "_is_ours", lambda self, owner: True)


def _do_not_wait_for_static_members(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupView, "expired", lambda self, now: set(self._away))


def _give_away_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    original = assignment._input

    def given(snapshot: Any, topics: Any, previous: Any, kept: Any) -> Any:
        return original(snapshot, topics, previous, {})

    patch.setattr(assignment, "_input", given)


def _come_back_when_replaced(patch: pytest.MonkeyPatch) -> None:
    """Two processes with one id drive each other out for ever."""
    join = membership.join_as_static
    patch.setattr(
        membership,
        "join_as_static",
        lambda group, instance_id, nonce, info, last: join(group, instance_id, nonce, info, None),
    )
    patch.setattr(GroupMember, "_replaced", lambda self: self._removed("replaced"))


def _plan_in_the_newest_kind_one_knows(patch: pytest.MonkeyPatch) -> None:
    def next_plan(snapshot: Any, mine: Any, understands: int) -> Any:
        plan = assignment.next_plan(snapshot, mine, understands)
        return None if plan is None else msgspec.structs.replace(plan, protocol=understands)

    patch.setattr(member_state, "next_plan", next_plan)


def _start_what_appears_where_the_policy_says(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Plan, "start_of", lambda self, partition: None)


def _read_what_was_there_before_the_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Plan, "start_of", lambda self, partition: 0)


def _forget_what_the_group_began_with(patch: pytest.MonkeyPatch) -> None:
    """What was added belongs to what it began with, then."""
    patch.setattr(assignment, "_initial_topics", lambda current, topics: dict(topics))


def _forget_what_nobody_subscribes_to_any_more(patch: pytest.MonkeyPatch) -> None:
    subscribed = assignment._subscribed
    patch.setattr(assignment, "_subscribed", lambda current, members: subscribed(Plan(), members))


def _process_before_the_start_is_committed(patch: pytest.MonkeyPatch) -> None:
    """Whoever is next looks up another end."""

    def keep(self: Application, partition: TopicPartition, reading: Reading, start: int) -> None:
        reading.position = start

    patch.setattr(Application, "commit_start", keep)


def _let_an_application_stay_away(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "misses", lambda self, now: None)
    patch.setattr(Liveness, "absence_at", lambda self: float("inf"))


def _never_go_back_to_what_a_log_has(patch: pytest.MonkeyPatch) -> None:
    """What is read of it is never committed, and is read again by whoever comes next."""
    patch.setattr(
        Positions, "cut", lambda self, partition, end, parts_at=None: self.forget(partition)
    )


MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    function.__name__.strip("_").replace("_", " "): function
    for function in (
        _commit_unconditionally,
        _commit_by_a_check_of_the_owner,
        _commit_without_the_own_node,
        _plan_without_the_own_node,
        _claim_without_the_plan,
        _read_the_offset_before_the_claim,
        _claim_without_moving_the_fence,
        _release_unconditionally,
        _reset_without_an_epoch,
        _do_not_tell_the_owner_of_a_reset,
        _delete_offsets_under_members_feet,
        _do_not_watch_the_own_node,
        _take_a_lost_reply_for_success,
        _commit_under_whatever_epoch_is_held,
        _release_while_a_commit_is_under_way,
        _claim_without_the_own_node,
        _take_an_old_topics_offset_for_the_new_ones,
        _steal_without_waiting,
        _do_not_wait_for_static_members,
        _give_away_what_is_kept,
        _come_back_when_replaced,
        _plan_in_the_newest_kind_one_knows,
        _let_an_application_stay_away,
        _start_what_appears_where_the_policy_says,
        _read_what_was_there_before_the_group,
        _forget_what_the_group_began_with,
        _forget_what_nobody_subscribes_to_any_more,
        _process_before_the_start_is_committed,
        _never_go_back_to_what_a_log_has,
    )
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        MUTATIONS[name](patch)
        yield
