"""Quantities with their units, as people read them: no other file gives a number its unit.

Memory, and data that are moved, are in binary multiples; operations and rates are in decimal ones, as on data sheets.
Prices are in US dollars, as in machine files. No figure has an exponent, nor more digits than people read: units scale.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import final


@final
@dataclasses.dataclass(frozen=True)
class Unit:
    """A unit of measurement: its name, and its value in SI units."""

    name: str
    value: float


SECONDS, MILLISECONDS, GIBIBYTES = Unit("s", 1.0), Unit("ms", 1e-3), Unit("GiB", 2.0**30)
_DAYS, _YEARS = Unit("days", 86400.0), Unit("years", 365.25 * 86400.0)
_SECONDS = ((_YEARS, 1e8), (_DAYS, 1e6), (SECONDS, 1.0), (MILLISECONDS, 1e-3), (Unit("us", 1e-6), 0.0))
_LONG = ((_YEARS, 1e8), (_DAYS, 3.6e6), (Unit("hours", 3600.0), 3600.0), (SECONDS, 0.0))
"""Units of time, each with the seconds from which it is taken: of what takes any time, and of what takes long."""
_LARGER = tuple(Unit(f"{prefix}iB", 2.0**power) for prefix, power in zip("YZEPT", range(80, 30, -10), strict=True))
_SMALLER = (GIBIBYTES, Unit("MiB", 2.0**20))
_KIBIBYTES = Unit("KiB", 2.0**10)
_PREFIXES = (
    ("Y", 1e24), ("Z", 1e21), ("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0),
)  # fmt: skip
_WORDS = (
    (1e18, "quintillion"), (1e15, "quadrillion"), (1e12, "trillion"), (1e9, "billion"), (1e6, "million"),
)  # fmt: skip
_LEAST_S, _LEAST = 1e-10, 1e-12
"""Seconds, and other figures, that are what rounding leaves of nothing, where they are less."""
_DURATIONS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


def seconds(value: float, signed: bool = False) -> str:
    """Returns a number of seconds as text, in a unit that makes it readable.

    >>> [seconds(2.5), seconds(0.0125), seconds(3e-5), seconds(0.0), seconds(86400), seconds(0.5, signed=True)]
    ['2.5 s', '12.5 ms', '30 us', '0 s', '86400 s', '+500 ms']
    >>> [seconds(8.882e-16), seconds(8640000), seconds(3.2e9)]
    ['0 s', '100 days', '101.4 years']
    """
    value = 0.0 if abs(value) < _LEAST_S else value
    unit = unit_of_seconds(value) if value else SECONDS
    return f"{number(value / unit.value, signed and value > 0)} {unit.name}"


def size(value: float, signed: bool = False) -> str:
    """Returns a number of bytes as text: in GiB, or in TiB and above once there is one; below a hundredth of a GiB in
    MiB; below a hundredth of that in bytes.

    >>> [size(2**34), size(2**20), size(12), size(0), size(-(2**30)), size(2**30, signed=True), size(3 * 2**60)]
    ['16.00 GiB', '1.00 MiB', '12 bytes', '0 bytes', '-1.00 GiB', '+1.00 GiB', '3.00 EiB']
    """
    sign = "+" if signed and value > 0 else ""
    for unit, least in (*((unit, unit.value) for unit in _LARGER), *((own, own.value / 100) for own in _SMALLER)):
        if abs(value) >= least:
            return f"{sign}{value / unit.value:.2f} {unit.name}"
    return sign + exact_bytes(value)


def traffic(value: float) -> str:
    """Returns a number of bytes that links carried, or that a file has, as text with four digits, in a readable unit.

    >>> [traffic(13576333.3), traffic(2**34), traffic(1000), traffic(0), traffic(2**73)]
    ['12.95 MiB', '16 GiB', '1000 bytes', '0 bytes', '8 ZiB']
    """
    unit = unit_of_bytes(value)
    return f"{number(value / unit.value)} {unit.name}"


def unit_of_seconds(most: float) -> Unit:
    """Returns the unit in which seconds up to so many are readable, such as those along an axis.

    >>> unit_of_seconds(0.25).name, unit_of_seconds(2.5).name
    ('ms', 's')
    """
    return next((unit for unit, least in _SECONDS if abs(most) >= least), SECONDS)  # those that are no number, too


def unit_of_bytes(most: float) -> Unit:
    """Returns the unit in which bytes up to so many are readable, such as those along an axis.

    >>> unit_of_bytes(3e6).name
    'MiB'
    """
    smaller = *_SMALLER, _KIBIBYTES
    return next((unit for unit in (*_LARGER, *smaller) if abs(most) >= unit.value), Unit("bytes", 1.0))


def exact_bytes(value: float) -> str:
    """Returns a number of bytes as text, exactly.

    >>> [exact_bytes(1), exact_bytes(2**20)]
    ['1 byte', '1048576 bytes']
    """
    return f"{value:.0f} byte{'' if round(value) == 1 else 's'}"


def times_bytes(count: float, num_bytes: float) -> str:
    """Returns how many things there are, and the bytes of one, as text.

    >>> times_bytes(2.0082e9, 18.0), times_bytes(658100224, 18.0)
    ('2.008 billion x 18 bytes', '658.1 million x 18 bytes')
    """
    counted = f"{number(count / 1e6)} million" if 1e6 <= count < 1e9 else number(count)
    return f"{counted} x {number(num_bytes)} bytes"


def _prefixed(unit: str) -> Callable[[float], str]:
    """Returns a function that gives figures as text in a unit with a decimal prefix.

    >>> [byte_rate(1.555e12), byte_rate(3e8), flop(3.27e15), flop(0.0), flop_rate(1.57e13)]
    ['1.555 TB/s', '300 MB/s', '3.27 PFLOP', '0 FLOP', '15.7 TFLOP/s']
    """

    def text(value: float) -> str:
        prefix, factor = next((pair for pair in _PREFIXES if abs(value) >= pair[1]), _PREFIXES[-1])
        return f"{number(value / factor)} {prefix}{unit}"

    return text


def _plain(unit: str) -> Callable[[float], str]:
    """Returns a function that gives figures as text in a unit as it is.

    >>> [sample_rate(51.2), token_rate(12345.6), price(4.9031), price(0.00012)]
    ['51.2 samples/s', '12346 tokens/s', '4.903 USD', '0.00012 USD']
    """
    return lambda value: f"{number(value)} {unit}"


byte_rate, flop, flop_rate = map(_prefixed, ("B/s", "FLOP", "FLOP/s"))
sample_rate, token_rate, price = map(_plain, ("samples/s", "tokens/s", "USD"))


def number(value: float, signed: bool = False) -> str:
    """Returns a number without a unit as text, with four digits, or more where it has more before the point; from a
    billion on with a word for its thousands.

    >>> [number(1.25), number(1234567), number(150000000000), number(1.5e-5), number(0), number(1e-15)]
    ['1.25', '1234567', '150 billion', '0.000015', '0', '0']
    """
    sign = "+" if signed else ""
    if math.isfinite(value) and abs(value) >= 1e9:
        unit, word = next(pair for pair in _WORDS if abs(value) >= pair[0])
        return f"{number(value / unit, signed)} {word}"
    value = 0.0 if abs(value) < _LEAST else value
    if abs(value) >= 1e4 or not math.isfinite(value):
        return f"{value:{sign}.0f}"
    if 0 < abs(value) < 1e-4:
        places = 3 - math.floor(math.log10(abs(value)))
        return f"{value:{sign}.{places}f}".rstrip("0")
    return f"{value:{sign}.4g}"


def by_name(name: str, value: float) -> str:
    """Returns a figure as text in the unit that the end of its name says; without one it is a plain number.

    >>> [by_name("kernel_s", 5e-6), by_name("memory_bytes_per_s", 1.5e11), by_name("crowding", 1.5)]
    ['5 us', '150 GB/s', '1.5']
    """
    return next((text for end, text in _ENDS if name.endswith(end)), number)(value)


def span(values: Iterable[float], text: Callable[[float], str]) -> str:
    """Returns the least and the most of some figures as one text; only one where both read alike.

    >>> [span([2**34, 2**33], size), span([0.0125, 2.5], seconds), span([1.0, 1.00001], seconds)]
    ['8.00 to 16.00 GiB', '12.5 ms to 2.5 s', '1 s']
    """
    values = list(values)
    low, high = text(min(values)), text(max(values))
    return low if low == high else _joined(low, "to", high)


def part(value: float, whole: float, text: Callable[[float], str]) -> str:
    """Returns a part of a whole as one text, with the unit said once where both have the same.

    >>> [part(2**33, 2**34, size), part(2**20, 2**34, size)]
    ['8.00 of 16.00 GiB', '1.00 MiB of 16.00 GiB']
    """
    return _joined(text(value), "of", text(whole))


def _joined(first: str, word: str, second: str) -> str:
    figure, _, unit = first.partition(" ")
    return f"{figure} {word} {second}" if unit and second.endswith(f" {unit}") else f"{first} {word} {second}"


def hours(value: float, deviation: float | None = None, most: float = 0.0) -> str:
    """Returns the seconds of a long work as text: in hours from an hour on, in days from a thousand hours on, in years
    from some years on, with their standard deviation if there is one; in the unit of `most` seconds if these are more.

    >>> [hours(7200.0, 1800.0), hours(86400 * 30.0), hours(90.0, 4.5), hours(3.6e12), hours(1800.0, most=3600.0)]
    ['2 ± 0.5 hours', '720 hours', '90 ± 4.5 s', '114077 years', '0.5 hours']
    """
    unit = next(unit for unit, least in _LONG if max(value, most) >= least)
    off = "" if deviation is None else f" ± {number(deviation / unit.value)}"
    return f"{number(value / unit.value)}{off} {unit.name}"


def plus_minus(mean: float, deviation: float, text: Callable[[float], str]) -> str:
    """Returns a mean and its standard deviation as one text, with the unit said once where both have the same.

    >>> [plus_minus(0.1418, 0.0213, seconds), plus_minus(1.5, 0.25, seconds), plus_minus(2.0, 0.0, seconds)]
    ['141.8 ± 21.3 ms', '1.5 s ± 250 ms', '2 ± 0 s']
    """
    return _joined(text(mean), "±", text(deviation))


def many(value: float) -> str:
    """Returns a large number of things as text, with three digits and a word for its thousands.

    >>> [many(1_992), many(1_420_466_176), many(671_026_419_200), many(1.5e12)]
    ['1,992', '1.42 billion', '671 billion', '1.5 trillion']
    """
    return next((f"{value / unit:.3g} {word}" for unit, word in _WORDS if value >= unit), f"{value:,.0f}")


def roughly(value: float) -> str:
    """Returns a duration in seconds as text, rounded to one digit.

    >>> [roughly(14), roughly(100), roughly(1900), roughly(16000)]
    ['10 seconds', '2 minutes', '30 minutes', '4 hours']
    """
    name, unit = next((pair for pair in _DURATIONS if value >= 1.5 * pair[1]), _DURATIONS[-1])
    return f"{float(f'{value / unit:.0e}'):.0f} {name}"


def counted(number: int, singular: str, many: str = "") -> str:
    """Returns a number followed by its noun, in the singular or plural.

    >>> [counted(1, "stage"), counted(2, "stage"), counted(2, "batch", "batches")]
    ['1 stage', '2 stages', '2 batches']
    """
    return f"{number} {singular if number == 1 else many or singular + 's'}"


_ENDS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("bytes_per_s", byte_rate), ("flop_per_s", flop_rate), ("_bytes", size), ("_flop", flop), ("_s", seconds),
)  # fmt: skip
"""Ends of names, the longer ones first, and how figures with such names are told."""
