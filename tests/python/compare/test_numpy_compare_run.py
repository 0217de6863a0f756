"""atoll compare with real runs of seconds: a whole comparison, a stop, a changed grid, an invalid run."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

import atoll
import rig

GRID = """
title: a test
settings:
  data: {train: "data/train_*.bin", val: "data/val_*.bin"}
  model: {n_layer: 1, n_head: 2, n_embd: 16, block_size: 32}
  train: {batch_size: 4, max_steps: 40, eval_every: 20 steps, eval_tokens: 1048576}
  inner: {warmup_steps: 5}
workers: 2
seeds: [1, 2]
links: ["10mbit,rtt=20ms", "none"]
step_seconds: 0.01
tune: {values: [1.0e-3, 1.0e-2], seeds: [9]}
arms:
  ddp: {settings: {train.method: ddp}}
  diloco: {H: 10}
  alone: {workers: 1, links: none, H: 10, codec: fp32, settings: {train.method: local-sgd, train.max_steps: 80,
          train.eval_every: 40 steps}}
"""


class CompareTest(rig.RunTest):
    def setUp(self) -> None:
        super().setUp()
        self.prepare_data(20000)
        self.out = self.folder / "out"
        self.write(GRID)

    def write(self, text: str) -> None:
        (self.folder / "g.yaml").write_text(text)

    def words(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "atoll.compare", "g.yaml", "--dir", "out", *more]

    def compare(self, *more: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        got = subprocess.run(self.words(*more), cwd=self.folder, capture_output=True, text=True, timeout=120)
        self.assertEqual(got.returncode, code, got.stdout + got.stderr)
        return got

    def cells(self) -> dict[str, int]:
        """The finished cells and when they were written."""
        return {path.stem: path.stat().st_mtime_ns for path in (self.out / "cells").glob("*.json")}

    def result(self) -> dict[str, Any]:
        return json.loads((self.out / "comparison.json").read_text())

    def test_comparison_stopped_continued_and_changed(self) -> None:
        listed = self.compare("--list").stdout
        self.assertEqual(listed.count(" to do\n"), 2 + 3 * 2, listed)  # two seeds untrained, two trials of three arms
        self.assertEqual(listed.count(" waits for the trials of "), 3 * 2)
        self.assertFalse(self.out.exists())

        first = self.start(self.words(), "compare.log")
        self.wait_for(60, "a cell", lambda: len(self.cells()) >= 3)
        first.send_signal(signal.SIGTERM)
        self.finish(first, code=75)
        begun = self.cells()
        self.assertIn("stopped by a signal: the same command continues", self.log("compare"))
        self.assertEqual(self.result()["runs"], [], self.log("compare"))
        self.assertEqual(self.result()["steps"], [])
        self.assertRegex(self.log("compare"), r"untrained.s1 +loss 5\.\d+  \S+ m?s  \(1 of 14\)\n")  # runs count, too
        only = self.compare("--only", "ddp.s1", code=1)
        self.assertIn("ddp.s1 waits for the trials of ddp, which --only leaves out: run them first", only.stderr)

        lines = self.compare().stdout
        self.assertRegex(lines, r"diloco.s1 .* \(1[0-3] of 14\)  about \d+ s left\n")
        done = self.cells()
        self.assertEqual(len(done), 2 + 3 * 2 + 3 * 2)
        self.assertEqual({name: done[name] for name in begun}, begun)
        self.assertEqual(list((self.out / "runs").iterdir()), [])
        self.check_result(self.result())

        self.compare()
        self.assertEqual(self.cells(), done)
        self.write(GRID.replace("diloco: {H: 10}", "diloco: {H: 5}"))
        listed = self.compare("--list").stdout  # its trials; the runs wait for them
        self.assertEqual(listed.count(" to do again, changed: train.sync_every 10, now 5\n"), 2, listed)
        self.compare()
        again = {name for name, at in self.cells().items() if at != done.get(name)}
        self.assertEqual(again, {"diloco.tune-0.001.s9", "diloco.tune-0.01.s9", "diloco.s1", "diloco.s2"})

    def check_result(self, got: dict[str, Any]) -> None:
        self.assertEqual([(run["arm"], run["seed"], run["valid"]) for run in got["runs"]],
                         [(arm, seed, True) for arm in ("ddp", "diloco", "alone") for seed in (1, 2)])
        for run in got["runs"]:
            curve, (slow, fast) = run["curve"], run["times"]
            self.assertEqual([point["tokens"] for point in curve], [0, 5120, 10240])
            self.assertAlmostEqual(curve[0]["loss"], 5.55, delta=0.1)  # ln 256: the initial model
            self.assertAlmostEqual(curve[-1]["loss"], run["final_loss"], 9)
            self.assertEqual((curve[-1]["bytes_up"], curve[-1]["bytes_down"]), (run["bytes_up"], run["bytes_down"]))
            self.assertTrue(slow["at"][0] == 0 < slow["at"][1] < slow["at"][2] == slow["seconds"], slow)
            self.assertEqual(fast["link"], "none")
            self.assertTrue(slow["seconds"] > fast["seconds"] if run["arm"] != "alone" else
                            slow["seconds"] == fast["seconds"] == 0.8, run["times"])
        for arm in got["arms"]:
            self.assertEqual([trial["value"] for trial in arm["tuned"]["trials"]], [0.001, 0.01])
            losses = {trial["value"]: trial["loss"] for trial in arm["tuned"]["trials"]}
            self.assertEqual(arm["tuned"]["best"], min(losses, key=losses.__getitem__))
            self.assertTrue(arm["tuned"]["edge"])
            self.assertEqual(float(arm["settings"]["inner.learning_rate"]), arm["tuned"]["best"])
        # The shown command is the run: it gives the same bits.
        run = got["runs"][2]
        words = shlex.split(run["command"])
        self.assertEqual(words[0], "atoll")
        subprocess.run([atoll.program("atoll"), *words[1:]], cwd=self.folder, check=True, capture_output=True)
        summary = json.loads((self.folder / "runs" / "diloco.s1" / "summary.json").read_text())
        self.assertEqual((summary["theta_hash"], summary["final_val_loss"]), (run["theta_hash"], run["final_loss"]))

    def test_links_are_real(self) -> None:
        """async trains on each link, and `verify` compares a planned time with a measured one."""
        text = GRID.replace("tune:", "verify: [{arm: diloco, link: '10mbit,rtt=20ms'}]\n#").replace("[1, 2]", "[1]")
        text = text[: text.index("  ddp:")] + "  diloco: {H: 10}\n  async: {H: 10, settings: {train.method: async}}\n"
        self.write(text)
        self.compare()
        got = self.result()
        self.assertEqual([(run["arm"], run["link"], run["valid"]) for run in got["runs"]],
                         [("diloco", None, True), ("async", "10mbit,rtt=20ms", True), ("async", "none", True)])
        check = got["checks"][0]
        self.assertEqual((check["arm"], check["same_hash"]), ("diloco", True))
        self.assertGreater(check["measured_s"], 4 * 0.02, check)  # at least a round trip in each round
        self.assertTrue(0 < check["measured_utilization"] < 1, check)
        for run in got["runs"][1:]:
            self.assertEqual(len(run["times"]), 1)
            self.assertEqual((run["times"][0]["link"], run["times"][0]["source"]), (run["link"], "measured"))
            at, curve = run["times"][0]["at"], run["curve"]
            self.assertEqual((at[0], curve[0]["tokens"], curve[-1]["tokens"]), (0, 0, 10240))
            self.assertEqual(at, sorted(at))
            self.assertAlmostEqual(at[-1], run["times"][0]["seconds"])
            self.assertGreaterEqual(len(curve), 3)
            self.assertTrue(all(point["loss"] < curve[0]["loss"] for point in curve[1:]), curve)
        self.assertEqual(list((self.out / "runs").iterdir()), [])

    def test_invalid_run_is_repeated_and_stays(self) -> None:
        self.write(GRID.replace("max_steps: 40", "max_steps: 4000").replace("tune:", "baseline: diloco\n#").replace(
            "alone: {", "alone: {tokens: own, ").replace("ddp: {", "ddp: {tokens: own, "))
        first = self.start(self.words("--only", "diloco.s1"), "compare.log")
        self.wait_for(60, "the first worker", lambda: self.workers_of_run())
        os.kill(self.workers_of_run()[0], signal.SIGKILL)
        self.finish(first, 120)
        record = json.loads((self.out / "cells" / "diloco.s1.json").read_text())
        self.assertEqual(len(record["attempts"]), 2)
        self.assertRegex(record["attempts"][0]["why_invalid"], "^(evict|fault|restart)")
        runs = self.result()["runs"]
        self.assertEqual([run["valid"] for run in runs], [False, True])
        self.assertEqual(runs[0]["times"], [])

    def workers_of_run(self) -> list[int]:
        """Worker processes whose run has merged rounds."""
        metrics = self.out / "runs" / "diloco.s1" / "metrics.jsonl"
        if not metrics.exists() or '"round":2,' not in metrics.read_text():
            return []
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"atoll-worker" in words and b"diloco.s1" in words and Path(os.readlink(entry / "cwd")) == self.folder:
                found.append(int(entry.name))
        return found

    def test_mistakes_are_one_line(self) -> None:
        for words, text in (
            ((), "atoll: --dir is missing: usage is "),
            (("--dir", "out", "--mintes", "3"), "atoll: unknown option --mintes: did you mean --minutes?"),
            (("--dir", "out", "--minutes", "x"), "atoll: --minutes: 'x' is not a whole number from 1 to 1000000"),
        ):
            got = subprocess.run([sys.executable, "-m", "atoll.compare", "g.yaml", *words], cwd=self.folder,
                                 capture_output=True, text=True, timeout=60)
            self.assertEqual((got.returncode, got.stderr.count("\n")), (2, 1), got.stderr)
            self.assertTrue(got.stderr.startswith(text), got.stderr)
        self.out.mkdir()
        with open(self.out / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertEqual(self.compare(code=1).stderr,
                             "atoll: another atoll compare uses out: wait for it, or give another folder\n")
        self.write(GRID.replace("ddp}", "ddp, codec.up: int9}"))
        self.assertIn("g.yaml: arm ddp: codec.up: ", self.compare(code=2).stderr)


if __name__ == "__main__":
    unittest.main()
