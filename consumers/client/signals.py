"""Which signal has asked a consumer to end."""

import signal


class Signalled:
    """What `leave_on_signals` yields: true once a signal came. Called, it says which came first, or None."""

    def __init__(self) -> None:
        self.came: list[signal.Signals] = []

    def __call__(self) -> signal.Signals | None:
        return self.came[0] if self.came else None

    def __bool__(self) -> bool:
        return bool(self.came)
