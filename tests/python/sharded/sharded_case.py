"""Runs of box.py: workers of several processes beside each other."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import numpy as np

from test_torch_run import TorchRun

PROGRAM = str(Path(__file__).with_name("box.py"))
SECONDS = 120


class ShardedRun(TorchRun):
    """A run, and boxes of several processes."""

    def box(self, name: str, processes: int = 1, **options):
        """Starts a worker of `processes` ranks."""
        given = {"run": str(self.run_dir), "folder": str(self.folder), "data": str(self.folder / "data"), **options}
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [sys.executable, *(launch if processes > 1 else []), PROGRAM, name, json.dumps(given)]
        return self.start(command, f"{name}.log", PYTHONPATH=os.pathsep.join(sys.path), OMP_NUM_THREADS="1")

    def train(self, name: str, processes: int = 1, sections: dict | None = None, **options) -> dict[str, np.ndarray]:
        """A run of its own with one worker: the whole parameters at the start of each round, and at its end."""
        self.run_dir = self.folder / f"run-{name}"
        settings = {"train": {"max_steps": 25, "batch_size": 8}, **(sections or {})}
        coordinator = self.start_coordinator(**settings)
        worker = self.box(name, processes, record=str(self.folder), **options)
        for process in (worker, coordinator):
            self.finish(process, SECONDS)
        self.assertEqual(self.theta(name), self.summary()["theta_hash"])
        return self.recorded(name)

    def theta(self, name: str) -> str:
        found = re.findall(r"rank 0 hash (\w+)", self.log(name))
        self.assertEqual(len(found), 1, self.log(name))
        return found[0]

    def names(self, name: str) -> str:
        return re.findall(r"rank 0 .* names (\S+)", self.log(name))[0]
