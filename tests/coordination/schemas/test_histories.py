"""Random histories of the registry, each with the same answers and the same end as the model."""

import os
from collections import Counter

from tests.coordination.schemas.history import History
from tests.seeds import fixed_seed

HISTORIES = int(os.environ.get("FOLKMOOT_HISTORIES", "12"))


def test_random_histories_with_losses_and_deaths_are_those_of_the_model() -> None:
    seed = fixed_seed()
    kinds = {"register", "delete_version", "delete_subject", "put", "deaths", "IncompatibleSchema"}
    kinds |= {"OperationNotPermitted", "ReferenceExists", "InvalidSchema", "VersionSoftDeleted"}
    seen: Counter[str] = Counter()
    number = 0
    # Until it has looked at what it is about.
    while number < HISTORIES or (number < 10 * HISTORIES and not seen.keys() >= kinds):
        history = History(seed + number)
        try:
            history.run()
        except BaseException as error:
            error.add_note(f"FOLKMOOT_SEED={seed + number} FOLKMOOT_HISTORIES=1")
            raise
        seen += history.seen
        number += 1
    print(f"{number} histories: {dict(seen)}")
    assert kinds - seen.keys() == set() or HISTORIES == 1
