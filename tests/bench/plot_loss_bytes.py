#!/usr/bin/env python3
"""Draws docs/loss-bytes.svg from docs/history/loss-bytes.csv, newest date of the file. Needs matplotlib (PyPI)."""

import csv
import os

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "loss-bytes"  # the same file each time
import matplotlib.pyplot as plt

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")
LABELS = {
    "ddp": "ddp: fp32 gradients every step",
    "diloco": "diloco: int8 deltas every 16 steps",
    "sparse": "sparse: 1 of 64 signs every 16 steps",
}


def main():
    with open(os.path.join(DOCS, "history", "loss-bytes.csv"), encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    newest = max(row["date"] for row in rows)
    figure, axes = plt.subplots(figsize=(7.2, 3.4))
    for method, label in LABELS.items():
        of_method = [row for row in rows if row["method"] == method and row["date"] == newest]
        axes.plot([float(row["megabytes"]) for row in of_method], [float(row["val_loss"]) for row in of_method],
                  marker="o", markersize=3, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("megabytes sent by both workers and the coordinator")
    axes.set_ylabel("validation loss, nats a byte")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.46, 1.0))
    figure.tight_layout()
    figure.savefig(os.path.join(DOCS, "loss-bytes.svg"), metadata={"Date": None})


main()
