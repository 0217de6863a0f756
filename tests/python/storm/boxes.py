"""A run of boxes (torchrun, several processes each), a native worker and a coordinator, whose processes are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import atoll
from box_program import SIZES
from rig import RunTest

PROGRAM = str(Path(__file__).with_name("box_program.py"))
RANKS = 2
BOXES = ("box-a", "box-b")
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
SAVE_PATIENCE_S = 5.0  # to wait for a save to begin
END_PATIENCE_S = 90.0  # torchrun waits for processes that it ends
LATEST_KILL_S = 0.4  # after a round, or after a start


def children(pid: int) -> list[int]:
    """The direct children of a process, and none if it is gone."""
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
        return [int(child) for text in lists for child in text.split()]
    except OSError:
        return []


def rank_of(pid: int) -> int | None:
    """The RANK of a process of torchrun; None: it has none."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((int(word[5:]) for word in words if word.startswith(b"RANK=")), None)


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class BoxRun(RunTest):
    """A run in folder/NAME: `self.nodes` are its processes by name; of a box, that of torchrun.

    All processes die with this one, and so does the folder, also after SIGKILL.
    """

    def setUp(self) -> None:
        super().setUp()
        self.prepare_data()
        # It reads until this process is gone, which holds the only other end.
        command = 'read -r _; rm -rf -- "$1"; sleep 1; rm -rf -- "$1"'
        self._janitor = subprocess.Popen(["bash", "-c", command, "-", str(self.folder)], stdin=subprocess.PIPE,
                                         start_new_session=True)
        self.addCleanup(self._janitor.wait)
        self.addCleanup(self._janitor.stdin.close)

    def start(self, command: list[str], log: str, **environment: str) -> subprocess.Popen:
        return super().start(["setpriv", "--pdeathsig", "KILL", *command], log, **environment)

    def begin(self, name: str, steps: int, kind: str, pause: float, **sections: dict) -> None:
        """Starts coordinator, boxes and the native worker."""
        self.run_dir, self.boxes_dir = self.folder / name, self.folder / f"{name}-workers"
        self.boxes_dir.mkdir()
        self.kind, self.pause, self.expected, self.began = kind, pause, set(), time.monotonic()
        data = {part: str(self.folder / "data" / f"{part}_*.bin") for part in ("train", "val")}
        self.nodes = {"coordinator": self.start_coordinator(**{
            "model": {"family": "gpt2", **SIZES},
            "data": {**data, "tokenizer": "bytes"},
            "inner": {"warmup_steps": 0, "learning_rate": 1e-3},
            "train": {"method": "diloco", "max_steps": steps, "sync_every": 5, "batch_size": 4, "eval_every": 5,
                      "eval_tokens": 1024},
            "codec": {"up": "int8:64", "down": "int8:64"},
            "coordinator": {"min_workers": 3, "evict_after_s": 900, "listen": "tcp://127.0.0.1:*"},
            "checkpoint": {"every": 5},
            **sections,
        })}
        self.wait_for(30, "the run", (self.run_dir / "config.yaml").exists)
        for node in (*BOXES, "native"):
            self.nodes[node] = self.start_node(node)

    def start_node(self, name: str) -> subprocess.Popen:
        if name == "coordinator":
            return self.start_coordinator()
        folder = str(self.boxes_dir / name)
        if name == "native":
            data = [f"--data.{part}={self.folder}/data/{part}_*.bin" for part in ("train", "val")]
            command = [atoll.program("atoll-worker"), "--join", str(self.run_dir), "--dir", folder, "--name", name]
            return self.start([*command, *data, "--train.threads=1"], f"{name}.log")
        given = {"run": str(self.run_dir), "folder": str(self.boxes_dir), "data": str(self.folder / "data"),
                 "kind": self.kind, "pause": self.pause}
        return self.start([sys.executable, *LAUNCHER, PROGRAM, name, json.dumps(given)], f"{name}.log",
                          PYTHONPATH=os.pathsep.join(sys.path), OMP_NUM_THREADS="1")

    def tend(self) -> None:
        """Starts the nodes again that ended because of a kill. Any other end is a failure."""
        for name, process in self.nodes.items():
            code = process.poll()
            if code in (None, 0):
                continue
            self.assertIn(name, self.expected, f"{name} ended by itself with code {code}\n{self.logs()}")
            self.expected.discard(name)
            self.nodes[name] = self.start_node(name)

    def running(self) -> bool:
        """All nodes are there, tended if they are not."""
        self.tend()
        return not self.expected

    def ranks(self, box: str) -> dict[int, int]:
        """Process ids of a box by rank."""
        found = {rank_of(pid): pid for pid in children(self.nodes[box].pid)}
        return {rank: pid for rank, pid in found.items() if rank is not None}

    def strike(self, victim: str) -> bool:
        """kill -9 of "coordinator", "native", a box ("box-a") or a rank ("box-a/1"). False: the rank is starting."""
        node, _, rank = victim.partition("/")
        self.assertIsNone(self.nodes[node].poll(), f"{victim} ended before its kill\n{self.logs()}")
        if rank:
            pid = self.ranks(node).get(int(rank))
            if pid is None:
                return False
            kill(pid)
        else:
            everyone = [self.nodes[node].pid, *children(self.nodes[node].pid)]
            for pid in everyone:
                kill(pid)
        self.expected.add(node)
        return True

    def end(self) -> str:
        """Waits for the end of the run; returns its hash, which all workers have."""
        self.wait_for(600, "the end of the run", lambda: self.running() and all(
            process.poll() == 0 for process in self.nodes.values()))
        theta = self.summary()["theta_hash"]
        for box in BOXES:
            self.assertIn(f"hash {theta} ", self.log(box))
        self.assertIn(f"theta_hash {theta}", self.log("native"))
        return theta


