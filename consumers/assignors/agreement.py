"""Which assignor makes the next plan: one that every live member supports, by vote."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from folkmoot.consumers.assignors.assignor import Assignor
from folkmoot.consumers.assignors.plain import Range, RoundRobin
from folkmoot.consumers.assignors.sticky import RackAware, Sticky
from folkmoot.protocol.errors import ConfigError

DEFAULT: Final = Sticky()
"""What every member supports, whether it says so or not: members can always agree."""

KNOWN: Final[Mapping[str, Assignor]] = {
    each.name: each for each in (DEFAULT, RackAware(), Range(), RoundRobin())
}


def assignors_of(given: Iterable[str | Assignor]) -> tuple[Assignor, ...]:
    """What a consumer's settings name, preferred first; the default comes last. Raises ConfigError."""
    found: dict[str, Assignor] = {}
    for each in given:
        if isinstance(each, str):
            if each not in KNOWN:
                raise ConfigError(
                    f"assignor {each!r} is not known: use one of {', '.join(KNOWN)}, or an Assignor"
                )
            each = KNOWN[each]
        found.setdefault(each.name, each)
    found.setdefault(DEFAULT.name, DEFAULT)
    return tuple(found.values())


def agreed(ballots: Sequence[Sequence[str]], mine: Sequence[Assignor]) -> Assignor:
    """Each member's names, preferred first, are a vote for the first that all members support.

    Most votes win, of equals the first name. `mine` are those that whoever plans can carry out.
    """
    supported = {each.name: each for each in (*mine, DEFAULT)}
    common = set(supported)
    for ballot in ballots:
        common &= {*ballot, DEFAULT.name}
    votes = Counter(
        next((name for name in ballot if name in common), DEFAULT.name) for ballot in ballots
    )
    if not votes:
        return DEFAULT
    return supported[min(votes, key=lambda name: (-votes[name], name))]
