"""The numbers of a report: comparison.json, and the statistics over its seeds.

A row is an arm, or an arm on one link if its training depends on the link. Invalid runs count nowhere.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .command import Problem, clean

VERSION = 1
# 97.5 % quantiles of Student's t, by degrees of freedom from 1 to 30.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
_UNITS = {"k": "kbit/s", "m": "Mbit/s", "g": "Gbit/s"}


@dataclass(frozen=True)
class Difference:
    """Final loss of a row minus that of the baseline, over the seeds that both have."""

    seeds: int
    mean: float
    half: float | None  # half of the 95 % interval; None: one seed has no interval

    @property
    def verdict(self) -> str:
        if self.half is None:
            return "one seed"
        if abs(self.mean) <= self.half:
            return "tie"
        return "lower" if self.mean < 0 else "higher"


@dataclass(frozen=True)
class Row:
    """An arm with its valid runs. `link`: only the runs on this link; None: its training depends on no link."""

    arm: Mapping[str, Any]
    index: int  # of the arm: its colour
    link: str | None
    runs: list[dict[str, Any]]

    @property
    def title(self) -> str:
        return clean(str(self.arm["title"] or self.arm["name"]))

    @property
    def label(self) -> str:
        return f"{self.title}, {link_name(self.link)}" if self.link else self.title

    @property
    def losses(self) -> dict[int, float]:
        """Final loss by seed."""
        return {run["seed"]: run["final_loss"] for run in self.runs if known(run["final_loss"])}

    def mean(self, key: str) -> float | None:
        values = [run[key] for run in self.runs if known(run.get(key))]
        return statistics.mean(values) if values else None


def known(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def link_name(spec: str) -> str:
    """A link as people write it: "100mbit,rtt=50ms" is "100 Mbit/s, rtt 50 ms"."""
    if spec == "none":
        return "no link"
    text = re.sub(r"([\d.]+)([kmg])bit", lambda m: f"{m[1]} {_UNITS[m[2]]}", clean(spec))
    return re.sub(r"([\d.])(ms|s)\b", r"\1 \2", text).replace("=", " ").replace(",", ", ").replace(";", "; ")


class Comparison:
    """The content of comparison.json."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content
        self.links: list[str] = list(content["links"])
        self.arms: list[dict[str, Any]] = list(content["arms"])
        local = {arm["name"] for arm in self.arms if arm.get("local")}
        self.runs: list[dict[str, Any]] = [_unsent(run) if run["arm"] in local else run for run in content["runs"]]
        self.target: float | None = content["target"]["loss"]
        self.price = content["price"]
        self.rows = [row for index, arm in enumerate(self.arms) for row in self._rows(index, arm)]
        found = [row for row in self.rows if row.arm["name"] == content["baseline"]]
        self.baseline: Row | None = found[0] if found else None

    def _rows(self, index: int, arm: dict[str, Any]) -> list[Row]:
        valid = [run for run in self.runs if run["arm"] == arm["name"] and run["valid"]]
        used = [link for link in self.links if any(run["link"] == link for run in valid)]
        if not used:
            return [Row(arm, index, None, valid)]
        return [Row(arm, index, link, [run for run in valid if run["link"] == link]) for link in used]

    def rows_on(self, link: str) -> list[Row]:
        return [row for row in self.rows if row.link in (None, link)]

    @property
    def first_rows(self) -> list[Row]:
        """One row for each arm: for charts without a link."""
        return list({row.index: row for row in reversed(self.rows)}.values())[::-1]

    def difference(self, row: Row) -> Difference | None:
        """The paired difference to the baseline; None for the baseline itself and without common seeds."""
        if self.baseline is None or row.arm is self.baseline.arm:
            return None
        pairs = [loss - self.baseline.losses[seed] for seed, loss in row.losses.items() if seed in self.baseline.losses]
        return paired(pairs) if pairs else None

    # --- to the target ---

    def reached(self, run: Mapping[str, Any]) -> int | None:
        """Number of the first evaluation at or below the target; None: never."""
        assert self.target is not None
        for i, point in enumerate(run["curve"]):
            if known(point["loss"]) and point["loss"] <= self.target:
                return i
        return None

    def tokens_to_target(self, run: Mapping[str, Any]) -> float | None:
        return self._to_target(run, [point["tokens"] for point in run["curve"]])

    def bytes_to_target(self, run: Mapping[str, Any]) -> float | None:
        return self._to_target(run, [traffic(point) for point in run["curve"]])

    def seconds_to_target(self, run: Mapping[str, Any], link: str) -> float | None:
        time = time_on(run, link)
        return self._to_target(run, time["at"]) if time else None

    def cost_to_target(self, run: Mapping[str, Any], link: str) -> float | None:
        return self._cost(run, self.seconds_to_target(run, link), self.bytes_to_target(run))

    def cost(self, run: Mapping[str, Any], link: str) -> float | None:
        """Money of the whole run."""
        time = time_on(run, link)
        return self._cost(run, time["seconds"] if time else None, traffic(run))

    def _to_target(self, run: Mapping[str, Any], values: list[Any]) -> float | None:
        if self.target is None:
            return None
        i = self.reached(run)
        return math.inf if i is None else values[i]

    def _cost(self, run: Mapping[str, Any], seconds: float | None, sent: float | None) -> float | None:
        if not self.price or seconds is None or sent is None:
            return None
        workers = next(arm["workers"] for arm in self.arms if arm["name"] == run["arm"])
        return seconds / 3600 * workers * self.price["machine_hour"] + sent / 1e9 * self.price["gb"]


