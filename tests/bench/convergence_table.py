"""Rows of `./run bench convergence` as Markdown tables: final losses, losses by bytes, and the gap to fp32 by round."""

import argparse
import fnmatch
import glob
import json
import os
import statistics

CLOSE = (0.05, 0.02)  # nats
# Outer step: the tier that its tiers are compared with.
BASES = {"mean": "fp32", "mean over all": "fp32", "mean × 1.5": "fp32", "mean × 0.7": "fp32", "mean × 0.5": "fp32",
         "nesterov 0.3": "fp32", "nesterov 0.7": "fp32-nesterov", "muon, mean": "fp32", "muon × 0.5, mean": "fp32",
         "muon × 2, mean": "fp32", "rate × 2, mean": "fp32", "bf16 moments, mean": "fp32",
         "beta2 0.999, mean": "fp32-slow", "bf16 moments, beta2 0.999, mean": "fp32-slow",
         "muon, bf16 moments, mean": "muon-fp32",
         "muon, nesterov 0.7": "fp32-nesterov"}  # muon against AdamW


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def spread(values):
    return f"± {statistics.stdev(values):.4f}" if len(values) > 1 else ""


def behind(rows, base):
    """Differences of the final losses of equal seeds."""
    other = {row["seed"]: row["final_val_loss"] for row in base}
    return [row["final_val_loss"] - other[row["seed"]] for row in rows if row["seed"] in other]


def signed(values):
    return f"{mean(values):+.4f}" if values else "–"


def megabytes(row):
    return (row["bytes_up"] + row["bytes_down"]) / row["workers"] / 1e6


def bits(value):
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def down_of(row):
    """The downlink codec; for `auto`, the form that it chose most often."""
    ways = row.get("down_rounds", {})
    if row["down"] != "auto" or not ways:
        return f"`{row['down']}`"
    return f"`auto`: {'relay' if max(ways, key=ways.get) == 'relay' else 'union'}"


def by_tier(rows):
    tiers = {}
    for row in rows:
        tiers.setdefault(row["tier"], []).append(row)
    return tiers


def print_group(rows):
    tiers = by_tier(rows)
    first = rows[0]
    print(f"\n### {first['params'] / 1e6:.2f}M parameters, {first['workers']} workers, {first['sync_every']} steps per "
          f"round, {first['rounds']} rounds, {first['tokens'] / 1e3:.0f}k tokens\n")
    if "start_val_loss" in first:
        print(f"All cells start from a model with loss {first['start_val_loss']:.4f}, trained by one worker.\n")
    print("| codec up | down | outer step | seeds | val loss | std | gap to fp32 | std of the gap | bits up "
          "| bits down | MB per worker |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for group in sorted(tiers.values(), key=lambda g: (-g[0]["bits_up"], -g[0]["bits_down"])):
        row, losses = group[0], [r["final_val_loss"] for r in group]
        gaps = behind(group, base_of(row, tiers))
        print(f"| `{row['up']}` | {down_of(row)} | {row['outer']} | {','.join(str(r['seed']) for r in group)} "
              f"| {mean(losses):.4f} | {spread(losses)} | {signed(gaps)} "
              f"| {spread(gaps) if any(gaps) else ''} "
              f"| {bits(mean(r['bits_up'] for r in group))} | {bits(mean(r['bits_down'] for r in group))} "
              f"| {mean(map(megabytes, group)):.2f} |")


def base_of(row, tiers):
    return tiers.get(BASES[row["outer"]], [])


def curve_gap(group, base):
    """Differences of the validation losses by round, mean over the common seeds."""
    other = {row["seed"]: {p["round"]: p["val_loss"] for p in row["curve"]} for row in base}
    points = {}
    for row in group:
        for p in row["curve"]:
            if p["round"] in other.get(row["seed"], {}):
                points.setdefault(p["round"], []).append(p["val_loss"] - other[row["seed"]][p["round"]])
    return [(r, mean(values)) for r, values in sorted(points.items())]


def print_gaps(groups):
    """Gap to fp32 with the same outer step at four points of the run, and the round from which it stays below CLOSE."""
    print("\n### Gap to fp32 during training: same outer step, same tokens\n")
    print("| model | workers | rounds | codec up | a quarter | half | three quarters | end | "
          + " | ".join(f"within {c} from round" for c in CLOSE) + " |")
    print("|---|---|---|---|---|---|---|---|" + "---|" * len(CLOSE))
    for rows in groups:
        tiers = by_tier(rows)
        for name, group in tiers.items():
            row = group[0]
            gap = curve_gap(group, base_of(row, tiers))
            if name.startswith("fp32") or not gap:
                continue
            at = [min(gap, key=lambda p, q=q: abs(p[0] - q * row["rounds"]))[1] for q in (0.25, 0.5, 0.75, 1)]
            since = []
            for limit in CLOSE:
                late = [r for r, d in gap if d > limit]
                after = [r for r, _ in gap if not late or r > late[-1]]
                since.append(str(after[0]) if after else "never")
            print(f"| {row['model']} | {row['workers']} | {row['rounds']} | `{row['up']}` ({row['outer']}) | "
                  + " | ".join(f"{d:+.3f}" for d in at) + " | " + " | ".join(since) + " |")


def print_frontier(groups):
    """Runs on the same tokens by bytes, mean over seeds. Marks a run if every cheaper run has a larger loss."""
    runs = {}
    for rows in groups:
        first = rows[0]
        runs.setdefault((first["model"], first["workers"]), []).extend(by_tier(rows).values())
    for (model, workers), kinds in runs.items():
        tokens = kinds[0][0]["tokens"] / 1e3
        print(f"\n### Loss by bytes: {model} model, {workers} workers, {tokens:.0f}k tokens each\n")
        print("| MB per worker, up and down | val loss | seeds | codec up | down | outer step | rounds | |")
        print("|---|---|---|---|---|---|---|---|")
        least = float("inf")
        for group in sorted(kinds, key=lambda g: mean(map(megabytes, g))):
            row, loss = group[0], mean(r["final_val_loss"] for r in group)
            mark = "**best up to here**" if loss < least else ""
            least = min(least, loss)
            print(f"| {mean(map(megabytes, group)):.2f} | {loss:.4f} | {len(group)} | `{row['up']}` | {down_of(row)} "
                  f"| {row['outer']} | {row['rounds']} | {mark} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--cells", default="*")
    args = parser.parse_args()
    rows = []
    for path in sorted(glob.glob(os.path.join(glob.escape(args.out), "*.json"))):
        with open(path) as f:
            rows.append(json.load(f))
    rows = [r for r in rows if any(fnmatch.fnmatchcase(r["name"], p) for p in args.cells.split(","))]
    if not rows:
        print("no finished cells: run `./run bench convergence` first")
        return
    groups = {}
    for row in sorted(rows, key=lambda r: (r["model"] != "demo", r["workers"], r["sync_every"], r["seed"])):
        groups.setdefault((row["model"], row["workers"], row["sync_every"]), []).append(row)
    for group in groups.values():
        print_group(group)
    print_gaps(groups.values())
    print_frontier(groups.values())


main()
