"""The cells of atoll compare: those of a grid, the finished ones, and the best trial of each arm."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..command import Problem, replace_file, wrong
from .grid import Arm, Grid
from .run import Cell, link_cell, run_cell, trial_cell, trial_cells, untrained_cell, verify_cell

NEAR_TIE = 0.005  # a mean loss that is higher by at most this part counts as equal
_NAMED = 3  # changed settings that are named


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
        """In words: what has become of a cell."""
        if cell.waits:
            return f"waits for the trials of {cell.arm}"
        record = self.get(cell)
        if record:
            return "done" if record["attempts"][-1]["why_invalid"] is None else "invalid"
        stale = self.why_stale(cell)
        return f"to do again, changed: {stale}" if stale else "to do"

    def why_stale(self, cell: Cell) -> str:
        """What has changed since a cell ran; empty if it has not run, or nothing has."""
        record = self.records.get(cell.name)
        return _changes(record["identity"], cell.identity) if record and not cell.waits else ""

    def valid(self, cell: Cell) -> dict[str, Any] | None:
        """The valid attempt of a cell, if it has one."""
        record = self.get(cell)
        last = record["attempts"][-1] if record else None
        return last if last and last["why_invalid"] is None else None

    def put(self, record: dict[str, Any]) -> None:
        self.records[record["name"]] = record
        os.makedirs(self.folder, exist_ok=True)
        write_json(os.path.join(self.folder, record["name"] + ".json"), record)


def read_finished(path: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Finished cells and measured steps of another folder OUT, or of a file with a JSON object a line: a cell, or
    {"steps": the content of steps.json}."""
    cells: list[dict[str, Any]] = []
    steps: dict[str, Any] = {}
    if os.path.isdir(path):
        cells = list(Store(path).records.values())
        with suppress(FileNotFoundError), open(os.path.join(path, "steps.json"), encoding="utf-8") as file:
            steps = json.load(file)
        return cells, steps
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                value = json.loads(line)
                if "steps" in value:
                    steps.update(value["steps"])
                else:
                    cells.append({**value, "name": value["name"], "identity": value["identity"]})
            except (ValueError, KeyError, TypeError):
                raise wrong(f"{path}:{number}: no finished cell of atoll compare") from None
    return cells, steps


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Differences between two identities, as "version 0.1.0, now 0.2.0; data"."""
    parts = []
    if old.get("atoll") != new.get("atoll"):
        parts.append(f"version {old.get('atoll') or 'unknown'}, now {new.get('atoll')}")
    before, after = old["settings"], new["settings"]
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    parts += [f"{key} {before.get(key, 'not set')}, now {after.get(key, 'not set')}" for key in keys[:_NAMED]]
    if len(keys) > _NAMED:
        parts.append(f"{len(keys) - _NAMED} more settings")
    names = {"data": "data", "config": "base file", "workers": "workers", "link": "link"}
    parts += [name for key, name in names.items() if old.get(key) != new.get(key)]
    return "; ".join(parts)


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
    Trees, 1984). `near_tie` says that this rule chose.
    """
    if arm.tune is None:
        return arm, None
    losses = {(value, seed): _trial_loss(store.get(trial_cell(arm, value, seed)))
              for value in arm.tune.values for seed in arm.tune.seeds}
    trials = [{"value": _number(value), "seed": seed, "loss": loss if math.isfinite(loss) else None}
              for (value, seed), loss in losses.items() if loss is not None]
    tuned = {"key": arm.tune.key, "best": None, "edge": False, "near_tie": None, "trials": trials}
    if len(trials) < len(losses):
        return None, tuned
    means = {value: statistics.mean(losses[value, seed] for seed in arm.tune.seeds)
             for value in arm.tune.values}
    lowest = best = min(means, key=means.__getitem__)
    if not math.isfinite(means[best]):
        raise Problem(f"arm {arm.name}: no value of {arm.tune.key} gives a finite loss: give smaller ones")
    numbers = {value: number for value in means if isinstance(number := _number(value), float)}
    if len(numbers) == len(means):
        near = [value for value in means if means[value] <= (1 + NEAR_TIE) * means[lowest]]
        best = min(near, key=numbers.__getitem__)
        tuned["edge"] = len(means) > 1 and numbers[best] in (min(numbers.values()), max(numbers.values()))
    if best != lowest:
        tuned["near_tie"] = {"best_loss": means[best], "lowest": _number(lowest), "lowest_loss": means[lowest],
                             "within": NEAR_TIE}
    return arm.tuned(best), {**tuned, "best": _number(best)}


def cells_of(grid: Grid, store: Store) -> list[Cell]:
    """The cells in their order: an arm's runs follow its trials, and wait for them."""
    baseline = grid.arm(grid.baseline)
    cells = [untrained_cell(baseline, seed) for seed in grid.seeds]
    for arm in grid.arms:
        cells += trial_cells(arm)
    arms = [(settle(arm, store)[0], arm) for arm in grid.arms]
    cells += [_ready(run_cell(final or arm, seed), final) for seed in grid.seeds
              for final, arm in arms if not arm.needs_link]
    for check in grid.checks:
        final, arm = next(pair for pair in arms if pair[1].name == check.arm)
        cells.append(_ready(verify_cell(final or arm, check.seed, check.link), final))
    cells += [_ready(link_cell(final or arm, seed, link), final) for seed in grid.seeds
              for final, arm in arms if arm.needs_link for link in grid.links]
    return cells


def _ready(cell: Cell, final: Arm | None) -> Cell:
    return cell if final else replace(cell, waits=True)


def adopt(grid: Grid, store: Store, records: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Takes finished cells of another folder. Returns by name why the others do not belong to the grid."""
    left = {record["name"]: record for record in records}
    for _ in range(2):  # trials first: their best value is a setting of the runs
        for cell in cells_of(grid, store):
            if cell.waits or cell.name not in left or left[cell.name]["identity"] != cell.identity:
                continue
            record = left.pop(cell.name)
            if store.get(cell) is None:
                store.put(record)
    cells = {cell.name: cell for cell in cells_of(grid, store)}
    return {name: "the grid has no such cell" if name not in cells else
            f"the trials of {cells[name].arm} are missing" if cells[name].waits else
            _changes(record["identity"], cells[name].identity) for name, record in left.items()}
