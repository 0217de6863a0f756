"""atoll-compare: trains the arms of a grid and compares them by loss against tokens, seconds and bytes.

- OUT/cells holds one file for each finished run. A second call skips them, and a changed setting runs its cells again.
- OUT/comparison.json is the result, and OUT/report.html shows it. Both are written whenever the program ends.
"""

from __future__ import annotations

import fcntl
import fnmatch
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from .. import _lib
from ..command import (
    DONE, RESUMABLE, Options, Problem, Stopped, catch_signals, hold_signals, run, say, warn, whole, wrong,
)
from ..report import cmd as report
from ..report.data import counted
from ..units import duration_text
from .data import identify
from .grid import Grid, ask_config, read_grid
from .progress import CellWatch, Estimate, rest_text
from .result import result
from .run import Cell
from .run import run as run_one
from .store import Store, adopt, cells_of, read_finished, write_json
from .timing import Clock


def _wanted(grid: Grid, store: Store, patterns: str) -> list[Cell]:
    return [cell for cell in cells_of(grid, store)
            if any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in patterns.split(","))]


def train(grid: Grid, store: Store, program: str, out: str, only: str, minutes: int) -> bool:
    """Runs the missing cells. Returns true if none is left."""
    until = time.monotonic() + 60 * minutes if minutes else math.inf
    done: set[str] = set()
    while True:
        wanted = _wanted(grid, store, only)
        left = [c for c in wanted if store.get(c) is None and c.name not in done]
        cell = next((c for c in left if not c.waits), None)
        if cell is None and left:
            raise Problem(f"{left[0].name} {store.state(left[0])}, which --only leaves out: run them first")
        if cell is None:
            return True
        if time.monotonic() >= until:
            return False
        done.add(cell.name)
        left.remove(cell)
        n_done = len(wanted) - len(left)
        watch = CellWatch(cell, n_done - 1, len(wanted), left, Estimate(store))
        try:
            record = run_one(program, cell, out, watch)
        finally:
            watch.end()
        store.put(record)
        last = record["attempts"][-1]
        told = [last["why_invalid"] or f"loss {last['final_loss']:.4f}", duration_text(last["took_s"]),
                f"({n_done} of {len(wanted)})", rest_text(Estimate(store).left(left, None)) if left else ""]
        say(f"{cell.name:<40} {'  '.join(filter(None, told))}")


def warn_of_stale(cells: Sequence[Cell], store: Store) -> None:
    """Says before the first run that finished cells no longer count."""
    why: dict[str, list[str]] = {}
    for cell in cells:
        if stale := store.why_stale(cell):
            why.setdefault(stale, []).append(cell.name)
    for stale, names in why.items():
        n = len(names)
        warn(f"{n} finished cell{'' if n == 1 else 's'} will run again ({names[0]}{', ...' if n > 1 else ''}), "
             f"changed: {stale}")


def take(grid: Grid, store: Store, program: str, out: str, paths: str) -> None:
    """Takes the finished cells and measured steps of other machines, and says which do not belong to the grid."""
    for path in paths.split(","):
        records, steps = read_finished(path)
        if steps:
            Clock(program, grid, out, write_json).take_steps(steps)
        why_not: dict[str, list[str]] = {}
        for name, why in adopt(grid, store, records).items():
            why_not.setdefault(why, []).append(name)
        for why, names in why_not.items():
            warn(f"{path}: {counted(len(names), 'cell')} left out ({names[0]}{', ...' if len(names) > 1 else ''}): "
                 f"{why}")
        cells = cells_of(grid, store)
        missing = [cell.name for cell in cells if store.get(cell) is None]
        n_taken = len(records) - sum(map(len, why_not.values()))
        say(f"{path}: {counted(n_taken, 'finished cell')}; {len(missing)} of {len(cells)} missing"
            + (f", the first {missing[0]}" if missing else ""))


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


def show(cells: Sequence[Cell], store: Store) -> None:
    for cell in cells:
        say(f"{cell.name:<40} {store.state(cell)}")


def conclude(grid: Grid, store: Store, program: str, out: str) -> None:
    """Writes comparison.json and the report of the finished cells."""
    clock = Clock(program, grid, out, write_json)
    path = os.path.join(out, "comparison.json")
    with hold_signals():
        write_json(path, result(grid, store, clock, program))
        say(f"wrote {path}")
        try:
            say(f"wrote {report.write(out)}")
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
    o.add_argument("--import", metavar="FROM", dest="taken", default="",
                   help="take finished cells of other folders OUT or files, separated by commas; run nothing")
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
        grid, store = identify(grid, program, options.dir), Store(options.dir)
        show(_wanted(grid, store, options.only), store)
        return DONE
    catch_signals()
    with locked(options.dir):
        grid, store = identify(grid, program, options.dir), Store(options.dir)
        if options.taken:
            take(grid, store, program, options.dir, options.taken)
            conclude(grid, store, program, options.dir)
            return DONE
        warn_of_stale(_wanted(grid, store, options.only), store)
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

