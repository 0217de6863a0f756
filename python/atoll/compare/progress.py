"""What atoll compare tells while a cell runs: how far the cell is, how many are done, and the time left.

- A cell's progress comes from its metrics.jsonl: tokens of the finished rounds, and the coordinator's own estimate.
- A cell that has not run takes as long as the finished cells that are most like it: of the same arm, kind and link,
  then of the same arm, then of all arms. Until a cell has finished, the running one stands for the others.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..metrics import Follower, Lines
from ..progress import Progress
from ..units import duration_text, percent_text
from .run import Cell
from .store import Store

_EVERY_S = 30.0  # between two lines where standard error is no terminal
_TRAINS = ("run", "tune", "verify")


class Estimate:
    """Seconds of the cells of a comparison."""

    def __init__(self, store: Store) -> None:
        self.took = [(record, sum(attempt["took_s"] for attempt in record["attempts"]))
                     for record in store.records.values() if all("took_s" in each for each in record["attempts"])]

    def seconds(self, cell: Cell) -> float | None:
        """How long a cell is likely to take; None: nothing like it has run."""
        alike: tuple[Callable[[dict[str, Any]], bool], ...] = (
            lambda r: (r["arm"], r["kind"], r["link"]) == (cell.arm, cell.kind, cell.link),
            lambda r: r["arm"] == cell.arm and r["kind"] in _TRAINS and cell.kind in _TRAINS,
            lambda r: (r["kind"] in _TRAINS) == (cell.kind in _TRAINS))
        for is_alike in alike:
            found = [seconds for record, seconds in self.took if is_alike(record)]
            if found:
                return statistics.mean(found)
        return None

    def left(self, cells: Sequence[Cell], default: float | None) -> float | None:
        """Seconds of all these cells. `default`: of a cell like no other; None: then the sum is not known."""
        found = [seconds if (seconds := self.seconds(cell)) is not None else default for cell in cells]
        return None if None in found else sum(filter(None, found))


def rest_text(seconds: float | None) -> str:
    """"about 12 min left"; empty if it is not known."""
    return "" if seconds is None else f"about {duration_text(_coarse(seconds))} left"


def _coarse(seconds: float) -> float:
    """An estimate of minutes has no seconds."""
    return round(seconds) if seconds < 120 else 60 * round(seconds / 60)


class CellWatch:
    """Progress of one cell. `after`: the cells that are still to run behind it."""

    def __init__(self, cell: Cell, done: int, total: int, after: Sequence[Cell], estimate: Estimate) -> None:
        self.cell, self.count, self.after, self.estimate = cell, f"{done} of {total} done", after, estimate
        self.progress = Progress(_EVERY_S)
        self.what = ""
        self.follower: Follower | None = None
        self.event: dict[str, Any] = {}  # the last round
        self.began = time.monotonic()

    def note(self, what: str) -> None:
        self.what, self.event = what, {}

    @property
    def _trains(self) -> bool:
        return self.what.startswith("training")

    def follow(self, folder: str) -> None:
        self.follower = Follower(os.path.join(folder, "metrics.jsonl"))

    def tick(self) -> None:
        if not self.progress.is_due:
            return
        for line in self.follower.lines() if self.follower else ():
            event = Lines({"round": ("tokens",)}).take(line)  # the end of the run counts damaged lines
            if event and event["event"] == "round":
                self.event = event
        self.progress.show(f"{self.cell.name}: {self.text()}")

    def text(self) -> str:
        share, left = self._state()
        parts = [self.what]
        if share is not None:
            parts[0] += f", {percent_text(share)}"
        if left is not None:
            parts[0] += f", {duration_text(round(left))} left"
            spent = time.monotonic() - self.began
            rest = self.estimate.left(self.after, spent + left if self.cell.kind in _TRAINS else None)
            parts.append(f"{self.count}, {rest_text(left + rest)}" if rest is not None else self.count)
        else:
            parts.append(self.count)
        return "; ".join(parts)

    def _state(self) -> tuple[float | None, float | None]:
        """The part of the cell that is done, and the seconds left; None: not known."""
        spent = time.monotonic() - self.began
        typical = self.estimate.seconds(self.cell)
        guess = max(0.0, typical - spent) if typical is not None else None
        if not self.event or not self.cell.tokens or not self._trains:
            return None, guess
        share = min(1.0, self.event["tokens"] / self.cell.tokens)
        left = self.event.get("eta_s")
        if left is None:
            left = spent * (1 - share) / share if share else guess
        return share, left

    def end(self) -> None:
        self.progress.clear()
