"""atoll-board without TensorBoard: the reader of a growing file, and libraries with the calls of W&B."""

from __future__ import annotations

import json
import os
import re
import sys
import types
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from folder import FolderTest

from atoll import command, metrics
from atoll.board import cmd as board, points

ROOT = Path(__file__).resolve().parents[2]


def line(event: str, round_: int, **more: Any) -> str:
    return json.dumps({"time": 1.5, "event": event, "round": round_, **more}) + "\n"


def point_of(text: bytes, axis: str) -> points.Point | None:
    event = metrics.Lines(points.needs(axis)).take(text)
    return points.point_in(event, axis) if event else None


class BoardTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
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
            point_of(step, "steps"), points.Point("w", "step", 7, 2 << 32 | 7, 1.5, {"train/loss": 3.5})
        )
        point = point_of(step, "tokens")
        assert point
        self.assertEqual(point.x, 900)
        round_ = point_of(line("round", 3, tokens=5, compute_s=1.0, round_s=4.0).encode(), "steps")
        assert round_
        self.assertEqual((round_.worker, round_.x, round_.values["utilization"]), ("", 3, 0.25))
        for other in (
            b"",
            b"{",
            b"[]",
            b'{"event":"join","round":1,"time":1}',
            b'{"event":"step","time":1,"round":null}',
        ):
            self.assertIsNone(point_of(other, "steps"), other)

    def run_board(self, *words: str, code: int = 0) -> str:
        return "".join(self.call(board.main, str(self.dir), *words, code=code))

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

    def test_points_that_were_taken_back_are_logged_again(self) -> None:
        logged: list[dict[str, Any]] = []
        fake = types.ModuleType("trackio")
        vars(fake).update(init=lambda **words: None, log=logged.append, finish=lambda: None)
        sys.modules["trackio"] = fake
        self.addCleanup(sys.modules.pop, "trackio")
        kept = [line("step", 1, step=1, worker="w", loss=1.0), line("round", 1, loss=1.5)]
        old = [line("step", 2, step=2, worker="w", loss=2.0), line("round", 2, loss=2.5)]
        self.metrics.write_text("".join(kept + old))
        self.run_board("--trackio", "p", "--once")
        self.assertEqual(len(logged), 4)
        back = line("rollback", 1, before=2, step=1, tokens=10)
        new = [line("step", 2, step=2, worker="w", loss=3.0), line("round", 2, loss=3.5)]
        self.metrics.write_text("".join([*kept, back, *new]))
        self.run_board("--trackio", "p", "--once")
        self.assertEqual(logged[4:], [{"w/train/loss": 3.0, "w/step": 2}, {"train/loss": 3.5, "round": 2}])
        self.run_board("--trackio", "p", "--once")
        self.assertEqual(len(logged), 6)  # once
        out = line("exclude", 1, before=2, step=1, tokens=10, worker="v")
        out = out.replace('"time": 1.5', '"time": 2.5')
        self.metrics.write_text("".join([*kept, back, out, new[0], line("round", 2, loss=4.5)]))
        self.run_board("--trackio", "p", "--once")
        self.assertEqual(logged[6:], [{"train/loss": 4.5, "round": 2}])  # the steps of w stay

    def test_says_once_what_it_follows(self) -> None:
        class Sink(board.TensorBoard):
            """One without the library."""

            def __init__(self, folder: str, axis: str) -> None:
                self.folder = folder

            def put(self, point: points.Point) -> None: ...
            def take_back(self, back: points.Back) -> None: ...
            def flush(self) -> None: ...
            def close(self) -> None: ...

        self.metrics.write_text(line("round", 1, loss=9.0))
        (self.dir / "summary.json").write_text("{}")
        with mock.patch.object(board, "TensorBoard", Sink), mock.patch.object(board, "POLL_S", 0.01):
            told = self.run_board()
            self.assertEqual(told.count(f"following {self.dir}; tensorboard --logdir {self.dir}/tensorboard\n"), 1)
            self.assertNotIn("following", self.run_board("--once"))

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


class LibraryTest(unittest.TestCase):
    def test_no_package_of_an_index_is_named_atoll(self) -> None:
        """There is none: a reader who installs it would run the code of others."""
        documents = [*(ROOT / "python").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "python" / "README.md"]
        self.assertGreater(len(documents), 50)
        for path in documents:
            self.assertNotRegex(path.read_text(encoding="utf-8"), r"pip3? install ['\"]?atoll", path)

    def test_missing_library_names_its_command(self) -> None:
        for module, advice in (("matplotlib", "./run python installs it, or: pip install matplotlib"),
                               ("yaml", "./run python installs it, or: pip install PyYAML"),
                               ("torch", "./run python --all installs it, or: pip install torch"),
                               ("wandb", "pip install wandb")):
            self.assertEqual(str(command.need(module, "x")), f"x needs the Python library {module}: {advice}")

    def test_commands_install_the_libraries(self) -> None:
        """What the texts promise is what the parts of the package install."""
        text = (ROOT / "python" / "pyproject.toml").read_text(encoding="utf-8")
        parts = {name: {re.split("[^A-Za-z]", word)[0] for word in re.findall('"([^"]+)"', words)}
                 for name, words in re.findall(r"^(\w+) = \[(.*)\]$", text, re.M)}
        names = {command._PIP_NAMES.get(name, name) for name in command._WITH_PACKAGE}
        self.assertEqual(names, parts["compare"] | parts["dependencies"])
        self.assertEqual(set(command._WITH_ALL), parts["hf"] | parts["data"] | parts["board"])


if __name__ == "__main__":
    unittest.main()
