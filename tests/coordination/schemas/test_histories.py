"""Random histories of the registry, each with the same answers and the same end as the model."""

import os
from collections import Counter

from tests.coordination.schemas.history import History
from tests.seeds import new_seed

HISTORIES = int(os.environ.get("FOLKMOOT_HISTORIES", "12"))


def test_random_histories_with_losses_and_deaths_are_those_of_the_model() -> None:
    seed = new_seed()
    seen: Counter[str] = Counter()
    for number in range(HISTORIES):
        history = History(seed + number)
        try:
            history.run()
        except BaseException as error:
            error.add_note(f"FOLKMOOT_SEED={seed + number} FOLKMOOT_HISTORIES=1")
            raise
        seen += history.seen
    print(dict(seen))
    kinds = {"register", "delete_version", "delete_subject", "put", "deaths", "IncompatibleSchema"}
    kinds |= {"OperationNotPermitted", "ReferenceExists", "InvalidSchema", "VersionSoftDeleted"}
    assert seen.keys() >= kinds
