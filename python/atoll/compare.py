"""atoll-compare: trains the arms of a grid and compares them by loss against tokens, seconds and bytes.

- OUT/cells holds one file for each finished run. A second call skips them, and a changed setting runs its cells again.
- OUT/comparison.json is the result, and OUT/report.html shows it. Both are written whenever the program ends.
"""

from __future__ import annotations

import fcntl
import fnmatch
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from . import _lib, report
from .command import DONE, RESUMABLE, Options, Problem, Stopped, catch_signals, hold_signals, run, warn, whole, wrong
from .compare_grid import Grid, ask_config, read_grid
from .compare_result import result
from .compare_run import Cell, link_cell, run_cell, trial_cells, untrained_cell, verify_cell
from .compare_run import run as run_one
from .compare_store import Store, settle, write_json
from .compare_time import Clock


def cells_of(grid: Grid, store: Store) -> Iterator[Cell]:
    """The cells in their order, as far as their settings are known: an arm's runs follow its trials."""
    baseline = grid.arm(grid.baseline)
    for seed in grid.seeds:
        yield untrained_cell(baseline, seed)
    for arm in grid.arms:
        yield from trial_cells(arm)
    settled = {arm.name: settle(arm, store)[0] for arm in grid.arms}
    for seed in grid.seeds:
        for arm in filter(None, settled.values()):
            if not arm.needs_link:
                yield run_cell(arm, seed)
    for check in grid.checks:
        arm_of_check = settled[check.arm]
        if arm_of_check:
            yield verify_cell(arm_of_check, check.seed, check.link)
    for seed in grid.seeds:
        for arm in filter(None, settled.values()):
            for link in grid.links if arm.needs_link else ():
                yield link_cell(arm, seed, link)


def _matches(cell: Cell, patterns: str) -> bool:
    return any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in patterns.split(","))


def train(grid: Grid, store: Store, program: str, out: str, only: str, minutes: int) -> bool:
    """Runs the missing cells. Returns true if none is left."""
    until = time.monotonic() + 60 * minutes if minutes else math.inf
    done: set[str] = set()
    while True:
        wanted = [cell for cell in cells_of(grid, store) if _matches(cell, only)]
        cell = next((c for c in wanted if store.get(c) is None and c.name not in done), None)
        if cell is None:
            return True
        if time.monotonic() >= until:
            return False
        done.add(cell.name)
        record = run_one(program, cell, out)
        store.put(record)
        last = record["attempts"][-1]
        result = last["why_invalid"] or f"loss {last['final_loss']:.4f}"
        n_done = sum(store.get(c) is not None for c in wanted)
        print(f"{cell.name:<40} {result}  {last['took_s']:.0f} s  ({n_done} of {len(wanted)})", flush=True)


@contextmanager
def locked(out: str) -> Iterator[None]:
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, "lock")
    with open(path, "a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Problem(f"another atoll compare uses {out}: wait for it, or give another folder") from None
        yield


def show(grid: Grid, store: Store, only: str) -> None:
    for cell in cells_of(grid, store):
        if _matches(cell, only):
            print(f"{cell.name:<40} {store.state(cell)}")
    for arm in grid.arms:
        if settle(arm, store)[0] is None:
            print(f"{arm.name + '.s*':<40} waits for the trials of the arm")


def conclude(grid: Grid, store: Store, program: str, out: str) -> None:
    """Writes comparison.json and the report of the finished cells."""
    clock = Clock(program, grid, out, write_json)
    path = os.path.join(out, "comparison.json")
    with hold_signals():
        write_json(path, result(grid, store, clock, program))
        print(f"wrote {path}", flush=True)
        try:
            print(f"wrote {report.write(out)}", flush=True)
        except Problem as problem:  # a library is missing: atoll report can draw the results later
            warn(f"there is no report: {problem}")


def body(words: Sequence[str]) -> int:
    o = Options(
        "atoll compare",
        "GRID.yaml --dir OUT [options]",
        "Train the arms of a grid and compare them by loss against tokens, seconds and bytes.\n"
        "The same command continues an interrupted comparison.",
    )
    o.add_argument("grid", metavar="GRID.yaml", help="the arms, seeds and links: docs/compare.md")
    o.add_argument("--dir", metavar="OUT", help="folder of the results")
    o.add_argument("--only", metavar="PATTERN", default="*", help="only cells with these names, as 'ddp.*,*.s1'")
    o.add_argument("--minutes", metavar="N", type=whole(1, 1000000), default=0, help="start no run after N minutes")
    o.add_argument("--list", action="store_true", help="show the cells and their states; run nothing")
    options = o.parse(words)
    if not options.dir:
        raise wrong(f"--dir is missing: usage is {o.usage}")
    try:
        program = _lib.program("atoll")
    except _lib.Error as error:
        raise Problem(str(error)) from None
    grid = read_grid(options.grid, ask_config(program))
    if options.list:
        show(grid, Store(options.dir), options.only)
        return DONE
    catch_signals()
    with locked(options.dir):
        store = Store(options.dir)
        try:
            complete = train(grid, store, program, options.dir, options.only, options.minutes)
        except (Problem, Stopped):
            with suppress(Problem):  # the first reason is the one to read
                conclude(grid, store, program, options.dir)
            raise
        conclude(grid, store, program, options.dir)
    return DONE if complete else RESUMABLE


def main(words: Sequence[str] | None = None) -> int:
    """The program. Returns the exit code."""
    return run(body, words, "stopped by a signal: the same command continues")


if __name__ == "__main__":
    sys.exit(main())
