"""metrics.jsonl of a run, for all programs that read it: a damaged line is skipped and counted, and ends no program."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

LINE_MAX = 1 << 20  # bytes; the coordinator's lines have a few hundred
_COUNT_MAX = 2**63 - 1
_REAL_MAX = 3.5e38  # above the largest fp32 number
_SECONDS_MAX = 1e10
_TIME_MAX = 253402300799.0  # the end of the year 9999
_NAME_MAX, _TEXT_MAX = 255, 4096

Needs = Mapping[str, Sequence[str]]  # keys that a reader needs, by event


class _Damaged(Exception):
    """The text is the reason."""


# --- values -----------------------------------------------------------------------------------------------------------


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _COUNT_MAX


def _within(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def _is_text(value: Any, most: int = _TEXT_MAX) -> bool:
    """A text without surrogates, which no file can hold."""
    return isinstance(value, str) and len(value.encode("utf-8", "surrogatepass")) <= most and not any(
        "\ud800" <= c <= "\udfff" for c in value)


_is_real, _is_seconds = _within(-_REAL_MAX, _REAL_MAX), _within(-_SECONDS_MAX, _SECONDS_MAX)
_COUNTS = ("round", "rounds", "step", "version", "fragment", "tokens", "bytes_up", "bytes_down", "other_bytes_up",
           "other_bytes_down", "update_bytes", "relay_bytes", "union_bytes", "workers", "delivered")
_REALS = ("loss", "val_loss", "lr", "grad_norm", "tokens_per_s", "tflops", "norm_ratio", "rho", "gain", "agreement",
          "noise_tokens")
_SECONDS = ("compute_s", "compress_s", "send_s", "wait_s", "apply_s", "round_s", "eval_s", "link_s", "eta_s")
_UNKNOWN = frozenset((*_REALS, *_SECONDS))
_TEXTS = ("event", "text", "codec", "key", "from", "to")
_NAMES = ("worker", "slowest", "norm_worker")
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(_COUNTS, (_is_count, "a count")),
    **dict.fromkeys(_REALS, (_is_real, "a finite number")),
    **dict.fromkeys(_SECONDS, (_is_seconds, "a number of seconds")),
    **dict.fromkeys(_TEXTS, (_is_text, "a text")),
    **dict.fromkeys(_NAMES, (lambda value: _is_text(value, _NAME_MAX), "a name")),
    "time": (_within(0.0, _TIME_MAX), "a time"),
}


# --- lines ------------------------------------------------------------------------------------------------------------


def _whole(text: str) -> int:
    if len(text) > 20:  # int() needs quadratic time
        raise _Damaged("a number has more than 20 digits")
    return int(text)


def _parse(line: bytes) -> dict[str, Any]:
    if len(line) > LINE_MAX:
        raise _Damaged(f"it has more than {LINE_MAX} bytes")
    try:
        event = json.loads(line.decode("utf-8"), parse_int=_whole)
    except UnicodeDecodeError:
        raise _Damaged("it is no UTF-8") from None
    except (ValueError, RecursionError):
        raise _Damaged("it is no JSON") from None
    if not isinstance(event, dict):
        raise _Damaged("it is no object")
    return event


def event_of(line: bytes, needs: Needs) -> dict[str, Any]:
    """The event of a line: its known keys have values of their kinds, and `needs` has those that must be there.

    A measured value that is not finite is unknown: None.
    """
    event = _parse(line)
    if not _is_text(event.get("event")):
        raise _Damaged("event is no text")
    for key, value in event.items():
        check, kind = _CHECKS.get(key, (None, ""))
        if isinstance(value, float) and not math.isfinite(value) and key in _UNKNOWN:
            event[key] = value = None
        if check and value is not None and not check(value):
            raise _Damaged(f"{key} is not {kind}")
    for key in needs.get(event["event"], ()):
        if event.get(key) is None:
            raise _Damaged(f"{key} is missing")
    return event


class Lines:
    """Takes one line after the other. `skipped` counts the damaged ones; `first` is the first of them, and why."""

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.number = self.skipped = 0
        self.first = ""

    def take(self, line: bytes) -> dict[str, Any] | None:
        """The event of the next line; None: it is damaged."""
        self.number += 1
        try:
            return event_of(line, self.needs)
        except _Damaged as why:
            self.skipped += 1
            self.first = self.first or f"line {self.number}: {why}"
            return None

    def told(self) -> str:
        """"skipped 2 damaged lines, the first is line 7: it is no JSON"; "": none."""
        if not self.skipped:
            return ""
        if self.skipped == 1:
            return f"skipped a damaged line, {self.first}"
        return f"skipped {self.skipped} damaged lines, the first is {self.first}"


class Follower:
    """Reads the complete lines of a growing file. A file that lost complete lines, or is another one, is read anew.

    A restarted coordinator removes an incomplete last line, so only complete lines count as read. Of a line that is
    longer than LINE_MAX only the beginning is kept.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.read = 0  # bytes of complete lines
        self.inode = 0

    def lines(self) -> Iterator[bytes]:
        """Yields the lines that were completed since the last call."""
        try:
            file = open(self.path, "rb")
        except FileNotFoundError:
            return
        with file:
            status = os.fstat(file.fileno())
            if status.st_ino != self.inode or status.st_size < self.read:
                self.inode, self.read = status.st_ino, 0
            file.seek(self.read)
            rest, size = b"", 0  # the beginning of the incomplete line, and all its bytes
            while data := file.read(1 << 20):
                *ends, tail = data.split(b"\n")
                for end in ends:
                    self.read += size + len(end) + 1
                    yield (rest + end)[: LINE_MAX + 1]
                    rest, size = b"", 0
                rest, size = (rest + tail)[: LINE_MAX + 1], size + len(tail)
