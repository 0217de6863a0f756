"""The program around a worker: processes that it forks, the name of its host, and its locale."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import unittest
from pathlib import Path

from rig import RunTest

# The child stands for a worker of a DataLoader that outlives its parent.
FORKING = """
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
        return int(re.findall(r"^child (\d+)$", self.log(name), re.M)[0])  # Python may warn of `child = os.fork()`

    def holds(self, pid: int) -> tuple[int, int]:
        """The number of TCP connections and of lock files that a process has open."""
        tcp, files = tcp_inodes(), open_files(pid)
        return sum(f.startswith("socket:[") and f[8:-1] in tcp for f in files), sum(f.endswith("/lock") for f in files)

    def test_restart_beside_a_child(self) -> None:
        """kill -9 of the script: the same command is the same worker at once, although its child lives."""
        coordinator = self.start_coordinator(train={"max_steps": 12, "sync_every": 3})
        first = self.start_script(FORKING, "w", str(self.run_dir), "0.2")
        self.wait_for(30, "the child", lambda: re.search(r"^child \d+\n", self.log("w"), re.M))
        child = self.child_of("w")
        self.addCleanup(os.kill, child, signal.SIGKILL)
        tcp, locks = self.holds(first.pid)
        self.assertEqual(locks, 1)
        self.assertGreaterEqual(tcp, 2)
        self.assertEqual(self.holds(child), (0, 0))
        self.kill(first)
        self.finish(self.start_script(FORKING, "w", str(self.run_dir), "0"))
        self.finish(coordinator)
        os.kill(child, 0)  # it lived all the time
        names = [line for line in self.log("w").splitlines() if line.startswith("worker ")]
        self.assertEqual(len(names), 2)
        self.assertEqual(len(set(names)), 1, self.logs())
        self.assertEqual(len(list(self.folder.glob("atoll-worker-*"))), 1)
        self.assertIn("loaded the saved state after round", self.log("w"))


LOCALIZED = """
import locale, logging, sys
import numpy as np
import atoll

name, run, folder, chosen = sys.argv[1:5]
points = set()

class Points(logging.Handler):
    def emit(self, record):
        points.add(locale.localeconv()["decimal_point"])

class Velocity(dict):
    def state_dict(self):
        points.add(locale.localeconv()["decimal_point"])
        return dict(self)

    def load_state_dict(self, state):
        self.update(state)

logging.getLogger("atoll").addHandler(Points())
if chosen:
    locale.setlocale(locale.LC_NUMERIC, chosen)
point = locale.localeconv()["decimal_point"]
p, velocity = {"w": np.linspace(0, 1, 64, dtype=np.float32)}, Velocity(w=np.zeros(64, np.float32))
with atoll.Worker(p, join=run, dir=f"{folder}/{name}-{chosen}", name=name, state=[velocity], max_wait=30) as worker:
    rate = float(worker.setting("outer.learning_rate")) if worker.begin() else None
    while worker.begin():
        for step in range(worker.assignment.steps):
            velocity["w"] = 0.5 * velocity["w"] + p["w"]
            p["w"] -= np.float32(0.1) * velocity["w"]
            worker.step(loss=0.5)
print("rate", rate, "point", point, "inside", points)
print("hash", worker.info().theta_hash)
"""

# A machine of its own is a working directory of its own here.
NAMED = """
import os, sys, time
import numpy as np
import atoll

machine, run, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])
os.makedirs(machine, exist_ok=True)
os.chdir(machine)
p = {"w": np.zeros(8, np.float32)}
with atoll.Worker(p, join=run, max_wait=60) as worker:
    while worker.begin():
        for step in range(worker.assignment.steps):
            time.sleep(pause)
            worker.step()
    print("was", worker.info().name, flush=True)
"""


class Names(RunTest):
    def machine(self, folder: str, pause: str) -> subprocess.Popen:
        return self.start_script(NAMED, folder, str(self.run_dir), pause)

    def was(self, folder: str) -> str:
        return self.log(folder).split("was ")[1].strip()

    def test_two_machines_with_one_host_name(self) -> None:
        """The second one takes the next name, and both keep theirs after a kill."""
        coordinator = self.start_coordinator(train={"max_steps": 20}, coordinator={"min_workers": 2})
        both = [self.machine("a", "0.1"), self.machine("b", "0.1")]
        self.wait_for(60, "two rounds", lambda: self.rounds() >= 2)
        for process in both:
            self.kill(process)
        again = [self.machine("b", "0"), self.machine("a", "0")]
        for process in (*again, coordinator):
            self.finish(process)
        folders = [path for name in "ab" for path in (self.folder / name).iterdir()]
        self.assertEqual(len(folders), 2, folders)
        self.assertEqual(folders[0].name, folders[1].name)
        host = folders[0].name.removeprefix("atoll-worker-")
        self.assertEqual(sorted([self.was("a"), self.was("b")]), [host, f"{host}-2"], self.logs())
        joined = {event["worker"] for event in self.events("join")}
        self.assertEqual(len(joined), 2, joined)
        for name in "ab":
            self.assertIn("loaded the saved state after round", self.log(name))
        self.assertEqual("".join(self.log(name) for name in "ab").count("another worker has the name"), 1)


COMMA = 'LC_NUMERIC\ndecimal_point ","\nthousands_sep ""\ngrouping -1\nEND LC_NUMERIC\n'


class Locales(RunTest):
    def make_locale(self) -> None:
        """Makes folder/locales/comma, a locale of which only the numbers are defined."""
        if not shutil.which("localedef"):
            self.skipTest("there is no localedef")
        folder = self.folder / "locales"
        folder.mkdir()
        (folder / "source").write_text(COMMA)
        command = ["localedef", "-c", "-i", str(folder / "source"), "-f", "ANSI_X3.4-1968", str(folder / "comma")]
        made = subprocess.run(command, capture_output=True, text=True)
        if not (folder / "comma" / "LC_NUMERIC").exists():
            self.skipTest(f"localedef cannot make a locale: {made.stderr}")

    def run_with(self, name: str) -> str:
        self.run_dir = self.folder / f"run-{name}"
        outer = {"optimizer": "nesterov", "learning_rate": 0.7, "momentum": 0.9}
        codec = {"up": "int8:64", "down": "int8:64"}
        coordinator = self.start_coordinator(outer=outer, codec=codec, train={"max_steps": 20, "sync_every": 5})
        log = f"w{name}"
        environment = {**os.environ, "LOCPATH": str(self.folder / "locales")} if name else {}
        self.finish(self.start_script(LOCALIZED, log, str(self.run_dir), str(self.folder), name, **environment))
        self.finish(coordinator)
        return self.log(log)

    def test_decimal_commas(self) -> None:
        self.make_locale()
        plain, comma = self.run_with(""), self.run_with("comma")
        self.assertIn("rate 0.7 point . inside {'.'}\n", plain)
        self.assertIn("rate 0.7 point , inside {','}\n", comma)
        self.assertEqual(plain.split("hash ")[1], comma.split("hash ")[1])


if __name__ == "__main__":
    unittest.main()
