"""Two workers that run one training loop each, in forked processes: importing PyTorch once saves most of the time."""

from __future__ import annotations

import atexit
import hashlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # atoll imports it in each worker, which takes seconds

import atoll
from atoll.train.rounds import Rounds
from rig import RunTest

KILL_AT = 6  # inner steps that a worker takes in its first life: it dies in the second round


class Forked:
    """A function in a child process: what rig.RunTest needs of subprocess.Popen."""

    def __init__(self, log: Path, function: Callable[[], None]) -> None:
        self.args, self._code = [log.stem], None  # type: ignore[var-annotated]
        self.pid = os.fork()
        if self.pid == 0:
            self._run(log, function)

    def _run(self, log: Path, function: Callable[[], None]) -> None:
        code = 1
        try:
            with open(log, "ab") as out:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
            atexit._clear()  # the parent removes its temporary folders itself
            function()
            atexit._run_exitfuncs()
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, seconds: float = 60) -> int:
        until = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(self.args, seconds)
            time.sleep(0.01)
        return self._code  # type: ignore[return-value]

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class Script:
    """What a loop knows: its name, `a` or `b`, and a folder for its files. ATOLL_JOIN names the run."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.seed = ord(name)  # for loops with their own data

    def worker(self, *args: Any, **options: Any) -> atoll.Worker:
        """atoll.Worker with its own folder, as on a machine of its own."""
        return atoll.Worker(*args, dir=self.folder / self.name, name=self.name, max_wait=60, **options)

    def say(self, text: str) -> None:
        print("say:", text, flush=True)


Loop = Callable[[Script], Any]


def digest(model: Any) -> str:
    """Of all floating-point values of a module, or of a dict of tensors."""
    values = model if isinstance(model, dict) else model.state_dict()
    floats = [v.detach().float().reshape(-1) for v in values.values() if v.is_floating_point()]
    return hashlib.sha256(torch.cat(floats).numpy().tobytes()).hexdigest()


def die_after(steps: int) -> None:
    """Kills this process by SIGKILL right after so many inner steps."""
    count, left = Rounds.count, [steps]

    def count_and_die(self: Rounds) -> None:
        count(self)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    Rounds.count = count_and_die  # type: ignore[method-assign]


def live(loop: Loop, script: Script, run: Path, kill_at: int) -> None:
    """The life of one worker: what a script does, from its first line to its last. Writes the digest of its model."""
    os.environ["ATOLL_JOIN"] = str(run)
    os.chdir(script.folder)
    torch.set_num_threads(1)
    torch.manual_seed(1337)
    if kill_at:
        die_after(kill_at)
    (script.folder / f"{script.name}.digest").write_text(digest(loop(script)))


class LoopTest(RunTest):
    """Base of the tests of loops."""

    def start_loop(self, loop: Loop, name: str, kill_at: int = 0) -> Forked:
        folder = self.run_dir.with_suffix(".workers")
        folder.mkdir(exist_ok=True)
        script, run = Script(name, folder), self.run_dir
        process = Forked(self.folder / f"{name}.log", lambda: live(loop, script, run, kill_at))
        self.processes.append(process)  # type: ignore[arg-type]
        return process

    def run_loop(self, loop: Loop, *, kill: bool, train: dict | None = None) -> str:
        """A run of two workers, of which `b` is killed once and started again if `kill`. Returns theta_hash.

        Fails unless the run is done, with equal parameters in both workers.
        """
        self.run_dir = self.folder / ("killed" if kill else "undisturbed")
        coordinator = self.start_coordinator(
            train={"max_steps": 12, "sync_every": 4, **(train or {})},
            coordinator={"min_workers": 2, "evict_after_s": 600},
        )
        workers = [self.start_loop(loop, "a"), self.start_loop(loop, "b", KILL_AT if kill else 0)]
        if kill:
            self.finish(workers[1], 100, -signal.SIGKILL)  # type: ignore[arg-type]
            workers[1] = self.start_loop(loop, "b")
        for process in (*workers, coordinator):
            self.finish(process, 100)  # type: ignore[arg-type]
        folder = self.run_dir.with_suffix(".workers")
        a, b = ((folder / f"{name}.digest").read_text() for name in "ab")
        self.assertEqual(a, b, "the workers end with different parameters")
        self.assertEqual(self.rounds(), 3)
        return self.summary()["theta_hash"]

    def check_leased(self, loop: Loop, **options: Any) -> None:
        """The data is leased: a killed worker continues with the same bits."""
        expected = self.run_loop(loop, kill=False, **options)
        self.assertEqual(self.run_loop(loop, kill=True, **options), expected)

    def check_own(self, loop: Loop, **options: Any) -> None:
        """The loop reads its own data: the run ends, also if one worker is killed once."""
        self.run_loop(loop, kill=True, **options)
