"""argparse, made to say what it knows: the nearest option, and what the environment may say instead."""

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from folkmoot.console.options import ENVIRONMENT

# "-15m" after --from is a value; no option of ours begins with a digit.
_VALUE: Final = re.compile(r"-\d")


class Parser(argparse.ArgumentParser):
    """The parser of the command line, and of each command and action below it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})
        self._negative_number_matcher = _VALUE

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Like `parse_args`; a usage error that the command's own parser tells exits with code 2."""
        parser, unknown, _ = self.walk(words)
        if unknown:  # before a required one is said to be missing, which may be this one, misspelt
            parser.refuse(unknown)
        args, rest = self.parse_known_args(words)
        for action in parser.positionals():
            if action.nargs == "*":  # argparse takes such values only where they stand together
                getattr(args, action.dest).extend(each for each in rest if each[:1] != "-")
                rest = [each for each in rest if each[:1] == "-"]
        if rest:
            parser.refuse(rest)
        return args

    def walk(self, words: Sequence[str]) -> "tuple[Parser, list[str], int]":
        """The parser of the command and action in these words, the long options unknown to theirs or what
        is none of its commands, and how many arguments come behind it."""
        parser, unknown, given, left = self, list[str](), 0, iter(words)
        for word in left:
            behind = parser.positionals()[given : given + 1]
            if word == "--" or any(each.nargs == argparse.REMAINDER for each in behind):
                break
            option = parser.option(word.partition("=")[0])
            if option is not None and option.nargs is None and "=" not in word:
                next(left, None)  # its value
            elif option is None and word.startswith("--"):
                unknown.append(word)
            elif option is None and (commands := parser.commands()):
                if word not in commands:
                    unknown.append(word)
                    break
                parser = commands[word]
            elif option is None:
                given += 1
        return parser, unknown, given

    def commands(self) -> "dict[str, Parser]":
        """The parsers of what may be chosen here, by its name."""
        choices: Any = [each.choices for each in self._choosing()]
        return dict(choices[0]) if choices else {}

    def _choosing(self) -> list[argparse.Action]:
        return [each for each in self._actions if each.nargs == argparse.PARSER]

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Of several words that nobody knows the first option, which the others may belong to."""
        word = next((each for each in words if each.startswith("-")), words[0])
        name, what, known = word.partition("=")[0], "option", self.option_names()
        if not word.startswith("-"):
            (choosing,) = self._choosing() or (None,)
            if choosing is None:
                self.error(f"unexpected argument {word!r}")
            name, what, known = word, str(choosing.metavar).lower(), list(self.commands())
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        self.error(f"unknown {what} {name}: {hint}")

    def error(self, message: str) -> NoReturn:
        if "--zookeeper" in message and "required" in message:
            message += f" (or set {ENVIRONMENT})"
        super().error(message)

    def option_names(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]

    def option(self, name: str) -> argparse.Action | None:
        """What an option is, None if there is none of that name."""
        return next((action for action in self._actions if name in action.option_strings), None)

    def positionals(self) -> list[argparse.Action]:
        """What has no name of an option: arguments, and the choice of a command."""
        return [action for action in self._actions if not action.option_strings]
