"""Starts the coordinator of a run beside the training script, and prints the command for the other machines."""

from __future__ import annotations

import atexit
import fcntl
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

from .._lib import Error, InvalidError, logger, program
from ..command import clean
from ..metrics import Lines

LISTEN = "tcp://0.0.0.0:29600"
"""The default address of the coordinator: port 29600 on all interfaces."""

_LOCK_S = 3.0  # how long a coordinator that is ending may hold the lock of its run folder
_SAY_S = 10.0  # after this long the caller learns what it waits for
_LINGER_S = 8.0  # the coordinator of a finished run ends by itself within five seconds
_STOP_S = 10.0  # how long a coordinator may take to stop

# The kernel stops the coordinator when this process dies, also by kill -9. PR_SET_PDEATHSIG is 1. A process of its own
# sets it, because Python code between fork and exec can deadlock in a program with threads.
_GUARD = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

_stopping = threading.Event()  # this process ends
_children: dict[str, subprocess.Popen[bytes]] = {}  # by the real path of the run folder


def launch(
    run_dir: str | os.PathLike[str] = "run",
    *,
    max_steps: int,
    every: int = 30,
    batch_size: int = 16,
    grad_accum: int = 1,
    method: str = "diloco",
    workers: int = 1,
    listen: str = LISTEN,
    advertise: str | None = None,
    change: Mapping[str, object] | None = None,
    **settings: object,
) -> str:
    """Starts ``atoll-coordinator`` for a model of this script, and returns what ``Worker(join=...)`` takes.

    The function prints the command with which other machines join, and returns when the coordinator listens::

        target = atoll.launch("run", max_steps=3000, every=30, batch_size=16, workers=2)
        with atoll.Worker(model, optimizer, join=target) as worker:
            ...

    - A script that ``python -m atoll.join`` started joins that run: the function starts nothing.
    - The same call continues the run in ``run_dir``. A finished run stays finished, until ``change`` makes it longer.
    - The coordinator ends with the run, and stops when this process ends in any way, also by ``kill -9``. The workers
      of other machines then wait for it.
    - If a coordinator already serves ``run_dir`` on this machine, the script joins that one.
    - With ``torchrun`` only rank 0 starts a coordinator. The printed command starts ``torchrun`` again.
    - The lines of the coordinator go to ``run_dir/logs/coordinator.log``.

    :param run_dir: folder of the run: journal, checkpoints, metrics.
    :param max_steps: inner optimizer steps of one worker until the run is done.
    :param every: inner steps between two sync points.
    :param batch_size: samples of one micro-step of one worker.
    :param grad_accum: micro-steps of one optimizer step.
    :param method: ``"diloco"``, ``"local-sgd"`` or ``"async"``.
    :param workers: the first round begins when so many workers have joined.
    :param listen: address of the coordinator. ``tcp://127.0.0.1:*`` takes a free port that only this machine reaches.
    :param advertise: ``HOST`` or ``HOST:PORT`` for the join line, if NAT or a container hides this machine's address.
    :param change: new values that the run has from here on, like ``--change`` of ``atoll-coordinator``:
        ``{"train.max_steps": 6000}`` (only more), ``inner.learning_rate``, ``outer.learning_rate``, ``outer.momentum``.
        Later calls need it no more.
    :param settings: other keys of the configuration, as ``codec_up="int4"`` or ``**{"codec.up": "int4"}``.
    :returns: the run folder, or the join target that ``python -m atoll.join`` was given.
    :raises InvalidError: (a ``ValueError``) the coordinator refused a setting, or ``run_dir`` holds another run.
    :raises Error: (a ``RuntimeError``) the coordinator cannot start; or the caller is not the main thread.
    """
    run_dir = os.path.abspath(os.fspath(run_dir))
    joined = os.environ.get("ATOLL_JOIN")
    if joined:
        return joined
    if os.environ.get("RANK", "0") != "0":
        return run_dir
    if threading.current_thread() is not threading.main_thread():
        raise Error("the coordinator ends with the thread that starts it: call atoll.launch() in the main thread")
    child = _children.get(os.path.realpath(run_dir))
    if child is not None and child.poll() is None:
        return run_dir
    if os.path.exists(run_dir) and not os.path.isdir(run_dir):
        raise InvalidError(f"{run_dir} is not a folder: give atoll.launch another run_dir")
    if _is_served(run_dir):
        logger.info("a coordinator already serves %s: this script joins it", run_dir)
        return run_dir
    named = {
        "model.family": "external",
        "train.method": method,
        "train.max_steps": max_steps,
        "train.sync_every": every,
        "train.batch_size": batch_size,
        "train.grad_accum": grad_accum,
        "coordinator.min_workers": workers,
        "coordinator.listen": listen,
        "coordinator.advertise": advertise,
    }
    _start(run_dir, {**named, **{_key(name): value for name, value in settings.items()}}, change or {})
    invitation = _invitation(run_dir, sys.stderr.isatty()).split("\n")
    print("\n".join(map(clean, invitation)), file=sys.stderr, flush=True)
    return run_dir


