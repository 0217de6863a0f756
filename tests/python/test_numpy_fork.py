"""Processes that a script forks: they hold nothing that the script's next start needs."""

from __future__ import annotations

import os
import signal
import unittest
from pathlib import Path

from rig import RunTest

# The child stands for a worker of a DataLoader that outlives its parent.
SCRIPT = """
import os, sys, time
import numpy as np
import atoll

name, run, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])
p = {"w": np.zeros(8, np.float32)}
with atoll.Worker(p, join=run) as worker:
    print("worker", worker.info().name, flush=True)
    while worker.begin():
        for step in range(worker.assignment.steps):
            if pause and worker.assignment.round == 1 and step == 0:
                child = os.fork()
                if not child:
                    os.close(1), os.close(2)
                    time.sleep(60)
                    os._exit(0)
                print("child", child, flush=True)
            p["w"] += 1
            time.sleep(pause)
            worker.step()
"""


def tcp_inodes() -> set[str]:
    """The inode numbers of all TCP sockets of this machine."""
    tables = [Path(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
    return {line.split()[9] for table in tables if table.exists() for line in table.read_text().splitlines()[1:]}


def open_files(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    return [os.readlink(entry) for entry in folder.iterdir()]


class Forks(RunTest):
    def child_of(self, name: str) -> int:
        return int(self.log(name).split("child ")[1].split()[0])

    def holds(self, pid: int) -> tuple[int, int]:
        """The number of TCP connections and of lock files that a process has open."""
        tcp, files = tcp_inodes(), open_files(pid)
        return sum(f.startswith("socket:[") and f[8:-1] in tcp for f in files), sum(f.endswith("/lock") for f in files)

    def test_restart_beside_a_child(self) -> None:
        """kill -9 of the script: the same command is the same worker at once, although its child lives."""
        coordinator = self.start_coordinator(train={"max_steps": 12, "sync_every": 3})
        first = self.start_script(SCRIPT, "w", str(self.run_dir), "0.2")
        self.wait_for(30, "the child", lambda: "child " in self.log("w"))
        child = self.child_of("w")
        self.addCleanup(os.kill, child, signal.SIGKILL)
        tcp, locks = self.holds(first.pid)
        self.assertEqual(locks, 1)
        self.assertGreaterEqual(tcp, 2)
        self.assertEqual(self.holds(child), (0, 0))
        self.kill(first)
        self.finish(self.start_script(SCRIPT, "w", str(self.run_dir), "0"))
        self.finish(coordinator)
        os.kill(child, 0)  # it lived all the time
        names = [line for line in self.log("w").splitlines() if line.startswith("worker ")]
        self.assertEqual(len(names), 2)
        self.assertEqual(len(set(names)), 1, self.logs())
        self.assertEqual(len(list(self.folder.glob("atoll-worker-*"))), 1)
        self.assertIn("loaded the saved state after round", self.log("w"))


if __name__ == "__main__":
    unittest.main()
