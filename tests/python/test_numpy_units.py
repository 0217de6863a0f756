"""Numbers as people read them: the golden table, which the C programs share, and places between its lines."""

from __future__ import annotations

import math
import unittest
from pathlib import Path

from atoll import units

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "units.tsv"
KINDS = {"duration": units.duration_text, "bytes": units.bytes_text, "count": units.count_text,
         "percent": units.percent_text}


class UnitsTest(unittest.TestCase):
    def test_golden(self) -> None:
        lines = [line for line in GOLDEN.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        seen = set()
        for line in lines:
            kind, value, text = line.split("\t")
            self.assertEqual(KINDS[kind](float(value)), text, line)
            seen.add(kind)
        self.assertEqual(seen, set(KINDS))

    def test_rounding_meets_the_next_unit(self) -> None:
        """No text has 60 s, 60 min, 24 h beside days, or 1000 of a unit; none has an exponent."""
        for step in range(-200, 400):
            value = 1.07**step
            text = units.duration_text(value)
            self.assertNotRegex(text, r"\b(60 s|60 min|1000 ms)\b|e[+-]", value)
            for other in (units.bytes_text(value), units.count_text(value)):
                self.assertTrue(value >= 1e15 or not other.startswith("1000 "), other)
                self.assertNotRegex(other, "e[+-]")
        self.assertEqual(units.duration_text(47.99 * 3600), "47 h 59 min")
        self.assertEqual(units.duration_text(100 * 3600 - 1), "4 d 4 h")

    def test_signs_and_infinity(self) -> None:
        self.assertEqual([units.duration_text(-5.25), units.bytes_text(-math.inf), units.percent_text(-0.021)],
                         ["-5.25 s", "-∞", "-2 %"])
        self.assertEqual([units.ratio_text(value) for value in (1, 14.23, 999.6, 12345.0, math.nan)],
                         ["1", "14.2", "1000", "12345", "-"])


if __name__ == "__main__":
    unittest.main()
