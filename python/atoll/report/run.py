"""The page of one run, from its folder: config.yaml, metrics.jsonl and summary.json."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..command import Problem, clean, version, warn
from ..metrics import Follower, Lines
from ..units import bytes_text, count_text, duration_text, percent_text
from . import html
from .charts import Chart, loss_chart, parts_chart
from .data import Curve, Row, known

_NEEDS = {
    "round": ("time", "round", "tokens", "bytes_up", "bytes_down"),
    "eval": ("round", "tokens"),
    "step": ("round", "step", "worker"),
}
_WORKERS_MAX = 100  # bars of a chart
PARTS = ("compute", "compress", "send", "wait", "apply")


@dataclass
class OneRun:
    """Lines of metrics.jsonl, without those that were sent twice."""

    name: str
    config: str
    summary: dict[str, Any]
    begin: float = 0.0
    rounds: dict[int, dict[str, Any]] = field(default_factory=dict)
    evals: dict[int, dict[str, Any]] = field(default_factory=dict)
    steps: dict[tuple[str, int, int], dict[str, Any]] = field(default_factory=dict)  # last steps of rounds

    def seconds(self) -> dict[int, float]:
        """Seconds of training at the end of each round, without evaluations."""
        found, total = {}, 0.0
        for number in sorted(self.rounds):
            total += self.rounds[number].get("round_s") or 0.0
            found[number] = total
        return found

    def points(self) -> list[dict[str, Any]]:
        """Evaluations: tokens, seconds, bytes in both directions, loss."""
        seconds, found = self.seconds(), []
        for number, event in sorted(self.evals.items()):
            traffic = self.rounds.get(number, {})
            up, down = traffic.get("bytes_up"), traffic.get("bytes_down")
            if known(event.get("val_loss")):
                found.append({"round": number, "tokens": event["tokens"], "seconds": seconds.get(number),
                              "bytes_up": up, "bytes_down": down, "loss": event["val_loss"]})
        return found

    def parts(self) -> dict[str, dict[str, float]]:
        """Seconds by worker and part."""
        found: dict[str, dict[str, float]] = {}
        for (worker, _, _), event in sorted(self.steps.items()):
            sums = found.setdefault(worker, dict.fromkeys(PARTS, 0.0))
            for part in PARTS:
                sums[part] += event.get(f"{part}_s") or 0.0
        return found


def _take(run: OneRun, event: dict[str, Any]) -> None:
    kind = event["event"]
    if kind == "round":
        run.rounds[event["round"]] = event
    elif kind == "eval":
        run.evals[event["round"]] = event
    elif kind == "step" and event.get("compute_s") is not None:
        run.steps[clean(event["worker"]), event["round"], event["step"]] = event


def read(folder: Path) -> OneRun:
    path = folder / "config.yaml"
    config = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    summary = _read_summary(folder)
    name = summary.get("run")
    run = OneRun(name if isinstance(name, str) and name else folder.resolve().name, config, summary)
    follower, lines = Follower(str(folder / "metrics.jsonl")), Lines(_NEEDS)
    for line in follower.lines():  # without the last one, which a running coordinator may be writing
        if event := lines.take(line):
            _take(run, event)
    if lines.skipped:
        warn(f"{follower.path}: {lines.told()}")
    if not run.rounds:
        raise Problem(f"{folder} has no finished round yet: start the report later")
    return run


def _read_summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    if not path.exists():
        return {}
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(summary, dict):
            return summary
    except (ValueError, RecursionError):
        pass
    raise Problem(f"{path} is damaged: run atoll status {folder}")


def csv_rows(run: OneRun) -> list[list[Any]]:
    keys = ("round", "tokens", "seconds", "bytes_up", "bytes_down", "loss")
    return [list(keys), *(["" if p[key] is None else p[key] for key in keys] for p in run.points())]


def _curves(run: OneRun, axis: str) -> list[Curve]:
    """The mean training loss of each round, and the validation losses. Empty: no line has two points."""
    seconds = run.seconds()
    training = [{**event, "seconds": seconds[n]} for n, event in sorted(run.rounds.items()) if known(event.get("loss"))]
    found = [_curve(title, index, points, axis) for index, (title, points) in
             enumerate((("training", training), ("validation", run.points())))]
    return [curve for curve in found if curve.x] if any(len(curve.x) > 1 for curve in found) else []


def _curve(title: str, index: int, points: list[dict[str, Any]], axis: str) -> Curve:
    sent = [point if axis != "bytes" else {**point, "bytes": _both(point)} for point in points]
    xy = [(point[axis], point["loss"]) for point in sent if known(point.get(axis))]
    loss = [y for _, y in xy]
    return Curve(Row({"title": title, "name": title}, index, None, []), [x for x, _ in xy], loss, loss, loss)


def _both(point: dict[str, Any]) -> float | None:
    return None if point.get("bytes_up") is None else point["bytes_up"] + point["bytes_down"]


def _told_by(text: Callable[[float], str], value: Any) -> str | None:
    """A number of summary.json in words; None: it has none."""
    return text(value) if known(value) else None


def _totals(run: OneRun) -> str:
    s, last = run.summary, run.rounds[max(run.rounds)]
    rows = [
        ("method", s.get("method")), ("workers", s.get("workers", last.get("workers"))),
        ("parameters", _told_by(count_text, s.get("params"))),
        ("tokens", count_text(last["tokens"])), ("rounds", last["round"]), ("inner steps", s.get("steps")),
        ("final validation loss", f"{s['final_val_loss']:.4f}" + " by one worker" * bool(s.get("val_by_one_worker"))
         if known(s.get("final_val_loss")) else None),
        ("training time, without evaluations", duration_text(run.seconds()[max(run.rounds)])),
        ("evaluations", duration_text(sum(event.get("eval_s") or 0 for event in run.evals.values()))),
        ("sent up", bytes_text(last["bytes_up"])), ("sent down", bytes_text(last["bytes_down"])),
        *((f"besides the run, {way}: probes, status",
           _told_by(bytes_text, s.get(f"other_bytes_{way}", last.get(f"other_bytes_{way}")) or None))
          for way in ("up", "down")),
        ("DDP would have sent", _told_by(bytes_text, s.get("ddp_bytes") or None)),
        ("utilization", _told_by(percent_text, s.get("utilization"))),
        ("restarts", s.get("restarts")), ("theta_hash", s.get("theta_hash")),
    ]
    return html.table(["", "value"], [[name, value] for name, value in rows if value is not None])


def _told(run: OneRun) -> str:
    """The run in words."""
    last, points = run.rounds[max(run.rounds)], run.points()
    final = run.summary.get("final_val_loss")
    if known(final):
        loss = f" give a validation loss of {final:.4f}"
    elif points:
        loss = f"; the validation loss was {points[-1]['loss']:.4f} at {count_text(points[-1]['tokens'])} tokens"
    else:
        loss = f" give a training loss of {last['loss']:.4f} in the last round" if known(last.get("loss")) else ""
    seconds = run.seconds()[max(run.rounds)]
    state = "" if run.summary else " The run is not complete."
    return (f"{count_text(last['tokens'])} tokens in {duration_text(seconds)} of training{loss}. "
            f"Workers and coordinator sent {bytes_text(_both(last) or 0)}.{state}")


def build(run: OneRun) -> tuple[str, list[Chart]]:
    """The page and its charts."""
    names = (("tokens", "Loss against tokens"), ("seconds", "Loss against time"), ("bytes", "Loss against bytes"))
    drawn = [(title, loss_chart(axis, curves, axis, None, y_label="loss")) for axis, title in names
             if (curves := _curves(run, axis))]
    parts = run.parts()
    if parts:
        shown = list(parts.items())[:_WORKERS_MAX]
        shares = {worker: [max(0.0, sums[part]) for part in PARTS] for worker, sums in shown}
        some = f" ({len(shown)} of {len(parts)} workers)" if len(shown) < len(parts) else ""
        drawn.append((f"Where the time of each worker goes{some}", parts_chart("utilization", PARTS, shares)))
    young = html.note("" if _curves(run, "tokens") else "One round is a dot: a chart of the loss needs two.")
    content = f'<div class="answer"><p>{html.text(_told(run))}</p></div>{young}'
    content += "".join(f"<h2>{title}</h2>{html.figure(chart)}" for title, chart in drawn)
    content += f"<h2>Totals</h2>{_totals(run)}" + html.details("Configuration", html.code(run.config))
    ended = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.rounds[max(run.rounds)]["time"]))
    about = f"a run until {ended} · report by atoll {version()}"
    return html.page(f"Run {run.name}", about, content), [chart for _, chart in drawn]
