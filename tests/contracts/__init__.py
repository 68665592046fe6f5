"""One contract, several implementations: the same tests on each."""
