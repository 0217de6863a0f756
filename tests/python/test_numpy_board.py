"""atoll-board without TensorBoard: the reader of a growing file, and libraries with the calls of W&B."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import types
import unittest
from pathlib import Path
from typing import Any

from atoll import board


def line(event: str, round_: int, **more: Any) -> str:
    return json.dumps({"time": 1.5, "event": event, "round": round_, **more}) + "\n"


class BoardTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)
        self.metrics = self.dir / "metrics.jsonl"

    def test_follower(self) -> None:
        """Only complete lines count, whatever happens to the last one."""
        follower = board.Follower(str(self.metrics))
        self.assertEqual(list(follower.lines()), [])  # no file yet
        self.metrics.write_bytes(b"one\ntw")
        self.assertEqual(list(follower.lines()), [b"one"])
        self.assertEqual(list(follower.lines()), [])
        self.metrics.write_bytes(b"one\nthree\nfour")  # a restarted coordinator removed the incomplete line
        self.assertEqual(list(follower.lines()), [b"three"])
        with open(self.metrics, "ab") as file:
            file.write(b"-five\nsix\n")
        self.assertEqual(list(follower.lines()), [b"four-five", b"six"])
        self.metrics.write_bytes(b"new\n")  # fewer bytes than were read
        self.assertEqual(list(follower.lines()), [b"new"])
        other = self.dir / "other"
        other.write_bytes(b"another file\n")
        other.replace(self.metrics)
        self.assertEqual(list(follower.lines()), [b"another file"])

    def test_points(self) -> None:
        step = line("step", 2, step=7, tokens=900, worker="w", loss=3.5, lr=None, grad_norm=float("nan")).encode()
        self.assertEqual(
            board.point_of(step, "steps"), board.Point("w", "step", 7, 2 << 32 | 7, 1.5, {"train/loss": 3.5})
        )
        point = board.point_of(step, "tokens")
        assert point
        self.assertEqual(point.x, 900)
        round_ = board.point_of(line("round", 3, tokens=5, compute_s=1.0, round_s=4.0).encode(), "steps")
        assert round_
        self.assertEqual((round_.worker, round_.x, round_.values["utilization"]), ("", 3, 0.25))
        for other in (
            b"",
            b"{",
            b"[]",
            b'{"event":"join","round":1,"time":1}',
            b'{"event":"step","time":1,"round":null}',
        ):
            self.assertIsNone(board.point_of(other, "steps"), other)

    def run_board(self, *words: str, code: int = 0) -> str:
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            self.assertEqual(board.main([str(self.dir), *words]), code, errors.getvalue())
        return out.getvalue() + errors.getvalue()

    def test_libraries(self) -> None:
        logged: list[dict[str, Any]] = []
        calls: list[str] = []
        fake = types.ModuleType("trackio")
        members = vars(fake)
        members["init"] = lambda **words: calls.append(f"init {words['project']} {words['resume']}")
        members["log"] = logged.append
        members["finish"] = lambda: calls.append("finish")
        sys.modules["trackio"] = fake
        self.addCleanup(sys.modules.pop, "trackio")
        steps = [line("step", 1, step=i, worker="w", loss=float(i)) for i in (1, 2)]
        self.metrics.write_text("".join([*steps, steps[1], line("round", 1, loss=9.0)]))  # a step that was sent twice
        self.run_board("--trackio", "p", "--once")
        self.assertEqual(
            logged,
            [{"w/train/loss": 1.0, "w/step": 1}, {"w/train/loss": 2.0, "w/step": 2}, {"train/loss": 9.0, "round": 1}],
        )
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(line("eval", 1, val_loss=8.0))
        self.run_board("--trackio", "p", "--once")
        self.assertEqual(logged[3:], [{"eval/loss": 8.0, "round": 1}])  # nothing twice
        self.assertEqual(calls, ["init p allow", "finish"] * 2)

    def test_refusals(self) -> None:
        self.assertRegex(
            self.run_board("--once", code=1), "^atoll: .* has no metrics.jsonl: give the folder of a run\n$"
        )
        self.metrics.touch()
        sys.modules["wandb"] = None  # type: ignore[assignment] # its import fails
        self.addCleanup(sys.modules.pop, "wandb")
        errors = self.run_board("--wandb", "p", "--once", code=2)
        self.assertEqual(errors, "atoll: --wandb needs the Python library wandb: pip install wandb\n")
        self.assertRegex(self.run_board("--onec", code=2), r"^atoll: unknown option --onec: did you mean --once\? ")
        self.assertEqual(sorted(os.listdir(self.dir)), ["metrics.jsonl"])


if __name__ == "__main__":
    unittest.main()
