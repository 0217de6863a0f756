"""Reports of `./run bench outer-step` as rows.

outer_table.py row SETTINGS REPORT... [--gloo REPORT...]   print one row as a JSON object
outer_table.py table ROWS FILE                             print the table of all rows, write the JSON file
"""

import json
import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402


def read(paths):
    return [json.loads(line) for path in paths for line in open(path) if line.strip()]


def by_round(lines):
    rounds = {}
    for line in lines:
        rounds.setdefault(line["round"], []).append(line)
    return [rounds[i] for i in sorted(rounds)]


def mean(lines, key):
    return statistics.fmean(line[key] for line in lines)


def row(settings, reports, gloo):
    lines = read(reports)
    rounds = by_round(lines)[settings["warmup"]:]
    kept = [line for lines in rounds for line in lines]
    # The barrier opens at the first `ready`; the last `applied` is that of the slowest worker.
    applied = [(max(w["applied"] for w in r) - min(w["ready"] for w in r)) / 1e6 for r in rounds]
    placed = [(max(w["placed"] for w in r) - min(w["ready"] for w in r)) / 1e6 for r in rounds]
    out = {k: v for k, v in settings.items() if k != "warmup"}
    out.update(params=lines[0]["params"], fragments=lines[0]["fragments"], seconds=round(statistics.median(applied), 4),
               slowest_s=round(max(applied), 4), kb_up=round(mean(kept, "bytes_up") / 1e3, 1),
               kb_down=round(mean(kept, "bytes_down") / 1e3, 1), gloo_s=None, ratio=None,
               seconds_all=[round(s, 4) for s in applied], next_round_s=round(statistics.median(placed), 4))
    for key in ("compress_s", "send_s", "wait_s", "apply_s", "cpu_s"):
        out[key] = round(mean(kept, key), 4)
    if gloo:
        rounds = by_round(read(gloo))
        times = [max(r["end"] for r in ranks) - min(r["start"] for r in ranks) for ranks in rounds]
        seconds = statistics.median(times)
        out.update(gloo_s=round(seconds, 3), ratio=round(seconds / out["seconds"], 1),
                   gloo_seconds_all=[round(s, 3) for s in times],
                   gloo_kb_up=round(mean([line for ranks in rounds for line in ranks], "bytes_up") / 1e3, 1))
    print(json.dumps(out))


def congestion():
    try:
        with open("/proc/sys/net/ipv4/tcp_congestion_control") as f:
            return f.read().strip()
    except OSError:
        return "unknown"


def table(rows_path, json_path):
    rows = read([rows_path])
    print(f"{'workers':>7} {'params':>11} {'Mbit/s':>6} {'codec up':<18} {'down':<14} {'frag':>4} {'seconds':>8} "
          f"{'worst':>7} {'up kB':>8} {'down kB':>8} {'Gloo s':>7} {'ratio':>6}")
    for r in rows:
        gloo = f"{r['gloo_s']:>7.2f} {r['ratio']:>6.1f}" if r["gloo_s"] else f"{'-':>7} {'-':>6}"
        print(f"{r['workers']:>7} {r['params']:>11} {r['link_mbit']:>6} {r['up']:<18} {r['down']:<14} "
              f"{r['fragments']:>4} {r['seconds']:>8.3f} {r['slowest_s']:>7.3f} {r['kb_up']:>8.1f} "
              f"{r['kb_down']:>8.1f} {gloo}")
    about = {**machine.describe(), "congestion": congestion()}
    with open(json_path, "w") as f:
        json.dump({"name": "outer-step", "machine": about, "rows": rows}, f, indent=1)
        f.write("\n")
    print("seconds: from the ready deltas to the new parameters on the slowest worker, median of the rounds\n"
          "kB: network interface of one worker, per round, with headers; Gloo: fp32 all-reduce, same size and links\n"
          + json_path)


def main():
    verb, args = sys.argv[1], sys.argv[2:]
    if verb == "table":
        table(*args)
        return
    at = args.index("--gloo") if "--gloo" in args else len(args)
    row(json.loads(args[0]), args[1:at], args[at + 1:])


main()
