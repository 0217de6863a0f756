"""Writes tests/golden/grace_steps.csv: outer steps of async runs in which deltas arrive in groups.

    python3 tests/golden/make_grace_golden.py tests/golden/grace_steps.csv

Needs numpy. Nesterov's step as a flow: with a constant pseudo-gradient g the momentum v decays towards h = g / (1 - mu)
by the factor mu in each round, and theta moves by lr times what PyTorch's Nesterov moves in whole rounds. A group with
the steps of a share s of a round follows this flow for the time s; here it is added up over many small pieces of time.
g is the mean of the deltas, scaled so that each of n deltas of N workers counts (1 + staleness)^-power / N.

Columns: group, deltas, steps and staleness of each (as a:b), the group's mean, theta after the step.
The settings are those of tests/unit/coordinator/test_grace_golden.c.
"""

import sys

import numpy as np

LR, MU, WORKERS, EVERY, POWER, SIZE = 0.7, 0.9, 4, 20, 0.5, 4
GROUPS = [4, 4, 1, 1, 2, 3, 1, 4, 2, 2, 1, 3, 4]
PIECES = 1000


def main(path: str) -> None:
    rng = np.random.default_rng(26)
    theta, momentum = np.zeros(SIZE), np.zeros(SIZE)
    lines = []
    for number, n in enumerate(GROUPS):
        steps = np.full(n, EVERY) if number < 2 else rng.integers(5, 40, n)
        stale = rng.integers(0, 3, n)
        merged = rng.normal(0, 0.1, (n, SIZE)).mean(0).astype(np.float32).astype(np.float64)
        share = steps.sum() / (WORKERS * EVERY)
        settled = merged * ((1.0 + stale) ** -POWER).sum() / WORKERS / share / (1 - MU)
        for _ in range(PIECES):
            ahead = settled + MU * MU * (momentum - settled)
            keep = MU ** (share / PIECES)
            # In a whole round the distance from `settled` counts once, and shrinks by mu: its integral is (1 - keep) / (1 - mu).
            theta -= LR * (share / PIECES * settled + (ahead - settled) * (1 - keep) / (1 - MU))
            momentum = settled + keep * (momentum - settled)
        words = [number, n, " ".join(f"{t}:{s}" for t, s in zip(steps, stale))]
        words += [f"{x:.9g}" for x in merged] + [f"{x:.12g}" for x in theta]
        lines.append(",".join(map(str, words)))
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
