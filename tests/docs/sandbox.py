"""A folder in which the steps of one session run: the tree as a user has it, other machines, and stand-ins.

    tree/        the working folder: links to everything of this tree, but its own build/, data/ and runs/
    machines/    a folder for each other machine
    stand-ins/   first in PATH: programs of tests/docs/stand-ins, and `python` with the package of this tree
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

from options import PACKAGE
from session import Step

# The programs of this test know these folders; names with ATOLL_ would be settings.
VERB = """#!/bin/sh
exec "$DOCS_PYTHON" -c 'import sys; from atoll.{verb} import main; sys.argv[0] = "atoll-{verb}"; sys.exit(main())' "$@"
"""
DOCUMENTED_PORT = "29600"  # a free one takes its place
# The environment of the next step is that of this shell at its end.
SHELL = (
    'step=$DOCS_STEP; unset DOCS_STEP; set -o pipefail; '
    'eval "$step"; code=$?; env -0 >"$DOCS_STATE/env"; exit $code'
)


class Failed(Exception):
    """A step went wrong; the text says how."""


@cache
def has_modules(python: str, modules: tuple[str, ...]) -> bool:
    code = "import importlib.util, sys; sys.exit(any(importlib.util.find_spec(m) is None for m in sys.argv[1:]))"
    try:
        return subprocess.run([python, "-c", code, *modules], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


class Sandbox:
    def __init__(self, root: Path, programs: Path, once: Path) -> None:
        """once: a folder that all sandboxes of a call share, for steps that take effect once."""
        self.root, self.programs = root, programs
        self.build = programs.parent
        self.venv = self.build / "python/bin/python"
        self.work = Path(tempfile.mkdtemp(prefix="atoll-docs."))
        self.tree = self.work / "tree"
        self.running: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        self.outputs = 0
        self.port = str(free_port())
        for name in ("tree/build", "machines", "stand-ins", "state"):
            (self.work / name).mkdir(parents=True)
        self._link(root, self.tree, {"build", "data", "runs", "run", ".git"})
        self._link(self.build, self.tree / "build", {"bench", "demo"})
        self._link(root / "tests/docs/stand-ins", self.work / "stand-ins", set())
        (self.tree / "run").symlink_to(self.work / "stand-ins/run")
        for verb in PACKAGE:
            path = self.work / f"stand-ins/atoll-{verb}"
            path.write_text(VERB.format(verb=verb))
            path.chmod(0o755)
        self.environment = {
            **os.environ,
            "ATOLL_BIN": str(programs),
            "ATOLL_LIB": str(self.build / "lib/libatoll.so"),
            "ATOLL_NO_INSTALL": "1",
            "DOCS_MACHINES": str(self.work / "machines"),
            "DOCS_ROOT": str(root),
            "DOCS_BUILD": str(self.build),
            "DOCS_ONCE": str(once),
            "DOCS_PYTHON": "python3",
            "DOCS_STANDINS": str(self.work / "stand-ins"),
            "DOCS_STATE": str(self.work / "state"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(root / "python"),
            "TOKENIZERS_PARALLELISM": "false",
        }

    @staticmethod
    def _link(source: Path, target: Path, but: set[str]) -> None:
        for path in source.iterdir():
            if path.name not in but:
                (target / path.name).symlink_to(path)

    # ---- needs ------------------------------------------------------------------------------------------------------

    def missing(self, needs: list[str]) -> str:
        """What a step needs and this machine lacks, in words; empty if it can run. Chooses its Python."""
        modules = []
        pythons = [str(self.venv), os.environ.get("ATOLL_TORCH_PYTHON", ""), "python3", "/usr/bin/python3"]
        for need in needs:
            kind, _, name = need.partition(":")
            if kind == "program" and not shutil.which(name):
                return f"there is no {name}"
            if kind == "commit" and not self._has_commit(name):
                return f"the history here lacks {name}"
            if need == "root" and os.geteuid():
                return "needs root"
            if need == "venv":
                pythons = pythons[:1]
                if not self.venv.exists():
                    return "needs build/python: ./run python --all"
            elif not name and need != "root":
                modules.append(need)
        if modules:
            able = [python for python in pythons if python and has_modules(python, tuple(modules))]
            if not able:
                return f"no Python here has {', '.join(modules)}: ./run python --all"
            self.environment["DOCS_PYTHON"] = able[0]
            if "torch" in modules:
                self.environment["ATOLL_TORCH_PYTHON"] = able[0]  # of benchmarks
        return ""

    def _has_commit(self, name: str) -> bool:
        words = ["git", "cat-file", "-e", f"{name}^{{commit}}"]
        return subprocess.run(words, cwd=self.root, capture_output=True, check=False).returncode == 0

    # ---- steps ------------------------------------------------------------------------------------------------------

    def run(self, step: Step) -> None:
        """Runs a step and checks its end.

        :raises Failed:
        """
        text = step.text
        for before, after in [*step.reads, (DOCUMENTED_PORT, self.port)]:
            text = text.replace(before, after)
        self.outputs += 1
        output = self.work / f"state/{self.outputs}.out"
        process = self._start(text, step, output)
        if step.starts:
            self.running[step.starts] = (process, output)
            self.environment[step.starts] = str(process.pid)
            self._await_output(process, output, step)
        else:
            code = self._await_end(process, step.within)
            if code != step.code:
                raise Failed(f"exit code {code}, expected {step.code}\n{self._end_of(output)}")
            self._take_environment()
        self._check_output(output, step.prints)
        for name, expected in step.ends:
            process, output = self.running.pop(name)
            code = self._await_end(process, step.within)
            if code != expected:
                raise Failed(f"{name} ended with exit code {code}, expected {expected}\n{self._end_of(output)}")

    def _start(self, text: str, step: Step, output: Path) -> subprocess.Popen[bytes]:
        folder = self.tree
        path = f"{self.work / 'stand-ins'}:{self.environment['PATH']}"
        running = " ".join(str(process.pid) for process, _ in self.running.values())
        environment = {**self.environment, "PATH": path, "DOCS_STEP": text, "DOCS_RUNNING": running}
        words = ["bash", "-c", SHELL]
        if step.starts:  # the program itself gets the signals
            words = ["bash", "-c", 'step=$DOCS_STEP; unset DOCS_STEP; eval "exec $step"']
        if step.on:
            folder = self.work / "machines" / step.on
            folder.mkdir(exist_ok=True)
            environment["PATH"] = f"{self.work / 'stand-ins/machine'}:{path}"
            environment["DOCS_MACHINE"] = step.on
        with output.open("wb") as file:
            return subprocess.Popen(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                                    stderr=subprocess.STDOUT, start_new_session=True)

    def _take_environment(self) -> None:
        path = self.work / "state/env"
        if not path.exists():
            return
        pairs = (pair.partition("=") for pair in path.read_text(errors="replace").split("\0") if pair)
        environment = {name: value for name, _, value in pairs if name not in ("_", "SHLVL", "PWD", "OLDPWD")}
        environment["PATH"] = environment["PATH"].replace(f"{self.work / 'stand-ins'}:", "")
        self.environment = environment
        path.unlink()

    def _await_end(self, process: subprocess.Popen[bytes], seconds: int) -> int:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._kill(process)
            raise Failed(f"still running after {seconds} s") from None

    def _await_output(self, process: subprocess.Popen[bytes], output: Path, step: Step) -> None:
        until = time.monotonic() + step.within
        while step.until and not re.search(step.until, output.read_text(errors="replace"), re.M):
            if process.poll() is not None:
                raise Failed(f"it ended with exit code {process.returncode}\n{self._end_of(output)}")
            if time.monotonic() > until:
                raise Failed(f"no output like {step.until} after {step.within} s\n{self._end_of(output)}")
            time.sleep(0.02)

    def _check_output(self, output: Path, patterns: list[str]) -> None:
        text = output.read_text(errors="replace")
        at = 0
        for pattern in patterns:
            found = re.compile(pattern, re.M).search(text, at)
            if not found:
                raise Failed(f"no output like {pattern}\n{self._end_of(output)}")
            at = found.end()

    @staticmethod
    def _end_of(output: Path) -> str:
        return "\n".join(f"      | {line}" for line in output.read_text(errors="replace").splitlines()[-15:])

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()

    def others(self) -> str:
        """The background processes, with the end of their outputs: for the report of a failure."""
        return "".join(f"\n    {name} ({'runs' if process.poll() is None else f'ended with {process.returncode}'}):\n"
                       f"{self._end_of(output)}" for name, (process, output) in self.running.items())

    def close(self) -> None:
        """Ends all processes and removes the folder."""
        for process, _ in self.running.values():
            self._kill(process)
        shutil.rmtree(self.work, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
