"""Which sources are being read: one read of each at a time, and another if it rang meanwhile. Pure."""

from folkmoot.consumers.group.events import Effect, Read, Source


class Reads:
    """Appends the reads that are needed to the list given."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._under_way: dict[Source, bool] = {}  # value: rang since it was asked for

    def __contains__(self, source: Source) -> bool:
        return source in self._under_way

    def ask(self, source: Source) -> None:
        """Read a source, which may have changed."""
        if source in self._under_way:
            self._under_way[source] = True
        else:
            self._under_way[source] = False
            self._effects.append(Read(source))

    def answered(self, source: Source) -> bool:
        """A read has ended. True if what it says may be old, so that another has to follow."""
        return self._under_way.pop(source, False)

    def forget(self) -> None:
        """The session is over: no answer will come."""
        self._under_way.clear()
