"""One cell of atoll compare: a run of `atoll launch`, its measurements, and the rules for invalid runs.

A finished cell is one JSON file in OUT/cells. A cell that was interrupted starts again.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import math
import os
import platform
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..command import Problem, Stopped, hold_signals
from ..metrics import Follower, Lines
from .grid import Arm, load_config

RULES = (
    "A run is invalid if a worker was evicted, reported a fault or was restarted, if a delta was refused, if a loss is "
    "not finite, if a round closed without a delta of each worker (coordinator.quorum all), or if the run ended with "
    "an error. An invalid run is repeated once and stays in the report."
)
ATTEMPTS = 2
_NOT_FINITE = "is not finite"
_DIVERGES = "training diverges to NaN or infinity"  # a worker's last line
# Settings of logging and recovery; they do not change the loss. Each run begins anew, so it needs no saved states.
_KEPT = {"coordinator.listen": "tcp://127.0.0.1:*", "checkpoint.worker_every": "0"}
_NO_EVALUATIONS = {"train.eval_every": "0"}
# One step with learning rate 0 in a lossless run of one worker: its final loss is that of the initial model.
_EVALUATION = {
    **_NO_EVALUATIONS, "train.method": "local-sgd", "train.max_steps": "1", "train.sync_every": "1",
    "train.batch_size": "1", "train.grad_accum": "1", "train.start_step": "0", "train.overlap": "0",
    "train.apply": "replace", "train.stagger": "off", "train.dynamic_steps": "off", "train.ranks": "1",
    "inner.optimizer": "sgd", "inner.learning_rate": "0", "inner.warmup_steps": "0", "inner.schedule": "constant",
    "inner.scaling": "none", "outer.optimizer": "sgd", "outer.learning_rate": "1", "outer.momentum": "0",
    "merge.rule": "mean", "codec.up": "fp32", "codec.down": "fp32",
}
_SUMMARY = ("params", "tokens", "rounds", "bytes_up", "bytes_down", "theta_hash", "wall_s")
_EVALUATED = ("model.", "data.", "train.precision", "train.threads", "train.devices")
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_TICK_S = 0.5


class Watch(Protocol):
    """Sees a cell run: what it does, in which folder, and calls now and then."""

    def note(self, what: str) -> None: ...
    def follow(self, folder: str) -> None: ...
    def tick(self) -> None: ...


@dataclass(frozen=True)
class Cell:
    """One run of the comparison. `kind`: run, tune, verify or untrained."""

    name: str
    kind: str
    arm: str
    seed: int
    base: str
    config: Any  # the content of the base file
    workers: int
    link: str | None
    settings: dict[str, str]  # all flags but the folder's
    origin: dict[str, Any]  # the version of Atoll, and the content of the data
    tuned: str = ""  # the value of a trial
    every: int = 0  # rounds between checkpoints that are evaluated after the run
    barrier: bool = True  # each round has a delta of each worker
    step_tokens: int = 1
    tokens: int = 0  # of the whole run
    waits: bool = False  # for the trials of its arm: its settings are not complete

    @property
    def identity(self) -> dict[str, Any]:
        """What the result depends on: a stored cell with another identity is run again."""
        return {"config": self.config, "workers": self.workers, "link": self.link, "settings": self.settings,
                **self.origin}

    def words(self, folder: str) -> list[str]:
        link = ["--link", self.link] if self.link else []
        flags = [f"--{key}={value}" for key, value in self.settings.items()]
        return ["launch", self.base, "--workers", str(self.workers), "--dir", folder, "--quiet", *link, *flags]


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


# --- cells of an arm --------------------------------------------------------------------------------------------------


def _cell(arm: Arm, name: str, kind: str, seed: int, link: str | None, more: Mapping[str, str], **rest: Any) -> Cell:
    settings = {**arm.settings, "run.seed": str(seed), **_KEPT, **more}
    quorum = arm.resolved["coordinator.quorum"] == "all" and arm.method != "async"
    return Cell(name, kind, arm.name, seed, arm.base, arm.config, arm.workers, link, settings, arm.origin,
                barrier=quorum, step_tokens=arm.step_tokens, tokens=arm.tokens, **rest)


def link_name(link: str) -> str:
    return re.sub("[^A-Za-z0-9]+", "-", link).strip("-")


def trial_cell(arm: Arm, value: str, seed: int) -> Cell:
    """One trial. Only its final loss counts, so nothing else is evaluated."""
    assert arm.tune
    return _cell(arm.tuned(value).with_settings(arm.tune.settings).as_run(), f"{arm.name}.tune-{value}.s{seed}", "tune",
                 seed, None, {**_NO_EVALUATIONS, "checkpoint.keep": "1"}, tuned=value)


def trial_cells(arm: Arm) -> list[Cell]:
    """All trials of an arm, value by value."""
    return [trial_cell(arm, value, seed) for value in arm.tune.values for seed in arm.tune.seeds] if arm.tune else []


def run_cell(arm: Arm, seed: int) -> Cell:
    return _cell(arm.as_run(), f"{arm.name}.s{seed}", "run", seed, None, {"checkpoint.keep": "1"})


def link_cell(arm: Arm, seed: int, link: str) -> Cell:
    """A run on a link. Its checkpoints are evaluated afterwards: workers that evaluate would train less."""
    every, by_steps = arm.eval_every
    if by_steps:
        every = max(1, round(every / arm.number("train.sync_every")))
    return _cell(arm, f"{arm.name}.s{seed}.{link_name(link)}", "run", seed, link,
                 {**_NO_EVALUATIONS, "checkpoint.every": str(every), "checkpoint.keep": "0"}, every=every)


def verify_cell(arm: Arm, seed: int, link: str) -> Cell:
    return _cell(arm, f"{arm.name}.s{seed}.{link_name(link)}.verify", "verify", seed, link,
                 {**_NO_EVALUATIONS, "checkpoint.keep": "1"})


def plan_settings(arm: Arm) -> dict[str, str]:
    """The settings of a plan: those of verify_cell, without the seed."""
    return {**arm.settings, **_KEPT, **_NO_EVALUATIONS}


def untrained_cell(arm: Arm, seed: int) -> Cell:
    """The initial model of a seed."""
    settings = {key: value for key, value in arm.settings.items() if key.startswith(_EVALUATED)}
    return Cell(f"untrained.s{seed}", "untrained", arm.name, seed, arm.base, arm.config, 1, None,
                {**settings, "run.seed": str(seed), **_KEPT, **_EVALUATION}, arm.origin)


def _checkpoint_cell(cell: Cell, folder: str) -> Cell:
    settings = {key: value for key, value in cell.settings.items() if key.startswith(_EVALUATED)}
    return Cell("evaluation", "evaluation", cell.arm, cell.seed, cell.base, cell.config, 1, None,
                {**settings, "run.seed": str(cell.seed), **_KEPT, **_EVALUATION, "model.init_from": folder},
                cell.origin)


# --- reading a run folder ---------------------------------------------------------------------------------------------


@dataclass
class Events:
    """metrics.jsonl: the last line of each round, evaluation and update, and the lines that make a run invalid."""

    rounds: dict[int, dict[str, Any]] = field(default_factory=dict)
    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict)
    updates: list[tuple[int, float]] = field(default_factory=list)  # rounds done, time
    joins: list[float] = field(default_factory=list)  # times
    troubles: list[str] = field(default_factory=list)

    def ends(self, barrier: bool) -> list[tuple[int, float]]:
        """(round, seconds since the training began) of each round's end.

        With a barrier the last update of a round ends it, and the first round knows its length. Without one the first
        update ends a round, and the training begins when all workers have joined.
        """
        last: dict[int, float] = {}
        for number, at in self.updates:
            if barrier or number not in last:
                last[number] = at
        first = self.rounds.get(1, {}).get("round_s")
        if not last or (barrier and (1 not in last or first is None)):
            return []
        start = self.updates[0][1]
        begin = last[1] - first if barrier else max((at for at in self.joins if at <= start), default=start)
        return [(number, at - begin) for number, at in sorted(last.items()) if number]


_NEEDS = {"round": ("round",), "eval": ("round", "tokens"), "update": ("round", "time"),
          "join": ("time",)}


def read_events(lines: Iterable[str | bytes]) -> Events:
    events, taken = Events(), Lines(_NEEDS)
    for line in lines:
        event = taken.take(line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line)
        if event is None:
            continue
        kind = event["event"]
        if kind == "round":
            events.rounds[event["round"]] = event
        elif kind == "eval":
            events.evaluations[event["round"]] = event
        elif kind == "update":
            events.updates.append((event["round"], event["time"]))
        elif kind == "join":
            events.joins.append(event["time"])
        elif kind in ("evict", "fault", "restart"):
            events.troubles.append(" ".join(filter(None, (kind, event.get("worker"), event.get("text")))))
    if taken.skipped:
        events.troubles.append(f"metrics.jsonl: {taken.told()}")
    return events


def _events_of(folder: str) -> Events:
    return read_events(Follower(os.path.join(folder, "metrics.jsonl")).lines())


def judge(events: Events, summary: Mapping[str, Any], cell: Cell) -> str | None:
    """Why a run is invalid (RULES); None: it is valid."""
    if events.troubles:
        return events.troubles[0]
    if summary.get("restarts"):
        return f"restart: {summary['restarts']} in all"
    if _finite(summary.get("final_val_loss")) is None:
        return f"the final loss {_NOT_FINITE}"
    for number, event in events.rounds.items():
        if _finite(event.get("loss")) is None:
            return f"the loss of round {number} {_NOT_FINITE}"
        delivered = event.get("delivered") or 0
        if cell.barrier and delivered < cell.workers:
            return f"round {number} closed with {delivered} of {cell.workers} deltas"
    return None


def diverged(why_invalid: str | None) -> bool:
    """The training itself failed: no machine or link did."""
    return why_invalid is not None and (why_invalid.endswith(_NOT_FINITE) or _DIVERGES in why_invalid)


def _finite(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _curve(events: Events) -> list[dict[str, Any]]:
    """The evaluations, with the bytes of the run up to their rounds."""
    points = []
    for number, event in sorted(events.evaluations.items()):
        traffic = events.rounds.get(number, {})
        points.append({"round": number, "tokens": event["tokens"], "loss": _finite(event.get("val_loss")),
                       "bytes_up": traffic.get("bytes_up"), "bytes_down": traffic.get("bytes_down")})
    return points


def _step_seconds(events: Events, step_tokens: int) -> float | None:
    """The median over rounds of the measured time of one inner step."""
    before, found = 0, []
    for _, event in sorted(events.rounds.items()):
        now = event.get("tokens") or before
        tokens, before = now - before, now
        if tokens > 0 and event.get("compute_s") and event.get("delivered"):
            found.append(event["compute_s"] * event["delivered"] * step_tokens / tokens)
    return statistics.median(found) if found else None


def measure(folder: str, cell: Cell) -> dict[str, Any]:
    """What the comparison keeps of a finished run."""
    summary = json.loads(_read(os.path.join(folder, "summary.json")))
    events = _events_of(folder)
    ends = events.ends(cell.barrier)
    computed = sum((event.get("compute_s") or 0.0) * (event.get("delivered") or 0) for event in events.rounds.values())
    return {
        "why_invalid": judge(events, summary, cell),
        "final_loss": _finite(summary.get("final_val_loss")),
        **{key: summary[key] for key in _SUMMARY},
        "eval_s": sum(event.get("eval_s") or 0.0 for event in events.evaluations.values()),
        "step_seconds": _step_seconds(events, cell.step_tokens),
        "seconds": ends[-1][1] if ends else None,
        "utilization": computed / (cell.workers * ends[-1][1]) if ends and ends[-1][1] > 0 else None,
        "round_ends_s": ends if cell.link else None,
        "curve": _curve(events),
    }


# --- running ----------------------------------------------------------------------------------------------------------


def _end_with_parent() -> None:
    """Runs in the child: the kernel stops it when this program dies, also by kill -9."""
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGTERM)


def _wait_unlocked(folder: str) -> None:
    """Waits until the `atoll launch` of an earlier, killed call has left the folder."""
    until = time.monotonic() + 90
    for name in ("launch.lock", "lock"):
        try:
            with open(os.path.join(folder, name), "rb") as lock:
                while True:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if time.monotonic() > until:
                            raise Problem(f"{folder} is in use: stop the atoll launch that holds {lock.name}") from None
                        time.sleep(0.2)
        except FileNotFoundError:
            pass


def _clear(folder: str) -> None:
    if os.path.isdir(folder):
        _wait_unlocked(folder)
        shutil.rmtree(folder)


def start(words: list[str], log_path: str, tick: Callable[[], None]) -> int:
    """Runs a program to its end and calls `tick` meanwhile; returns the exit code. A signal first stops the program."""
    child = None
    try:
        # Python drops an exception that a signal handler raises inside the callbacks of fork.
        with hold_signals(), open(log_path, "wb") as log:
            child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                     preexec_fn=_end_with_parent)
        while True:
            with suppress(subprocess.TimeoutExpired):
                return child.wait(_TICK_S)
            tick()
    except (Stopped, KeyboardInterrupt):
        if child:
            child.send_signal(signal.SIGTERM)
            child.wait()
        raise


def _last_line(log_path: str) -> str:
    with open(log_path, encoding="utf-8", errors="replace") as log:
        lines = [line.strip() for line in log if line.strip()]
    errors = [line for line in lines if line.startswith("atoll: ")]
    return re.sub("^atoll: ", "", (errors or lines or ["it wrote nothing"])[-1])


def _train(program: str, cell: Cell, folder: str, watch: Watch) -> dict[str, Any]:
    """Runs the cell once in `folder`."""
    log_path = folder + ".log"
    if load_config(cell.base) != cell.config:
        raise Problem(f"{cell.base} has changed since the start: repeat the command")
    _clear(folder)
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    begun = time.monotonic()
    watch.follow(folder)
    code = start([program, *cell.words(folder)], log_path, watch.tick)
    if code == 0:
        record = measure(folder, cell)
    elif code in (2, 75) or not os.path.exists(os.path.join(folder, "metrics.jsonl")):
        raise Problem(f"{cell.name}: atoll launch ended with code {code}: {_last_line(log_path)}", code)
    else:
        record = {"why_invalid": f"atoll launch ended with code {code}: {_last_line(log_path)}", "final_loss": None,
                  "curve": []}
    return {**record, "took_s": round(time.monotonic() - begun, 3)}


def _evaluate_checkpoints(program: str, cell: Cell, folder: str, record: dict[str, Any], watch: Watch) -> None:
    """Adds the losses of the run's checkpoints to its curve. The last point is the run's own final evaluation."""
    events = _events_of(folder)
    points = []
    names = sorted(os.listdir(os.path.join(folder, "checkpoints")))
    for i, name in enumerate(names):
        watch.note(f"evaluating checkpoint {i + 1} of {len(names)}")
        number = int(name[6:]) if re.fullmatch("round_[0-9]+", name) else 0
        if not 0 < number < record["rounds"] or events.rounds.get(number, {}).get("tokens") is None:
            continue
        where = folder + ".evaluation"
        got = _train(program, _checkpoint_cell(cell, os.path.join(folder, "checkpoints", name)), where, watch)
        _clear(where)
        traffic = events.rounds[number]
        points.append({"round": number, "tokens": traffic["tokens"], "loss": got["final_loss"],
                       "bytes_up": traffic.get("bytes_up"), "bytes_down": traffic.get("bytes_down")})
        record["eval_s"] += got["eval_s"]
    record["curve"] = points + record["curve"]


def run(program: str, cell: Cell, out: str, watch: Watch) -> dict[str, Any]:
    """Runs a cell, a second time if the first run is invalid, and returns its record. Leaves no run folder."""
    folder = os.path.join(out, "runs", cell.name)
    attempts = []
    while len(attempts) < ATTEMPTS:
        watch.note("evaluating the initial model" if cell.kind == "untrained" else
                   "training again" if attempts else "training")
        record = _train(program, cell, folder, watch)
        if cell.every and record["why_invalid"] is None:
            _evaluate_checkpoints(program, cell, folder, record, watch)
        attempts.append(record)
        if record["why_invalid"] is None or (cell.kind == "tune" and diverged(record["why_invalid"])):
            break
    _clear(folder)
    for name in (".log", ".evaluation.log"):
        if os.path.exists(folder + name):
            os.unlink(folder + name)
    return {"version": 1, "name": cell.name, "kind": cell.kind, "arm": cell.arm, "seed": cell.seed, "link": cell.link,
            "workers": cell.workers, "tuned": cell.tuned,
            "command": shlex.join(["atoll", *cell.words(os.path.join("runs", cell.name))]),
            "created": now(), "machine": machine(), **made_by(program), "identity": cell.identity,
            "attempts": attempts}


# --- where and when ---------------------------------------------------------------------------------------------------


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _output(*words: str) -> str:
    try:
        with hold_signals():
            return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def program_version(program: str) -> str:
    return _output(program, "--version").removeprefix("atoll ")


def made_by(program: str) -> dict[str, str]:
    """The version of the programs, and the commit of their checkout; empty outside of a checkout."""
    folder = os.path.dirname(os.path.realpath(program))
    commit = _output("git", "-C", folder, "rev-parse", "--short=12", "HEAD")
    changes = _output("git", "-C", folder, "status", "--porcelain", "--untracked-files=no") if commit else ""
    return {"atoll": program_version(program), "commit": commit + " with changes" if changes else commit}


def machine() -> dict[str, Any]:
    """What the runs of this machine can compute with. `gpus`: their names, which another machine may lack."""
    names = re.findall("model name[^:]*: (.*)", _read("/proc/cpuinfo"))
    gpus = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    return {"cpu": names[0] if names else platform.machine(), "cores": len(os.sched_getaffinity(0)),
            "system": f"{platform.system()} {platform.release()}", **({"gpus": gpus} if gpus else {})}
