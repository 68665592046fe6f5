"""What `_speedups` does, in plain Python: for where there is no compiler, and to hold the two equal."""

import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np

from folkmoot.protocol.columns import BinaryColumn
from folkmoot.schemas.columns.program import MAX_DEPTH, MOST, Column, Fault, Kind, Node, Op
from folkmoot.schemas.values.decoding import as_float
from folkmoot.schemas.values.encoding import MAX_EMPTY_ITEMS, varint

_TYPES: dict[Kind, Any] = {
    Kind.INT32: np.int32,
    Kind.INT64: np.int64,
    Kind.FLOAT: np.float32,
    Kind.DOUBLE: np.float64,
}
_REAL = {Op.FLOAT: struct.Struct("<f"), Op.DOUBLE: struct.Struct("<d")}
_UUID_TEXT = 36


class _BadRow(Exception):
    def __init__(self, node: int, fault: Fault) -> None:
        self.node = node
        self.fault = fault


class Decoder:
    """Reads rows into columns; `take` hands them out. A slot without a value is None."""

    def __init__(self, columns: list[Column], levels: int, rows: int) -> None:
        self._columns = columns
        self._values: list[list[Any]] = [[None] * (0 if each.level else rows) for each in columns]
        self._levels = [
            [number for number, each in enumerate(columns) if each.level == level]
            for level in range(levels)
        ]
        self._counts = [rows] + [0] * (levels - 1)
        self._nodes: list[Node] = []
        self._data = b""
        self._at = 0

    def load(self, nodes: list[Node]) -> None:
        """The nodes behind those that were loaded before."""
        self._nodes += nodes[len(self._nodes) :]

    def run(
        self, offsets: Any, data: Any, nulls: Any, root_of: Callable[[int | bytes], int]
    ) -> list[tuple[int, int | bytes | None, int, int]]:
        """Read all rows; `root_of` gives the first node for a schema's id or GUID, or -1.

        → the bad ones: row, id, GUID or None, node, fault. Raises what `root_of` raises.
        """
        bad: list[tuple[int, int | bytes | None, int, int]] = []
        roots: tuple[int | bytes, int] = (-1, -1)
        schema: int | bytes
        for row, cell in enumerate(BinaryColumn(offsets, data, nulls)):
            if cell is None:
                continue
            has_guid = cell[:1] == b"\1"
            self._data, self._at = cell, 17 if has_guid else 5
            if len(cell) < self._at or cell[0] > 1:
                bad.append((row, None, -1, Fault.FRAME))
                continue
            schema = cell[1:17] if has_guid else int.from_bytes(cell[1:5], "big")
            if schema != roots[0]:
                roots = schema, root_of(schema)
            if roots[1] < 0:
                bad.append((row, schema, -1, Fault.SCHEMA))
                continue
            before = self._counts[1:]
            try:
                self._read(roots[1], row, 0)
                if self._at != len(self._data):
                    raise _BadRow(roots[1], Fault.LEFT_OVER)
            except _BadRow as error:
                self._forget(row, before)
                bad.append((row, schema, error.node, error.fault))
            except RecursionError:
                self._forget(row, before)
                bad.append((row, schema, roots[1], Fault.DEPTH))
        return bad

    def _forget(self, row: int, before: list[int]) -> None:
        for column in self._levels[0]:
            self._values[column][row] = None
        for level, count in enumerate(before, 1):
            self._counts[level] = count
            for column in self._levels[level]:
                del self._values[column][count:]

    def _take(self, at: int, size: int) -> bytes:
        if size < 0:
            raise _BadRow(at, Fault.LENGTH)
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise _BadRow(at, Fault.CUT)
        return self._data[start : self._at]

    def _varint(self, at: int) -> int:
        if self._at < len(self._data) and self._data[self._at] < 0x80:  # most of them, and quickly
            self._at += 1
            number = self._data[self._at - 1]
            return (number >> 1) ^ -(number & 1)
        number = shift = 0
        while True:
            byte = self._take(at, 1)[0]
            number |= (byte & 0x7F) << shift
            if number >> 64 or (shift == 63 and byte > 1):
                raise _BadRow(at, Fault.VARINT)
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
            shift += 7

    def _read(self, at: int, slot: int, depth: int) -> None:
        node = self._nodes[at]
        column = None if node.column < 0 else self._columns[node.column]
        value: Any = True
        match node.op:
            case Op.NULL:
                return
            case Op.RECORD:
                if depth > MAX_DEPTH:
                    raise _BadRow(at, Fault.DEPTH)
                for child in node.children:
                    self._read(child, slot, depth + 1)
            case Op.UNION:
                branch = self._varint(at)
                if not 0 <= branch < len(node.children):
                    raise _BadRow(at, Fault.BRANCH)
                self._read(node.children[branch], slot, depth)
                return
            case Op.CONSTANT:
                kept = self._data, self._at
                self._data, self._at = node.data, 0
                self._read(node.children[0], slot, depth)
                self._data, self._at = kept
                return
            case Op.ARRAY:
                value = self._items(at, column, depth)
            case Op.FAIL:
                raise _BadRow(at, Fault.FAIL)
            case _:
                value = self._leaf(at, column)
        if column is not None:
            self._values[node.column][slot] = value

    def _leaf(self, at: int, column: Column | None) -> Any:
        node = self._nodes[at]
        match node.op:
            case Op.INT | Op.LONG:
                return self._integer(at, column)
            case Op.ENUM:
                symbol = self._varint(at)
                if not 0 <= symbol < len(node.children) or node.children[symbol] < 0:
                    raise _BadRow(at, Fault.SYMBOL)
                return node.children[symbol]
            case Op.BOOLEAN:
                byte = self._take(at, 1)[0]
                if byte > 1:
                    raise _BadRow(at, Fault.BOOLEAN)
                return byte
            case Op.FLOAT | Op.DOUBLE:
                return _REAL[node.op].unpack(self._take(at, _REAL[node.op].size))[0]
        data = self._take(at, node.size if node.op is Op.FIXED else self._varint(at))
        return data if column is None else _checked(at, column, data)

    def _integer(self, at: int, column: Column | None) -> float:
        node = self._nodes[at]
        number = self._varint(at)
        if node.op is Op.INT and not -(1 << 31) <= number < 1 << 31:
            raise _BadRow(at, Fault.RANGE)
        if column is not None and column.kind in (Kind.INT32, Kind.INT64):
            number *= max(node.size, 1)
            if node.size > 1 and not -(1 << 63) < number < 1 << 63:
                raise _BadRow(at, Fault.RANGE)
            if column.size and not 0 <= number < column.size:
                raise _BadRow(at, Fault.RANGE)
        return as_float(number) if column is not None and column.kind is Kind.FLOAT else number

    def _items(self, at: int, column: Column | None, depth: int) -> int:
        node = self._nodes[at]
        if depth > MAX_DEPTH:
            raise _BadRow(at, Fault.DEPTH)
        total, left = 0, MAX_EMPTY_ITEMS
        while True:
            count = self._varint(at)
            if count < 0:
                count = -count
                if count >> 63:
                    raise _BadRow(at, Fault.LENGTH)
                self._varint(at)
            if node.size:
                left -= count
                if left < 0:
                    raise _BadRow(at, Fault.EMPTY_ITEMS)
            elif count > len(self._data) - self._at:
                raise _BadRow(at, Fault.CUT)
            if not count:
                return total
            total += count
            for _ in range(count):
                slot = 0
                if column is not None:
                    slot = self._counts[column.size]
                    self._counts[column.size] += 1
                    for number in self._levels[column.size]:
                        self._values[number].append(None)
                self._read(node.children[0], slot, depth + 1)

    def count(self, level: int) -> int:
        """The slots of a level."""
        return self._counts[level]

    def take(self, number: int) -> tuple[Any, Any, Any]:
        """A column's buffers: one byte for each slot that says whether there is a value; offsets, of
        binary and lists; values. Raises OverflowError for more than 2 GiB."""
        column, values = self._columns[number], self._values[number]
        valid = bytes(value is not None for value in values)
        if column.kind in _TYPES:
            found = np.array(
                [0 if value is None else value for value in values], _TYPES[column.kind]
            )
            return valid, None, found.tobytes()
        if column.kind is Kind.BOOLEAN:
            return valid, None, bytes(value or 0 for value in values)
        if column.kind in (Kind.FIXED, Kind.DECIMAL):
            nothing = bytes(16 if column.kind is Kind.DECIMAL else column.size)
            return valid, None, b"".join(value or nothing for value in values)
        if column.kind is Kind.GROUP:
            return valid, None, b""
        lengths = values
        if column.kind is not Kind.LIST:
            lengths = [len(value or b"") for value in values]
        ends = np.cumsum([0, *(length or 0 for length in lengths)], dtype=np.int64)
        if ends[-1] > MOST:
            raise OverflowError("a column would have more than 2 GiB")
        joined = None if column.kind is Kind.LIST else b"".join(value or b"" for value in values)
        return valid, ends.astype(np.int32).tobytes(), joined


