"""Lines of progress: redrawn on a terminal, a new line now and then elsewhere, nothing for short work."""

from __future__ import annotations

import contextlib
import io
import unittest
from unittest import mock

from atoll import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ProgressTest(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 100.0
        clock = mock.patch.object(progress.time, "monotonic", lambda: self.now)
        clock.start()
        self.addCleanup(clock.stop)

    def read(self, stream: io.StringIO, steps: int, seconds: float) -> str:
        """Reads 1 GB of 4 GB in `steps` parts; each takes so many seconds."""
        with contextlib.redirect_stderr(stream):
            shown = progress.BytesProgress(4_000_000_000)
            shown.begin("reading:")
            for _ in range(steps):
                self.now += seconds
                shown.add(1_000_000_000 // steps)
            shown.clear()
        return stream.getvalue()

    def test_lines_of_a_file(self) -> None:
        lines = self.read(io.StringIO(), 10, 4.0).splitlines()
        self.assertEqual(lines, ["reading: 300 MB of 4 GB, 8 %, 25 MB/s, 2 min 28 s left",
                                 "reading: 600 MB of 4 GB, 15 %, 25 MB/s, 2 min 16 s left",
                                 "reading: 900 MB of 4 GB, 23 %, 25 MB/s, 2 min 4 s left"])

    def test_short_work_is_silent(self) -> None:
        self.assertEqual(self.read(io.StringIO(), 10, 0.9), "")

    def test_a_terminal_has_one_line(self) -> None:
        text = self.read(Terminal(), 4, 1.0)
        self.assertEqual(text.count("\n"), 0)
        self.assertEqual(text.count("\r\x1b[K"), 4 + 1)  # four times drawn, then removed
        self.assertTrue(text.endswith("left\r\x1b[K"), text)

    def test_a_line_fits_the_terminal(self) -> None:
        with contextlib.redirect_stderr(Terminal()) as stream:
            shown = progress.Progress()
            self.now += 1
            shown.show("x" * 500)
        self.assertLess(stream.getvalue().count("x"), 500)


if __name__ == "__main__":
    unittest.main()
