"""How fast a broker copies what is being moved to it."""


class ReplicationThrottle:
    """Bytes that reassignments have brought, against the time that they may take. No clock.

    All replicas that are being added to a broker share it: each pays for what it has got, at its own rate,
    before any of them asks for more. Those in sync, and those that only lag, never ask here. One answer
    of each may bring more than a second's worth, and is then paid for longer: the rate holds on the
    average, and not for what comes by one answer.

    Owner: the event loop.
    """

    def __init__(self) -> None:
        self._paid_at = 0.0

    def took(self, length: int, bytes_per_second: int, now: float) -> None:
        """So many bytes have come."""
        self._paid_at = max(self._paid_at, now) + length / bytes_per_second

    def wait(self, now: float) -> float:
        """Seconds until more may be asked for; 0: now."""
        return max(0.0, self._paid_at - now)

    def changed(self) -> None:
        """There is another rate from here on: what was taken at the old one is forgotten."""
        self._paid_at = 0.0
