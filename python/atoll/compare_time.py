"""The time of a run on a link, for atoll compare: from `atoll plan`, which runs the protocol in virtual time.

- OUT/steps.json keeps the measured time of an inner step, OUT/plans.json the plans. Delete a file to make it anew.
- The measurement runs one process for each worker of the largest arm at the same time, so that workers which share the
  cores of this machine have the step time that their runs had. Each arm's worker is such a machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from .command import Problem, warn
from .compare_grid import Arm, Grid
from .compare_run import plan_settings

# What the time of an inner step depends on.
_STEP_KEYS = ("train.batch_size", "train.grad_accum", "train.precision", "train.threads", "train.ranks",
              "train.devices", "train.recompute", "inner.optimizer", "inner.moments")

_REPEATS = 5
_APART = 1.2  # a warning: the steps of the runs took longer than this times the measured step


class Clock:
    """Times of the arms on links. `keep` writes a file of OUT."""

    def __init__(self, program: str, grid: Grid, out: str, keep: Any) -> None:
        self.program, self.grid, self.keep = program, grid, keep
        self.paths = {name: os.path.join(out, f"{name}.json") for name in ("steps", "plans")}
        self.kept: dict[str, dict[str, Any]] = {name: _load(path) for name, path in self.paths.items()}

    def _remember(self, name: str, key: str, value: Any) -> Any:
        self.kept[name][key] = value
        self.keep(self.paths[name], self.kept[name])
        return value

    def step_seconds(self, arm: Arm) -> float:
        """Of one inner step of one worker."""
        if self.grid.step_seconds is not None:
            return self.grid.step_seconds * arm.step_tokens / self.grid.arm(self.grid.baseline).step_tokens
        n = max(each.workers for each in self.grid.arms)
        shape = {**arm.model, **{key: arm.resolved[key] for key in _STEP_KEYS}}
        key = json.dumps({"processes": n, **shape}, sort_keys=True)
        if key not in self.kept["steps"]:
            print(f"measuring an inner step of {arm.name}: {n} processes at a time", flush=True)
            words = [self.program, "plan", arm.base, "--measure", "--json", *_flags(arm)]
            found = [statistics.median(answer["step_seconds"] for answer in _ask([words] * n, arm))
                     for _ in range(_REPEATS)]
            self._remember("steps", key, min(found))  # other programs on this machine can only add time
        return float(self.kept["steps"][key])

    def compare_steps(self, arm: Arm, of_runs: Sequence[float]) -> None:
        """Warns if the steps of the arm's runs had another length than the measured step."""
        step = self.step_seconds(arm)
        most = max(arm.workers for arm in self.grid.arms)
        if of_runs and arm.workers == most and not step / _APART < min(of_runs) < step * _APART:
            warn(f"{arm.name}: a step took {min(of_runs) * 1e3:.1f} ms in its runs, {step * 1e3:.1f} ms when it was "
                 f"measured: delete {self.paths['steps']} and repeat the command while nothing else runs")

    def plan(self, arm: Arm, link: str) -> dict[str, Any]:
        """"seconds", "utilization", "round_s" and "round_ends_s" of the whole run, without evaluations."""
        step = self.step_seconds(arm)
        if arm.is_local:  # nothing is sent, so that each step follows the one before it
            steps, every = arm.number("train.max_steps"), arm.number("train.sync_every")
            ends = [step * min(at, steps) for at in range(every, steps + every, every)]
            return {"seconds": step * steps, "utilization": 1.0, "round_s": step * every, "round_ends_s": ends}
        words = [self.program, "plan", arm.base, "--workers", str(arm.workers), "--link", link,
                 f"--step-seconds={step!r}", "--only", "--json", *_flags(arm)]
        key = json.dumps(words[2:])
        if key not in self.kept["plans"]:
            self._remember("plans", key, _ask([words], arm)[0]["plan"])
        return dict(self.kept["plans"][key])

    def times(self, arm: Arm, link: str, curve: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """An entry of `times` in comparison.json."""
        plan = self.plan(arm, link)
        ends = plan["round_ends_s"]
        if curve and curve[-1]["round"] > len(ends):
            raise Problem(f"arm {arm.name}: the run has {curve[-1]['round']} rounds, its plan {len(ends)}: build the "
                          "programs anew")
        at = [ends[point["round"] - 1] if point["round"] else 0.0 for point in curve]
        return {"link": link, "source": "plan", "seconds": plan["seconds"], "utilization": plan["utilization"],
                "round_s": plan["round_s"], "at": at}


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
