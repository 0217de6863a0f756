"""The numbers of a report: comparison.json, and the statistics over its seeds.

A row is an arm, or an arm on one link if its training depends on the link. Invalid runs count nowhere, with one
exception: a seed whose training diverged misses the target.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from ..command import Problem, clean
from ..units import duration_text, percent_text

VERSION = 2
# Quantiles of Student's t, by degrees of freedom from 1 to 30: 97.5 % for a 95 % interval, 95 % for a 90 % interval.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
_T90 = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
    1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697,
)
_UNITS = {"k": "kbit/s", "m": "Mbit/s", "g": "Gbit/s"}
LOWER, HIGHER, TIE, OPEN, ONE_SEED = "lower", "higher", "tie", "not separable", "one seed"
WITHIN = ", within the margin"
_LARGEST = sys.float_info.max  # a whole number of JSON may be larger


@dataclass(frozen=True)
class Difference:
    """Final loss of a row minus that of the baseline, over the seeds that both have.

    `half95` and `half90` are halves of the intervals of a paired t test; None: one seed has none. Differences inside
    ±`margin` do not matter.
    """

    seeds: int
    mean: float
    half95: float | None
    half90: float | None
    margin: float

    @property
    def verdict(self) -> str:
        """Two tests at 5 %: of a difference (the 95 % interval excludes 0), and of equivalence (the 90 % interval lies
        inside the margin: two one-sided tests, Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987)."""
        if self.half95 is None or self.half90 is None:
            return ONE_SEED
        is_inside = abs(self.mean) + self.half90 <= self.margin
        if abs(self.mean) > self.half95:
            return (LOWER if self.mean < 0 else HIGHER) + (WITHIN if is_inside else "")
        return TIE if is_inside else OPEN


@dataclass(frozen=True)
class Stat:
    """A number over seeds. `reached`: seeds with a finite value, of `n`."""

    value: float | None  # None: unknown
    n: int
    reached: int

    @property
    def count(self) -> str:
        """"3", or "2 of 3"."""
        return str(self.n) if self.reached == self.n else f"{self.reached} of {self.n}"


@dataclass(frozen=True)
class Row:
    """An arm with its valid runs. `link`: only the runs on this link; None: its training depends on no link."""

    arm: Mapping[str, Any]
    index: int  # of the arm: its colour
    link: str | None
    runs: list[dict[str, Any]]
    diverged: tuple[int, ...] = ()  # seeds without a valid run, because the training diverged
    invalid: tuple[int, ...] = ()  # seeds without a valid run for another reason

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

    @property
    def loss(self) -> Stat:
        """The mean final loss; a seed without a valid run has none."""
        losses, missing = self.losses.values(), len(self.diverged) + len(self.invalid)
        return Stat(statistics.mean(losses) if losses else None, len(losses) + missing, len(losses))

    def mean(self, key: str) -> Stat:
        values = [run[key] for run in self.runs if known(run.get(key))]
        return Stat(statistics.mean(values) if values else None, len(values), len(values))

    def median(self, of: Callable[[Any], float | None]) -> Stat:
        """The median over the valid runs."""
        return stat(map(of, self.runs))


def known(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and -_LARGEST <= value <= _LARGEST


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
        self.seeds: list[int] = list(content["seeds"])
        self.margin: float = content["margin"]
        self.steps: list[dict[str, Any]] = list(content["steps"])
        self.baselines = [row for row in self.rows if row.arm["name"] == content["baseline"]]
        self.baseline: Row | None = self.baselines[0] if self.baselines else None

    def _rows(self, index: int, arm: dict[str, Any]) -> list[Row]:
        runs = [run for run in self.runs if run["arm"] == arm["name"]]
        used = [link for link in self.links if any(run["link"] == link for run in runs)]
        return [_row(arm, index, link, [run for run in runs if run["link"] == link]) for link in used or (None,)]

    @property
    def baseline_settings(self) -> dict[str, Any]:
        """All settings of the baseline."""
        return next(arm["resolved"] for arm in self.arms if arm["name"] == self.content["baseline"])

    @property
    def step(self) -> dict[str, Any] | None:
        """The step behind the computed times, of the baseline if it has one."""
        baseline = self.content["baseline"]
        return next((entry for entry in self.steps if baseline in entry["arms"]), next(iter(self.steps), None))

    def titles(self, entry: Mapping[str, Any]) -> list[str]:
        """Titles of the arms of an entry of `steps`."""
        return [row.title for row in self.first_rows if row.arm["name"] in entry["arms"]]

    def rows_on(self, link: str) -> list[Row]:
        return [row for row in self.rows if row.link in (None, link)]

    @property
    def first_rows(self) -> list[Row]:
        """One row for each arm: for charts without a link."""
        return list({row.index: row for row in reversed(self.rows)}.values())[::-1]

    def baseline_of(self, row: Row) -> Row | None:
        """The baseline's row that another row is compared with: that of its link, if there is one."""
        return next((base for base in self.baselines if base.link == row.link), self.baseline)

    def margin_of(self, base: Row) -> float:
        """The margin in units of the loss."""
        return self.margin * (base.loss.value or 0.0)

    def difference(self, row: Row) -> Difference | None:
        """The paired difference to the baseline; None for the baseline itself and without common seeds."""
        base = self.baseline_of(row)
        if base is None or row.arm is base.arm:
            return None
        pairs = [loss - base.losses[seed] for seed, loss in row.losses.items() if seed in base.losses]
        return paired(pairs, self.margin_of(base)) if pairs else None

    # --- to the target ---

    def to_target(self, row: Row, of: Callable[[Any], float | None]) -> Stat:
        """The median over seeds of tokens, bytes, seconds or money to the target; a miss is infinite."""
        return stat([*map(of, row.runs), *([math.inf] * len(row.diverged) if self.target is not None else ())])

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


