"""A run for tests: a coordinator on this machine, a folder for everything, worker scripts as processes.

The programs are in ATOLL_BIN. At the end of a test all processes are killed, and the folder is removed.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import tempfile
import time
import unittest
from pathlib import Path
from typing import NoReturn

import atoll

CONFIG = {
    "run": {"name": "pytest", "seed": 7},
    "model": {"family": "external"},
    "train": {"method": "diloco", "max_steps": 20, "sync_every": 5, "batch_size": 4, "eval_every": 0},
    "codec": {"up": "fp32", "down": "fp32"},
    "coordinator": {"listen": "tcp://127.0.0.1:*"},
}
GPT2 = {"family": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 32, "vocab_size": 256}
NOUNS = "the old lighthouse keeper|a small grey boat|the harbour master|her brother|a patient gull|the tide".split("|")
VERBS = "watched|carried|remembered|lost|found|counted".split("|")


def end_process() -> NoReturn:
    """Ends a program whose work is done. Threads of PyTorch 2.15 with gloo abort some ends of a process on a busy
    machine: 2 of 24 programs without Atoll."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def text(size: int) -> str:
    """`size` characters of sentences that a model can learn; always the same."""
    out, x, n = [], 12345, 0
    while n < size:
        words = []
        for choices in (NOUNS, VERBS, NOUNS):
            x = x * 16807 % 2147483647
            words.append(choices[x % len(choices)])
        out.append(" ".join(words) + ". ")
        n += len(out[-1])
    return "".join(out)[:size]


def entries(path: Path) -> tuple[dict, dict[str, tuple[str, list[int], bytes]]]:
    """The metadata and the tensors of a safetensors file: dtype, shape, bytes."""
    data = path.read_bytes()
    (n,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + n])
    metadata = header.pop("__metadata__", {})
    found = {}
    for name, entry in header.items():
        begin, end = (8 + n + offset for offset in entry["data_offsets"])
        found[name] = entry["dtype"], entry["shape"], data[begin:end]
    return metadata, found


def wait_for(seconds: float, what: str, condition) -> None:
    """Waits until condition() is true; fails after `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"timeout: waiting for {what}")
        time.sleep(0.02)


class RunTest(unittest.TestCase):
    """Base of the tests with a run: `self.folder` is empty at the start, `self.run_dir` is the coordinator's."""

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory(prefix="atoll-python.", ignore_cleanup_errors=True)
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.run_dir = self.folder / "run"
        self.processes: list[subprocess.Popen] = []
        self.addCleanup(self._kill_all)
        self.restarts = 0
        self.settings: list[str] = []

    def _kill_all(self) -> None:
        for p in self.processes:
            if p.poll() is None:
                p.kill()
            p.wait()

    def prepare_data(self, size: int = 60000) -> None:
        """Writes data/train_*.bin and data/val_*.bin, tokens of bytes."""
        (self.folder / "text.txt").write_text(text(size))
        command = [atoll.program("atoll"), "prepare", str(self.folder / "data"), str(self.folder / "text.txt")]
        subprocess.run(command, check=True, capture_output=True)

    def in_threads(self, *functions) -> list:
        """Runs each function in its thread; returns their results in order."""
        results: list = [None] * len(functions)

        def call(i: int) -> None:
            try:
                results[i] = functions[i]()
            except BaseException as e:
                results[i] = e

        threads = [threading.Thread(target=call, args=(i,)) for i in range(len(functions))]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    def worker(self, model, optimizer=None, name: str = "w", **options) -> atoll.Worker:
        """A worker of the run in this process."""
        given = {"join": self.run_dir, "dir": self.folder / f"worker-{name}", "name": name, "max_wait": 30}
        return atoll.Worker(model, optimizer, **{**given, **options})

    def start_coordinator(self, **sections: dict) -> subprocess.Popen:
        """Starts the coordinator with CONFIG, changed by `sections`; without arguments: again, as it was."""
        config = self.folder / "run.yaml"
        if sections or not config.exists():
            merged = {name: {**CONFIG.get(name, {}), **sections.get(name, {})} for name in {**CONFIG, **sections}}
            if sections.get("model", {}).get("family", "external") != "external":
                merged["model"] = sections["model"]
            config.write_text("".join(f"{name}: {json.dumps(keys)}\n" for name, keys in merged.items()))
        command = [atoll.program("atoll-coordinator"), str(config), "--dir", str(self.run_dir)]
        return self.start(command, "coordinator.log")

    def start(self, command: list[str], log: str, **environment: str) -> subprocess.Popen:
        """Starts a process whose output is appended to folder/LOG."""
        temporary = self.folder / "tmp"  # torchrun leaves folders if it is killed
        temporary.mkdir(exist_ok=True)
        with open(self.folder / log, "ab") as out:
            env = {**os.environ, "TMPDIR": str(temporary), **environment}
            p = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=self.folder, env=env)
        self.processes.append(p)
        return p

    def start_script(self, script: str, name: str, *arguments: str, **environment: str) -> subprocess.Popen:
        """Runs Python source in a process, as worker `name`: sys.argv[1:] are `name` and the arguments."""
        path = self.folder / f"{name}.py"
        path.write_text(script)
        return self.start([sys.executable, str(path), name, *arguments], f"{name}.log", **environment)

    def finish(self, process: subprocess.Popen, seconds: float = 60, code: int = 0) -> None:
        """Waits for the end of a process; fails unless it ends with `code`."""
        try:
            ended = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{process.args[0]}: still running after {seconds} s\n{self.logs()}") from None
        self.assertEqual(ended, code, f"{process.args}\n{self.logs()}")

    def wait_for(self, seconds: float, what: str, condition) -> None:
        """The same; a failure shows the ends of all logs."""
        try:
            wait_for(seconds, what, condition)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.logs()}") from None

    def kill(self, process: subprocess.Popen) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"--- {p.name}\n{p.read_text()[-3000:]}" for p in sorted(self.folder.glob("*.log")))

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def summary(self) -> dict:
        return json.loads((self.run_dir / "summary.json").read_text())

    def events(self, kind: str) -> list[dict]:
        """The events of one kind in metrics.jsonl so far."""
        path = self.run_dir / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = []
        for line in lines:
            try:
                event = json.loads(line)
            except json.JSONDecodeError:  # being written
                continue
            if event.get("event") == kind:
                found.append(event)
        return found

    def rounds(self) -> int:
        """Rounds merged so far."""
        return max((e["round"] for e in self.events("round")), default=0)
