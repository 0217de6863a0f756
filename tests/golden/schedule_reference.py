"""The schedule of local SGD with overlap, written from its definition, in double precision. No code of the programs.

Each worker takes inner steps. Fragment f of the parameters has the period H. At its sync points the worker sends
theta_f - x_f, theta_f being the shared value that it adopted last. tau steps later the outer optimizer's result takes
effect: theta_f is the new value, and x_f becomes
    correct   theta_f + (x_f now - x_f at the sync point)              arXiv 2605.20866
    mix       alpha x_f + (1 - alpha) theta_f                          arXiv 2501.18512, streaming DiLoCo
The last round sends everything after its last step and applies it at once.

merge rda (2604.21428), tensor by tensor: the mean norm of the deltas times the direction of the mean of their unit vectors;
the plain mean if that has no direction.
start_step: before this step a round has one step. Its result is the plain mean of the workers' parameters, which all of them
take over; the velocity of the outer optimizer stays as it is (post-local SGD, arXiv 1808.07217).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Parameters = dict[str, np.ndarray]


def offset_of(f: int, n: int, period: int, tau: int, stagger: bool) -> int:
    """Steps of a round before fragment f of n is sent."""
    span = period - tau
    return math.ceil((f + 1) * span / n) if stagger else span


def merged(rule: str, deltas: list[np.ndarray]) -> np.ndarray:
    """The delta of all workers, who have equal weights."""
    mean = sum(deltas) / len(deltas)
    if rule != "rda":
        return mean
    norms = [np.sqrt((d * d).sum()) for d in deltas]
    direction = sum(d / n for d, n in zip(deltas, norms)) / len(deltas)
    length = np.sqrt((direction * direction).sum())
    return sum(norms) / len(norms) * direction / length if length >= 1e-4 else mean


class Report:
    """What the outer steps of each round tell, from its definitions: momentum v before the step, merged delta D,
    deltas D_i of the workers, `tokens` of each.

    rho = cos(v, D); gain = 1 + mu + mu^2 <v, D> / |D|^2; agreement = |D|^2 / mean |D_i|^2; noise = S / G with the
    estimates of McCandlish et al. 1812.06162, appendix A, S and G averaged over rounds with decay 0.9.
    """

    def __init__(self, momentum: float, tokens: list[int]) -> None:
        self.momentum, self.tokens = momentum, tokens
        self.parts: dict[int, list[tuple]] = {}
        self.rates: dict[int, float] = {}
        self.plain: set[int] = set()

    def overshooting(self) -> list[int]:
        """The rounds, from 1, in which rate times gain rises above 2."""
        long = [self.rates[r] * (values["gain"] or 0) > 2 for r, values in enumerate(self.rounds())]
        return [r + 1 for r, now in enumerate(long) if now and not (r and long[r - 1])]

    def add(self, r: int, lr: float, v: np.ndarray | None, delta: np.ndarray, deltas: list[np.ndarray]) -> None:
        self.rates[r] = lr
        """v None: a step without momentum (start_step)."""
        if v is None:
            self.plain.add(r)
            v = np.zeros_like(delta)
        self.parts.setdefault(r, []).append((v.ravel(), delta.ravel(), [d.ravel() for d in deltas]))

    def rounds(self) -> list[dict[str, float]]:
        out, scatter, signal = [], 0.0, 0.0
        for r, parts in sorted(self.parts.items()):
            mu = 0 if r in self.plain else self.momentum
            v, delta = (np.concatenate([p[i] for p in parts]) for i in (0, 1))
            workers = [np.concatenate([p[2][m] for p in parts]) for m in range(len(parts[0][2]))]
            squares = sum(d @ d for d in workers) / len(workers)
            small, big = self.tokens[r], self.tokens[r] * len(workers)
            signal = 0.9 * signal + 0.1 * (big * (delta @ delta) - small * squares) / (big - small)
            scatter = 0.9 * scatter + 0.1 * (squares - delta @ delta) / (1 / small - 1 / big)
            norms = np.sqrt((v @ v) * (delta @ delta))
            out.append({"rho": v @ delta / norms if norms and mu else None,
                        "gain": 1 + mu + mu * mu * (v @ delta) / (delta @ delta) if mu else None,
                        "agreement": delta @ delta / squares,
                        "noise_tokens": scatter / signal if signal > 0 and scatter > 0 else None})
        return out


def train(start: Parameters, fragments: list[list[str]], step: Callable[[int, int, Parameters], Parameters], *,
          workers: int, steps: int, period: int, tau: int, rule: str, stagger: bool, rate: float,
          momentum: float, merge: str = "mean", start_step: int = 0,
          report: Report | None = None) -> Parameters:
    """Returns the shared parameters after `steps` inner steps of each worker.

    start: the initial parameters. fragments: names of the tensors of each fragment. step(worker, t, x): x after the
    worker's inner step t, a new dictionary. rate, momentum: of the outer Nesterov optimizer.
    """
    theta = {k: v.astype(np.float64) for k, v in start.items()}
    velocity = {k: np.zeros_like(v) for k, v in theta.items()}
    x = [{k: v.copy() for k, v in theta.items()} for _ in range(workers)]
    events = []  # (step, 0 apply or 1 send, round, fragment)
    begins = [*range(start_step), *range(start_step, steps, period)]
    for r, begin in enumerate(begins):
        end = min(begin + (1 if begin < start_step else period), steps)
        whole = end == steps or begin < start_step
        for f in range(len(fragments)):
            at = end if whole else begin + offset_of(f, len(fragments), period, tau, stagger)
            events += [(at, 1, r, f), (at + (0 if whole else tau), 2 if whole or not tau else 0, r, f)]
    events.sort()
    sent: dict[tuple[int, str], list[np.ndarray]] = {}
    for t in range(steps + 1):
        for at, kind, r, f in events:
            if at != t:
                continue
            for name in fragments[f]:
                if kind == 1:
                    sent[r, name] = [w[name].copy() for w in x]
                    continue
                values = sent.pop((r, name))
                if r < start_step:
                    if report:
                        deltas = [theta[name] - v for v in values]
                        report.add(r, 1, None, merged("mean", deltas), deltas)
                    theta[name] = sum(values) / workers
                    for w in x:
                        w[name] = theta[name].copy()
                    continue
                deltas = [theta[name] - v for v in values]
                delta = merged(merge, deltas)
                if report:
                    report.add(r, rate, velocity[name], delta, deltas)
                velocity[name] = momentum * velocity[name] + delta
                theta[name] = theta[name] - rate * (delta + momentum * velocity[name])
                for w, value in zip(x, values):
                    if rule.startswith("mix:"):
                        alpha = float(rule[4:])
                        w[name] = alpha * w[name] + (1 - alpha) * theta[name]
                    else:
                        w[name] = theta[name] + (w[name] - value)
        if t < steps:
            x = [step(m, t, w) for m, w in enumerate(x)]
    return theta
