"""A foreign client in a process of its own, called over its standard streams."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self


class Refused(Exception):
    """The client raised. `code` is what it knows of the registry's, or of HTTP's; None if of neither."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Client:
    """A program that answers a line of JSON with a line of JSON; others that it prints are passed over."""

    def __init__(self, name: str, words: Sequence[str], directory: Path, errors: Path) -> None:
        self.name = name
        self._errors = errors
        pipe = subprocess.PIPE
        with errors.open("wb") as file:
            self._process = subprocess.Popen(
                words, cwd=directory, stdin=pipe, stdout=pipe, stderr=file, text=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def call(self, name: str, **arguments: Any) -> Any:
        """What the client's method of that meaning returns. Raises Refused for what it raises."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"call": name, **arguments}), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith(">"):
                told = json.loads(line[1:])
                if "error" in told:
                    raise Refused(told["error"]["code"], told["error"]["message"])
                return told["result"]
        raise AssertionError(f"{self.name} has ended: {self._errors.read_text()}")

    def refusal(self, name: str, **arguments: Any) -> Refused:
        """The error of a call that is to be refused."""
        try:
            answer = self.call(name, **arguments)
        except Refused as refused:
            return refused
        raise AssertionError(f"{self.name}: {name} returned {answer!r}")
