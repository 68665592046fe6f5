"""How a group stands in a tree: who is there, what is planned, what is owned, and whether that agrees."""

from functools import cached_property, lru_cache

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.groups import plan as plans
from folkmoot.coordination.groups.membership import MemberInfo, assignee
from folkmoot.coordination.groups.ownership import OffsetState, Owner
from folkmoot.coordination.groups.plan import Plan
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.records import TopicPartition
from tests.memory_zookeeper import Tree

GROUP = "g"
NEWEST = 99
"""Here every kind of plan that members make is understood."""
_IDS = paths.members(GROUP)

_state_of = msgspec.json.Decoder(OffsetState).decode
owner_of = msgspec.json.Decoder(Owner).decode
topic_of = lru_cache(maxsize=1000)(msgspec.json.Decoder(TopicInfo).decode)
info_of = lru_cache(maxsize=1000)(msgspec.json.Decoder(MemberInfo).decode)


def state_of(data: bytes) -> OffsetState:
    """An empty node was made for a first claim."""
    return _state_of(data) if data else OffsetState()


@lru_cache(maxsize=1000)
def _plan_of(data: bytes) -> Plan:
    return plans.decode(data, NEWEST)


def plan_in(tree: Tree) -> Plan:
    """The group's plan; an empty one if there is none."""
    node = tree.get(paths.plan(GROUP))
    return Plan() if node is None or not node.data else _plan_of(node.data)


def names_in(tree: Tree) -> frozenset[str]:
    """Who is a member."""
    node = tree.get(_IDS)
    return frozenset() if node is None else node.children


class Standing:
    """Each thing is found out when it is first asked for."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.plan = plan_in(tree)

    @cached_property
    def members(self) -> dict[str, MemberInfo]:
        """Who has a node."""
        return {name: info_of(self.tree[f"{_IDS}/{name}"].data) for name in names_in(self.tree)}

    @cached_property
    def topics(self) -> dict[str, TopicInfo]:
        """Those that exist."""
        names = self._below(paths.TOPICS)
        return {name: topic_of(self.tree[paths.topic(name)].data) for name in names}

    @cached_property
    def planned(self) -> dict[TopicPartition, str]:
        """Who shall own what."""
        return {
            TopicPartition(topic, number): owner
            for topic, owners in self.plan.assignment.items()
            for number, owner in enumerate(owners)
            if owner is not None
        }

    @cached_property
    def wanted(self) -> set[TopicPartition]:
        """What a live member wants to be read."""
        return {
            TopicPartition(name, number)
            for name, topic in self.topics.items()
            if any(each.wants(name) for each in self.members.values())
            for number in range(len(topic.partitions))
        }

    @cached_property
    def owners(self) -> dict[TopicPartition, Owner]:
        """Who owns what."""
        return {
            TopicPartition(topic, int(number)): owner_of(
                self.tree[paths.owner(GROUP, topic, int(number))].data
            )
            for topic in self._below(paths.all_owners(GROUP))
            for number in self._below(paths.owners(GROUP, topic))
        }

    @cached_property
    def shares(self) -> dict[str, dict[TopicPartition, tuple[int, str]]]:
        """What each seat owns: the epochs, and the ids of the topics that the plan is for."""
        shares: dict[str, dict[TopicPartition, tuple[int, str]]] = {}
        for partition, owner in self.owners.items():
            topic_id = self.plan.topics[partition.topic].topic_id
            shares.setdefault(owner.member, {})[partition] = owner.epoch, topic_id
        return shares

    @cached_property
    def trouble(self) -> str:
        """What is not as it should be when all is calm; nothing if all is well."""
        seats = {assignee(name) for name in self.members}
        if set(self.plan.members) != seats:
            return f"planned for {self.plan.members}, registered {seats}"
        for name, info in self.members.items():
            place = self.plan.static.get(assignee(name))
            planned = self.plan.subscriptions.get(assignee(name))
            if place is not None and (place.absent or planned != info.subscription()):
                return f"{name} was not there when it was planned for its seat: {place}"
        if self.planned.keys() != self.wanted:
            return f"planned {sorted(self.planned)}, wanted {sorted(self.wanted)}"
        made_anew = [
            topic
            for topic in sorted({each.topic for each in self.planned})
            if self.plan.topics[topic].topic_id != self.topics[topic].topic_id
        ]
        if made_anew:  # and whoever is to plan may have to find out by itself, its ring being lost
            return f"planned for earlier topics: {made_anew}"
        if {partition: owner.member for partition, owner in self.owners.items()} != self.planned:
            return f"planned {self.planned}, owned {self.owners}"
        for partition, owner in self.owners.items():
            node = self.tree.get(paths.offset(GROUP, *partition))
            state = None if node is None else state_of(node.data)
            if state is None or (state.epoch, state.nonce) != (owner.epoch, owner.nonce):
                return f"{partition}: owner {owner}, {state}"
        return ""

    def _below(self, path: str) -> list[str]:
        node = self.tree.get(path)
        return [] if node is None else sorted(node.children)
