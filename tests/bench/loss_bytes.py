"""Evaluations of the runs FOLDER/{ddp,diloco,sparse} as a table and as one JSON file: loss_bytes.py FOLDER JSON_FILE."""

import json
import os
import sys

import machine


def evaluations(folder, method):
    """Rows of one run. Bytes are those of all processes on their sockets, in both directions, headers included."""
    with open(os.path.join(folder, method, "metrics.jsonl"), encoding="utf-8") as f:
        events = [json.loads(line) for line in f]
    for event in events:
        if event["event"] == "round" and event.get("val_loss") is not None:
            yield {
                "method": method,
                "round": event["round"],
                "tokens": event["tokens"],
                "megabytes": round((event["bytes_up"] + event["bytes_down"]) / 1e6, 3),
                "val_loss": round(event["val_loss"], 4),
            }


def main():
    rows = [row for method in ("ddp", "diloco", "sparse") for row in evaluations(sys.argv[1], method)]
    print(f"{'method':>7} {'round':>6} {'tokens':>9} {'MB':>10} {'val loss':>8}")
    for row in rows:
        print(f"{row['method']:>7} {row['round']:>6} {row['tokens']:>9} {row['megabytes']:>10.1f} {row['val_loss']:>8.4f}")
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        json.dump({"name": "loss-bytes", "machine": machine.describe(), "rows": rows}, f, indent=1)
    print(sys.argv[2])


main()
