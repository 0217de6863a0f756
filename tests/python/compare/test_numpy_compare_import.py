"""atoll compare with `machine: whole` and `one_process`, and the import of cells that another folder has finished."""

from __future__ import annotations

import json
import subprocess
import sys
import unittest
from typing import Any

import rig

GRID = """
settings:
  data: {train: "data/train_*.bin", val: "data/val_*.bin"}
  model: {n_layer: 1, n_head: 2, n_embd: 16, block_size: 32}
  train: {batch_size: 4, max_steps: 60, eval_every: 20 steps, eval_tokens: 1048576}
  inner: {learning_rate: 1.0e-2, warmup_steps: 5}
workers: 3
seeds: [1]
links: ["10mbit,rtt=20ms", "1mbit"]
machine: whole
step_seconds: 0.01
arms:
  ddp: {one_process: on, settings: {train.method: ddp}, tune: {values: [5.0e-3, 1.0e-2],
        settings: {train.max_steps: 20}}}
  real: {settings: {train.method: ddp}}
  async: {H: 5, settings: {train.method: async}}
"""


class ImportTest(rig.RunTest):
    def setUp(self) -> None:
        super().setUp()
        self.prepare_data(20000)
        (self.folder / "g.yaml").write_text(GRID)

    def compare(self, out: str, *more: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        got = subprocess.run([sys.executable, "-m", "atoll.compare", "g.yaml", "--dir", out, *more], cwd=self.folder,
                             capture_output=True, text=True, timeout=120)
        self.assertEqual(got.returncode, code, got.stdout + got.stderr)
        return got

    def result(self, out: str) -> dict[str, Any]:
        return json.loads((self.folder / out / "comparison.json").read_text())

    def cells(self, out: str) -> dict[str, Any]:
        return {path.stem: json.loads(path.read_text()) for path in (self.folder / out / "cells").glob("*.json")}

    def test_one_process_and_import(self) -> None:
        self.compare("there")
        cells, got = self.cells("there"), self.result("there")
        self.check_runs(cells, got)

        # One line for each cell, as tests/gpu/record writes them; `steps` would be measured ones.
        lines = [json.dumps(cell) for cell in cells.values()] + [json.dumps({"steps": {"a kind": {"seconds": 1.5}}})]
        (self.folder / "cells.jsonl").write_text("".join(line + "\n" for line in lines))
        for path in ("there", "cells.jsonl"):
            out = f"here-{path}"
            told = self.compare(out, "--import", path).stdout
            self.assertIn(f"{path}: 6 finished cells; 0 of 6 missing\n", told)
            self.assertEqual(self.cells(out), cells)
            # Times differ a little: a plan measures the disk.
            self.assertEqual([{**run, "times": []} for run in self.result(out)["runs"]],
                             [{**run, "times": []} for run in got["runs"]])
        steps = json.loads((self.folder / "here-cells.jsonl" / "steps.json").read_text())
        self.assertEqual(steps["a kind"], {"seconds": 1.5})

        # Cells of another grid are named, cells that are missing do not run, and what is there stays.
        (self.folder / "g.yaml").write_text(GRID.replace("H: 5", "H: 6"))
        own = {**cells["real.s1"], "attempts": [{**cells["real.s1"]["attempts"][0], "wall_s": 99.0}]}
        (self.folder / "one.jsonl").write_text(json.dumps(own) + "\n")
        self.compare("other", "--import", "one.jsonl")
        told = self.compare("other", "--import", "cells.jsonl")
        self.assertIn("warn: cells.jsonl: 1 cell left out (async.s1): train.sync_every 5, now 6", told.stderr)
        self.assertIn("cells.jsonl: 5 finished cells; 1 of 6 missing, the first async.s1\n", told.stdout)
        self.assertEqual(set(self.cells("other")), set(cells) - {"async.s1"})
        self.assertEqual({run["arm"] for run in self.result("other")["runs"]}, {"ddp", "real"})
        kept = self.cells("other")["real.s1"]["attempts"][0]
        self.assertEqual(kept["wall_s"], 99.0)  # it was there before the same cell of cells.jsonl
        (self.folder / "one.jsonl").write_text(json.dumps(cells["ddp.s1"]) + "\n")
        told = self.compare("without", "--import", "one.jsonl").stderr
        self.assertIn("warn: one.jsonl: 1 cell left out (ddp.s1): the trials of ddp are missing", told)
        (self.folder / "one.jsonl").write_text("{}\n")
        self.assertIn("one.jsonl:1: no finished cell of atoll compare", self.compare("x", "--import", "one.jsonl",
                                                                                     code=2).stderr)

    def check_runs(self, cells: dict[str, Any], got: dict[str, Any]) -> None:
        self.assertEqual(cells["ddp.s1"]["workers"], 1)
        self.assertEqual(cells["ddp.tune-0.01.s101"]["identity"]["settings"]["train.max_steps"], "20")
        self.assertEqual(set(cells), {"untrained.s1", "ddp.tune-0.005.s101", "ddp.tune-0.01.s101", "ddp.s1", "real.s1",
                                      "async.s1"})
        ddp, real, other = got["runs"]
        self.assertEqual([(run["arm"], run["link"], run["valid"]) for run in got["runs"]],
                         [("ddp", None, True), ("real", None, True), ("async", None, True)])
        # Three workers and one with the batch of three compute the same gradients, up to rounding.
        self.assertEqual(float(got["arms"][0]["settings"]["inner.learning_rate"]), 0.01)
        self.assertAlmostEqual(ddp["final_loss"], real["final_loss"], delta=2e-4)
        self.assertEqual([point["tokens"] for point in ddp["curve"]], [point["tokens"] for point in real["curve"]])
        for mine, theirs in zip(ddp["curve"], real["curve"], strict=True):
            self.assertAlmostEqual(mine["loss"], theirs["loss"], delta=2e-4)
            # Planned bytes beside those counted on the sockets.
            for key in ("bytes_up", "bytes_down"):
                self.assertLessEqual(abs(mine[key] - theirs[key]), 0.1 * theirs[key] + 20000, (key, mine, theirs))
        self.assertEqual([(time["source"], time["seconds"], len(time["at"])) for time in ddp["times"]],
                         [(time["source"], time["seconds"], len(time["at"])) for time in real["times"]])
        self.assertEqual([time["source"] for time in other["times"]], ["plan", "plan"])
        self.assertEqual(other["times"][1]["at"][-1], other["times"][1]["seconds"])
        notes = {arm["name"]: arm["note"] for arm in got["arms"]}
        self.assertIn("trained by one process with the batch of all workers", notes["ddp"])
        self.assertIn("trained without a link", notes["async"])


if __name__ == "__main__":
    unittest.main()
