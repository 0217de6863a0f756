"""The time of a run on a link, for atoll compare: from `atoll plan`, which runs the protocol in virtual time.

- OUT/steps.json keeps the measured time of an inner step, OUT/plans.json the plans. Delete a file to make it anew.
- The measurement runs one process for each worker of the largest arm at the same time, so that workers which share the
  cores of this machine have the step time that their runs had. Each arm's worker is such a machine.
- `machine: whole`: one process measures the step, because each worker of the times has such a machine for itself.
- The runs check the measurement: an arm with as many workers as it had processes. Runs count by their median steps.
  If the median of those is off by more than APART for any kind of step, all plans take the steps of the runs.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from ..command import Problem, say, warn
from ..report.data import counted, step_check
from .grid import Arm, Grid
from .run import now, plan_settings

# What the time of an inner step depends on.
_STEP_KEYS = ("train.batch_size", "train.grad_accum", "train.precision", "train.threads", "train.ranks",
              "train.devices", "train.recompute", "inner.optimizer", "inner.moments")

_REPEATS = 5
APART = 0.15  # of the measured step


class Clock:
    """Times of the arms on links. `keep` writes a file of OUT."""

    def __init__(self, program: str, grid: Grid, out: str, keep: Any) -> None:
        self.program, self.grid, self.keep = program, grid, keep
        self.paths = {name: os.path.join(out, f"{name}.json") for name in ("steps", "plans")}
        self.kept: dict[str, dict[str, Any]] = {name: _load(path) for name, path in self.paths.items()}
        self.processes = 1 if grid.whole_machine else max(each.workers for each in grid.arms)
        self.chosen: dict[str, float] = {}  # the step of a kind, if it is not the measured one

    def _remember(self, name: str, key: str, value: Any) -> Any:
        self.kept[name][key] = value
        self.keep(self.paths[name], self.kept[name])
        return value

    def take_steps(self, steps: Mapping[str, Any]) -> None:
        """Steps that another call measured, maybe on another machine."""
        self.kept["steps"].update(steps)
        self.keep(self.paths["steps"], self.kept["steps"])

    # --- the step ---

    def _kind(self, arm: Arm) -> str:
        """Arms of one kind have the same step."""
        shape = {**arm.model, **{key: arm.resolved[key] for key in _STEP_KEYS}}
        return json.dumps({"atoll": arm.origin["atoll"], "processes": self.processes, **shape}, sort_keys=True)

    def measure(self, arm: Arm) -> dict[str, Any]:
        """"seconds" of an inner step of one worker, and "at", when it was measured."""
        kind, n = self._kind(arm), self.processes
        if not isinstance(self.kept["steps"].get(kind), dict):
            say(f"measuring an inner step of {arm.name}: {counted(n, 'process', 'processes')} at a time")
            words = [self.program, "plan", arm.base, "--measure", "--json", *_flags(arm)]
            found = [statistics.median(answer["step_seconds"] for answer in _ask([words] * n, arm))
                     for _ in range(_REPEATS)]
            # Other programs on this machine can only add time.
            self._remember("steps", kind, {"seconds": min(found), "at": now()})
        return dict(self.kept["steps"][kind])

    def step_seconds(self, arm: Arm) -> float:
        """Of one inner step of one worker, as the plans take it."""
        if self.grid.step_seconds is not None:
            return self.grid.step_seconds * arm.step_tokens / self.grid.arm(self.grid.baseline).step_tokens
        chosen = self.chosen.get(self._kind(arm))
        return self.measure(arm)["seconds"] if chosen is None else chosen

    def choose_steps(self, arms: Sequence[Arm], of_runs: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
        """Lets the runs check the measured steps; returns `steps` of comparison.json.

        `of_runs`: for each arm the median step of each of its valid runs without a link.
        """
        kinds: dict[str, list[Arm]] = {}
        for arm in arms:
            kinds.setdefault(self._kind(arm), []).append(arm)
        entries = [self._entry(kind, found, of_runs) for kind, found in kinds.items()]
        checked = [entry for entry in entries if entry["runs_s"] and entry["measured_s"]]
        wrong = [entry for entry in checked if abs(entry["runs_s"] / entry["measured_s"] - 1) > APART]
        if wrong:
            ratio = statistics.median(entry["runs_s"] / entry["measured_s"] for entry in checked)
            for kind, entry in zip(kinds, entries, strict=True):
                entry["source"] = "runs" if entry["runs_s"] else "scaled"
                entry["seconds"] = entry["runs_s"] or _rounded(ratio * entry["measured_s"])
                self.chosen[kind] = entry["seconds"]
        for entry in wrong:
            entry["apart"] = True
            warn(f"{', '.join(entry['arms'])}: {step_check(entry)}: the times use the steps of the runs")
        return entries

    def _entry(self, kind: str, arms: Sequence[Arm], of_runs: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        steps = [step for arm in arms if arm.workers == self.processes and not arm.one_process
                 for step in of_runs.get(arm.name, ())]
        entry: dict[str, Any] = {
            "arms": [arm.name for arm in arms], "measured_s": None, "measured_at": None, "processes": None,
            "runs_s": _rounded(statistics.median(steps)) if steps else None, "runs": len(steps),
            "apart": False}
        if self.grid.step_seconds is not None:
            return {**entry, "source": "given", "seconds": self.step_seconds(arms[0])}
        measured = self.measure(arms[0])
        return {**entry, "source": "measured", "seconds": measured["seconds"], "measured_s": measured["seconds"],
                "measured_at": measured["at"], "processes": self.processes}

    # --- plans ---

    def plan(self, arm: Arm, link: str) -> dict[str, Any]:
        """"seconds", "utilization", "round_s" and "round_ends_s" of the whole run, without evaluations."""
        step = self.step_seconds(arm)
        if arm.is_local:  # nothing is sent, so that each step follows the one before it
            steps, every = arm.number("train.max_steps"), arm.number("train.sync_every")
            ends = [step * min(at, steps) for at in range(every, steps + every, every)]
            return {"seconds": step * steps, "utilization": 1.0, "round_s": step * every, "round_ends_s": ends}
        words = [self.program, "plan", arm.base, "--workers", str(arm.workers), "--link", link,
                 f"--step-seconds={step!r}", "--only", "--json", *_flags(arm)]
        key = json.dumps([arm.origin["atoll"], *words[2:]])
        if key not in self.kept["plans"]:
            self._remember("plans", key, _ask([words], arm)[0]["plan"])
        return dict(self.kept["plans"][key])

    @staticmethod
    def rounds(arm: Arm, plan: Mapping[str, Any], point: Mapping[str, Any]) -> int:
        """The rounds of the plan up to a point of the curve, by tokens if the run's rounds are not the plan's."""
        if arm.one_process or arm.is_timed:
            total = len(plan["round_ends_s"])
            return min(total, math.ceil(total * point["tokens"] / arm.tokens))
        return int(point["round"])

    def times(self, arm: Arm, link: str, curve: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """An entry of `times` in comparison.json."""
        plan = self.plan(arm, link)
        rounds, ends = [self.rounds(arm, plan, point) for point in curve], plan["round_ends_s"]
        if rounds and rounds[-1] > len(ends):
            raise Problem(f"arm {arm.name}: the run has {rounds[-1]} rounds, its plan {len(ends)}: build the "
                          "programs anew")
        at = [ends[number - 1] if number else 0.0 for number in rounds]
        return {"link": link, "source": "plan", "step_seconds": self.step_seconds(arm), "seconds": plan["seconds"],
                "utilization": plan["utilization"], "round_s": plan["round_s"], "at": at}


def _rounded(seconds: float) -> float:
    """Three digits, as people read it: runs that differ less need no new plan."""
    return float(f"{seconds:.3g}")


def _load(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return {}


def _flags(arm: Arm) -> list[str]:
    return [f"--{key}={value}" for key, value in plan_settings(arm).items()]


def _ask(commands: Sequence[Sequence[str]], arm: Arm) -> list[Any]:
    """Runs `atoll plan` processes at the same time and returns their answers."""
    children = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for words in commands]
    answers = []
    for child in children:
        out, errors = child.communicate()
        if child.returncode:
            line = (errors.strip().splitlines() or [f"it ended with code {child.returncode}"])[-1]
            raise Problem(f"arm {arm.name}: atoll plan: {line.removeprefix('atoll: ')}")
        answers.append(json.loads(out))
    return answers
