"""What atoll compare tells while a cell runs: its progress, the cells in all, and the time left."""

from __future__ import annotations

import contextlib
import io
import json
import os
import unittest
from typing import Any
from unittest import mock

from folder import FolderTest

from atoll import progress
from atoll.compare import progress as compare_progress, run as compare_run, store as compare_store


def cell(name: str, kind: str = "run", arm: str = "ddp", link: str | None = None) -> compare_run.Cell:
    return compare_run.Cell(name, kind, arm, 1, os.devnull, None, 2, link, {}, {}, tokens=1000)


class ProgressTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.store = compare_store.Store(str(self.dir))
        self.now = 1000.0
        for module in (compare_progress, progress):
            patch = mock.patch.object(module.time, "monotonic", lambda: self.now)
            patch.start()
            self.addCleanup(patch.stop)

    def finished(self, of: compare_run.Cell, *seconds: float) -> None:
        record = {"name": of.name, "kind": of.kind, "arm": of.arm, "link": of.link, "identity": of.identity,
                  "attempts": [{"took_s": each, "why_invalid": None} for each in seconds]}
        self.store.put(record)

    def test_estimate_of_a_cell(self) -> None:
        """The same arm, kind and link, then the same arm, then all arms; evaluations of the start apart."""
        def seconds(of: compare_run.Cell) -> float | None:
            return compare_progress.Estimate(self.store).seconds(of)

        self.assertIsNone(seconds(cell("ddp.s1")))
        self.finished(cell("untrained.s1", "untrained"), 1.0)
        self.assertIsNone(seconds(cell("ddp.s1")))
        self.assertEqual(seconds(cell("untrained.s2", "untrained")), 1.0)
        self.finished(cell("x.s1", arm="x"), 40.0)
        self.assertEqual(seconds(cell("ddp.s1")), 40.0)
        self.finished(cell("ddp.tune-1.s9", "tune"), 10.0)
        self.assertEqual(seconds(cell("ddp.s1")), 10.0)
        self.finished(cell("ddp.s1"), 20.0, 30.0)  # it was repeated
        self.assertEqual(seconds(cell("ddp.s2")), 50.0)
        self.finished(cell("a.s1.slow", arm="a", link="1mbit"), 900.0)
        self.assertEqual(seconds(cell("a.s2.slow", arm="a", link="1mbit")), 900.0)

    def watch(self, after: list[compare_run.Cell]) -> compare_progress.CellWatch:
        watch = compare_progress.CellWatch(cell("ddp.s1"), 3, 9, after, compare_progress.Estimate(self.store))
        watch.note("training")
        watch.follow(str(self.dir))
        return watch

    def write(self, **event: Any) -> None:
        with open(self.dir / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"event": "round", **event}) + "\n")

    def test_lines_of_a_file(self) -> None:
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            watch = self.watch([cell("ddp.s2"), cell("ddp.s3")])
            self.now += 20
            watch.tick()
            self.assertEqual(errors.getvalue(), "")  # a line every 30 s
            self.write(round=1, tokens=200)
            self.now += 20
            watch.tick()
            self.write(round=2, tokens=500, eta_s=41.0)
            self.now += 31
            watch.tick()
            watch.tick()
            watch.end()
        # 40 s for a fifth, so 160 s more; the running cell stands for the two others.
        self.assertEqual(errors.getvalue().splitlines(), [
            "ddp.s1: training, 20 %, 2 min 40 s left; 3 of 9 done, about 9 min left",
            "ddp.s1: training, 50 %, 41 s left; 3 of 9 done, about 4 min left"])

    def test_one_line_of_a_terminal(self) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        with contextlib.redirect_stderr(Terminal()) as errors:
            watch = self.watch([])
            for _ in range(4):
                self.now += 0.5
                watch.tick()
            watch.end()
        self.assertEqual((errors.getvalue().count("\n"), errors.getvalue().count("\r\x1b[Kddp.s1: training")), (0, 4))
        self.assertTrue(errors.getvalue().endswith("\r\x1b[K"))

    def test_evaluation_of_checkpoints(self) -> None:
        watch = self.watch([])
        watch.note("evaluating checkpoint 3 of 12")
        self.write(round=1, tokens=1, eta_s=0.0)  # of the evaluation's own run
        self.now += 40
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            watch.tick()
        self.assertEqual(errors.getvalue(), "ddp.s1: evaluating checkpoint 3 of 12; 3 of 9 done\n")


if __name__ == "__main__":
    unittest.main()
