"""kill -9 of coordinator and PyTorch workers: the run ends with the theta_hash of the undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
import unittest
from pathlib import Path

from test_torch_run import TorchRun

KILLS = int(os.environ.get("ATOLL_TEST_KILLS", "20"))  # of each process
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


class Kills(TorchRun):
    def begin(self, folder: str, rounds: int, names: tuple[str, ...], *launcher: str, **options) -> None:
        self.run_dir = self.folder / folder
        (self.folder / f"{folder}-workers").mkdir()
        self.start_worker = lambda name: self.worker(
            name, *launcher, folder=str(self.folder / f"{folder}-workers"), dropout=0.1, **options
        )
        settings = {"min_workers": len(names), "evict_after_s": 600}
        self.nodes = {
            "coordinator": self.coordinator(
                train={"max_steps": 5 * rounds}, coordinator=settings, checkpoint={"every": 10}
            )
        }
        for name in names:
            self.nodes[name] = self.start_worker(name)

    def end(self) -> str:
        for process in self.nodes.values():
            self.finish(process, 300)
        return self.summary()["theta_hash"]

    def alive(self) -> bool:
        for name, process in self.nodes.items():
            self.assertIn(process.poll(), (None, 0), f"{name} ended\n{self.logs()}")
        return True

    def restart(self, name: str) -> None:
        self.nodes[name] = self.start_coordinator() if name == "coordinator" else self.start_worker(name)

    def test_each_process(self) -> None:
        rounds = 4 * KILLS + 8  # with few kills, chance takes a larger part of the rounds
        self.begin("plain", rounds, ("a", "b"))
        expected = self.end()
        self.begin("killed", rounds, ("a", "b"), pause=0.04)
        rng = random.Random(5)
        victims = [name for name in self.nodes for _ in range(KILLS)]
        rng.shuffle(victims)
        for count, victim in enumerate(victims):
            done = self.rounds()
            self.wait_for(120, f"round {done + 1} after {count} kills", lambda: self.alive() and self.rounds() > done)
            time.sleep(rng.random() * 0.3)
            self.assertIsNone(self.nodes[victim].poll(), f"{victim} ended before its kill")
            self.kill(self.nodes[victim])
            self.restart(victim)
        self.assertEqual(self.end(), expected)
        self.assertGreaterEqual(self.summary()["restarts"], KILLS)
        print(f"{len(victims)} kills in {rounds} rounds: theta {expected}")

    def test_ranks_of_ddp(self) -> None:
        """Each rank has its own random numbers for dropout, which come back too."""
        options = {"ddp": 1, "batch_size": 2}
        self.begin("plain", 6, ("ranks",), *LAUNCHER, **options)
        expected = self.end()
        self.begin("killed", 6, ("ranks",), *LAUNCHER, pause=0.1, **options)
        self.wait_for(60, "round 2", lambda: self.rounds() >= 2)
        self.kill_tree(self.nodes["ranks"])
        self.restart("ranks")
        self.assertEqual(self.end(), expected)

    def kill_tree(self, process: subprocess.Popen) -> None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in (process.pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    unittest.main()
