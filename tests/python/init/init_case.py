"""Runs `atoll init` and the commands that it prints; folders are the machines."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

BIN = Path(os.environ.get("ATOLL_BIN", "build/bin")).resolve()
PATIENCE = 120.0
PROMPT = re.compile(r"(?:made|\]): $")  # the end of a question
ROUND = re.compile(r'"event": ?"round".*\n')  # a whole line


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def machines_of(text: str) -> dict[str, list[str]]:
    """The commands that init prints, by the comment above them."""
    out: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("# "):
            out[line] = []
        elif line.startswith("    "):
            out[list(out)[-1]].append(line.strip())
    return out


class InitCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)
        (self.dir / "novel.txt").write_text("the cat sat on the mat and the dog ran to the house. " * 4000)
        self.env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
        self.running: list[subprocess.Popen[bytes]] = []
        self.addCleanup(self.stop)

    def stop(self) -> None:
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(self, command: str, folder: Path) -> subprocess.Popen[bytes]:
        log = (folder / "log.txt").open("ab")
        self.addCleanup(log.close)
        process = subprocess.Popen(["bash", "-c", command], cwd=folder, env=self.env, stdout=log, stderr=log,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
        self.running.append(process)
        return process

    def init(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([BIN / "atoll", "init", *words], cwd=self.dir, env=self.env, capture_output=True,
                              text=True, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def wait_for(self, path: Path, pattern: re.Pattern[str]) -> None:
        end = time.monotonic() + PATIENCE
        while not (path.exists() and pattern.search(path.read_text())):
            self.assertLess(time.monotonic(), end, f"no {pattern.pattern} in {path}")
            time.sleep(0.05)

    def check_config(self, folder: Path) -> str:
        words = [BIN / "atoll", "config", "print", "run.yaml"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def at_terminal(self, words: list[str], answers: list[str]) -> tuple[int, str]:
        """atoll init at a terminal: types an answer after each question."""
        pid, terminal = pty.fork()
        if not pid:
            os.chdir(self.dir)
            os.execve(BIN / "atoll", ["atoll", "init", *words], self.env)
        text, left = "", list(answers)
        while True:
            try:
                part = os.read(terminal, 65536).decode()
            except OSError:
                break
            if not part:
                break
            text += part
            if left and PROMPT.search(text):
                os.write(terminal, (left.pop(0) + "\n").encode())
        os.close(terminal)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text.replace("\r\n", "\n")
