"""comparison.json: the result of atoll compare, which atoll report shows.

It has the grid, every run with its curve and its times on each link, the trials, and the checks of the planned times.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from ..report.data import VERSION, counted
from .grid import OWN_SETTINGS, Arm, Grid
from .run import RULES, Cell, diverged, link_cell, machine, made_by, now, run_cell, untrained_cell, verify_cell
from .store import Store, settle
from .timing import Clock

_RUN_KEYS = ("final_loss", "params", "tokens", "bytes_up", "bytes_down", "theta_hash", "wall_s", "eval_s",
             "step_seconds")


def _untrained(grid: Grid, store: Store) -> dict[int, float]:
    """The loss of the initial model, by seed."""
    baseline, found = grid.arm(grid.baseline), {}
    for seed in grid.seeds:
        record = store.get(untrained_cell(baseline, seed))
        loss = record["attempts"][-1]["final_loss"] if record else None
        if loss is not None and math.isfinite(loss):
            found[seed] = loss
    return found


def _relay_times(attempt: Mapping[str, Any], link: str, curve: list[dict[str, Any]]) -> dict[str, Any]:
    ends = dict(attempt["round_ends_s"])
    rounds = max(ends, default=0)
    return {"link": link, "source": "measured", "step_seconds": None, "seconds": attempt["seconds"],
            "utilization": attempt["utilization"], "round_s": attempt["seconds"] / rounds if rounds else None,
            "at": [_end_of(ends, point["round"]) for point in curve]}


def _end_of(ends: Mapping[int, float], number: int) -> float:
    """async: one update may end several rounds."""
    return 0.0 if not number else min((at for r, at in ends.items() if r >= number), default=max(ends.values()))


def _planned_traffic(arm: Arm, plan: Mapping[str, Any],
                     curve: list[dict[str, Any]]) -> tuple[dict[str, Any], list[Any]]:
    """The bytes of all workers, which one worker does not send: in all, and up to each point of the curve."""
    total = {key: plan[key] for key in ("bytes_up", "bytes_down")}
    share = [Clock.rounds(arm, plan, point) / plan["rounds"] for point in curve]
    return total, [{**point, **{key: round(part * value) for key, value in total.items()}}
                   for point, part in zip(curve, share, strict=True)]


def _note(arm: Arm) -> str:
    """The grid's note, and how the runs differ from what the times are of."""
    parts = [arm.note] if arm.note else []
    if arm.one_process:
        parts.append("trained by one process with the batch of all workers; bytes and times are those of the plan")
    if arm.is_timed and not arm.needs_link:
        parts.append("trained without a link: on a slow one deltas are older when they arrive, and the loss may differ")
    return "; ".join(parts)


def _run_entries(grid: Grid, store: Store, clock: Clock, arm: Arm, cell: Cell, start: float | None) -> list[Any]:
    """The runs of a cell: the invalid attempts, too. `start`: loss of the initial model, if the arm has it."""
    record, entries = store.get(cell), []
    for attempt in record["attempts"] if record else ():
        first = [{"round": 0, "tokens": 0, "loss": start, "bytes_up": 0, "bytes_down": 0}] if start else []
        curve = first + [point for point in attempt["curve"] if point["loss"] is not None]
        times: list[Any] = []
        if attempt["why_invalid"] is None and cell.link:
            times = [_relay_times(attempt, cell.link, curve)]
        elif attempt["why_invalid"] is None:
            times = [clock.times(arm, link, curve) for link in grid.links]
        traffic: dict[str, Any] = {}
        if arm.one_process and attempt["why_invalid"] is None:
            traffic, curve = _planned_traffic(arm, clock.plan(arm, grid.links[0]), curve)
        entries.append({
            "arm": arm.name, "seed": cell.seed, "link": cell.link, "valid": attempt["why_invalid"] is None,
            "why_invalid": attempt["why_invalid"], "diverged": diverged(attempt["why_invalid"]),
            **{key: attempt.get(key) for key in _RUN_KEYS}, **traffic,
            "command": record["command"] if record else "",
            "curve": [{key: value for key, value in point.items() if key != "round"} for point in curve],
            "times": times})
    return entries


