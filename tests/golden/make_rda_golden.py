"""Writes tests/golden/rda_merges.csv: merges of several deltas by merge.rule rda.

    python3 tests/golden/make_rda_golden.py tests/golden/rda_merges.csv

Needs numpy. The rule of Decoupled DiLoCo (2604.21428), tensor by tensor, in double:
    (sum w |v| / sum w) phi(sum w phi(v) / sum w),   phi(x) = x / |x|, phi(0) = 0
The plain mean replaces it where the mean direction is shorter than 1e-4, and for embeddings.

Each line is one merge of four tensors: workers, tokens of each (separated by blanks), their deltas end to end, the
result. tests/unit/compress/test_rda_golden.c has the names and sizes of the tensors.
"""

import sys

import numpy as np

TENSORS = {"wte.weight": 4, "h.0.attn.weight": 6, "h.0.attn.bias": 2, "ln_f.weight": 1}


def phi(x: np.ndarray) -> np.ndarray:
    norm = np.sqrt((x * x).sum())
    return x / norm if norm > 0 else np.zeros_like(x)


def merge(name: str, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    direction = (w[:, None] * [phi(x) for x in v]).sum(0) / w.sum()
    if name.startswith("wte") or np.sqrt((direction**2).sum()) < 1e-4:
        return (w[:, None] * v).sum(0) / w.sum()
    return (w * [np.sqrt((x * x).sum()) for x in v]).sum() / w.sum() * phi(direction)


def main(path: str) -> None:
    rng = np.random.default_rng(7)
    lines = []
    for number in range(12):
        n = 2 + number % 4
        w = rng.integers(50, 400, n).astype(np.float64)
        v = (rng.normal(0, 0.1, (n, sum(TENSORS.values()))) * rng.lognormal(0, 1, (n, 1))).astype(np.float32)
        if number % 3 == 1:
            v[0] = 0  # a worker that did not move
        if number % 4 == 2:
            w[:], v[1] = 100, -3 * v[0]  # opposite directions
            v[2:] = 0
        v = v.astype(np.float64)
        result, at = [], 0
        for name, size in TENSORS.items():
            result.append(merge(name, w, v[:, at:at + size]))
            at += size
        words = [n, " ".join(str(int(x)) for x in w), *(f"{x:.9g}" for x in v.ravel()),
                 *(f"{x:.12g}" for x in np.concatenate(result))]
        lines.append(",".join(map(str, words)))
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
