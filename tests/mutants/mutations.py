"""Where a source file can be changed by a little, and the file changed there. No I/O."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

KINDS: Final = ("comparison", "boolean", "negation", "sign", "constant")

_COMPARISONS: Final = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "is": "is not",
    "is not": "is",
    "in": "not in",
    "not in": "in",
}
_OPERATOR: Final = re.compile(rb"is\s+not\b|not\s+in\b|is\b|in\b|[<>=!]=|[<>]")
_TEXTS: Final = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
_DECLARED: Final = frozenset({"annotation", "returns", "decorator_list", "type_params"})


class Mutation(NamedTuple):
    """The bytes of a file from `start` to `end` become `new`."""

    kind: str
    line: int
    start: int
    end: int
    old: str
    new: str


def mutations(source: str) -> list[Mutation]:
    """All that can be done to this file, in its order."""
    text = _Text(source.encode())
    found = [each for node in _code(ast.parse(source)) for each in _of(node, text)]
    return sorted(set(found))


def mutated(source: str, mutation: Mutation) -> str:
    data = source.encode()
    return (data[: mutation.start] + mutation.new.encode() + data[mutation.end :]).decode()


class _Text:
    """A file's bytes, by the places of its syntax tree."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        lengths = [len(line) for line in data.splitlines(keepends=True)]
        self._starts = [sum(lengths[:number]) for number in range(len(lengths))]

    def begin(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def replaced(self, kind: str, start: int, end: int, new: str) -> Mutation:
        line = self.data.count(b"\n", 0, start) + 1
        return Mutation(kind, line, start, end, self.data[start:end].decode(), new)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """What runs: no types, no decorators, nothing for type checkers alone; no text with values in it, of
    which Python 3.11 does not tell the places."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in _DECLARED:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield from _code(child)


def _of(node: ast.AST, text: _Text) -> Iterator[Mutation]:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        for left, right in pairwise(sides):
            yield from _operators("comparison", text, left, right, _OPERATOR, _COMPARISONS)
    elif isinstance(node, ast.BoolOp):
        swap = {"and": "or", "or": "and"}
        for left, right in pairwise(node.values):
            yield from _operators("boolean", text, left, right, re.compile(rb"and\b|or\b"), swap)
    elif isinstance(node, ast.UnaryOp):
        begin, operand = text.begin(node), text.begin(node.operand)
        if isinstance(node.op, ast.Not):
            yield text.replaced("negation", begin, operand, _only_brackets(text, begin, operand))
        elif isinstance(node.op, ast.USub):
            yield text.replaced("sign", begin, begin + 1, "+")
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        test = node.test
        if not isinstance(test, ast.UnaryOp | ast.Constant):
            shown = text.data[text.begin(test) : text.end(test)].decode()
            yield text.replaced("negation", text.begin(test), text.end(test), f"not ({shown})")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        if not any(map(_is_text, (node.left, node.right))):
            yield from _signs(text, node.left, node.right)
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
        if not _is_text(node.value):
            yield from _signs(text, node.target, node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        for number in (node.value + 1, node.value - 1):
            if number >= 0:
                yield text.replaced("constant", text.begin(node), text.end(node), str(number))


def _is_text(node: ast.expr) -> bool:
    """What cannot be subtracted anyway."""
    return isinstance(node, _TEXTS) or (
        isinstance(node, ast.Constant) and not isinstance(node.value, int | float)
    )


def _operators(
    kind: str,
    text: _Text,
    left: ast.expr,
    right: ast.expr,
    pattern: re.Pattern[bytes],
    swap: dict[str, str],
) -> Iterator[Mutation]:
    start = text.end(left)
    found = pattern.search(text.data, start, text.begin(right))
    if found is not None:
        new = swap[" ".join(found[0].decode().split())]
        yield text.replaced(kind, found.start(), found.end(), new)


def _signs(text: _Text, left: ast.expr, right: ast.expr) -> Iterator[Mutation]:
    pattern, swap = re.compile(rb"[+-]"), {"+": "-", "-": "+"}
    yield from _operators("sign", text, left, right, pattern, swap)


def _only_brackets(text: _Text, begin: int, end: int) -> str:
    return text.data[begin:end].decode().removeprefix("not").lstrip()