def _cells(grid: Grid, arm: Arm, seed: int) -> list[Cell]:
    return [link_cell(arm, seed, link) for link in grid.links] if arm.needs_link else [run_cell(arm, seed)]


def _machines(grid: Grid, store: Store, settled: Mapping[str, Arm | None]) -> list[dict[str, Any]]:
    """The machines that trained the runs: imported ones come from elsewhere. This one if there is no run."""
    cells = [cell for arm in filter(None, settled.values()) for seed in grid.seeds for cell in _cells(grid, arm, seed)]
    found = [record["machine"] for record in map(store.get, cells) if record and "machine" in record]
    return [each for i, each in enumerate(found) if each not in found[:i]] or [machine()]


def _checks(grid: Grid, store: Store, clock: Clock, settled: Mapping[str, Arm | None]) -> list[dict[str, Any]]:
    found = []
    for check in grid.checks:
        arm = settled[check.arm]
        measured = store.valid(verify_cell(arm, check.seed, check.link)) if arm else None
        free = store.valid(run_cell(arm, check.seed)) if arm else None
        if arm is None or measured is None:
            continue
        plan = clock.plan(arm, check.link)
        found.append({"arm": arm.name, "seed": check.seed, "link": check.link, "planned_s": plan["seconds"],
                      "measured_s": measured["seconds"], "planned_utilization": plan["utilization"],
                      "measured_utilization": measured["utilization"],
                      "same_hash": bool(free) and free["theta_hash"] == measured["theta_hash"]})
    return found


def _target(grid: Grid, runs: list[Any]) -> dict[str, Any]:
    if "loss" in grid.target:
        return {"loss": grid.target["loss"], "how": "given by the grid"}
    name, factor = grid.target["arm"], grid.target["factor"]
    losses = [run["final_loss"] for run in runs if run["arm"] == name and run["valid"]]
    seeds = {run["seed"] for run in runs if run["arm"] == name and run["valid"]}
    over = counted(len(seeds), "seed") + (f" and {len(grid.links)} links" if len(losses) > len(seeds) else "")
    how = f"final loss of {name}, mean over {over}, times {factor:g}"
    return {"loss": factor * statistics.mean(losses) if losses else None, "how": how}


def result(grid: Grid, store: Store, clock: Clock, program: str) -> dict[str, Any]:
    """The content of comparison.json, of the cells that are done."""
    untrained, settled, arms, of_runs = _untrained(grid, store), {}, [], {}
    for arm in grid.arms:
        settled[arm.name], tuned = settle(arm, store)
        final = settled[arm.name] or arm
        hidden = {*OWN_SETTINGS, "run.name", *((arm.tune.key,) if arm.tune and not settled[arm.name] else ())}
        resolved = {key: value for key, value in final.resolved.items() if key not in hidden}
        arms.append({"name": arm.name, "title": arm.title, "method": arm.method, "workers": arm.workers,
                     "local": arm.is_local, "settings": final.settings, "resolved": resolved, "note": _note(arm),
                     "tuned": tuned})
        valid = [store.valid(run_cell(final, seed)) for seed in grid.seeds] if not final.needs_link else []
        of_runs[arm.name] = [run["step_seconds"] for run in valid if run]
    steps = clock.choose_steps([arm for arm in filter(None, settled.values()) if of_runs[arm.name]],
                               {name: [step for step in found if step] for name, found in of_runs.items()})
    runs: list[Any] = []
    for final in filter(None, settled.values()):
        same_model = final.model == grid.arm(grid.baseline).model
        for seed in grid.seeds:
            start = untrained.get(seed) if same_model else None
            for cell in _cells(grid, final, seed):
                runs += _run_entries(grid, store, clock, final, cell, start)
    return {"version": VERSION, "title": grid.title, "grid": grid.text, **made_by(program), "created": now(),
            "machines": _machines(grid, store, settled), "rules": RULES, "baseline": grid.baseline,
            "seeds": list(grid.seeds), "margin": grid.margin, "steps": steps,
            "untrained_loss": statistics.mean(untrained.values()) if untrained else None,
            "target": _target(grid, runs), "price": grid.price, "links": list(grid.links), "arms": arms, "runs": runs,
            "checks": _checks(grid, store, clock, settled)}
