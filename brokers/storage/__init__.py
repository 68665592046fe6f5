"""The logs of a broker on its disk: segments, indexes, recovery, retention. No socket and no event loop."""
