#!/usr/bin/env python3
"""Line and branch coverage of the folders that must have it, from gcov's notes of a build with --coverage.

Usage: coverage.py BUILD FOLDER... Called by `./run coverage`. Prints a table by folder and writes to BUILD: coverage.csv,
one row a file, and missed.txt, one line for each source line that never ran or whose branches were not all taken.
The branch of an assertion that fails is never taken: lines with an assertion count as lines, not as branches."""

import csv
import gzip
import json
import os
import subprocess
import sys
import tempfile


def gcov_reports(notes):
    with tempfile.TemporaryDirectory() as folder:
        for first in range(0, len(notes), 50):
            subprocess.run(["gcov", "--json-format", "--branch-probabilities", "--hash-filenames",
                            *notes[first:first + 50]], cwd=folder, check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        for name in os.listdir(folder):
            with gzip.open(os.path.join(folder, name)) as f:
                yield json.load(f)


def collect(build, root, folders):
    """{file: {line: [count, [count of each branch]]}}: the sums over all objects that hold the file."""
    notes = [os.path.join(folder, name) for folder, _, names in os.walk(build) for name in names if name.endswith(".gcno")]
    files = {}
    for report in gcov_reports(sorted(os.path.abspath(n) for n in notes)):
        for source in report["files"]:
            path = os.path.relpath(os.path.join(report["current_working_directory"], source["file"]), root)
            if not any(path.startswith(folder + "/") for folder in folders):
                continue
            lines = files.setdefault(path, {})
            for line in source["lines"]:
                branches = [b["count"] for b in line["branches"]]
                old = lines.setdefault(line["line_number"], [0, [0] * len(branches)])
                old[0] += line["count"]
                if len(old[1]) == len(branches):
                    old[1] = [a + b for a, b in zip(old[1], branches)]
    return files


def counts(path, lines):
    """(lines, lines run, branches, branches taken), and what was missed."""
    with open(path, encoding="utf-8") as f:
        text = f.read().split("\n")
    total, missed = [0, 0, 0, 0], []
    for number, (count, branches) in sorted(lines.items()):
        if "assert(" in text[number - 1]:
            branches = []
        taken = sum(b > 0 for b in branches)
        for i, n in enumerate((1, count > 0, len(branches), taken)):
            total[i] += n
        if not count or taken < len(branches):
            what = f"{taken} of {len(branches)} branches" if count else "never ran"
            missed.append(f"{path}:{number}: {what}: {text[number - 1].strip()}")
    return total, missed


def percent(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else "-"


def main():
    build, folders, root = sys.argv[1], sys.argv[2:], os.getcwd()
    files = collect(build, root, folders)
    if not files:
        sys.exit(f"coverage: {build} holds no gcov data of {' '.join(folders)}")
    sums = {folder: [0, 0, 0, 0] for folder in folders}
    with open(os.path.join(build, "coverage.csv"), "w", newline="") as table, \
            open(os.path.join(build, "missed.txt"), "w", encoding="utf-8") as missed_file:
        rows = csv.writer(table)
        rows.writerow(["file", "lines", "lines_run", "branches", "branches_taken"])
        for path in sorted(files):
            total, missed = counts(path, files[path])
            rows.writerow([path, *total])
            missed_file.writelines(line + "\n" for line in missed)
            folder = next(f for f in folders if path.startswith(f + "/"))
            sums[folder] = [a + b for a, b in zip(sums[folder], total)]
    print(f"{'folder':<20} {'lines':>7} {'run':>8} {'branches':>9} {'taken':>8}")
    sums["all"] = [sum(column) for column in zip(*sums.values())]
    for folder, (lines, run, branches, taken) in sums.items():
        print(f"{folder:<20} {lines:>7} {percent(run, lines):>8} {branches:>9} {percent(taken, branches):>8}")
    print(f"{build}/coverage.csv has each file, {build}/missed.txt each line that is not covered")


main()
