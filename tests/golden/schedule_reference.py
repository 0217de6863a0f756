"""The schedule of local SGD with overlap, written from its definition, in double precision. No code of the programs.

Each worker takes inner steps. Fragment f of the parameters has the period H. At its sync points the worker sends
theta_f - x_f, theta_f being the shared value that it adopted last. tau steps later the outer optimizer's result takes
effect: theta_f is the new value, and x_f becomes
    correct   theta_f + (x_f now - x_f at the sync point)              arXiv 2605.20866
    mix       alpha x_f + (1 - alpha) theta_f                          arXiv 2501.18512, streaming DiLoCo
The last round sends everything after its last step and applies it at once.

The outer rate follows a schedule. n is the number of earlier updates of the fragment, R the number of rounds:
    cosine     rate (0.1 + 0.9 (1 + cos(pi n / R)) / 2)
    transient  rate / (1 - momentum^(n + 1))

merge rda (2604.21428), tensor by tensor: the mean norm of the deltas times the direction of the mean of their unit vectors;
the plain mean if that has no direction.
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


def outer_rate(schedule: str, rate: float, momentum: float, n: int, rounds: int) -> float:
    """The rate of the outer step after n steps."""
    if schedule == "cosine":
        return rate * (0.1 + 0.9 * (1 + math.cos(math.pi * n / rounds)) / 2)
    return rate / (1 - momentum ** (n + 1)) if schedule == "transient" else rate


def merged(rule: str, deltas: list[np.ndarray]) -> np.ndarray:
    """The delta of all workers, who have equal weights."""
    mean = sum(deltas) / len(deltas)
    if rule != "rda":
        return mean
    norms = [np.sqrt((d * d).sum()) for d in deltas]
    direction = sum(d / n for d, n in zip(deltas, norms)) / len(deltas)
    length = np.sqrt((direction * direction).sum())
    return sum(norms) / len(norms) * direction / length if length >= 1e-4 else mean


def train(start: Parameters, fragments: list[list[str]], step: Callable[[int, int, Parameters], Parameters], *,
          workers: int, steps: int, period: int, tau: int, rule: str, stagger: bool, rate: float,
          momentum: float, schedule: str = "constant", merge: str = "mean") -> Parameters:
    """Returns the shared parameters after `steps` inner steps of each worker.

    start: the initial parameters. fragments: names of the tensors of each fragment. step(worker, t, x): x after the
    worker's inner step t, a new dictionary. rate, momentum: of the outer Nesterov optimizer.
    """
    theta = {k: v.astype(np.float64) for k, v in start.items()}
    velocity = {k: np.zeros_like(v) for k, v in theta.items()}
    x = [{k: v.copy() for k, v in theta.items()} for _ in range(workers)]
    events = []  # (step, 0 apply or 1 send, round, fragment)
    rounds = math.ceil(steps / period)
    for r in range(rounds):
        last = r + 1 == rounds
        for f in range(len(fragments)):
            at = steps if last else r * period + offset_of(f, len(fragments), period, tau, stagger)
            events += [(at, 1, r, f), (at + (0 if last else tau), 2 if last or not tau else 0, r, f)]
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
                delta = merged(merge, [theta[name] - v for v in values])
                velocity[name] = momentum * velocity[name] + delta
                lr = outer_rate(schedule, rate, momentum, r, rounds)
                theta[name] = theta[name] - lr * (delta + momentum * velocity[name])
                for w, value in zip(x, values):
                    if rule.startswith("mix:"):
                        alpha = float(rule[4:])
                        w[name] = alpha * w[name] + (1 - alpha) * theta[name]
                    else:
                        w[name] = theta[name] + (w[name] - value)
        if t < steps:
            x = [step(m, t, w) for m, w in enumerate(x)]
    return theta
