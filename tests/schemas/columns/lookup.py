"""Schemas by id, without a registry."""

from collections.abc import Sequence

from folkmoot.protocol.errors import SchemaNotFound


class Known:
    """A list of texts, of which the first has id 1."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self.asked: list[int] = []

    def resolved(self, id: int, *, subject: str | None = None) -> str:
        self.asked.append(id)
        if not 0 < id <= len(self.texts):
            raise SchemaNotFound(f"there is no schema {id}")
        return self.texts[id - 1]