class Storm:
    """Kills at random moments, which it prints: in rounds, in saves, and at once after another kill."""

    def __init__(self, run: BoxRun, victims: list[str], seed: int) -> None:
        self._run, self._rng, self._victims = run, random.Random(seed), list(victims)
        self._rng.shuffle(self._victims)
        self.saves = 0  # kills in a save
        print(f"{len(victims)} kills, seed {seed}", flush=True)

    def blow(self) -> None:
        for number, victim in enumerate(self._victims):
            moment = self._rng.choice(("in a round", "in a round", "in a save", "at once"))
            pause = self._rng.random() * LATEST_KILL_S
            if moment != "at once" or self._run.expected:
                done = self._run.rounds()
                self._run.wait_for(180, f"round {done + 1} after {number} kills",
                                   lambda: self._run.running() and self._run.rounds() > done)
            if moment == "in a save":
                pause = self._rng.random() * 0.01
                moment = "in a save" if self._await_save(victim.partition("/")[0]) else "without a save"
            time.sleep(pause)
            self._run.wait_for(60, victim, lambda: self._run.strike(victim))
            self.saves += moment == "in a save"
            print(f"{time.monotonic() - self._run.began:7.2f} s, round {self._run.rounds()}: kill {victim} {moment}, "
                  f"after {pause * 1000:.1f} ms", flush=True)
            self._run.wait_for(END_PATIENCE_S, f"the end of {victim}", self._run.running)

    def _await_save(self, node: str) -> bool:
        """True: files of the node's state have just changed."""
        folder = self._run.run_dir / "checkpoints" if node == "coordinator" else self._run.boxes_dir / node
        until, before = time.monotonic() + SAVE_PATIENCE_S, _look(folder)
        while time.monotonic() < until:
            if _look(folder) != before:
                return True
            time.sleep(0.0005)
        return False


def _look(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file of saved states."""
    found = {}
    try:
        for entry in os.scandir(folder):
            if entry.name not in ("key", "data_hashes", "lock"):
                stat = entry.stat()
                found[entry.name] = stat.st_size, stat.st_mtime_ns
    except OSError:  # renamed meanwhile
        found["moving"] = 0, time.monotonic_ns()
    return found
