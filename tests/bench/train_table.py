"""Rows of `./run bench train` (one JSON object per line) as a table and as one JSON file."""

import json
import sys

import machine


def main():
    rows = [json.loads(line) for line in open(sys.argv[1]) if line.strip()]
    print(f"{'model':>7} {'thr':>3} {'atoll tok/s':>12} {'eager':>9} {'compile':>9} {'ratio':>6} "
          f"{'GFLOP/s':>8} {'FMA peak':>8} {'share':>6}")
    for row in rows:
        ours, eager = row["ours_tokens_per_s"], row.get("torch_eager_tokens_per_s", 0)
        compiled = row.get("torch_compile_tokens_per_s", 0)
        row["gflops"] = round(ours * row["flops_per_token"] / 1e9, 1)
        row["peak_share"] = round(row["gflops"] / row["fma_peak_gflops"], 3)
        row["ratio"] = round(ours / max(eager, compiled), 3)
        print(f"{row['model']:>7} {row['threads']:>3} {ours:>12.0f} {eager:>9.0f} {compiled:>9.0f} {row['ratio']:>6.2f} "
              f"{row['gflops']:>8.1f} {row['fma_peak_gflops']:>8.1f} {row['peak_share']:>6.0%}")
    about = machine.describe()
    with open(sys.argv[2], "w") as f:
        json.dump({"name": "train", "machine": about, "rows": rows}, f, indent=1)
    print("ratio: atoll to the faster of PyTorch eager and compiled, medians; share: of the measured FMA peak")
    print(sys.argv[2])


main()