def _key(name: str) -> str:
    """``codec_up`` and ``codec.up`` name the same key of the configuration."""
    return name if "." in name else name.replace("_", ".", 1)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_served(run_dir: str) -> bool:
    """True if another process holds the lock of the run folder. Waits for a coordinator that is just ending."""
    try:
        fd = os.open(os.path.join(run_dir, "lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # no run yet; the coordinator itself reports a folder that it cannot use
    until = time.monotonic() + _LOCK_S
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
            except OSError:
                if time.monotonic() >= until:
                    return True
            time.sleep(0.05)
    finally:
        os.close(fd)


def _start(run_dir: str, settings: dict[str, object], change: Mapping[str, object]) -> None:
    """Starts the coordinator and returns when it has written its address."""
    words = [program("atoll-coordinator"), os.devnull, f"--dir={run_dir}"]
    words += [f"--{key}={_text(value)}" for key, value in settings.items() if value is not None]
    words += [f"--change={_key(key)}={_text(value)}" for key, value in change.items()]
    new = not os.path.exists(run_dir)
    address = os.path.join(run_dir, "address")
    log_path = os.path.join(run_dir, "logs", "coordinator.log")
    os.makedirs(os.path.dirname(log_path), exist_ok=True)
    before = _identity(address)
    environment = {name: value for name, value in os.environ.items() if name != "ATOLL_JOIN"} | {"ATOLL_LOGGED": "1"}
    with open(log_path, "ab") as log:
        begin = log.tell()
        # Ctrl-C reaches both processes, so that the coordinator stops first and keeps the worker's place. A script that
        # ignores it (in the background, under nohup) keeps its coordinator.
        alone = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        child = subprocess.Popen([sys.executable, "-I", "-c", _GUARD, str(os.getpid()), *words], env=environment,
                                 stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=alone)
    _children[os.path.realpath(run_dir)] = child
    atexit.register(_stop, child, run_dir, os.getpid())
    say_at = time.monotonic() + _SAY_S
    while _identity(address) in (None, before):
        if child.poll() is not None:
            _fail(child.returncode, log_path, begin, run_dir if new else None)
        if time.monotonic() >= say_at:
            logger.info("waiting for the coordinator: %s", _last_line(log_path, begin))
            say_at = float("inf")
        time.sleep(0.02)
    threading.Thread(target=_watch, args=(child, run_dir, log_path), daemon=True).start()


def _watch(child: subprocess.Popen[bytes], run_dir: str, log_path: str) -> None:
    """Says that the coordinator ended before the run: the worker only sees that nothing answers."""
    code = child.wait()
    if not _is_done(run_dir) and not _stopping.is_set():
        logger.error("the coordinator of %s ended with code %d (%s): start the script again to continue", run_dir, code,
                     log_path)


def _identity(path: str) -> tuple[int, int] | None:
    """The coordinator replaces its address file at each start, so the file's identity tells a start from the last."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _lines(log_path: str, begin: int) -> list[str]:
    with open(log_path, "rb") as log:
        log.seek(begin)
        return log.read().decode("utf-8", "replace").splitlines()


def _last_line(log_path: str, begin: int) -> str:
    return (_lines(log_path, begin) or ["it reads the run"])[-1]


def _fail(code: int, log_path: str, begin: int, new_dir: str | None) -> None:
    """Raises the coordinator's own error. A run folder that did not exist before is removed."""
    errors = [line for line in _lines(log_path, begin) if line.startswith("atoll: ")]
    if errors:
        text = re.sub("^atoll: (command line: )?", "", errors[-1])
    else:
        text = f"atoll-coordinator ended with code {code}: see {log_path}"
    if new_dir and os.listdir(new_dir) == ["logs"]:
        os.unlink(log_path)
        os.rmdir(os.path.dirname(log_path))
        os.rmdir(new_dir)
    raise (InvalidError if code == 2 else Error)(f"atoll.launch: {text}")


def _is_done(run_dir: str) -> bool:
    """True if the coordinator has noted the end of the run in metrics.jsonl."""
    try:
        with open(os.path.join(run_dir, "metrics.jsonl"), "rb") as metrics:
            metrics.seek(max(0, os.fstat(metrics.fileno()).st_size - 65536))
            tail = metrics.read().splitlines()
    except OSError:
        return False
    for line in reversed(tail):
        event = Lines({}).take(line)
        if event and event["event"] == "done":
            return True
    return False


def _stop(child: subprocess.Popen[bytes], run_dir: str, owner: int) -> None:
    """Ends the coordinator with this process. That of a finished run first brings the last update to all workers."""
    if os.getpid() != owner or child.poll() is not None:
        return
    if _is_done(run_dir):
        try:
            child.wait(_LINGER_S)
            return
        except subprocess.TimeoutExpired:
            pass
    _stopping.set()
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if not _is_done(run_dir):
        logger.info("stopped the coordinator of %s: run the script again to continue", run_dir)


def _script_words() -> list[str]:
    """How this script was started, without the interpreter: ``train.py --lr 1``, or ``-m package.train --lr 1``."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return ["-m", re.sub(r"\.__main__$", "", spec.name), *sys.argv[1:]]
    if not getattr(main, "__file__", None) or not sys.argv[0] or "ipykernel" in sys.argv[0]:
        return ["SCRIPT.py"]  # a notebook or an interactive interpreter
    return sys.argv


def _torchrun_words(nodes: int) -> list[str]:
    """The words that start as many processes as ``torchrun`` started here; none without it."""
    if not nodes:
        return []
    place = ["--standalone"] if nodes == 1 else [f"--nnodes={nodes}", "--rdzv-backend=c10d",
                                                 "--rdzv-endpoint=HOST:PORT"]
    return ["-m", "torch.distributed.run", *place, f"--nproc-per-node={os.environ['LOCAL_WORLD_SIZE']}"]


def _torchrun_nodes() -> int:
    """The number of machines on which ``torchrun`` started this script; 0: it did not."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0
    return math.ceil(int(os.environ["WORLD_SIZE"]) / int(os.environ["LOCAL_WORLD_SIZE"]))


def _invitation(run_dir: str, terminal: bool) -> str:
    """The command for the other machines. Only a terminal sees the join line itself, because other output is a log."""
    with open(os.path.join(run_dir, "address"), encoding="ascii") as address:
        line = address.read().splitlines()[-1]
    where = "/".join(line.split("/")[:3])
    host = re.sub(r"^tcp://|:[^:]*$", "", where)
    nodes = _torchrun_nodes()
    script = shlex.join(_torchrun_words(nodes) + _script_words())
    text = f"the coordinator of {run_dir} listens on {where}\n"
    if nodes > 1:
        text += f"{nodes} machines join as one worker: give the command on each, with the HOST and a free PORT of one\n"
    if host.startswith("127.") or host in ("localhost", "[::1]"):
        return text + (f"join on this machine with: python -m atoll.join {shlex.quote(run_dir)} {script}\n"
                       f"for other machines, set listen='{LISTEN}'")
    if terminal:
        return text + (f"join on another machine with: python -m atoll.join '{line}' {script}\n"
                       "the line in quotes holds a secret: send it like a password")
    return text + (f"join on another machine with: python -m atoll.join FILE {script}\n"
                   f"FILE holds the last line of {run_dir}/address, which is a secret: send it like a password")
