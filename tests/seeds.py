"""Seeds of tests that try what chance has chosen."""

import os
import random
from typing import Final

_GIVEN: Final = "FOLKMOOT_SEED"


def fixed_seed() -> int:
    """The same in every run, for what may bring up what nobody has judged; FOLKMOOT_SEED gives another."""
    return int(os.environ.get(_GIVEN) or "1")


def new_seed(below: int = 2**32) -> int:
    """A seed, printed so that a test that fails tells it; FOLKMOOT_SEED=<seed> gives the same again."""
    given = os.environ.get(_GIVEN)
    seed = int(given) if given else random.SystemRandom().randrange(below)
    print(f"FOLKMOOT_SEED={seed}")
    return seed
