"""Writes tests/golden/grace_steps.csv: outer steps of async runs in which deltas arrive in groups.

    python3 tests/golden/make_grace_golden.py tests/golden/grace_steps.csv

Needs numpy. Delayed Nesterov as in the paper (2401.09135), delta by delta with an explicit buffer: each delta adds
w_i D_i to the buffer and moves theta by lr w_i D_i / N; the arrival that fills the buffer moves the momentum
m = mu m + buffer / N, and theta by lr mu m. A group arrives at once, so the momentum moves after its last delta.
w_i = (1 + staleness_i)^-power tokens_i / (mean tokens of a delta so far, with the group).

Columns: group, deltas, tokens and staleness of each (as a:b), the group's mean by tokens, theta after the step.
The settings are those of tests/unit/coordinator/test_grace_golden.c.
"""

import sys

import numpy as np

LR, MU, BUFFER, POWER, SIZE = 0.7, 0.9, 4, 0.5, 4
GROUPS = [4, 4, 1, 1, 2, 3, 1, 4, 2, 2, 1, 3, 4]


def main(path: str) -> None:
    rng = np.random.default_rng(26)
    theta, momentum, buffer = np.zeros(SIZE), np.zeros(SIZE), np.zeros(SIZE)
    count, deltas, tokens_seen = 0, 0, 0
    lines = []
    for number, n in enumerate(GROUPS):
        tokens = rng.integers(50, 150, n)
        stale = rng.integers(0, 3, n)
        values = rng.normal(0, 0.1, (n, SIZE))
        deltas += n
        tokens_seen += tokens.sum()
        mean_tokens = tokens_seen / deltas
        merged = (tokens[:, None] * values).sum(0) / tokens.sum()
        merged = merged.astype(np.float32).astype(np.float64)
        # The group's deltas share their mean: weights of single deltas apply to it.
        for t, s in zip(tokens, stale):
            weight = (1.0 + s) ** -POWER * t / mean_tokens
            buffer += weight * merged
            theta -= LR * weight * merged / BUFFER
            count += 1
        if count >= BUFFER:
            momentum = MU * momentum + buffer / BUFFER
            theta -= LR * MU * momentum
            buffer[:] = 0
            count = 0
        words = [number, n, " ".join(f"{t}:{s}" for t, s in zip(tokens, stale))]
        words += [f"{x:.9g}" for x in merged] + [f"{x:.12g}" for x in theta]
        lines.append(",".join(map(str, words)))
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
