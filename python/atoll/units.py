"""Numbers as people read them: duration, bytes, count, percent, ratio. common/base/units.h has the same texts in C.

tests/golden/units.tsv has the rules and the texts of both. An unknown value (NaN) is "-", an infinite one "∞".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

_DAYS_FROM = 48  # hours


def _signed(text: Callable[[float], str]) -> Callable[[float], str]:
    """Lets a function of finite values from 0 take every number."""

    def convert(value: float) -> str:
        if math.isnan(value):
            return "-"
        sign = "-" if value < 0 else ""
        return sign + ("∞" if math.isinf(value) else text(abs(value)))

    return convert


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")


def _digits(value: float, digits: int) -> str:
    """A number from 0 below 1000 with so many digits, without zeros at its end and without an exponent."""
    value = _rounded(value, digits)
    if not value:
        return "0"
    text = f"{value:.{max(0, digits - 1 - math.floor(math.log10(value)))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _whole(value: float) -> int:
    return math.floor(value + 0.5)


def _two(number: int, base: int, large: str, small: str) -> str:
    """A number of small units in two units, the second left out if it is zero."""
    first, second = divmod(number, base)
    return f"{first} {large}" + (f" {second} {small}" if second else "")


def _duration(seconds: float) -> str:
    if not seconds:
        return "0 s"
    if _rounded(seconds * 1e3, 3) < 1000:
        return f"{_digits(seconds * 1e3, 3)} ms"
    if _rounded(seconds, 3) < 60:
        return f"{_digits(seconds, 3)} s"
    if _whole(seconds) < 3600:
        return _two(_whole(seconds), 60, "min", "s")
    if _whole(seconds / 60) < _DAYS_FROM * 60:
        return _two(_whole(seconds / 60), 60, "h", "min")
    return _two(_whole(seconds / 3600), 24, "d", "h")


def _scaled(value: float, units: Sequence[str]) -> str:
    for unit in units:
        if _rounded(value, 3) < 1000 or unit == units[-1]:
            break
        value /= 1000
    number = _digits(value, 3) if _rounded(value, 3) < 1000 else str(_whole(value))
    return f"{number} {unit}".strip()


def _percent(part: float) -> str:
    if _rounded(100 * part, 2) < 1:
        return f"{_digits(100 * part, 2)} %"
    if part < 1 and _whole(100 * part) == 100:
        return f"{_digits(min(100 * part, 99.9), 3)} %"
    return f"{_whole(100 * part)} %"


duration_text = _signed(_duration)  # of seconds
bytes_text = _signed(lambda value: _scaled(value, ("B", "kB", "MB", "GB", "TB", "PB")))
count_text = _signed(lambda value: _scaled(value, ("", "k", "M", "G", "T")))  # tokens, parameters
percent_text = _signed(_percent)  # of a fraction
ratio_text = _signed(lambda value: _digits(value, 3) if _rounded(value, 3) < 1000 else str(_whole(value)))
