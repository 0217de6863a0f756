"""atoll compare without training: the grid, its errors, fairness, invalid runs, trials, times and the result."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import atoll
from folder import FolderTest

from atoll.command import Problem
from atoll.compare import cmd as compare
from atoll.compare import data as compare_data
from atoll.compare import grid as compare_grid
from atoll.compare import result as compare_result
from atoll.compare import run as compare_run
from atoll.compare import store as compare_store
from atoll.compare import timing as compare_time

ROOT = Path(__file__).resolve().parents[3]
MODEL = "model: {n_layer: 1, n_head: 2, n_embd: 16, block_size: 32}"
GRID = f"""
settings:
  {MODEL}
  train: {{batch_size: 4, max_steps: 24, eval_every: 8 steps}}
workers: 2
seeds: [1, 2]
links: ["100mbit,rtt=50ms", "1mbit"]
arms:
  ddp: {{settings: {{train.method: ddp}}}}
  diloco: {{H: [4, 8], codec: [int8:256, "int4:256+huff bf16"]}}
  alone: {{workers: 1, links: none, settings: {{train.method: local-sgd, train.max_steps: 48}}, H: 6}}
  async: {{settings: {{train.method: async}}, H: 6}}
"""
# A program that answers `atoll plan` and writes down its arguments.
PLAN = """#!/usr/bin/env python3
import json, sys
open("calls", "a").write(" ".join(sys.argv[1:]) + "\\n")
if "--measure" in sys.argv:
    print(json.dumps({"step_seconds": 0.25}))
elif "1mbit" in sys.argv:
    sys.exit("atoll: no such link")
else:
    ends = [1.5 * i for i in range(1, 25)]
    print(json.dumps({"plan": {"seconds": 36.0, "rounds": 24, "round_s": 1.5, "utilization": 0.5,
                               "step_seconds": 0.25, "round_ends_s": ends}}))
