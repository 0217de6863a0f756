"""Where points go: TensorBoard event files, W&B, trackio. Each remembers across restarts what it has."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Protocol

from ..command import need, replace_file, warn
from .points import Back, Point

_WRITERS_MAX = 512


class Sink(Protocol):
    """Takes points. Each remembers across restarts what it has."""

    def put(self, point: Point) -> None: ...
    def take_back(self, back: Back) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def _folder_name(worker: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", worker).lstrip(".") or "_"


class TensorBoard:
    """Event files of tensorboard's own writer. Each line of metrics.jsonl is one event, so a crash tears none.

    The event files say themselves what was written: a new start reads them and continues behind their last events.
    A session that begins at step N lets TensorBoard drop all points from N on that are before it in the file.
    """

    def __init__(self, folder: str, axis: str) -> None:
        try:
            from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise need("tensorboard", "atoll board") from None
        self.folder, self.axis = folder, axis
        self.events, self.summaries = event_pb2, summary_pb2
        self.new_loader, self.new_writer = RawEventFileLoader, EventFileWriter
        self.writers: dict[str, Any] = {}
        self.full = False
        self.done: dict[tuple[str, str], int] = {}  # last order by worker and kind, of this process
        self.found: dict[tuple[str, str], int] = {}  # last x by worker and kind, of older event files
        self.backs: list[Back] = []
        self.taken: set[tuple[str, float]] = set()  # worker and time of what the event files take back

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
            for back in self.backs:
                self._take_back(worker, back)
        return self.writers[worker]

    def _read_back(self, path: str, worker: str) -> None:
        try:
            for record in self.new_loader(path).Load():
                event = self.events.Event.FromString(record)
                if event.HasField("session_log"):
                    self.taken.add((worker, event.wall_time))
                    self._forget(worker, event.step - 1)
                for value in event.summary.value:
                    kind = "step" if worker else "eval" if value.tag.startswith("eval/") else "round"
                    self.found[worker, kind] = max(self.found.get((worker, kind), -1), event.step)
        except Exception as error:  # a damaged file: what follows in it is written again
            warn(f"stopped reading {path}: {str(error).splitlines()[0]}")

    def _forget(self, worker: str, last: int) -> None:
        """Points behind `last` may be written again."""
        for key in [key for key in self.found if key[0] == worker]:
            self.found[key] = min(self.found[key], last)

    def _take_back(self, worker: str, back: Back) -> None:
        if not back.concerns(worker) or (worker, back.time) in self.taken:
            return
        self.taken.add((worker, back.time))
        last = back.last("step" if worker else "round", self.axis)
        session = self.events.SessionLog(status=self.events.SessionLog.START)
        self.writers[worker].add_event(
            self.events.Event(wall_time=back.time, step=last + 1, session_log=session))
        self._forget(worker, last)
        for key in [key for key in self.done if key[0] == worker]:
            self.done[key] = min(self.done[key], back.order)

    def take_back(self, back: Back) -> None:
        self.backs.append(back)
        for worker in list(self.writers):
            self._take_back(worker, back)

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
    """W&B or trackio, which have the same calls. RUN/board-NAME.json remembers the last points.

    Neither drops points. Those of rounds that were taken back stay, and the new ones follow at the same x.
    """

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

    def take_back(self, back: Back) -> None:
        if round(back.time * 1000) <= self.done.get("taken back", -1):  # by this program, at an earlier start
            return
        self.done["taken back"] = round(back.time * 1000)
        for key in self.done:
            kind, _, worker = key.partition(" ")
            if kind in ("step", "round", "eval") and back.concerns(worker):
                self.done[key] = min(self.done[key], back.order)

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
