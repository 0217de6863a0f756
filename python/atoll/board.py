"""atoll-board: follows the metrics of a run into TensorBoard event files, W&B or trackio.

- It reads RUN/metrics.jsonl while the run writes it, waits for the file before the run begins, and ends with the run.
- Values of the run are in the folder DIR, those of a worker in DIR/WORKER, so TensorBoard shows workers as curves of
  one plot. The x axis is the inner step for workers and the round for the run, or tokens.
- A restart continues: the event files themselves say what was written.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .command import DONE, Options, Problem, catch_signals, clean, need, replace_file, run, say, warn
from .metrics import Follower, Lines

POLL_S = 1.0
_WRITERS_MAX = 512
# Tags of an event's fields.
_STEP = {
    "loss": "train/loss",
    "lr": "train/lr",
    "grad_norm": "train/grad_norm",
    "tokens_per_s": "speed/tokens_per_s",
    "tflops": "speed/tflops",
    "compute_s": "round/compute_s",
    "compress_s": "round/compress_s",
    "send_s": "round/send_s",
    "wait_s": "round/wait_s",
    "apply_s": "round/apply_s",
    "bytes_up": "comm/bytes_up",
    "bytes_down": "comm/bytes_down",
}
_ROUND = {
    "loss": "train/loss",
    "tokens": "train/tokens",
    "bytes_up": "comm/bytes_up",
    "bytes_down": "comm/bytes_down",
    "round_s": "round/round_s",
    "compute_s": "round/compute_s",
    "wait_s": "round/wait_s",
    "link_s": "round/link_s",
    "workers": "round/workers",
    "delivered": "round/delivered",
    "norm_ratio": "round/norm_ratio",
    "rho": "round/rho",
    "gain": "round/gain",
    "agreement": "round/agreement",
    "noise_tokens": "round/noise_tokens",
}
_EVAL = {"val_loss": "eval/loss", "eval_s": "eval/seconds"}


@dataclass(frozen=True)
class Point:
    """The values of one line of metrics.jsonl."""

    worker: str  # "": the run
    kind: str  # the event: step, round, eval
    x: int
    order: int  # grows within (worker, kind); the same line sent twice has the same one
    time: float
    values: dict[str, float]  # by tag


def _needs(axis: str) -> dict[str, tuple[str, ...]]:
    x = ("tokens",) if axis == "tokens" else ()
    return {"step": ("time", "round", "step", *x), "round": ("time", "round", *x), "eval": ("time", "round", *x)}


def point_of(line: bytes, axis: str) -> Point | None:
    """Returns the point of a line; None if the line has none, or is damaged. `axis`: "steps" or "tokens"."""
    event = Lines(_needs(axis)).take(line)
    return _point(event, axis) if event else None


def _point(event: dict[str, Any], axis: str) -> Point | None:
    kind = event["event"]
    tags = {"step": _STEP, "round": _ROUND, "eval": _EVAL}.get(kind)
    if tags is None:
        return None
    values = {tag: float(event[key]) for key, tag in tags.items() if event.get(key) is not None}
    if kind == "round" and values.get("round/round_s", 0) > 0 and "round/compute_s" in values:
        values["utilization"] = values["round/compute_s"] / values["round/round_s"]
    order = event["round"] << 32 | (event.get("step") or 0)
    x = event["tokens"] if axis == "tokens" else event["step" if kind == "step" else "round"]
    worker = event.get("worker") or "" if kind == "step" else ""
    return Point(worker, kind, x, order, float(event["time"]), values)


# --- writing ----------------------------------------------------------------------------------------------------------


class Sink(Protocol):
    """Takes points. Each remembers across restarts what it has."""

    def put(self, point: Point) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def _folder_name(worker: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", worker).lstrip(".") or "_"


class TensorBoard:
    """Event files of tensorboard's own writer. Each line of metrics.jsonl is one event, so a crash tears none.


    The event files say themselves what was written: a new start reads them and continues behind their last events.
    """

    def __init__(self, folder: str) -> None:
        try:
            from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise need("tensorboard", "atoll board") from None
        self.folder = folder
        self.events, self.summaries = event_pb2, summary_pb2
        self.new_loader, self.new_writer = RawEventFileLoader, EventFileWriter
        self.writers: dict[str, Any] = {}
        self.full = False
        self.done: dict[tuple[str, str], int] = {}  # last order by worker and kind, of this process
        self.found: dict[tuple[str, str], int] = {}  # last x by worker and kind, of older event files

    def _writer(self, worker: str) -> Any:
        """None: there are too many workers to have a file and a thread for each."""
        if worker not in self.writers and len(self.writers) == _WRITERS_MAX:
            if not self.full:
                warn(f"the curves of more than {_WRITERS_MAX - 1} workers are left out")
            self.full = True
            return None
        if worker not in self.writers:
            folder = os.path.join(self.folder, _folder_name(worker)) if worker else self.folder
            os.makedirs(folder, exist_ok=True)
            for name in sorted(os.listdir(folder)):
                if name.startswith("events.out.tfevents."):
                    self._read_back(os.path.join(folder, name), worker)
            self.writers[worker] = self.new_writer(folder, max_queue_size=1000, flush_secs=3600)
        return self.writers[worker]

    def _read_back(self, path: str, worker: str) -> None:
        try:
            for record in self.new_loader(path).Load():
                event = self.events.Event.FromString(record)
                for value in event.summary.value:
                    kind = "step" if worker else "eval" if value.tag.startswith("eval/") else "round"
                    self.found[worker, kind] = max(self.found.get((worker, kind), -1), event.step)
        except Exception as error:  # a damaged file: what follows in it is written again
            warn(f"stopped reading {path}: {str(error).splitlines()[0]}")

    def put(self, point: Point) -> None:
        writer, key = self._writer(point.worker), (point.worker, point.kind)
        if not writer or not point.values or point.order <= self.done.get(key, -1):
            return
        if point.x <= self.found.get(key, -1):
            return
        self.done[key] = point.order
        summary = self.summaries.Summary()
        for tag, value in point.values.items():
            summary.value.add(tag=tag, simple_value=value)
        writer.add_event(self.events.Event(wall_time=point.time, step=point.x, summary=summary))

    def flush(self) -> None:
        for writer in self.writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


class Logged:
    """W&B or trackio, which have the same calls. RUN/board-NAME.json remembers the last points."""

    def __init__(self, name: str, project: str, folder: str, axis: str) -> None:
        import importlib

        try:
            self.module: Any = importlib.import_module(name)
        except ImportError:
            raise need(name, f"--{name}") from None
        self.axis = axis
        self.path = os.path.join(folder, f"board-{name}.json")
        self.done: dict[str, int] = {}
        self.axes: set[str] = set()
        run_name = os.path.basename(os.path.abspath(folder))
        if os.path.exists(self.path):
            self.done = self._read_done()
        more = {"id": _run_id(folder, run_name)} if name == "wandb" else {}
        self.run: Any = self.module.init(project=project, name=run_name, resume="allow", **more)

    def _read_done(self) -> dict[str, int]:
        try:
            with open(self.path, encoding="utf-8") as file:
                found = json.load(file)
            if isinstance(found, dict) and all(isinstance(value, int) for value in found.values()):
                return found
        except (ValueError, RecursionError):
            pass
        warn(f"{self.path} is damaged: logging all points of the run again")
        return {}

    def put(self, point: Point) -> None:
        key = f"{point.kind} {point.worker}"
        if not point.values or point.order <= self.done.get(key, -1):
            return
        self.done[key] = point.order
        name = "tokens" if self.axis == "tokens" else "step" if point.kind == "step" else "round"
        prefix = f"{point.worker}/" if point.worker else ""
        if prefix + name not in self.axes and hasattr(self.module, "define_metric"):
            for tag in (f"{prefix}*",) if prefix else ("train/*", "eval/*", "comm/*", "round/*", "utilization"):
                self.module.define_metric(tag, step_metric=prefix + name)
        self.axes.add(prefix + name)
        self.module.log({**{prefix + tag: value for tag, value in point.values.items()}, prefix + name: point.x})

    def flush(self) -> None:
        replace_file(self.path, json.dumps(self.done).encode())

    def close(self) -> None:
        self.module.finish()


def _run_id(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, "run_id"), encoding="utf-8") as file:
            return file.read().strip()[:64] or name
    except (OSError, ValueError):
        return name


# --- main -------------------------------------------------------------------------------------------------------------


def follow(folder: str, sinks: Sequence[Sink], axis: str, once: bool) -> int:
    """Copies metrics.jsonl to the sinks until the run is complete. Returns the number of points."""
    follower, lines = Follower(os.path.join(folder, "metrics.jsonl")), Lines(_needs(axis))
    try:
        return _follow(folder, follower, lines, sinks, axis, once)
    finally:
        if lines.skipped:
            warn(f"{follower.path}: {lines.told()}")


def _follow(
    folder: str, follower: Follower, lines: Lines, sinks: Sequence[Sink], axis: str, once: bool
) -> int:
    summary = os.path.join(folder, "summary.json")
    n, waiting, was_complete = 0, False, False
    while True:
        complete = os.path.exists(summary)  # the last lines may follow a moment later
        before = n
        for line in follower.lines():
            event = lines.take(line)
            if event and (point := _point(event, axis)):
                n += 1
                for sink in sinks:
                    sink.put(point)
        if n > before:
            for sink in sinks:
                sink.flush()
        if once or (complete and was_complete):
            return n
        was_complete = complete
        if not n and not waiting:
            print(f"waiting for {clean(follower.path)}", file=sys.stderr)
            waiting = True
        time.sleep(POLL_S)


def body(words: Sequence[str]) -> int:
    o = Options(
        "atoll board",
        "RUN [options]",
        "Follow the metrics of a run into TensorBoard event files, W&B or trackio, until the run is complete.\n"
        "Show them with: tensorboard --logdir RUN/tensorboard",
    )
    o.add_argument("run", metavar="RUN", help="the run folder; it need not exist yet")
    o.add_argument("--tensorboard", metavar="DIR", help="folder of the event files (default RUN/tensorboard)")
    o.add_argument("--wandb", metavar="PROJECT", help="log to this project of W&B")
    o.add_argument("--trackio", metavar="PROJECT", help="log to this project of trackio")
    o.add_argument(
        "--axis",
        choices=("steps", "tokens"),
        default="steps",
        help="x axis: steps and rounds (default), or tokens of all workers",
    )
    o.add_argument("--once", action="store_true", help="copy what is there and end")
    options = o.parse(words)
    if os.path.exists(options.run) and not os.path.isdir(options.run):
        raise Problem(f"{options.run} is a file: give a run folder")
    if options.once and not os.path.isfile(os.path.join(options.run, "metrics.jsonl")):
        raise Problem(f"{options.run} has no metrics.jsonl: give the folder of a run")
    sinks: list[Sink] = []
    if options.wandb:
        sinks.append(Logged("wandb", options.wandb, options.run, options.axis))
    if options.trackio:
        sinks.append(Logged("trackio", options.trackio, options.run, options.axis))
    if options.tensorboard or not sinks:
        sinks.append(TensorBoard(options.tensorboard or os.path.join(options.run, "tensorboard")))
    catch_signals()
    if not options.once:
        folders = [f"; tensorboard --logdir {sink.folder}" for sink in sinks if isinstance(sink, TensorBoard)]
        print(clean(f"following {options.run}{''.join(folders)}"), file=sys.stderr)
    try:
        n = follow(options.run, sinks, options.axis, options.once)
    finally:
        for sink in sinks:
            sink.close()
    say(f"wrote {n} points of {options.run}")
    return DONE


def main(words: Sequence[str] | None = None) -> int:
    """The program. Returns the exit code."""
    return run(body, words, "stopped by a signal: start it again to continue")


if __name__ == "__main__":
    sys.exit(main())
