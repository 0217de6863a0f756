"""DiLoCo with fragments, delay and mixing against the steps that torchft recorded: tests/golden/torchft, exactly."""

from __future__ import annotations

import csv
import json
import unittest
from pathlib import Path

import numpy as np

import atoll
from rig import RunTest

RECORDS = Path(__file__).resolve().parents[2] / "golden" / "torchft" / "updates.csv"
PERIOD = 6
STEPS = 24  # the last round is not staggered, so it begins after the last recorded step


def recorded(delay: int, alpha: float) -> list[dict[str, str]]:
    """What a replica of torchft held before each step."""
    with open(RECORDS, encoding="ascii", newline="") as file:
        return [row for row in csv.DictReader(file) if (int(row["delay"]), float(row["alpha"])) == (delay, alpha)]


class Torchft(RunTest):
    def train(self, delay: int, rule: str) -> list[list[tuple[float, float]]]:
        """Two workers whose optimizer always subtracts 2; returns the parameters that each had before each step."""
        coordinator = self.start_coordinator(
            train={"max_steps": STEPS, "sync_every": PERIOD, "fragments": 2, "stagger": "on", "overlap": delay,
                   "apply": rule},
            outer={"optimizer": "sgd", "learning_rate": 2},
            checkpoint={"every": 1, "keep": STEPS // PERIOD},
            coordinator={"min_workers": 2})

        def work(name: str) -> list[tuple[float, float]]:
            fragments = {"0": np.ones(1, np.float32), "1": np.ones(1, np.float32)}
            held = []
            with atoll.Worker(fragments, join=self.run_dir, dir=self.folder / name, name=name, max_wait=30) as worker:
                while worker.begin():
                    held.append((float(fragments["0"][0]), float(fragments["1"][0])))
                    for value in fragments.values():
                        value -= 2
                    worker.step()
            return held

        held = self.in_threads(lambda: work("w0"), lambda: work("w1"))
        self.finish(coordinator)
        return held

    def shared(self, r: int) -> tuple[float, float]:
        """The run's parameters after r rounds."""
        raw = (self.run_dir / "checkpoints" / f"round_{r:06}" / "model.safetensors").read_bytes()
        begin = 8 + int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:begin])
        places = [begin + header[name]["data_offsets"][0] for name in ("0", "1")]
        first, second = (float(np.frombuffer(raw, "<f4", 1, place)[0]) for place in places)
        return first, second

    def compare(self, delay: int, alpha: float, rule: str, same_schedule: tuple[int, ...] = (0, 1)) -> None:
        """same_schedule: the fragments that both programs send after the same steps."""
        rows = recorded(delay, alpha)
        self.assertEqual([int(row["step"]) for row in rows], list(range(16)))
        for held in self.train(delay, rule):
            self.assertEqual(held[:16], [(float(row["local_0"]), float(row["local_1"])) for row in rows])
        for r in (1, 2):
            after = rows[PERIOD * r]
            self.assertEqual([self.shared(r)[f] for f in same_schedule],
                             [float(after[f"shared_{f}"]) for f in same_schedule])

    def test_workers_take_the_update(self) -> None:
        self.compare(0, 0, "replace")

    def test_workers_take_half_of_the_update(self) -> None:
        self.compare(0, 0.5, "mix:0.5")

    def test_workers_keep_their_parameters(self) -> None:
        self.compare(0, 1, "mix:1")

    def test_delay(self) -> None:
        """torchft sends fragment 0 after step 2, Atoll after step 3."""
        self.compare(1, 1, "mix:1", same_schedule=(1,))


if __name__ == "__main__":
    unittest.main()