def _checked(at: int, column: Column, data: bytes) -> bytes:
    """Raises _BadRow for bytes that are none of the column's."""
    if column.kind is Kind.DECIMAL:
        number = int.from_bytes(data, "big", signed=True)
        if abs(number) >= 10**column.size:
            raise _BadRow(at, Fault.DECIMAL)
        return number.to_bytes(16, "little", signed=True)
    try:
        if column.kind is Kind.TEXT:
            data.decode()
        if column.kind is Kind.UUID:
            if str(UUID(data.decode())) != data.decode().lower():
                raise ValueError
    except ValueError:
        raise _BadRow(at, Fault[column.kind.name]) from None
    return data


# -- writing ------------------------------------------------------------------------------------------


class Encoder:
    """Writes rows out of columns."""

    def __init__(self, sources: Sequence[Any]) -> None:
        self._values = [_values_of(each) for each in sources]
        self._kinds = [each.kind for each in sources]
        self._nodes: list[Node] = []

    def load(self, nodes: list[Node]) -> None:
        """The nodes behind those that were loaded before."""
        self._nodes += nodes[len(self._nodes) :]

    def run(
        self, root: int, rows: int, frame: bytes
    ) -> tuple[Any, Any, tuple[int, int, int] | None]:
        """→ offsets and bytes of the rows' values, each with `frame` in front; then, if not all could
        be written, row, node and fault of the first that could not. Raises OverflowError."""
        values = []
        for row in range(rows):
            try:
                values.append(frame + self._written(root, row))
            except _BadRow as error:
                return b"", b"", (row, error.node, error.fault)
        ends = np.cumsum([0, *map(len, values)], dtype=np.int64)
        if ends[-1] > MOST:
            raise OverflowError(f"{rows} values have more than 2 GiB")
        return ends.astype(np.int32).tobytes(), b"".join(values), None

    def _written(self, at: int, slot: int) -> bytes:
        node = self._nodes[at]
        value: Any = None if node.column < 0 else self._values[node.column][slot]
        match node.op:
            case Op.NULL:
                return b""
            case Op.CONSTANT:
                return node.data
            case Op.UNION:
                return self._union(at, slot, node.column >= 0 and value is None)
        if value is None and node.column >= 0:
            raise _BadRow(at, Fault.MISSING)
        match node.op:
            case Op.RECORD:
                return b"".join([self._written(child, slot) for child in node.children])
            case Op.ARRAY:
                items = [self._written(node.children[0], inner) for inner in range(*value)]
                return (varint(len(items)) + b"".join(items) if items else b"") + b"\0"
            case Op.FLOAT | Op.DOUBLE:
                return _REAL[node.op].pack(value)
            case Op.BOOLEAN:
                return bytes([value])
            case Op.BYTES | Op.FIXED:
                if self._kinds[node.column] is Kind.DECIMAL:
                    value = self._decimal(at, value)
                return (b"" if node.op is Op.FIXED else varint(len(value))) + bytes(value)
        if node.size and not 0 <= value < node.size:
            raise _BadRow(at, Fault.RANGE)
        return varint(value)

    def _union(self, at: int, slot: int, is_none: bool) -> bytes:
        """The first branch that has a value; null, if none has and null is one."""
        otherwise = None
        for number, child in enumerate(self._nodes[at].children):
            branch = self._nodes[child]
            if branch.op is Op.NULL:
                otherwise = number
            elif not is_none and self._values[branch.column][slot] is not None:
                return varint(number) + self._written(child, slot)
        if otherwise is None:
            raise _BadRow(at, Fault.MISSING)
        return varint(otherwise)

    def _decimal(self, at: int, number: int) -> bytes:
        node = self._nodes[at]
        size = (number + (number < 0)).bit_length() // 8 + 1
        if node.op is Op.FIXED and size > node.size:
            raise _BadRow(at, Fault.SIZE)
        return number.to_bytes(node.size if node.op is Op.FIXED else size, "big", signed=True)


def _values_of(source: Any) -> list[Any]:
    """One for each slot: a number, bytes, where a list's items are, True for a group; None for nothing."""
    array, start, count = source.array, source.offset, len(source.array)
    valid = array.is_valid().to_pylist()
    values: list[Any]
    if source.kind in _TYPES:
        found: Any = np.frombuffer(source.values or b"", _TYPES[source.kind])
        values = found[start : start + count].tolist()
    elif source.kind is Kind.DECIMAL:
        data = bytes(source.values or b"")[16 * start :]
        values = [
            int.from_bytes(data[16 * row : 16 * row + 16], "little", signed=True)
            for row in range(count)
        ]
    elif source.kind is Kind.LIST:
        ends = np.frombuffer(source.offsets or b"", np.int32)[start : start + count + 1].tolist()
        values = list(pairwise(ends))
    elif source.kind is Kind.GROUP:
        values = valid
    elif source.kind is Kind.BINARY:
        values = array.cast("binary").to_pylist()
    else:
        values = array.to_pylist()
    return [value if is_there else None for value, is_there in zip(values, valid, strict=True)]
