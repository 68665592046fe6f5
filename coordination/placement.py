"""Places the replicas of partitions on brokers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from zlib import crc32

from folkmoot.coordination.brokers import Registration
from folkmoot.protocol.errors import BrokerUnreachable, InvalidReplicationFactor


def place_replicas(
    topic: str, partitions: int, replicas: int, racks: Mapping[int, str]
) -> list[list[int]]:
    """Place a new topic → `replicas` brokers for each partition, the preferred leader first.

    `racks` maps each live broker to its rack; "" is a rack of its own. Preferred leaders go round the
    brokers, from one that the topic's name decides, so that topics of one partition spread. Each further
    replica goes to the rack with the fewest of the partition, and there to the broker with the fewest of the
    topic. The second one, which leads when the first is lost, is another each time, so that a lost broker's
    partitions spread over all others.

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
    assignment = []
    for number in range(partitions):
        at = (first + number) % len(ring)
        chosen, free = [ring[at]], ring[at + 1 :] + ring[:at]
        while len(chosen) < replicas:
            second = seconds[ring[at]] if len(chosen) == 1 else Counter()
            chosen.append(_fewest(chosen, free, racks, second, held))
            free.remove(chosen[-1])
        seconds[ring[at]].update(chosen[1:2])
        held.update(chosen)
        assignment.append(chosen)
    return assignment


def move(
    topic: str,
    current: Mapping[int, Sequence[int]],
    racks: Mapping[int, str],
    replicas: int | None = None,
) -> dict[int, list[int]]:
    """Place a topic's partitions on the brokers in `racks` alone: partition → brokers.

    Replicas on those stay. Each other one is replaced at its position in the list, so that the new broker is
    preferred as the old one was. Then the lists are cut or extended to `replicas` brokers (None: as many as
    before). New replicas are placed as those of a new topic.

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
        slots = [each if each in racks else None for each in replicas_now]
        while len(slots) > count:
            vacant = [index for index, each in enumerate(slots) if each is None]
            slots.pop(vacant[-1] if vacant else -1)
        slots += [None] * (count - len(slots))
        chosen = [each for each in slots if each is not None]
        target = []
        for each in slots:
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
    """The broker in the rack with the fewest chosen ones, and among these the one with the lowest counts."""
    near = Counter(racks[broker] for broker in chosen if racks[broker])
    return min(free, key=lambda each: (near[racks[each]], *(count[each] for count in counts)))


def racks_of(live: Mapping[int, Registration]) -> dict[int, str]:
    """Each broker's rack, or else its host, since brokers of one host fail together."""
    return {
        number: found.rack or min(map(_host, found.listeners.values()), default="")
        for number, found in live.items()
    }


def _host(address: str) -> str:
    return address.rpartition(":")[0]
