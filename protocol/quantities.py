"""Lengths of time, moments and sizes as people write them: `7d`, `1h30m`, `2026-01-31T12:00Z`, `1GiB`."""

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from folkmoot.protocol.errors import ConfigError

DURATIONS: Final = "90s, 15m, 1h30m, 7d or PT1H30M"
SIZES: Final = "500MB or 1GiB"

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART: Final = r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)"
_DURATION: Final = re.compile(rf"(?:{_PART})+", re.ASCII)
_ISO_DURATION: Final = re.compile(
    r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE | re.ASCII
)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)(i?)b", re.IGNORECASE | re.ASCII)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def seconds(text: str) -> float:
    """Return a length of time: a number of seconds, or as `duration` reads it. Raises ConfigError."""
    try:
        number = _with_units(text)
        return float(text) if number is None else number
    except ValueError:
        raise ConfigError(
            f"{text!r} is no length of time: use a number of seconds, or write it as in {DURATIONS}"
        ) from None


def duration(text: str) -> timedelta:
    """Return a length of time with units, or in ISO 8601. Raises ConfigError."""
    number = _with_units(text)
    with suppress(OverflowError):
        if number is not None:
            return timedelta(seconds=number)
    raise ConfigError(f"{text!r} is no length of time: write it as in {DURATIONS}")


def _with_units(text: str) -> float | None:
    if _DURATION.fullmatch(text):
        return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(_PART, text))
    iso = _ISO_DURATION.fullmatch(text)
    if iso is None or not any(iso.groups()):
        return None
    parts = zip(iso.groups(), (86400.0, 3600.0, 60.0, 1.0), strict=True)
    return sum(float(number or 0) * unit for number, unit in parts)


def size(text: str) -> int:
    """Return a number of bytes, alone or with a unit: kB, MB are powers of 1000, KiB, MiB of 1024.

    Raises ConfigError.
    """
    matched = _SIZE.fullmatch(text)
    try:
        if matched is None:
            return int(text)
        power = " kmgt".index(matched[2].lower() or " ")
        return int(float(matched[1]) * (1024 if matched[3] else 1000) ** power)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text!r} is no size: use a whole number of bytes, or write it as in {SIZES}"
        ) from None


def moment(text: str) -> datetime:
    """Return a time, UTC if it names no zone, or milliseconds since 1970. Raises ConfigError."""
    try:
        if text.isdecimal():
            return EPOCH + timedelta(milliseconds=int(text))
        parsed = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text!r} is no time: write it as in 2026-01-31T12:00Z or 2026-01-31T12:00+01:00, "
            "in milliseconds since 1970, or as in -15m for 15 minutes ago"
        ) from None
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)


def counted(number: int, what: str) -> str:
    """Return `1 record`, `2 records`."""
    return f"{number} {what}" + ("" if number == 1 else "s")
