"""atoll-board: follows the metrics of a run into TensorBoard event files, W&B or trackio.

- It reads RUN/metrics.jsonl while the run writes it, waits for the file before the run begins, and ends with the run.
- Values of the run are in the folder DIR, those of a worker in DIR/WORKER, so TensorBoard shows workers as curves of
  one plot. The x axis is the inner step for workers and the round for the run, or tokens.
- A restart continues: the event files themselves say what was written.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .command import DONE, Options, Problem, catch_signals, need, replace_file, run, warn

POLL_S = 1.0
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


def point_of(line: bytes, axis: str) -> Point | None:
    """Returns the point of a line; None if the line has none, or is damaged. `axis`: "steps" or "tokens"."""
    try:
        event = json.loads(line)
        kind = event["event"]
        tags = {"step": _STEP, "round": _ROUND, "eval": _EVAL}[kind]
        numbers = {tag: float(event[key]) for key, tag in tags.items() if isinstance(event.get(key), (int, float))}
        values = {tag: value for tag, value in numbers.items() if math.isfinite(value)}
        order = int(event["round"]) << 32 | int(event.get("step", 0))
        if kind == "round" and values.get("round/round_s", 0) > 0 and "round/compute_s" in values:
            values["utilization"] = values["round/compute_s"] / values["round/round_s"]
        x = int(event["tokens"]) if axis == "tokens" else int(event["step" if kind == "step" else "round"])
        return Point(
            str(event.get("worker", "")) if kind == "step" else "", kind, x, order, float(event["time"]), values
        )
    except (ValueError, KeyError, TypeError):
        return None


# --- reading ----------------------------------------------------------------------------------------------------------


class Follower:
    """Reads the complete lines of a growing file. A file that lost complete lines, or is another one, is read anew.

    A restarted coordinator removes an incomplete last line, so only complete lines count as read.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.read = 0  # bytes of complete lines
        self.inode = 0

    def lines(self) -> Iterator[bytes]:
        """Yields the lines that were completed since the last call."""
        try:
            file = open(self.path, "rb")
        except FileNotFoundError:
            return
        with file:
            status = os.fstat(file.fileno())
            if status.st_ino != self.inode or status.st_size < self.read:
                self.inode, self.read = status.st_ino, 0
            file.seek(self.read)
            rest = b""
            while data := file.read(1 << 20):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self.read += len(line) + 1
                    yield line


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
        self.done: dict[tuple[str, str], int] = {}  # last order by worker and kind, of this process
        self.found: dict[tuple[str, str], int] = {}  # last x by worker and kind, of older event files

    def _writer(self, worker: str) -> Any:
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
        if not point.values or point.order <= self.done.get(key, -1) or point.x <= self.found.get(key, -1):
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
            with open(self.path, encoding="utf-8") as file:
                self.done = json.load(file)
        more = {"id": _run_id(folder, run_name)} if name == "wandb" else {}
        self.run: Any = self.module.init(project=project, name=run_name, resume="allow", **more)

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
    except OSError:
        return name


# --- main -------------------------------------------------------------------------------------------------------------


def follow(folder: str, sinks: Sequence[Sink], axis: str, once: bool) -> int:
    """Copies metrics.jsonl to the sinks until the run is complete. Returns the number of points."""
    follower = Follower(os.path.join(folder, "metrics.jsonl"))
    summary = os.path.join(folder, "summary.json")
    n, waiting, was_complete = 0, False, False
    while True:
        complete = os.path.exists(summary)  # the last lines may follow a moment later
        before = n
        for line in follower.lines():
            point = point_of(line, axis)
            if point:
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
            print(f"waiting for {follower.path}", file=sys.stderr)
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
        print(f"following {options.run}{''.join(folders)}", file=sys.stderr)
    try:
        n = follow(options.run, sinks, options.axis, options.once)
    finally:
        for sink in sinks:
            sink.close()
    print(f"wrote {n} points of {options.run}")
    return DONE


def main(words: Sequence[str] | None = None) -> int:
    """The program. Returns the exit code."""
    return run(body, words, "stopped by a signal: start it again to continue")


if __name__ == "__main__":
    sys.exit(main())
