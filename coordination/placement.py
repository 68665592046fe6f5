"""Which brokers get which replicas of a new topic's partitions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from zlib import crc32

from folkmoot.coordination.brokers import Registration
from folkmoot.protocol.errors import BrokerUnreachable, InvalidReplicationFactor


def place(topic: str, partitions: int, replicas: int, racks: Mapping[int, str]) -> list[list[int]]:
    """`replicas` brokers for each partition, the preferred leader first.

    `racks` has the live brokers, each with where it stands; one without a rack stands alone. Preferred
    leaders go round the brokers, and the topic's name decides who is first, so that many topics of one
    partition are not all at one broker. Each further replica goes to the rack that has the fewest of the
    partition, and there to the broker that has the fewest of the topic; but the second, who leads when
    the first is lost, is another each time, so that a lost broker's partitions spread over all others.

    Raises BrokerUnreachable if there is no broker, InvalidReplicationFactor if there are too few.
    """
    ring = sorted(racks)
    if not ring:
        raise BrokerUnreachable(f"no broker is alive that could take topic {topic}: start one")
    if not 1 <= replicas <= len(ring):
        raise InvalidReplicationFactor(
            f"{replicas} replicas of topic {topic} are not possible: brokers "
            f"{', '.join(map(str, ring))} are alive, use 1 to {len(ring)} replicas or start more"
        )
    first = crc32(topic.encode())
    held: Counter[int] = Counter()
    seconds: dict[int, Counter[int]] = {broker: Counter() for broker in ring}
    placed = []
    for number in range(partitions):
        at = (first + number) % len(ring)
        chosen, free = [ring[at]], ring[at + 1 :] + ring[:at]
        while len(chosen) < replicas:
            second = seconds[ring[at]] if len(chosen) == 1 else Counter()
            chosen.append(_fewest(chosen, free, racks, second, held))
            free.remove(chosen[-1])
        seconds[ring[at]].update(chosen[1:2])
        held.update(chosen)
        placed.append(chosen)
    return placed


def move(
    topic: str,
    current: Mapping[int, Sequence[int]],
    racks: Mapping[int, str],
    replicas: int | None = None,
) -> dict[int, list[int]]:
    """Where the replicas of a topic's partitions go: partition → brokers, out of those in `racks`.

    Replicas on those stay where they are; each other is replaced where it stands in the list, so that who
    takes a preferred leader's place is the preferred leader; then the lists get `replicas` brokers (None:
    as many as they had), at their ends. New ones are placed as those of a new topic.

    Raises InvalidReplicationFactor if there are too few brokers.
    """
    held = Counter(each for replicas_now in current.values() for each in replicas_now)
    moved = {}
    for partition, replicas_now in current.items():
        count = len(replicas_now) if replicas is None else replicas
        if not 1 <= count <= len(racks):
            raise InvalidReplicationFactor(
                f"{count} replicas of {topic}-{partition} are not possible: brokers "
                f"{', '.join(map(str, sorted(racks))) or 'none'} can hold them; use 1 to {len(racks)} "
                "replicas, or start more"
            )
        places = [each if each in racks else None for each in replicas_now]
        while len(places) > count:
            gone = [place for place, each in enumerate(places) if each is None]
            places.pop(gone[-1] if gone else -1)
        places += [None] * (count - len(places))
        chosen = [each for each in places if each is not None]
        target = []
        for each in places:
            if each is None:
                free = [other for other in sorted(racks) if other not in chosen]
                each = _fewest(chosen, free, racks, held)
                chosen.append(each)
                held[each] += 1
            target.append(each)
        moved[partition] = target
    return moved


def _fewest(
    chosen: Sequence[int], free: Sequence[int], racks: Mapping[int, str], *counts: Counter[int]
) -> int:
    """The broker of the rack with the fewest that are chosen, and there with the smallest counts."""
    near = Counter(racks[broker] for broker in chosen if racks[broker])
    return min(free, key=lambda each: (near[racks[each]], *(count[each] for count in counts)))


def racks_of(live: Mapping[int, Registration]) -> dict[int, str]:
    """Where each broker stands: its rack, or else its host, since what takes one of a host takes all."""
    return {number: found.rack or _host(found) for number, found in live.items()}


def _host(found: Registration) -> str:
    return min((address.rpartition(":")[0] for address in found.listeners.values()), default="")
