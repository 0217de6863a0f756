"""A line of progress on standard error: redrawn in place on a terminal, a new line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time

from .command import clean
from .units import bytes_text, duration_text, percent_text

_REDRAW_S = 0.2


class Progress:
    """`every`: seconds between two lines where standard error is no terminal. Short work shows nothing there."""

    def __init__(self, every: float = 10.0) -> None:
        self.redraws = sys.stderr.isatty()
        self.every = _REDRAW_S if self.redraws else every
        self.last = time.monotonic()
        self.drawn = False

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self.last >= self.every

    def show(self, text: str) -> None:
        """Writes the line if it is due."""
        if not self.is_due:
            return
        self.last, self.drawn = time.monotonic(), True
        text = clean(text)
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r\x1b[K{text[:width]}" if self.redraws else f"{text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Removes the line from a terminal, so that another line can take its place."""
        if self.redraws and self.drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        self.drawn = False


class BytesProgress(Progress):
    """Bytes of a known total: how many, how fast, and the time left."""

    def __init__(self, total: int, every: float = 10.0) -> None:
        super().__init__(every)
        self.total = max(1, total)
        self.begin("")

    def begin(self, what: str) -> None:
        """Starts at 0 bytes again."""
        self.what, self.done, self.began = what, 0, time.monotonic()

    def add(self, n: int) -> None:
        self.done += n
        if self.is_due:
            share, spent = min(1.0, self.done / self.total), max(1e-3, time.monotonic() - self.began)
            rate = self.done / spent
            left = duration_text(round(max(0, self.total - self.done) / rate)) if rate else "unknown time"
            self.show(f"{self.what} {bytes_text(self.done)} of {bytes_text(self.total)}, {percent_text(share)}, "
                      f"{bytes_text(rate)}/s, {left} left")
