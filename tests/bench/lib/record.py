#!/usr/bin/env python3
"""Appends the rows of a benchmark to its history: record.py JSON_FILE_OR_FOLDER HISTORY.csv.

Called by `./run bench NAME --record`.

- A row of the history has date, commit and machine, then the fields of the benchmark's row.
- "+" after the commit marks uncommitted changes, other than recorded rows.
- A folder holds one row per file.
- A new field becomes a new column, which is empty in older rows."""

import csv
import datetime
import glob
import json
import os
import subprocess
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import machine  # noqa: E402


def flat(value, name=""):
    """{"a": {"b": 1}, "c": [1, 2]} -> {"a.b": 1, "c": "1 2"}"""
    if isinstance(value, dict):
        out = {}
        for key, part in value.items():
            out.update(flat(part, f"{name}.{key}" if name else key))
        return out
    if isinstance(value, list):
        return {name: " ".join(str(part) for part in value)}
    return {name: value}


def commit():
    git = ["git", "-C", os.path.dirname(os.path.abspath(__file__))]
    run = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False)
    if run.returncode:
        return "unknown"
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ":/", ":!/docs/history"], check=False).returncode
    return run.stdout.strip() + ("+" if changed else "")


def read_rows(path):
    """Returns the description of the machine and the rows."""
    if os.path.isdir(path):
        files = sorted(glob.glob(os.path.join(glob.escape(path), "*.json")))
        rows = []
        for name in files:
            with open(name, encoding="utf-8") as f:
                rows.append({"name": os.path.splitext(os.path.basename(name))[0], **json.load(f)})
        return machine.describe(), rows
    with open(path, encoding="utf-8") as f:
        report = json.load(f)
    return report["machine"], report["rows"]


def main():
    source, target = sys.argv[1:]
    about, rows = read_rows(source)
    about = flat(about)
    name = f"{about.pop('cpu', 'unknown')}, {about.pop('cores', '?')} cores"
    first = {"date": datetime.date.today().isoformat(), "commit": commit(), "machine": name}
    new = [{**first, **flat(row)} for row in rows]
    old = []
    columns = []
    if os.path.exists(target):
        with open(target, newline="", encoding="utf-8") as f:
            reader = csv.DictReader(f)
            old, columns = list(reader), list(reader.fieldnames or [])
    columns += [key for row in new for key in row if key not in columns]
    columns = list(dict.fromkeys(columns))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target + ".part", "w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(old + new)
    os.replace(target + ".part", target)
    print(f"appended {len(new)} rows to {target}")


main()