"""


class GridTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.enter()
        os.mkdir("data")
        for name in ("train_000000.bin", "val_000000.bin"):
            Path("data", name).write_bytes(b"")
        self.program = atoll.program("atoll")

    def read(self, text: str) -> compare_grid.Grid:
        data = '{train: "data/train_*.bin", val: "data/val_*.bin"}'
        text = text.replace("settings:\n", f"settings:\n  data: {data}\n", 1)
        Path("g.yaml").write_text(text)
        grid = compare_grid.read_grid("g.yaml", compare_grid.ask_config(self.program))
        return compare_data.identify(grid, self.program, "out")

    def test_axes_make_arms(self) -> None:
        grid = self.read(GRID)
        self.assertEqual([arm.name for arm in grid.arms],
                         ["ddp", "diloco-h4-int8-256", "diloco-h4-int4-256-huff-bf16", "diloco-h8-int8-256",
                          "diloco-h8-int4-256-huff-bf16", "alone", "async"])
        arm = grid.arms[2]
        self.assertEqual((arm.resolved["codec.up"], arm.resolved["codec.down"], arm.resolved["train.sync_every"]),
                         ("int4:256+huff", "bf16", "4"))
        self.assertEqual(arm.title, "diloco, H 4, int4:256+huff bf16")
        self.assertEqual({arm.tokens for arm in grid.arms}, {24 * 4 * 32 * 2})
        self.assertEqual([arm.name for arm in grid.arms if arm.needs_link], ["async"])
        self.assertEqual((grid.baseline, grid.target), ("ddp", {"arm": "ddp", "factor": 1.01}))

    def test_stronger_places_win(self) -> None:
        Path("base.yaml").write_text("train: {sync_every: 3, threads: 5, batch_size: 9}\ninner: {learning_rate: 0.5}\n")
        grid = self.read(GRID.replace("diloco: {", "diloco: {base: base.yaml, settings: {train: {threads: 7}}, "))
        got = grid.arms[1].resolved
        self.assertEqual([got[key] for key in ("train.sync_every", "train.threads", "train.batch_size",
                                               "inner.learning_rate")], ["4", "7", "4", "0.5"])

    def test_each_mistake_is_one_line(self) -> None:
        def changed(old: str, new: str) -> str:
            self.assertIn(old, GRID)
            return GRID.replace(old, new, 1)

        cases = (
            (changed("workers: 2", "wrokers: 2"), "the grid: unknown key wrokers: did you mean workers?"),
            (changed("ddp: {settings", "ddp: {setings"), "arms.ddp: unknown key setings: did you mean settings?"),
            (changed("train.method: ddp", "train.methd: ddp"), "arm ddp: unknown option --train.methd; the nearest is"),
            (changed("train.method: ddp", "train.method: dpp"), 'arm ddp: train.method: "dpp" is not a choice'),
            (changed("batch_size: 4", "batch_size: 4, grad_accum: four"), 'train.grad_accum: "four" is not'),
            (changed('"1mbit"', '"1mbti"'), "links: '1mbti' is no word of a link: write none, or for example"),
            (changed('"1mbit"', '"1mbit;2mbit;3mbit"'), "has 3 links, arm ddp has 2 workers"),
            (changed('"1mbit"', '"100mbit,rtt=50ms"'), "links: 100mbit,rtt=50ms appears twice: remove one"),
            (changed("seeds: [1, 2]", "seeds: [1, 1]"), "seeds: 1 appears twice: remove one"),
            (changed("seeds: [1, 2]", "seeds: 3"), "seeds: needs a list, as [1, 2]"),
            (changed("workers: 2", "workers: two"), "arms.ddp.workers: needs a whole number from 1, not two"),
            (changed("max_steps: 24", "max_steps: 24, seed: 1").replace("train:", "run:", 1),
             "settings: remove run.seed: the grid's seeds set it"),
            (changed("max_steps: 48", "max_steps: 47"), "arm alone trains on 6016 tokens, ddp on 6144: set its"),
            (changed("  async:", "  ddp:"), "g.yaml:13: the key ddp appears twice: remove one"),
            (changed("  ddp:", "  DDP:"), "arms.DDP: an arm's name has small letters, digits, '.' and '-'"),
            (GRID + "target: {arm: dpp}", "target.arm: there is no arm dpp: the arms are ddp, diloco-h4"),
            (GRID + "baseline: dpp", "baseline: there is no arm dpp: the arms are ddp, diloco-h4"),
            (GRID + "verify: [{arm: async, link: 1mbit}]", "verify[0]: async is no arm whose time is planned"),
            (GRID + "verify: [{arm: ddp, link: 2mbit}]", "verify[0]: its link and its seed must be among"),
            (GRID + "margin: 5", "margin: needs a fraction of the baseline's loss, as 0.005 for 0.5 %, not 5"),
            (GRID + "margin: 0.5 %", "margin: needs a number from 0, not 0.5 %"),
            (GRID + "tune: {values: [1.0e-3], seeds: [7, 2]}", "arm ddp: tune.seeds has 2, a seed of the grid: give"),
            (GRID + "machine: own", "machine: own is neither shared nor whole: write whole if each worker"),
            (GRID + "machine: whole\nverify: [{arm: ddp, link: 1mbit}]", "verify: remove it, or machine: whole"),
            (changed("ddp: {", "ddp: {one_process: off, "), "arms.ddp.one_process: only on is allowed"),
            (changed("async: {", "async: {one_process: on, "), "arm async: one_process needs train.method ddp and"),
            (changed("ddp: {", "ddp: {codec: int8, one_process: on, "), "and codec fp32, not codec.up int8"),
            (changed("alone: {", "alone: {one_process: on, "), "arm alone: one_process is for workers behind links"),
            (GRID + "tune: {values: [1], settings: {train.methd: ddp}}", "unknown option --train.methd"),
            (GRID + "tune: {values: [1], settings: {inner.learning_rate: 2}}", "tune.settings: remove inner.learning"),
            (GRID + "step_seconds: fast", "step_seconds: needs a number from 0, not fast"),
            (GRID + "tune: {seeds: [4]}", "tune: values are missing: write for example values: [1.5e-3, 3.0e-3]"),
            (GRID + "tune: {values: [1, two]}", "tune.values: needs a number from 0, not two"),
            (changed("ddp: {", "ddp: {tune: {values: [1.0e-3]}, ") + "tune: {values: [1.0e-3, 2.0e-3]}",
             "arm diloco-h4-int8-256 is tuned with 2 trials, ddp with 1: give both as many, or tune: false"),
            ("arms: [", "g.yaml:1: no YAML: "),
            ("arms: {}", "arms: give at least one arm"),
            (changed("ddp: {", "ddp: {base: none.yaml, "), "arms.ddp: there is no base file none.yaml"),
        )
        for text, message in cases:
            with self.assertRaises(Problem, msg=message) as caught:
                self.read(text)
            self.assertIn(message, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))
            self.assertTrue(str(caught.exception).startswith("g.yaml"), str(caught.exception))
        os.unlink("data/val_000000.bin")
        with self.assertRaisesRegex(Problem, "arm ddp: data.val: no file matches 'data/val_.*': make the token shards"):
            self.read(GRID)

    def test_arm_may_have_its_own_tokens(self) -> None:
        text = GRID.replace("max_steps: 48", "max_steps: 47").replace("alone: {", "alone: {tokens: own, ")
        self.assertEqual(self.read(text).arm("alone").tokens, 47 * 4 * 32)

    def test_shipped_grids_are_valid(self) -> None:
        os.symlink(ROOT / "configs", "configs")
        for path in sorted(Path("configs").glob("compare*.yaml")):
            grid = compare_grid.read_grid(str(path), compare_grid.ask_config(self.program))
            self.assertEqual({arm.tokens for arm in grid.arms}, {grid.arms[0].tokens}, path)
            evaluations = [arm.number("train.max_steps") // arm.eval_every[0] for arm in grid.arms]
            self.assertLessEqual(max(evaluations) - min(evaluations), 3, path)

    def test_recorded_cells_are_finished(self) -> None:
        """`./run bench record --recorded` makes its reports without training."""
        os.symlink(ROOT / "configs", "configs")
        for size, name in (("small", "compare-record"), ("large", "compare-record-large")):
            recorded = ROOT / "docs" / "history" / f"record-{size}.jsonl"
            store = compare_store.Store(size)
            store.records = {record["name"]: record for record in compare_store.read_finished(str(recorded))[0]}
            identity = next(iter(store.records.values()))["identity"]
            grid = compare_grid.read_grid(f"configs/{name}.yaml", compare_grid.ask_config(self.program))
            origin = {key: identity[key] for key in ("atoll", "data")}  # of the recorded runs
            grid = dataclasses.replace(grid, arms=tuple(dataclasses.replace(arm, origin=origin) for arm in grid.arms))
            cells = compare_store.cells_of(grid, store)
            self.assertGreater(len(cells), 12)
            self.assertLessEqual({store.state(cell) for cell in cells}, {"done", "invalid"})

    # --- trials, times, result ----------------------------------------------------------------------------------------

    def record(self, cell: compare_run.Cell, loss: float | None, why: str | None = None, **more: Any) -> dict[str, Any]:
        attempt = {"why_invalid": why, "final_loss": loss, "params": 9, "tokens": 6144, "rounds": 24, "bytes_up": 10,
                   "bytes_down": 20, "theta_hash": "aa", "wall_s": 3.0, "eval_s": 0.5, "step_seconds": 0.25,
                   "seconds": 30.0, "utilization": 0.4, "round_ends_s": None, "curve": [], **more}
        return {"name": cell.name, "identity": cell.identity, "command": "atoll launch", "attempts": [attempt]}

    def test_best_trial(self) -> None:
        grid = self.read(GRID + "tune: {values: [4.0e-3, 1.0e-3, 2.0e-3], seeds: [7, 8]}\n")
        arm, store = grid.arms[0], compare_store.Store(".")
        cells = {(cell.tuned, cell.seed): cell for cell in compare_run.trial_cells(arm)}
        self.assertEqual([cell.name for cell in cells.values()][:2], ["ddp.tune-0.004.s7", "ddp.tune-0.004.s8"])
        self.assertEqual(cells["0.001", 8].settings["inner.learning_rate"], "0.001")
        self.assertEqual(cells["0.001", 8].settings["run.seed"], "8")
        store.put(self.record(cells["0.001", 7], 3.0))
        store.put(self.record(cells["0.002", 7], None, "the final loss is not finite"))
        settled, tuned = compare_store.settle(arm, store)
        self.assertIsNone(settled)
        self.assertEqual(tuned["trials"], [{"value": 0.001, "seed": 7, "loss": 3.0},
                                           {"value": 0.002, "seed": 7, "loss": None}])
        names = [cell.name for cell in compare_store.cells_of(grid, store)]
        self.assertEqual(len(names), 2 + 7 * 3 * 2 + 6 * 2 + 2 * 2)  # the runs that wait for trials count
        waiting = {cell.name: store.state(cell) for cell in compare_store.cells_of(grid, store) if cell.waits}
        self.assertEqual(waiting["ddp.s1"], "waits for the trials of ddp")
        self.assertEqual(len(waiting), 6 * 2 + 2 * 2)
        for (value, seed), loss in {("0.001", 8): 3.0, ("0.002", 8): 1.0, ("0.004", 7): 2.0, ("0.004", 8): 3.5}.items():
            store.put(self.record(cells[value, seed], loss))
        settled, tuned = compare_store.settle(arm, store)  # means 3.0, infinite and 2.75
        self.assertEqual((settled.settings["inner.learning_rate"], tuned["best"]), ("0.004", 0.004))
        self.assertTrue(tuned["edge"])
        ready = {cell.name: store.state(cell) for cell in compare_store.cells_of(grid, store) if not cell.waits}
        self.assertEqual(ready["ddp.s1"], "to do")
        self.assertEqual([cell.name for cell in compare_store.cells_of(grid, store)], names)
        store.put(self.record(cells["0.002", 7], 2.0))
        self.assertEqual(compare_store.settle(arm, store)[1]["best"], 0.002)
        self.assertFalse(compare_store.settle(arm, store)[1]["edge"])
        for loss, best in ((1.52, 0.002), (1.507, 0.001), (1.2, 0.001)):  # 0.002 has 1.5; near ties: the smallest
            for seed in (7, 8):
                store.put(self.record(cells["0.001", seed], loss))
            tuned = compare_store.settle(arm, store)[1]
            self.assertEqual(tuned["best"], best)
            near = {"best_loss": 1.507, "lowest": 0.002, "lowest_loss": 1.5, "within": 0.005} if loss == 1.507 else None
            self.assertEqual(tuned["near_tie"], near)
        for cell in cells.values():
            store.put(self.record(cell, None, "the final loss is not finite"))
        with self.assertRaisesRegex(Problem, "arm ddp: no value of inner.learning_rate gives a finite loss"):
            compare_store.settle(arm, store)

    def state(self, store: compare_store.Store, grid: str = GRID, seed: int = 1) -> str:
        return store.state(compare_run.run_cell(self.read(grid).arms[0], seed))

    def test_changed_settings_and_data_run_again(self) -> None:
        store = compare_store.Store(".")
        cell = compare_run.run_cell(self.read(GRID).arms[0], 1)
        store.put(self.record(cell, 2.0))
        again = compare_store.Store(".")  # reads the file
        self.assertEqual(again.state(cell), "done")
        self.assertEqual(self.state(again, seed=2), "to do")
        other = compare_run.run_cell(self.read(GRID.replace("batch_size: 4", "batch_size: 5")).arms[0], 1)
        self.assertEqual((again.state(other), again.get(other)),
                         ("to do again, changed: train.batch_size 4, now 5", None))
        Path("base.yaml").write_text("inner: {weight_decay: 0.2} # less\n")
        based = GRID.replace("ddp: {", "ddp: {base: base.yaml, ")
        cell = compare_run.run_cell(self.read(based).arms[0], 1)
        store.put(self.record(cell, 2.0))
        Path("base.yaml").write_text("inner:\n  weight_decay: 0.2\n")
        self.assertEqual(self.state(store, based), "done")
        Path("base.yaml").write_text("inner: {weight_decay: 0.3}\n")
        self.assertEqual(self.state(store, based), "to do again, changed: base file")

    def test_other_tokens_of_the_same_size_run_again(self) -> None:
        shard, store = Path("data/train_000000.bin"), compare_store.Store(".")
        shard.write_bytes(b"some tokens")
        cell = compare_run.run_cell(self.read(GRID).arms[0], 1)
        store.put(self.record(cell, 2.0))
        shard.touch()
        self.assertEqual(self.state(store), "done")
        shard.write_bytes(b"more tokens")
        self.assertEqual(store.state(cell), "done")
        self.assertEqual(self.state(store), "to do again, changed: data")
        shard.write_bytes(b"some tokens")
        self.assertEqual(self.state(store), "done")
        Path("data/val_000000.bin").write_bytes(b"x")
        self.assertEqual(self.state(store), "to do again, changed: data")

    def test_another_version_runs_again(self) -> None:
        store = compare_store.Store(".")
        store.put(self.record(compare_run.run_cell(self.read(GRID).arms[0], 1), 2.0))
        with mock.patch.object(compare_data, "program_version", lambda program: "9.0.0"):
            version = compare_run.program_version(self.program)
            self.assertRegex(version, r"^\d+\.\d+\.\d+$")
            self.assertEqual(self.state(store), f"to do again, changed: version {version}, now 9.0.0")
            with contextlib.redirect_stderr(io.StringIO()) as errors:
                grid = self.read(GRID)
                compare.warn_of_stale(compare_store.cells_of(grid, store), store)
            self.assertIn(f"warn: 1 finished cell will run again (ddp.s1), changed: version {version}, now 9.0.0\n",
                          errors.getvalue())
        self.assertEqual(self.state(store), "done")

    def test_shards_are_read_once(self) -> None:
        os.mkdir("out")
        Path("data/train_000000.bin").write_bytes(b"some tokens")
        first = self.read(GRID).arms[0].origin
        kept = Path("out/data_hashes.json")
        self.assertIn(str(Path("data/train_000000.bin").absolute()), json.loads(kept.read_text()))
        real, opened = open, []
        with mock.patch("builtins.open", lambda path, *more, **words: (opened.append(str(path)),
                                                                       real(path, *more, **words))[1]):
            self.assertEqual(self.read(GRID).arms[0].origin, first)
        self.assertEqual([path for path in opened if path.endswith(".bin")], [])

    def test_cells_of_links(self) -> None:
        grid = self.read(GRID + 'verify: [{arm: ddp, link: "1mbit", seed: 2}]\n')
        names = [cell.name for cell in compare_store.cells_of(grid, compare_store.Store("."))]
        self.assertEqual([name for name in names if name.startswith("async")],
                         ["async.s1.100mbit-rtt-50ms", "async.s1.1mbit", "async.s2.100mbit-rtt-50ms", "async.s2.1mbit"])
        self.assertEqual([name for name in names if name.startswith("ddp")],
                         ["ddp.s1", "ddp.s2", "ddp.s2.1mbit.verify"])
        self.assertEqual(len(names), len(set(names)))
        cell = compare_run.link_cell(grid.arm("async"), 1, "1mbit")
        self.assertEqual(cell.words("runs/x")[:9],
                         ["launch", os.devnull, "--workers", "2", "--dir", "runs/x", "--quiet", "--link", "1mbit"])
        # Evaluations every 8 steps at H 6: the checkpoint of each round is evaluated.
        self.assertEqual((cell.settings["checkpoint.every"], cell.settings["train.eval_every"], cell.barrier),
                         ("1", "0", False))

    def fake_clock(self, grid: compare_grid.Grid) -> compare_time.Clock:
        Path("plan").write_text(PLAN)
        Path("plan").chmod(0o755)
        return compare_time.Clock("./plan", grid, ".", compare_store.write_json)

    def test_times_of_plans(self) -> None:
        grid = self.read(GRID)
        clock = self.fake_clock(grid)
        curve = [{"round": 0}, {"round": 8}, {"round": 24}]
        got = clock.times(grid.arms[0], grid.links[0], curve)
        self.assertEqual(got, {"link": "100mbit,rtt=50ms", "source": "plan", "step_seconds": 0.25, "seconds": 36.0,
                               "utilization": 0.5, "round_s": 1.5, "at": [0.0, 12.0, 36.0]})
        calls = Path("calls").read_text().splitlines()
        self.assertEqual(len(calls), 2 * 5 + 1)  # two processes at a time, five times; one plan
        self.assertIn("--workers 2 --link 100mbit,rtt=50ms --step-seconds=0.25 --only --json", calls[-1])
        self.assertNotIn("run.seed", calls[-1])
        self.assertEqual(self.fake_clock(grid).times(grid.arms[0], grid.links[0], curve), got)  # from the files
        self.assertEqual(len(Path("calls").read_text().splitlines()), 11)
        with self.assertRaisesRegex(Problem, "arm ddp: atoll plan: no such link"):
            clock.plan(grid.arms[0], "1mbit")
        with self.assertRaisesRegex(Problem, "arm ddp: the run has 25 rounds, its plan 24"):
            clock.times(grid.arms[0], grid.links[0], [{"round": 25}])
        alone = clock.plan(grid.arm("alone"), grid.links[0])  # no link: 48 steps in rounds of 6
        self.assertEqual((alone["seconds"], alone["utilization"], alone["round_ends_s"][:2]), (12.0, 1.0, [1.5, 3.0]))
        self.assertEqual(len(alone["round_ends_s"]), 8)

    def test_given_step_time_scales_with_the_batch(self) -> None:
        grid = self.read(GRID.replace("alone: {", "alone: {tokens: own, ").replace(
            "train.max_steps: 48", "train.max_steps: 48, train.grad_accum: 3") + "step_seconds: 0.5\n")
        clock = self.fake_clock(grid)
        self.assertEqual((clock.step_seconds(grid.arms[0]), clock.step_seconds(grid.arm("alone"))), (0.5, 1.5))

    def choose(self, clock: compare_time.Clock, arms: list[compare_grid.Arm], **of_runs: list[float]) -> Any:
        with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()):
            return clock.choose_steps(arms, of_runs), errors.getvalue()

    def test_steps_of_the_runs_replace_a_wrong_measurement(self) -> None:
        grid = self.read(GRID)
        ddp, alone = grid.arms[0], grid.arm("alone")
        clock = self.fake_clock(grid)  # it measures 0.25 s
        (entry,), errors = self.choose(clock, [ddp, alone], ddp=[0.26, 0.22, 0.28], alone=[0.01])
        self.assertEqual((entry["source"], entry["seconds"], entry["measured_s"], entry["runs_s"], entry["runs"],
                          entry["processes"], entry["apart"], entry["arms"]),
                         ("measured", 0.25, 0.25, 0.26, 3, 2, False, ["ddp", "alone"]))  # alone has fewer workers
        self.assertRegex(entry["measured_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual((errors, clock.step_seconds(ddp)), ("", 0.25))
        (entry,), errors = self.choose(clock, [ddp, alone], ddp=[0.1001, 0.0999, 0.7], alone=[0.01])
        self.assertEqual((entry["source"], entry["seconds"], entry["apart"]), ("runs", 0.1, True))
        self.assertEqual([clock.step_seconds(arm) for arm in (ddp, alone)], [0.1, 0.1])
        self.assertEqual(clock.times(ddp, grid.links[0], [{"round": 0}])["step_seconds"], 0.1)
        self.assertIn("--step-seconds=0.1 ", Path("calls").read_text().splitlines()[-1])
        self.assertRegex(errors, r"warn: ddp, alone: a step took 100 ms in 3 runs \(median\), 60 % less than the 250 "
                                 r"ms measured on .* UTC with 2 processes at a time: the times use the steps of the "
                                 r"runs\n")

    def test_a_step_without_runs_follows_the_others(self) -> None:
        """One machine has one clock: an arm that no run checks is scaled as the checked ones."""
        grid = self.read(GRID.replace("alone: {", "alone: {tokens: own, ").replace(
            "train.max_steps: 48", "train.max_steps: 48, train.grad_accum: 3"))
        clock = self.fake_clock(grid)
        steps, _ = self.choose(clock, [grid.arms[0], grid.arm("alone")], ddp=[0.5, 0.5])
        self.assertEqual([(entry["source"], entry["seconds"], entry["apart"]) for entry in steps],
                         [("runs", 0.5, True), ("scaled", 0.5, False)])
        steps, _ = self.choose(self.fake_clock(grid), [grid.arm("alone")])  # nothing checks it
        self.assertEqual([(entry["source"], entry["runs_s"]) for entry in steps], [("measured", None)])

    def test_a_step_of_the_grid_stays(self) -> None:
        grid = self.read(GRID + "step_seconds: 0.5\n")
        (entry,), errors = self.choose(self.fake_clock(grid), [grid.arms[0]], ddp=[0.1])
        self.assertEqual((entry["source"], entry["seconds"], entry["runs_s"], entry["measured_s"], errors),
                         ("given", 0.5, 0.1, None, ""))

    def test_result(self) -> None:
        text = GRID.replace('links: ["100mbit,rtt=50ms", "1mbit"]', 'links: ["100mbit,rtt=50ms"]')
        grid = self.read(text + 'verify: [{arm: ddp, link: "100mbit,rtt=50ms"}]\nstep_seconds: 0.5\n'
                                "price: {machine_hour: 2, gb: 0.1}\n")
        store, link = compare_store.Store("."), grid.links[0]
        ddp, asynchronous = grid.arm("ddp"), grid.arm("async")
        point = {"round": 24, "tokens": 6144, "loss": 2.0, "bytes_up": 10, "bytes_down": 20}
        for seed, loss in ((1, 2.0), (2, 2.2)):
            store.put(self.record(compare_run.untrained_cell(ddp, seed), 5.0 + seed))
            store.put(self.record(compare_run.run_cell(ddp, seed), loss, curve=[point]))
        again = self.record(compare_run.run_cell(ddp, 2), 2.2, curve=[point])
        again["attempts"].insert(0, {"why_invalid": "evict worker-1", "final_loss": None, "curve": []})
        store.put(again)
        store.put(self.record(compare_run.verify_cell(ddp, 1, link), 2.0, theta_hash="bb"))
        ends = [[1, 2.0], [3, 5.0], [4, 8.0]]  # one update ended rounds 2 and 3
        curve = [{**point, "round": number} for number in (2, 4)]
        store.put(self.record(compare_run.link_cell(asynchronous, 1, link), 2.5, curve=curve, round_ends_s=ends,
                              seconds=8.0))
        got = compare_result.result(grid, store, self.fake_clock(grid), self.program)
        json.dumps(got, allow_nan=False)
        self.assertEqual(got["untrained_loss"], 6.5)
        self.assertAlmostEqual(got["target"]["loss"], 2.1 * 1.01)
        self.assertEqual(got["target"]["how"], "final loss of ddp, mean over 2 seeds, times 1.01")
        self.assertEqual(got["price"], {"machine_hour": 2.0, "gb": 0.1, "currency": "USD"})
        self.assertEqual([(run["arm"], run["seed"], run["link"], run["valid"]) for run in got["runs"]],
                         [("ddp", 1, None, True), ("ddp", 2, None, False), ("ddp", 2, None, True),
                          ("async", 1, link, True)])
        first, invalid, _, relay = got["runs"]
        self.assertEqual([point["tokens"] for point in first["curve"]], [0, 6144])
        self.assertEqual([point["loss"] for point in first["curve"]], [6.0, 2.0])
        self.assertEqual((first["times"][0]["at"], first["times"][0]["step_seconds"], first["step_seconds"]),
                         ([0.0, 36.0], 0.5, 0.25))
        self.assertEqual((invalid["why_invalid"], invalid["times"]), ("evict worker-1", []))
        self.assertEqual((relay["times"][0]["source"], relay["times"][0]["at"]), ("measured", [0.0, 5.0, 8.0]))
        self.assertEqual((got["version"], got["seeds"], got["margin"]), (2, [1, 2], 0.005))
        self.assertEqual([(step["arms"], step["source"], step["seconds"]) for step in got["steps"]],
                         [(["ddp"], "given", 0.5)])
        resolved = {arm["name"]: arm["resolved"] for arm in got["arms"]}
        self.assertEqual((resolved["alone"]["train.sync_every"], resolved["alone"]["train.method"]), ("6", "local-sgd"))
        self.assertFalse(set(compare_grid.OWN_SETTINGS) & set(resolved["ddp"]))
        self.assertEqual(got["checks"], [{"arm": "ddp", "seed": 1, "link": link, "planned_s": 36.0, "measured_s": 30.0,
                                          "planned_utilization": 0.5, "measured_utilization": 0.4,
                                          "same_hash": False}])
        self.assertEqual([arm["name"] for arm in got["arms"]], [arm.name for arm in grid.arms])


class SignalTest(unittest.TestCase):
    def test_held_blocks_nest(self) -> None:
        """A signal waits for the outer block: the first, inner, block does not end it."""
        script = ("import os, signal\nfrom atoll.command import Stopped, catch_signals, hold_signals\ncatch_signals()\n"
                  "try:\n    with hold_signals():\n        with hold_signals():\n"
                  "            os.kill(os.getpid(), signal.SIGTERM)\n        print('inside')\n    print('too far')\n"
                  "except Stopped:\n    print('stopped')\n")
        got = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
        self.assertEqual((got.stdout, got.stderr), ("inside\nstopped\n", ""))


class InvalidTest(unittest.TestCase):
    """The rules for invalid runs, on lines of metrics.jsonl."""

    def judge(self, *more: dict[str, Any], barrier: bool = True, loss: float | None = 2.0, **changes: Any) -> Any:
        rounds = [{"event": "round", "round": n, "time": 10.0 + n, "round_s": 1.0, "loss": 3.0, "delivered": 2,
                   "tokens": 64 * n, "compute_s": 0.5, **(changes if n == 2 else {})} for n in (1, 2)]
        updates = [{"event": "update", "round": n, "time": 10.0 + n} for n in (1, 2)]
        events = compare_run.read_events(json.dumps(line) for line in [*updates, *rounds, *more])
        cell = compare_run.Cell("x", "run", "x", 1, os.devnull, None, 2, None, {}, {}, barrier=barrier)
        return compare_run.judge(events, {"final_val_loss": loss, "restarts": 0}, cell)

    def test_rules(self) -> None:
        self.assertIsNone(self.judge())
        self.assertIsNone(self.judge({"event": "leave", "time": 13, "worker": "w"}))
        for kind in ("evict", "fault", "restart"):
            line = {"event": kind, "time": 12, "worker": "worker-1", "text": "no heartbeat"}
            self.assertEqual(self.judge(line), f"{kind} worker-1 no heartbeat")
        self.assertEqual(self.judge(delivered=1), "round 2 closed with 1 of 2 deltas")
        self.assertIsNone(self.judge(delivered=1, barrier=False))
        self.assertEqual(self.judge(loss=math.nan), "the final loss is not finite")
        self.assertEqual(self.judge(loss=None), "the final loss is not finite")
        self.assertEqual(compare_run.RULES.count("."), 3)

    def test_training_that_diverged(self) -> None:
        for why, diverged in ((None, False), ("the final loss is not finite", True),
                              ("the loss of round 3 is not finite", True), ("evict worker-1 silent for 30 s", False),
                              ("atoll launch ended with code 1: worker-0 exited with code 1: training diverges to NaN "
                               "or infinity: lower inner.learning_rate or outer.learning_rate", True)):
            self.assertEqual(compare_run.diverged(why), diverged, why)

    def test_loss_of_a_round(self) -> None:
        self.assertEqual(self.judge({"event": "round", "round": 3, "time": 13, "loss": None, "delivered": 2}),
                         "the loss of round 3 is not finite")

    def test_ends_of_rounds(self) -> None:
        lines: list[dict[str, Any]] = [{"event": "update", "round": number, "time": at} for number, at in
                                       ((1, 12.0), (1, 12.5), (2, 14.0), (2, 15.0))]
        lines += [{"event": "join", "time": 11.0}, {"event": "join", "time": 11.5}, {"event": "join", "time": 12.5}]
        lines.append({"event": "round", "round": 1, "time": 99.0, "round_s": 2.5})  # its line follows an evaluation
        events = compare_run.read_events(map(json.dumps, lines))
        self.assertEqual(events.ends(True), [(1, 2.5), (2, 5.0)])  # with a barrier its last fragment ends a round
        self.assertEqual(events.ends(False), [(1, 0.5), (2, 2.5)])


if __name__ == "__main__":
    unittest.main()
