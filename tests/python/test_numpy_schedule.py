"""Overlap and staggered fragments of real runs against tests/golden/schedule_reference.py, to 1e-6."""

from __future__ import annotations

import json
import re
import sys
import unittest
from pathlib import Path

import numpy as np

import atoll
from rig import RunTest
from test_numpy_run import Squares, gradient, parameters

sys.path.append(str(Path(__file__).resolve().parents[1] / "golden"))

import schedule_reference  # noqa: E402

PERIOD, STEPS, RATE = 6, 24, 0.05


# Name: overlap, rule, staggered; other settings; the lengths of the segments, if they are compared.
CASES: dict[str, tuple] = {
    "plain": (0, "replace", False, {}, [6, 6, 6, 6]),
    "correct": (2, "correct", False, {}, [4, 2, 4, 2, 4, 2, 6]),
    "correct over the whole period": (PERIOD, "correct", False, {}, None),
    "mix": (3, "mix:0.5", False, {}, None),
    "mix with another weight": (1, "mix:0.2", False, {}, None),
    "staggered fragments": (2, "mix:0.5", True, {}, [2, 2, 2, 2, 2, 2, 2, 2, 2, 6]),
    "staggered fragments correct": (1, "correct", True, {}, None),
    "staggered fragments without overlap": (0, "replace", True, {}, None),
    "a short last round": (0, "replace", False, {"n": 21}, [6, 6, 6, 3]),
    "relayed updates": (0, "replace", False, {"momentum": 0, "down": "relay"}, None),
    "rda": (0, "replace", False, {"merge": "rda"}, None),
    "rda of staggered fragments": (2, "mix:0.5", True, {"merge": "rda"}, None),
    "rounds of one step first": (0, "replace", False, {"start_step": 5}, [1, 1, 1, 1, 1, 6, 6, 6, 1]),
    "rounds of one step before overlap": (2, "correct", False, {"start_step": 4}, [1, 1, 1, 1, 4, 2, 4, 2, 4, 2, 2]),
    "rounds of one step are not mixed": (2, "mix:0.5", True, {"start_step": 6}, None),
}


class Schedule(RunTest):
    def run_workers(self, outer: dict, codec: dict, merge: str,
                    **train: object) -> tuple[list[list[np.ndarray]], list[dict], list[int]]:
        """Two workers; returns the samples of their steps, their last parameters, and the lengths of the segments."""
        settings = {"max_steps": STEPS, "sync_every": PERIOD, "fragments": 2, **train}
        coordinator = self.start_coordinator(outer=outer, coordinator={"min_workers": 2}, train=settings,
                                             codec={"up": "fp32", "down": "fp32", **codec}, merge={"rule": merge})
        steps: list[list[np.ndarray]] = [[], []]
        lengths: list[int] = []

        def work(m: int) -> dict:
            p, data = parameters(), Squares()
            with atoll.Worker(p, join=self.run_dir, dir=self.run_dir.with_suffix(f".w{m}"), name=f"w{m}", train=data,
                              max_wait=30) as worker:
                for _ in iter(worker.begin, False):
                    if m == 0:
                        lengths.append(worker.assignment.steps)
                    for _ in range(worker.assignment.steps):
                        samples = worker.samples(4)
                        steps[m].append(samples)
                        _, g = gradient(p, data.x[samples], data.x[samples] @ data.TRUE)
                        for key in p:
                            p[key] -= RATE * g[key]
                        worker.step()
            return p

        last = self.in_threads(lambda: work(0), lambda: work(1))
        self.finish(coordinator)
        return steps, last, lengths

    def compare(self, tau: int, rule: str, stagger: bool, *, n: int = STEPS, momentum: float = 0.6, start_step: int = 0,
                down: str = "fp32", merge: str = "mean") -> list[int]:
        """n steps of each worker against the reference. momentum 0: plain SGD, which relayed updates need."""
        outer = {"optimizer": "nesterov" if momentum else "sgd", "learning_rate": 0.5, "momentum": momentum}
        steps, last, lengths = self.run_workers(outer, {"down": down}, merge, overlap=tau, apply=rule, max_steps=n,
                                                stagger="on" if stagger else "off", start_step=start_step)
        data = Squares()

        def step(m: int, t: int, x: dict) -> dict:
            samples = steps[m][t]
            rows = data.x[samples].astype(np.float64)
            _, g = gradient(x, rows, rows @ data.TRUE)
            return {key: x[key] - RATE * g[key] for key in x}

        self.assertEqual([len(s) for s in steps], [n, n])
        tokens = [4] * start_step + [4 * min(PERIOD, n - at) for at in range(start_step, n, PERIOD)]
        report = schedule_reference.Report(momentum, tokens)
        want = schedule_reference.train(parameters(), [["w"], ["b"]], step, workers=2, steps=n, period=PERIOD, tau=tau,
                                        rule=rule, stagger=stagger, rate=0.5, momentum=momentum, merge=merge,
                                        start_step=start_step, report=report)
        for p in last:
            for key in p:
                np.testing.assert_allclose(p[key], want[key], atol=1e-6, rtol=0)
        if merge == "mean":
            self.check_report(report.rounds(), report.overshooting())
        return lengths

    def check_report(self, want: list[dict], overshooting: list[int]) -> None:
        """The values of the outer steps in metrics.jsonl against the reference."""
        lines = [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]
        rounds = {line["round"]: line for line in lines if line["event"] == "round"}
        self.assertEqual(sorted(rounds), list(range(1, len(want) + 1)))
        for number, values in enumerate(want, 1):
            for key, value in values.items():
                if value is None or np.isnan(value):
                    self.assertNotIn(key, rounds[number])
                    continue
                # theta is fp32: its rounding is up to 4e-6 of a small D, and 1e-4 of the D of one step (measured);
                # test_outer_report is exact
                np.testing.assert_allclose(rounds[number][key], value, rtol=2e-4, err_msg=f"round {number}: {key}")
        log = self.log("coordinator")
        told = re.findall(r"outer step of round (\d+) overshoots: .*; lower outer.learning_rate or outer.momentum", log)
        self.assertEqual([int(number) for number in told], overshooting)

    def test_all(self) -> None:
        for number, (name, (tau, rule, stagger, more, lengths)) in enumerate(CASES.items()):
            with self.subTest(name):
                self.run_dir = self.folder / f"run{number}"
                (self.folder / "coordinator.log").unlink(missing_ok=True)
                found = self.compare(tau, rule, stagger, **more)
                self.assertEqual(found, lengths or found)


if __name__ == "__main__":
    unittest.main()
