"""atoll-board: TensorBoard's own reader gives the values of metrics.jsonl."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import unittest
from collections import defaultdict
from pathlib import Path
from typing import Any

from folder import FolderTest

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    raise unittest.SkipTest("no tensorboard") from None

BIN = Path(os.environ.get("ATOLL_BIN", "build/bin")).resolve()
CONFIG = """
data: {train: "data/train_*.bin", val: "data/val_*.bin", tokenizer: bytes}
model: {family: gpt2, n_layer: 1, n_head: 2, n_embd: 16, block_size: 32, vocab_size: 256}
train: {method: diloco, max_steps: 120, sync_every: 5, batch_size: 4, threads: 1, eval_every: 2, eval_tokens: 1024}
coordinator: {listen: "tcp://127.0.0.1:*"}
"""
STEP = {"loss": "train/loss", "lr": "train/lr", "grad_norm": "train/grad_norm", "tokens_per_s": "speed/tokens_per_s",
        "wait_s": "round/wait_s", "bytes_up": "comm/bytes_up"}  # fmt: skip
ROUND = {"loss": "train/loss", "bytes_up": "comm/bytes_up", "bytes_down": "comm/bytes_down", "round_s": "round/round_s",
         "wait_s": "round/wait_s", "workers": "round/workers"}  # fmt: skip


def read_back(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns (step, value) by tag, as TensorBoard shows them."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


class BoardTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        (self.dir / "text.txt").write_text("the tide counted seven white stones\n" * 3000)
        (self.dir / "run.yaml").write_text(CONFIG)
        self.program("atoll", "prepare", "data", "text.txt")

    def program(self, name: str, *words: str) -> None:
        done = subprocess.run([str(BIN / name), *words], cwd=self.dir, capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)

    def board(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "atoll.board", "run", *words]
        process = subprocess.Popen(command, cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def expect(self, folder: Path, x: str = "") -> int:
        """Compares all scalars in the folder with metrics.jsonl; returns their number."""
        wanted: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for text in (self.dir / "run/metrics.jsonl").read_text().splitlines():
            event: dict[str, Any] = json.loads(text)
            kind = event["event"]
            tags = {"step": STEP, "round": ROUND, "eval": {"val_loss": "eval/loss"}}.get(kind, {})
            for key, tag in tags.items():
                if isinstance(event.get(key), (int, float)):
                    at = event[x or ("step" if kind == "step" else "round")]
                    wanted[event["worker"] if kind == "step" else ""][tag].setdefault(at, event[key])
        n = 0
        for worker, by_tag in wanted.items():
            found = read_back(folder / worker)
            for tag, values in by_tag.items():
                self.assertEqual([step for step, _ in found[tag]], sorted(values), (worker, tag))
                for step, value in found[tag]:
                    self.assertAlmostEqual(
                        value, values[step], delta=1e-6 * abs(values[step]), msg=f"{worker} {tag} {step}"
                    )
                n += len(values)
        self.assertIn("utilization", read_back(folder))
        return n

    def once(self) -> None:
        process = self.board("--once")
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out)

    def taken_back(self, launch: list[str]) -> None:
        """The curves show what the run has: after a rollback, and after it goes on."""
        self.program("atoll", "rollback", "run", "--to", "20")
        self.once()
        kept = self.expect(self.dir / "run/tensorboard")
        self.assertEqual(max(step for step, _ in read_back(self.dir / "run/tensorboard")["train/loss"]), 20)
        self.once()
        self.assertEqual(self.expect(self.dir / "run/tensorboard"), kept)
        subprocess.run(launch, cwd=self.dir, check=True, timeout=60, capture_output=True)
        self.once()
        self.assertGreater(self.expect(self.dir / "run/tensorboard"), kept)
        self.program("atoll", "exclude", "run", "worker-1", "--since", "22", "--keep")
        self.once()
        self.expect(self.dir / "run/tensorboard")

    def test_run(self) -> None:
        """A board that starts before the run, is killed in it and started again; then all values once more."""
        first = self.board()
        launch = [str(BIN / "atoll"), "launch", "run.yaml", "--workers", "2", "--dir", "run"]
        with open(self.dir / "launch.log", "w", encoding="utf-8") as log:
            run = subprocess.Popen(launch, cwd=self.dir, stdout=log, stderr=log)
        self.addCleanup(run.kill)
        until = time.monotonic() + 60
        while not list(self.dir.glob("run/tensorboard/*/events*")):
            self.assertLess(time.monotonic(), until, "no event file")
            time.sleep(0.02)
        first.send_signal(signal.SIGKILL)
        first.wait()
        second = self.board()
        self.assertEqual(run.wait(60), 0, (self.dir / "launch.log").read_text())
        out, _ = second.communicate(timeout=60)  # it ends with the run
        self.assertEqual(second.returncode, 0, out)
        n = self.expect(self.dir / "run/tensorboard")
        self.assertGreater(n, 1000)
        for _ in range(2):  # the second time nothing is added
            third = self.board("--once")
            out, _ = third.communicate(timeout=60)
            self.assertEqual(third.returncode, 0, out)
        self.assertEqual(self.expect(self.dir / "run/tensorboard"), n)
        tokens = self.board("--once", "--tensorboard", "by-tokens", "--axis", "tokens")
        out, _ = tokens.communicate(timeout=60)
        self.assertEqual(tokens.returncode, 0, out)
        self.expect(self.dir / "by-tokens", "tokens")
        self.taken_back(launch)
        print(f"TensorBoard reads {n} values back, equal to metrics.jsonl", file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
