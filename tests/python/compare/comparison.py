"""A made-up comparison.json for tests of the report: 12 arms, 3 seeds, 4 links, with the hard cases.

comparison.py FILE writes it. It has arms that never reach the target, ties, a diverged arm, an async arm with a run for
each link, an invalid run, names that need escaping, tuning and checks. `tiny` makes small ones.
"""

from __future__ import annotations

import json
import math
import random
import sys
from typing import Any

from atoll.report import data as report_data

LINKS = ["1gbit,rtt=50ms", "100mbit,rtt=50ms", "10mbit,rtt=50ms", "1mbit,rtt=50ms"]
_RATES = (1e9, 1e8, 1e7, 1e6)
_TOKENS, _POINTS, _STEPS = 5_900_000, 20, 1440
# name, title, method, workers, end of the loss, start-up of the loss, rounds, bytes of a round and direction
_ARMS = [
    ("ddp", "DDP", "ddp", 4, 2.205, 1.0, 1440, 4.5e6),
    ("ddp-large", "DDP, batch of a round", "ddp", 4, 2.62, 2.6, 48, 4.5e6),
    ("alone", "One worker alone", "local-sgd", 1, 2.31, 1.1, 48, 0),
    ("snoo", "One worker, SNOO", "diloco", 1, 2.28, 1.05, 48, 0),
    ("local", "Local SGD, H 30", "local-sgd", 4, 2.302, 1.2, 48, 4.5e6),
    ("diloco-h8", "DiLoCo, H 8", "diloco", 4, 2.207, 1.0, 180, 1.2e6),
    ("diloco-h30", "DiLoCo, H 30", "diloco", 4, 2.221, 1.1, 48, 1.2e6),
    ("diloco-h100", "DiLoCo, H 100", "diloco", 4, 2.255, 1.5, 15, 1.2e6),
    ("streaming", "Streaming DiLoCo", "streaming", 4, 2.224, 1.1, 48, 1.2e6),
    ("sparse", "Sparse 1/64 <b>&", "diloco", 4, 2.236, 1.2, 48, 4e4),
    ("async", "Async", "async", 4, 2.262, 1.2, 48, 1.2e6),
    ("muon", "DiLoCo, Muon $x$", "diloco", 4, 4.9, 1.1, 48, 1.2e6),
]


def _curve(rng: random.Random, end: float, start: float, sent: float) -> list[dict[str, Any]]:
    points = []
    for i in range(_POINTS + 1):
        part = i / _POINTS
        fall = start * math.exp(-4.5 * part) if i else 5.545 - end
        noise = rng.gauss(0, 0.004) * (1 - part) if 0 < i < _POINTS else 0
        points.append({"tokens": round(_TOKENS * part), "loss": end + fall * (1 - part**3) + noise,
                       "bytes_up": round(sent * part), "bytes_down": round(1.02 * sent * part)})
    return points


def _time(link: int, workers: int, rounds: int, sent: float, relay: bool) -> dict[str, Any]:
    compute = _STEPS * 0.0067 * (4 if workers == 1 else 1)
    transfer = rounds * (0.1 + 8 * 2 * sent / rounds / _RATES[link]) if sent else 0.0
    seconds = compute + transfer
    return {"link": LINKS[link], "source": "measured" if relay else "plan",
            "step_seconds": None if relay else 0.0067, "seconds": seconds,
            "utilization": compute / seconds, "round_s": seconds / rounds,
            "at": [seconds * i / _POINTS for i in range(_POINTS + 1)]}


def _run(arm: tuple[Any, ...], seed: int, link: int | None) -> dict[str, Any]:
    name, _, _, workers, end, start, rounds, each = arm
    rng = random.Random(f"{name} {seed} {link}")
    end += {1: 0.004, 2: -0.006, 3: 0.001}[seed] + rng.gauss(0, 0.0025) + 0.012 * (link or 0)
    sent = float(rounds * each * (workers if each < 2e6 else 1))
    curve = _curve(rng, end, start, sent)
    times = [_time(i, workers, rounds, sent, link is not None) for i in range(len(LINKS)) if link in (None, i)]
    return {"arm": name, "seed": seed, "link": None if link is None else LINKS[link], "valid": True,
            "why_invalid": None, "diverged": False, "final_loss": curve[-1]["loss"], "params": 280_368,
            "tokens": _TOKENS,
            "bytes_up": curve[-1]["bytes_up"], "bytes_down": curve[-1]["bytes_down"],
            "theta_hash": f"{rng.getrandbits(64):016x}", "wall_s": 31.5, "eval_s": 2.25, "step_seconds": 0.0067,
            "command": f"atoll launch configs/{name}.yaml --workers {workers} --run.seed={seed}", "curve": curve,
            "times": times}


