"""A run that has used up its budget ends a script with code 75 and one line; the same command continues it."""

from __future__ import annotations

import unittest

import atoll
from rig import RunTest

SCRIPT = """
import sys

import numpy as np

import atoll

name, run, folder = sys.argv[1:4]
p = {"w": np.ones(64, np.float32)}
with atoll.Worker(p, join=run, dir=f"{folder}/{name}", name=name, max_wait=60) as worker:
    while worker.begin():
        p["w"] *= np.float32(0.99)
        worker.step()
print("done")
"""


class Budget(RunTest):
    def test_script_ends_with_75_and_continues(self) -> None:
        coordinator = self.start_coordinator(run={"max_gb": 2e-5}, train={"max_steps": 400, "sync_every": 2},
                                             coordinator={"min_workers": 1})
        worker = self.start_script(SCRIPT, "w", str(self.run_dir), str(self.folder))
        self.assertEqual(worker.wait(60), 75)
        self.assertEqual(coordinator.wait(10), 75)
        log = (self.folder / "w.log").read_text()
        self.assertIn("atoll: stopped after round ", log)
        self.assertIn("run.max_gb is used up", log)
        self.assertNotIn("Traceback", log)
        self.assertNotIn("done", log)
        coordinator = self.start([atoll.program("atoll-coordinator"), "--dir", str(self.run_dir), "--run.max_gb=none"],
                                 "coordinator.log")
        worker = self.start_script(SCRIPT, "w", str(self.run_dir), str(self.folder))
        self.finish(worker)
        self.finish(coordinator)

    def test_error_is_caught_as_others(self) -> None:
        self.assertTrue(issubclass(atoll.StoppedError, atoll.Error))
        with self.assertRaises(atoll.Error) as caught:
            raise atoll.StoppedError("used up")
        self.assertEqual(str(caught.exception), "used up")
        self.assertEqual(caught.exception.code, 75)


if __name__ == "__main__":
    unittest.main()