def _unsent(run: dict[str, Any]) -> dict[str, Any]:
    """A run on one machine: its coordinator is on the same machine, so its bytes cross no link."""
    none = {"bytes_up": 0, "bytes_down": 0}
    return {**run, **none, "curve": [{**point, **none} for point in run["curve"]]}


def paired(differences: list[float]) -> Difference:
    n = len(differences)
    half = _T[min(n - 1, len(_T)) - 1] * statistics.stdev(differences) / math.sqrt(n) if n > 1 else None
    return Difference(n, statistics.mean(differences), half)


def median(values: Iterable[float | None]) -> float | None:
    """The median of the known values: a miss is infinite."""
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def traffic(point: Mapping[str, Any]) -> float | None:
    """Bytes in both directions of a point or a run."""
    up, down = point.get("bytes_up"), point.get("bytes_down")
    return None if up is None or down is None else up + down


def time_on(run: Mapping[str, Any], link: str) -> dict[str, Any] | None:
    return next((time for time in run["times"] if time["link"] == link), None)


# --- curves -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """Loss over the seeds of a row: mean, lowest and highest at each x, which is tokens, seconds or bytes."""

    row: Row
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def _points(run: Mapping[str, Any], axis: str, link: str | None) -> list[tuple[float, float, float]]:
    """(tokens, x, loss) of each evaluation."""
    if axis == "seconds":
        time = time_on(run, link) if link else None
        xs = time["at"] if time else [None] * len(run["curve"])
    else:
        xs = [point["tokens"] if axis == "tokens" else traffic(point) for point in run["curve"]]
    return [(p["tokens"], x, p["loss"]) for p, x in zip(run["curve"], xs, strict=True) if known(x) and known(p["loss"])]


def _between(points: list[tuple[float, float, float]], tokens: float, which: int) -> float:
    """x or loss at a number of tokens, by linear interpolation."""
    for before, after in zip(points, points[1:]):
        if tokens <= after[0]:
            part = (tokens - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 1.0
            return before[which] + max(0.0, part) * (after[which] - before[which])
    return points[-1][which]


def curve(row: Row, axis: str, link: str | None = None) -> Curve | None:
    """The seeds' evaluations at equal tokens; seeds that evaluated at other tokens are interpolated."""
    seeds = [points for points in (_points(run, axis, link) for run in row.runs) if points]
    if not seeds:
        return None
    at = [tokens for tokens, _, _ in seeds[0]]
    losses = [[_between(points, tokens, 2) for points in seeds] for tokens in at]
    xs = [statistics.mean(_between(points, tokens, 1) for points in seeds) for tokens in at]
    return Curve(row, xs, [statistics.mean(each) for each in losses], list(map(min, losses)), list(map(max, losses)))


# --- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path) -> Comparison:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise Problem(f"{path} has version {content['version']}, this atoll reads {VERSION}: repeat atoll compare")
        return Comparison(content)
    except (ValueError, KeyError, TypeError) as error:
        raise Problem(f"{path} is not a result of atoll compare ({error!r}): repeat atoll compare") from None
