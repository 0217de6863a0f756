"""The values of metrics.jsonl as points of curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Back:
    """The run was taken back (atoll rollback, atoll exclude): points behind these places are no part of it any more."""

    worker: str | None  # only of this worker and of the run; None: of all
    round: int
    step: int
    tokens: int
    time: float

    @property
    def order(self) -> int:
        """The last order that stays (Point.order)."""
        return self.round << 32 | 0xFFFFFFFF

    def last(self, kind: str, axis: str) -> int:
        """The last x that stays, of points of this kind."""
        return self.tokens if axis == "tokens" else self.step if kind == "step" else self.round

    def concerns(self, worker: str) -> bool:
        return self.worker is None or worker in ("", self.worker)


def needs(axis: str) -> dict[str, tuple[str, ...]]:
    """The fields that each event with a point must have."""
    x = ("tokens",) if axis == "tokens" else ()
    back = ("time", "round", "step", "tokens")
    return {"step": ("time", "round", "step", *x), "round": ("time", "round", *x), "eval": ("time", "round", *x),
            "rollback": back, "exclude": (*back, "worker")}


def back_in(event: dict[str, Any]) -> Back | None:
    """Returns what a checked event takes back."""
    if event["event"] not in ("rollback", "exclude"):
        return None
    worker = event["worker"] if event["event"] == "exclude" else None
    return Back(worker, event["round"], event["step"], event["tokens"], float(event["time"]))


def point_in(event: dict[str, Any], axis: str) -> Point | None:
    """Returns the point of a checked event."""
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
