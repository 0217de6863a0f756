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
FSDP, DDP, HSDP = ({"parallel": kind} for kind in ("fsdp", "ddp", "hsdp"))


class ShardedRun(TorchRun):
    """A run, and boxes of several processes."""

    def box(self, name: str, processes: int = 1, *more: dict, **options):
        """Starts a worker of `processes` ranks, and after it those of `more`."""
        given = {"name": name, "run": str(self.run_dir), **options}
        common = {"folder": str(self.folder), "data": str(self.folder / "data")}
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        listed = json.dumps([{**common, **one} for one in (given, *more)])
        command = [sys.executable, *(launch if processes > 1 else []), PROGRAM, listed]
        return self.start(command, f"{name}.log", PYTHONPATH=os.pathsep.join(sys.path), OMP_NUM_THREADS="1")

    def train(self, processes: int = 1, sections: dict | None = None, **workers: dict) -> dict[str, dict]:
        """One worker after the other, each with a run of its own. Returns name -> the whole parameters at the start of
        each round, and at the end."""
        listed, coordinators = [], []
        for name, options in workers.items():
            self.run_dir = self.folder / f"run-{name}"
            settings = {"train": {"max_steps": 25, "batch_size": 8}, **(sections or {})}
            coordinators.append(self.start_coordinator(**settings))
            self.wait_for(20, "the coordinator", (self.run_dir / "address").exists)
            listed.append({"name": name, "run": str(self.run_dir), "record": str(self.folder), "odd": True, **options})
        self.last = listed[0].pop("name")
        box = self.box(self.last, processes, *listed[1:], **listed[0])
        for process in (box, *coordinators):
            self.finish(process, SECONDS)
        for name in workers:
            self.run_dir = self.folder / f"run-{name}"
            self.assertEqual(self.theta(name), self.summary()["theta_hash"])
        return {name: self.recorded(name) for name in workers}

    def printed(self, name: str) -> tuple[str, int, str]:
        """What rank 0 of a worker printed at its end: theta_hash, calls of evaluate, names of the tensors."""
        logs = "".join(path.read_text() for path in self.folder.glob("*.log"))
        found = re.findall(rf"^{name} rank 0 hash (\w+) calls (\d+) (\S+)", logs, re.M)
        self.assertEqual(len(found), 1, self.logs())
        return found[0][0], int(found[0][1]), found[0][2]

    def theta(self, name: str) -> str:
        return self.printed(name)[0]

    def compare(self, expected: dict, got: dict[str, dict], bound: float) -> None:
        """Parameters of workers, at the start of each round and at the end, are within `bound` of the expected ones."""
        for name, one in got.items():
            self.assertEqual(sorted(one), sorted(expected))
            worst = max(float(np.abs(one[key] - expected[key]).max()) for key in expected)
            print(f"{name}: at most {worst:.2g} beside one process (bound {bound:g})", flush=True)
            self.assertLessEqual(worst, bound)
        self.assertGreater(float(np.abs(expected["end"] - expected["r0"]).max()), 1e-2)