def _tuned(end: float, edge: bool) -> dict[str, Any]:
    losses = (0.09, 0.02, 0.0) if edge else (0.03, 0.0, 0.05)
    trials = [{"value": value, "seed": 100, "loss": end + more}
              for value, more in zip((1.5e-3, 3e-3, 6e-3), losses, strict=True)]
    near = {"best_loss": end + 0.003, "lowest": 6e-3, "lowest_loss": end, "within": 0.005}
    return {"key": "inner.learning_rate", "best": 6e-3 if edge else 3e-3, "edge": edge, "trials": trials,
            "near_tie": near if end == 2.302 else None}


def comparison() -> dict[str, Any]:
    runs = [_run(arm, seed, link) for arm in _ARMS for seed in (1, 2, 3)
            for link in (range(len(LINKS)) if arm[0] == "async" else (None,))]
    broken = {**_run(_ARMS[8], 2, None), "valid": False, "why_invalid": "evict worker-2 silent for 30 s", "times": []}
    ddp = [run["final_loss"] for run in runs if run["arm"] == "ddp"]
    arms = [{"name": a[0], "title": a[1], "method": a[2], "workers": a[3], "settings": {"train.max_steps": "1440"},
             "resolved": {"train.max_steps": "1440", "train.sync_every": str(1440 // a[6]), "train.method": a[2]},
             "note": "", "local": a[3] == 1, "tuned": _tuned(a[4], a[0] == "sparse")} for a in _ARMS]
    checks = [{"arm": name, "seed": 1, "link": LINKS[link], "planned_s": 100.0 * link + 50,
               "measured_s": 100.0 * link + 52,
               "planned_utilization": 0.5, "measured_utilization": 0.49, "same_hash": True}
              for name, link in (("ddp", 1), ("diloco-h30", 1), ("diloco-h30", 3))]
    steps = [{"arms": [arm["name"] for arm in arms], "source": "measured", "seconds": 0.0067, "apart": False,
              "measured_s": 0.0067, "measured_at": "2026-11-26T08:10:00Z", "processes": 4, "runs_s": 0.0069,
              "runs": 30}]
    return {
        "version": 2, "seeds": [1, 2, 3], "margin": 0.005, "steps": steps, "grid": "title: <made up>\n",
        "title": "Sync against local SGD, 4 workers, 0.28M parameters",
        "commit": "0123456789ab", "atoll": "0.1.0", "created": "2026-11-26T08:16:20Z",
        "machines": [{"cpu": "AMD EPYC", "cores": 2, "system": "Linux 6.1"}], "rules": "Rules.", "baseline": "ddp",
        "untrained_loss": 5.545, "links": LINKS, "arms": arms, "runs": [*runs, broken], "checks": checks,
        "target": {"loss": 1.01 * sum(ddp) / 3, "how": "final loss of ddp, mean over 3 seeds, times 1.01"},
        "price": {"machine_hour": 1.2, "gb": 0.09, "currency": "USD"},
    }


STEP = {"arms": ["base", "a"], "source": "measured", "seconds": 0.02, "apart": False, "measured_s": 0.02,
        "measured_at": "2026-11-26T21:50:07Z", "processes": 2, "runs_s": 0.019, "runs": 3}


def _small_run(arm: str, seed: int, loss: float, seconds: float) -> dict[str, Any]:
    """Its curve is 5, then loss + 1 at half of the time, then the loss. An infinite loss: the training diverged."""
    diverged = not math.isfinite(loss)
    curve = [{"tokens": 100 * i, "loss": value, "bytes_up": 10 * i, "bytes_down": 30 * i}
             for i, value in enumerate((5.0, loss + 1, loss))]
    time = {"link": "none", "source": "plan", "step_seconds": 0.02, "seconds": seconds, "utilization": 0.5,
            "round_s": 1.0, "at": [0.0, seconds / 2, seconds]}
    return {"arm": arm, "seed": seed, "link": None, "valid": not diverged, "diverged": diverged, "final_loss": loss,
            "why_invalid": "the final loss is not finite" if diverged else None, "step_seconds": 0.019, "tokens": 200,
            "bytes_up": 20, "bytes_down": 60, "theta_hash": "0", "command": "atoll", "curve": [] if diverged else curve,
            "times": [] if diverged else [time]}


def tiny(losses: dict[str, list[float]], target: float | None = 2.0, seconds: dict[str, list[float]] | None = None,
         **more: Any) -> report_data.Comparison:
    """Arms with a final loss for each seed, and the seconds of each run: without them 20 times the seed."""
    runs = [_small_run(arm, seed, loss, seconds[arm][seed - 1] if seconds else 20.0 * seed)
            for arm, finals in losses.items() for seed, loss in enumerate(finals, 1)]
    method = {"base": "ddp"}
    arms = [{"name": name, "title": name, "method": method.get(name, "diloco"), "workers": 2, "settings": {},
             "resolved": {"train.method": method.get(name, "diloco"), "train.sync_every": "1"}, "note": "",
             "tuned": None} for name in losses]
    return report_data.Comparison({
        **comparison(), "seeds": list(range(1, max(map(len, losses.values())) + 1)), "links": ["none"],
        "steps": [STEP], "arms": arms, "runs": runs, "baseline": "base", "checks": [],
        "price": None, "target": {"loss": target, "how": "given"}, **more})


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(comparison(), file)
