"""The finished cells of atoll compare, and the best trial of each arm."""

from __future__ import annotations

import json
import math
import os
import statistics
from typing import Any

from .command import Problem, replace_file
from .compare_grid import Arm
from .compare_run import Cell, trial_cell

NEAR_TIE = 1.005  # mean losses whose ratio is smaller count as equal


class Store:
    """The finished cells in OUT/cells, by name."""

    def __init__(self, out: str) -> None:
        self.folder = os.path.join(out, "cells")
        self.records: dict[str, dict[str, Any]] = {}
        for name in sorted(os.listdir(self.folder)) if os.path.isdir(self.folder) else ():
            if name.endswith(".json"):
                with open(os.path.join(self.folder, name), encoding="utf-8") as file:
                    record = json.load(file)
                self.records[record["name"]] = record

    def get(self, cell: Cell) -> dict[str, Any] | None:
        """The record of a cell; None if it has not run, or ran with other settings."""
        record = self.records.get(cell.name)
        return record if record and record["identity"] == cell.identity else None

    def state(self, cell: Cell) -> str:
        record = self.get(cell)
        if record is None:
            return "changed" if cell.name in self.records else "-"
        return "done" if record["attempts"][-1]["why_invalid"] is None else "invalid"

    def valid(self, cell: Cell) -> dict[str, Any] | None:
        """The valid attempt of a cell, if it has one."""
        record = self.get(cell)
        last = record["attempts"][-1] if record else None
        return last if last and last["why_invalid"] is None else None

    def put(self, record: dict[str, Any]) -> None:
        self.records[record["name"]] = record
        os.makedirs(self.folder, exist_ok=True)
        write_json(os.path.join(self.folder, record["name"] + ".json"), record)


def write_json(path: str, value: object) -> None:
    """Replaces a file, or leaves it as it is."""
    replace_file(path, f"{json.dumps(value, indent=1, allow_nan=False)}\n".encode())


def _trial_loss(record: dict[str, Any] | None) -> float | None:
    """A trial's final loss; infinite if it diverged; None if it has not run."""
    if record is None:
        return None
    last = record["attempts"][-1]
    return last["final_loss"] if last["why_invalid"] is None else math.inf


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def settle(arm: Arm, store: Store) -> tuple[Arm | None, dict[str, Any] | None]:
    """The arm with the best value (None: trials are missing), and the entry `tuned` of comparison.json.

    The best value has the lowest mean loss. Of numbers within 0.5 % of it the smallest is taken: it lies further
    from the edge of stability (the idea of the one-standard-error rule: Breiman et al., Classification and Regression
    Trees, 1984).
    """
    if arm.tune is None:
        return arm, None
    losses = {(value, seed): _trial_loss(store.get(trial_cell(arm, value, seed)))
              for value in arm.tune.values for seed in arm.tune.seeds}
    trials = [{"value": _number(value), "seed": seed, "loss": loss if math.isfinite(loss) else None}
              for (value, seed), loss in losses.items() if loss is not None]
    if len(trials) < len(losses):
        return None, {"key": arm.tune.key, "best": None, "edge": False, "trials": trials}
    means = {value: statistics.mean(losses[value, seed] for seed in arm.tune.seeds)
             for value in arm.tune.values}
    best = min(means, key=means.__getitem__)
    if not math.isfinite(means[best]):
        raise Problem(f"arm {arm.name}: no value of {arm.tune.key} gives a finite loss: give smaller ones")
    numbers = {value: number for value in means if isinstance(number := _number(value), float)}
    edge = False
    if len(numbers) == len(means):
        best = min((value for value in means if means[value] <= NEAR_TIE * means[best]), key=numbers.__getitem__)
        edge = len(means) > 1 and numbers[best] in (min(numbers.values()), max(numbers.values()))
    return arm.tuned(best), {"key": arm.tune.key, "best": _number(best), "edge": edge, "trials": trials}