def _row(arm: Mapping[str, Any], index: int, link: str | None, runs: Sequence[dict[str, Any]]) -> Row:
    valid = [run for run in runs if run["valid"]]
    failed = {run["seed"] for run in runs} - {run["seed"] for run in valid}
    diverged = {run["seed"] for run in runs if run["diverged"]} & failed
    return Row(arm, index, link, valid, tuple(sorted(diverged)), tuple(sorted(failed - diverged)))


def paired(differences: list[float], margin: float) -> Difference:
    n = len(differences)
    if n < 2:
        return Difference(n, statistics.mean(differences), None, None, margin)
    spread = statistics.stdev(differences) / math.sqrt(n)
    half95, half90 = (quantiles[min(n - 1, len(quantiles)) - 1] * spread for quantiles in (_T95, _T90))
    return Difference(n, statistics.mean(differences), half95, half90, margin)


def stat(values: Iterable[float | None]) -> Stat:
    """The median of the known values: a miss is infinite."""
    found = [value for value in values if value is not None]
    return Stat(statistics.median(found) if found else None, len(found), sum(map(math.isfinite, found)))


def traffic(point: Mapping[str, Any]) -> float | None:
    """Bytes in both directions of a point or a run."""
    up, down = point.get("bytes_up"), point.get("bytes_down")
    return None if up is None or down is None else up + down


def step_check(entry: Mapping[str, Any]) -> str:
    """In words: how far the measured step of an entry of `steps` lies from the steps of the runs."""
    change = entry["runs_s"] / entry["measured_s"] - 1
    return (f"a step took {duration_text(entry['runs_s'])} in {counted(entry['runs'], 'run')} (median), "
            f"{percent_text(abs(change))} {'more' if change > 0 else 'less'} than the "
            f"{duration_text(entry['measured_s'])} {how_measured(entry)}")


def how_measured(entry: Mapping[str, Any]) -> str:
    """When and how the step of an entry of `steps` was measured."""
    return (f"measured on {moment(entry['measured_at'])} with {counted(entry['processes'], 'process', 'processes')} "
            "at a time")


def counted(n: int, one: str, many: str = "") -> str:
    """"1 seed", "3 seeds"."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def moment(iso: str) -> str:
    """"2026-11-26T21:50:07Z" as "2026-11-26 21:50 UTC"."""
    return f"{iso[:16].replace('T', ' ')} UTC"


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


# What a comparison.json raises that another program wrote or changed.
UNFIT = (ArithmeticError, AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError)


def unfit(path: Path, error: BaseException) -> Problem:
    return Problem(f"{path} is not a result of atoll compare ({clean(repr(error))[:200]}): repeat atoll compare")


def read(path: Path) -> Comparison:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise Problem(f"{path} has version {content['version']}, this atoll reads {VERSION}: repeat atoll compare")
        return Comparison(content)
    except Problem:
        raise
    except UNFIT as error:
        raise unfit(path, error) from None
