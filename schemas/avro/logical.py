"""Avro's logical types: the Python value of a number, of bytes or of a text, and the way back.

Values are not rounded, cut or moved to another time zone: a value without room is refused. The
plain value (the number of milliseconds) is taken as well as the datetime. Types that Python lacks
(`duration`, nanoseconds) stay plain, as Avro requires for unknown ones.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from folkmoot.schemas.avro.mismatch import SchemaMismatch, describe

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  # that is what "local" means
_DAY_ONE: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
MAX_DIGITS: Final = 10_000
"""A decimal of more stays bytes: a schema may say any number, which costs as much as it says."""
_EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


class Logical(NamedTuple):
    """A logical type, for one schema."""

    python: tuple[type, ...]
    """What `write` takes."""
    read: Callable[[Any], Any]
    """The value of a plain one. Raises ValueError, ArithmeticError."""
    write: Callable[[Any], Any]
    """The plain one of a `python`. Raises SchemaMismatch."""


def logical(schema: Mapping[str, Any]) -> Logical | None:
    """The attributes of a schema besides its plain type; None if that is nothing, or nothing known here."""
    kind, plain = schema.get("logicalType"), schema["type"]
    if kind == "decimal" and plain in ("bytes", "fixed"):
        return _decimal(schema)
    logical_type = (
        _KINDS.get((kind, plain)) if isinstance(kind, str) and isinstance(plain, str) else None
    )
    return None if kind == "uuid" and plain == "fixed" and schema["size"] != 16 else logical_type


def _timestamp(unit: int, epoch: datetime) -> Logical:
    """`unit`: its microseconds."""
    is_local = epoch.tzinfo is None

    def read(number: int) -> datetime:
        return epoch + timedelta(microseconds=number * unit)

    def write(value: datetime) -> int:
        if (value.utcoffset() is None) is not is_local:
            raise SchemaMismatch(f"{describe(value)} has {'a' if is_local else 'no'} time zone")
        return _convert_to_unit((value - epoch) // _MICROSECOND, unit, value)

    return Logical((datetime,), read, write)


def _time(unit: int) -> Logical:
    def read(number: int) -> time:
        if not 0 <= number < 86_400_000_000 // unit:
            raise SchemaMismatch(f"{number} is no time of day")
        return (_LOCAL_EPOCH + timedelta(microseconds=number * unit)).time()

    def write(value: time) -> int:
        if value.tzinfo is not None:
            raise SchemaMismatch(f"{describe(value)} has a time zone")
        return _convert_to_unit(
            (datetime.combine(_LOCAL_EPOCH, value) - _LOCAL_EPOCH) // _MICROSECOND, unit, value
        )

    return Logical((time,), read, write)


def _convert_to_unit(microseconds: int, unit: int, value: Any) -> int:
    number, remainder = divmod(microseconds, unit)
    if remainder:
        raise SchemaMismatch(f"{describe(value)} is finer than the milliseconds of the schema")
    return number


def _write_date(value: date) -> int:
    if isinstance(value, datetime):
        raise SchemaMismatch(f"{describe(value)} has a time of day, and a date none")
    return value.toordinal() - _DAY_ONE


def _read_uuid(text: str) -> UUID:
    parsed = UUID(text)
    if str(parsed) != text.lower():  # it takes braces, and does without hyphens
        raise SchemaMismatch(f"badly formed UUID {describe(text)}")
    return parsed


def _write_uuid(value: UUID | str) -> str:
    try:
        return str(value if isinstance(value, UUID) else UUID(value))
    except ValueError:
        raise SchemaMismatch(f"{describe(value)} is no UUID") from None


def _decimal(schema: Mapping[str, Any]) -> Logical | None:
    precision, scale, size = schema.get("precision"), schema.get("scale", 0), schema.get("size")
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision:
        return None
    if precision > MAX_DIGITS:
        return None
    limit = 10**precision

    def read(data: bytes) -> Decimal:
        number = int.from_bytes(data, "big", signed=True)
        if abs(number) >= limit:
            raise SchemaMismatch(f"a decimal has more than the {precision} digits of the schema")
        return Decimal(number).scaleb(-scale, _EXACT)

    def write(value: Decimal) -> bytes:
        if not value.is_finite():
            raise SchemaMismatch(f"{describe(value)} is no number")
        shifted = value.scaleb(scale, _EXACT)
        number = int(shifted) if shifted.adjusted() < precision else limit
        if number != shifted or abs(number) >= limit:
            raise SchemaMismatch(
                f"{describe(value)} does not fit into {precision} digits, {scale} of them behind the point"
            )
        return number.to_bytes(
            size or (number + (number < 0)).bit_length() // 8 + 1, "big", signed=True
        )

    return Logical((Decimal,), read, write)


_KINDS: Final[dict[tuple[str, str], Logical]] = {
    ("timestamp-millis", "long"): _timestamp(1000, _EPOCH),
    ("timestamp-micros", "long"): _timestamp(1, _EPOCH),
    ("local-timestamp-millis", "long"): _timestamp(1000, _LOCAL_EPOCH),
    ("local-timestamp-micros", "long"): _timestamp(1, _LOCAL_EPOCH),
    ("time-millis", "int"): _time(1000),
    ("time-micros", "long"): _time(1),
    ("date", "int"): Logical((date,), lambda days: date.fromordinal(_DAY_ONE + days), _write_date),
    ("uuid", "string"): Logical((UUID, str), _read_uuid, _write_uuid),
    ("uuid", "fixed"): Logical((UUID,), lambda data: UUID(bytes=data), lambda value: value.bytes),
}
