"""Seeds of tests that try what chance has chosen."""

import os
import random


def new_seed(below: int = 2**32) -> int:
    """A seed, printed so that a test that fails tells it; FOLKMOOT_SEED=<seed> gives the same again."""
    given = os.environ.get("FOLKMOOT_SEED")
    seed = int(given) if given else random.SystemRandom().randrange(below)
    print(f"FOLKMOOT_SEED={seed}")
    return seed
