"""tests/gpu/record without a GPU: stopped three times and continued elsewhere, it gives the numbers of one piece."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import atoll
import rig
from atoll.compare import cmd as compare, grid as compare_grid, store as compare_store

ROOT = Path(__file__).resolve().parents[3]
RECORD = ROOT / "tests" / "gpu" / "record"
sys.dont_write_bytecode = True
sys.path.insert(0, str(RECORD.parent))
import record_grid  # noqa: E402
import record_text  # noqa: E402

ARMS = "ddp,diloco-h30"
CELLS = 2 + 2 * (2 + 2)  # untrained; two trials and two seeds of each arm


class RecordTest(rig.RunTest):
    def setUp(self) -> None:
        super().setUp()
        program = Path(atoll.program("atoll"))
        self.environment = {**os.environ, "ATOLL_BUILD": str(program.parents[1])}
        for name, size in (("train", 60000), ("val", 9000)):
            (self.folder / "text.txt").write_text("".join(f"line {i} of {name}\n" for i in range(size // 16)))
            subprocess.run([program, "prepare", f"text/{name}", "text.txt", "--val-fraction", "0"], cwd=self.folder,
                           check=True, capture_output=True)

    def record(self, script: Path, *words: str, code: int = 0) -> str:
        got = subprocess.run([sys.executable, script, *words], cwd=self.folder, capture_output=True, text=True,
                             timeout=120, env=self.environment)
        self.assertEqual(got.returncode, code, got.stdout + got.stderr)
        return got.stdout + got.stderr

    def write_plan(self, pack: Path, seconds: float | None) -> None:
        """Plans so many seconds for each run; None: no plan."""
        plan = json.loads((pack / "record.json").read_text())
        plan["seconds"] = {"tiny": {arm: seconds for arm in ARMS.split(",")}} if seconds else {}
        (pack / "record.json").write_text(json.dumps(plan))

    def cells(self, out: str) -> dict[str, Any]:
        path = self.folder / out / "tiny.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return {line["name"]: line["attempts"][-1] for line in lines if "name" in line}

    def test_stopped_and_continued_elsewhere(self) -> None:
        told = self.record(RECORD, "--pack", "--folder", "pack", "--sizes", "tiny", "--arms", ARMS, "--data", "text",
                           "--tokens", "0.01")
        self.assertIn("cut to 0.01536M of 2.703M tokens, all arms alike: as asked", told)
        self.assertRegex(told, r"pack: \d+\.\d MiB, at most 55\n")
        shutil.copytree(self.folder / "pack", self.folder / "other")

        whole = self.record(self.folder / "pack" / "record", "--out", "whole")
        self.assertIn(f"tiny: all {CELLS} cells are done", whole)
        names = [line.split()[2].rstrip(":") for line in (self.folder / "whole/log.txt").read_text().splitlines()[:-1]]
        trials = [f"{arm}.tune-{rate}.s101" for arm in ARMS.split(",") for rate in ("0.004", "0.008")]
        self.assertEqual(names[2:], trials + ["ddp.s1", "diloco-h30.s1", "ddp.s2", "diloco-h30.s2"])
        self.assertLessEqual(len(list((self.folder / "whole").iterdir())), 8)

        script = str(self.folder / "pack" / "record")
        shutil.rmtree(self.folder / "pack" / "work")
        for number, code in ((signal.SIGTERM, 75), (signal.SIGKILL, -signal.SIGKILL)):
            before = len(self.cells("first"))
            process = self.start([sys.executable, script, "--out", "first"], f"stop-{number}.log")
            self.wait_for(60, "two more cells", lambda: len(self.cells("first")) >= before + 2)
            process.send_signal(number)
            self.finish(process, code=code)
        kept = self.cells("first")
        self.assertTrue(4 <= len(kept) < CELLS, kept.keys())
        # Another machine has another copy of the pack. A call without time for the next run says so.
        script = self.folder / "other" / "record"
        self.write_plan(self.folder / "other", 1000.0)
        told = self.record(script, "--out", "second", "--from", "first", "--seconds", "60", code=75)
        self.assertRegex(told, r"tiny: \d of 10 cells are done; next is \S+, which needs about \d+ min.*; this call")
        self.write_plan(self.folder / "other", None)
        self.assertIn("--from text: it has no SIZE.jsonl", self.record(script, "--out", "x", "--from", "text", code=1))
        with open(self.folder / "other" / "work" / "lock", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertIn("another call uses", self.record(script, "--out", "x", code=1))
        self.record(script, "--out", "third", "--from", "second")
        got, expected = self.cells("third"), self.cells("whole")
        self.assertEqual(list(got), list(expected))
        for name, attempt in expected.items():
            self.assertEqual([got[name][key] for key in ("final_loss", "theta_hash", "tokens")],
                             [attempt[key] for key in ("final_loss", "theta_hash", "tokens")], name)
        self.assertEqual({name: got[name] for name in kept}, kept)
        self.check_import()

    def check_import(self) -> None:
        """atoll compare takes the cells, also at home, with steps that this machine does not measure again."""
        os.chdir(self.folder / "pack")
        self.addCleanup(os.chdir, ROOT)
        grid = "../third/tiny.yaml"
        self.assertEqual(compare.main([grid, "--dir", "page", "--import", "../third/tiny.jsonl"]), 0)
        result = json.loads(Path("page/comparison.json").read_text())
        self.assertEqual(len(result["runs"]), 4)
        self.assertEqual({len(run["times"]) for run in result["runs"]}, {4})
        measured = json.loads(Path("../third/tiny.jsonl").read_text().splitlines()[0])["steps"]
        self.assertEqual([step["seconds"] for step in measured.values()], [result["steps"][0]["seconds"]])
        self.assertIn("DDP", Path("../third/tiny.yaml").read_text())

        # Another text: nothing counts, and a line names why.
        shard = Path("data/train/train_000000.bin")
        shard.write_bytes(shard.read_bytes()[:-2] + b"\1\0")
        self.write_plan(self.folder / "pack", 1000.0)
        told = self.record(self.folder / "pack" / "record", "--out", "fourth", "--from", "third", "--seconds", "60",
                           code=75)
        self.assertRegex(told, r"\d cells do not count \(.*, \.\.\.\): data\n")


class PlanTest(unittest.TestCase):
    def test_tokens_fit_into_a_call(self) -> None:
        speed = record_grid.Speed(record_grid.history(str(ROOT)))
        arms = list(record_grid.ARMS)
        for call_s in (300, 570):
            for size in record_grid.sizes_of(["30m", "124m"], arms, call_s, speed, 0):
                slowest = max(speed.seconds(size.name, arm, size.steps) for arm in arms)
                self.assertLess(slowest, call_s)
                self.assertEqual(bool(size.cut()), size.steps < size.wanted, size)
        self.assertAlmostEqual(record_grid.parameters("124m") / 1e6, 124, delta=0.5)
        self.assertAlmostEqual(record_grid.parameters("30m") / 1e6, 30, delta=0.5)
        self.assertEqual(record_grid.scaled({"ddp": 7.0}, "30m", "124m"), {"ddp": 7.0 * 512 / 896})

    def test_grids_are_valid(self) -> None:
        program = atoll.program("atoll")
        speed = record_grid.Speed(record_grid.history(str(ROOT)))
        arms = list(record_grid.ARMS)
        plan = {"source": "a text", "train_tokens": 10**8, "arms": arms}
        here = os.getcwd()
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.addCleanup(os.chdir, here)
        os.chdir(temporary.name)
        os.symlink(ROOT / "configs", "configs")
        for name in ("train", "val"):
            os.makedirs(f"data/{name}")
            Path(f"data/{name}/train_000000.bin").write_bytes(b"")
        for size in record_grid.sizes_of(["30m", "124m"], arms, 570, speed, 0):
            rates = None if size.name == "30m" else {arm: 1e-3 for arm in arms}
            Path("g.yaml").write_text(record_grid.grid(size, plan, rates))
            grid = compare_grid.read_grid("g.yaml", compare_grid.ask_config(program))
            self.assertEqual([arm.name for arm in grid.arms], arms)
            self.assertEqual({arm.tokens for arm in grid.arms}, {size.tokens})
            self.assertEqual({arm.needs_link for arm in grid.arms}, {False})
            self.assertEqual({arm.as_run().tokens for arm in grid.arms}, {size.tokens})
            n_cells = len(compare_store.cells_of(grid, compare_store.Store(".")))
            self.assertEqual(n_cells, 2 + 2 * len(arms) + (3 * len(arms) if rates is None else 0))


class TextTest(unittest.TestCase):
    def test_packed_shards(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        folder = Path(temporary.name)
        paths = []
        for number, size in enumerate((3_000_000, 7, 1)):
            paths.append(folder / f"train_{number:06}.bin")
            paths[-1].write_bytes(b"".join((i * i % 8191).to_bytes(2, "little") for i in range(size // 2)) + b"x")
        record_text.pack([str(path) for path in paths], str(folder / "packed"))
        record_text.unpack(str(folder / "packed"), str(folder / "out"))
        for path in paths:
            self.assertEqual((folder / "out" / path.name).read_bytes(), path.read_bytes())
        packed = max((folder / "packed").iterdir(), key=lambda path: path.stat().st_size)
        damaged = bytearray(packed.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        packed.write_bytes(damaged)
        with self.assertRaisesRegex(ValueError, packed.name):
            record_text.unpack(str(folder / "packed"), str(folder / "again"))
        (folder / "packed" / "shards.json").write_text("{")
        with self.assertRaisesRegex(ValueError, "shards.json: cannot read it"):
            record_text.unpack(str(folder / "packed"), str(folder / "third"))


if __name__ == "__main__":
    unittest.main()
