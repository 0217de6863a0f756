"""Trains the cells of a pack of tests/gpu/record, one after the other, with the functions of `atoll compare`.

OUT/SIZE.jsonl has the finished cells and measured steps of a size, OUT/SIZE.yaml its grid, OUT/log.txt a line for each
cell. Everything else lies in PACK/work and is deleted."""

import fcntl
import glob
import json
import os
import shutil
import sys
import time

import libraries
import record_grid
import record_text
from atoll.command import (
    DONE, FAILED, RESUMABLE, Problem, Stopped, catch_signals, clean, hold_signals, replace_file,
)
from atoll.compare.data import identify
from atoll.compare.grid import ask_config, read_grid
from atoll.compare.progress import CellWatch, Estimate
from atoll.compare.run import diverged
from atoll.compare.run import run as run_cell
from atoll.compare.store import Store, adopt, cells_of, read_finished, settle, write_json
from atoll.compare.timing import Clock
from atoll.units import duration_text

END_S = 8 # to stop a run and write the results
MISSING_ESTIMATE_S = 20 # a run whose length is not known does not begin later


class OutOfTime(Stopped):
    """A cell has reached its bound."""


class BoundWatch(CellWatch):
    """The progress of a cell that ends at a time."""

    until = float("inf")

    def tick(self):
        if time.monotonic() > self.until:
            raise OutOfTime
        super().tick()


def fail(text):
    sys.exit(f"tests/gpu/record: {text}")


def unpack(pack):
    """The token shards, if they are not unpacked yet."""
    for name in ("val", "train"):
        out = os.path.join(pack, "data", name)
        if not os.path.exists(out):
            shutil.rmtree(out + ".part", ignore_errors=True)
            try:
                record_text.unpack(os.path.join(pack, "packed", name), out + ".part")
            except ValueError as error:
                fail(error)
            os.rename(out + ".part", out)


class Recorded:
    """One size: its grid, its finished cells, and the files of both in OUT."""

    def __init__(self, pack, out, size, plan, rates):
        self.size, self.plan, self.out, self.folder = size, plan, out, os.path.join(pack, "work", size.name)
        self.program = os.path.join(pack, "bin", "atoll")
        self.path, self.grid_path = (os.path.join(out, f"{size.name}.{kind}") for kind in ("jsonl", "yaml"))
        os.makedirs(self.folder, exist_ok=True)
        replace_file(self.grid_path, record_grid.grid(size, plan, rates).encode())
        self.grid = identify(read_grid(self.grid_path, ask_config(self.program)), self.program, self.folder)
        self.store, self.clock = Store(self.folder), Clock(self.program, self.grid, self.folder, write_json)

    def take(self, path):
        """Adds the cells of an earlier call. Returns by name why the others do not belong to this grid."""
        records, steps = read_finished(path)
        self.clock.take_steps(steps)
        return adopt(self.grid, self.store, records)

    def save(self):
        records = self.store.records
        lines = [{"steps": self.clock.kept["steps"]}, *(records[name] for name in sorted(records))]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        replace_file(self.path, text.encode())

    def cells(self):
        """All cells, in the order of the experiment: both seeds of the first arms, then a seed of each arm."""
        def order(cell):
            if cell.kind == "untrained":
                return (-1, cell.seed)
            return record_grid.turn(self.plan["arms"], cell.arm, None if cell.kind == "tune" else cell.seed)

        return sorted(cells_of(self.grid, self.store), key=order)

    def missing(self):
        return [cell for cell in self.cells() if self.store.get(cell) is None]

    def rates(self):
        """The learning rates that the trials chose; None if an arm misses some."""
        found = {arm.name: settle(arm, self.store)[0] for arm in self.grid.arms}
        if any(arm is None for arm in found.values()):
            return None
        return {name: float(arm.resolved["inner.learning_rate"]) for name, arm in found.items()}

    def seconds(self, cell):
        """How long a cell may take: as long as one like it has, else as planned; None: not known."""
        took = [sum(each["took_s"] for each in record["attempts"]) for record in self.store.records.values()
                if (record["arm"], record["kind"]) == (cell.arm, cell.kind)]
        if took:
            return max(took)
        planned = self.plan.get("seconds", {}).get(self.size.name, {}).get(cell.arm)
        if planned is None or cell.kind == "untrained":
            return Estimate(self.store).seconds(cell)
        start = record_grid.START_S
        return start + (planned - start) * cell.tokens / self.size.tokens


class Call:
    """One call: goes through the sizes until the time is over."""

    def __init__(self, pack, out, seconds, earlier):
        self.pack, self.out, self.until, self.earlier = pack, out, time.monotonic() + seconds - END_S, earlier
        self.failed = []
        with open(os.path.join(pack, "record.json"), encoding="utf-8") as file:
            self.plan = json.load(file)
        self.sizes = [record_grid.Size(**entry) for entry in self.plan["sizes"]]

    def left(self):
        return self.until - time.monotonic()

    def tell(self, text):
        print(text, flush=True)
        with open(os.path.join(self.out, "log.txt"), "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {clean(text)}\n")

    def open(self, size, rates):
        recorded = Recorded(self.pack, self.out, size, self.plan, rates)
        for folder in [self.out, *self.earlier]:
            path = os.path.join(folder, f"{size.name}.jsonl")
            if os.path.exists(path):
                others = recorded.take(path)
                for why in dict.fromkeys(others.values()):
                    names = [name for name in others if others[name] == why]
                    self.tell(f"{path}: {len(names)} cells do not count ({', '.join(names[:3])}"
                              f"{', ...' if len(names) > 3 else ''}): {why}")
        recorded.save()
        return recorded

    def run(self):
        """Returns the exit code."""
        rates, small = None, None
        for size in self.sizes:
            if small and rates is None:
                self.tell(f"{size.name} waits for the trials of {small}, which give its learning rates")
                break
            scaled = record_grid.scaled(rates, small, size.name) if small else None
            recorded = self.open(size, scaled)
            done = self.train(recorded)
            if small is None:
                small, rates = size.name, recorded.rates()
            if not done:
                break
        else:
            return FAILED if self.failed else DONE
        return FAILED if self.failed else RESUMABLE

    def train(self, recorded):
        """Runs missing cells while there is time; returns whether none is left."""
        skipped = set()
        while True:
            missing = recorded.missing()
            total = len(recorded.cells())
            ready = [cell for cell in missing if not cell.waits and cell.name not in skipped]
            if not missing:
                self.tell(f"{recorded.size.name}: all {total} cells are done")
                return True
            fitting = [cell for cell in ready if self.fits(recorded, cell)]
            if not fitting:
                self.tell(f"{recorded.size.name}: {total - len(missing)} of {total} cells are done; next is "
                          + missing[0].name + self.why_not(recorded, missing[0]))
                return False
            cell = fitting[0]
            if not self.one(recorded, cell, total - len(missing), total, missing):
                skipped.add(cell.name)

    def fits(self, recorded, cell):
        seconds = recorded.seconds(cell)
        return self.left() > (MISSING_ESTIMATE_S if seconds is None else seconds)

    def why_not(self, recorded, cell):
        if cell.waits:
            return f", which waits for the trials of {cell.arm}"
        seconds = recorded.seconds(cell)
        needs = f", which needs about {duration_text(round(seconds))}" if seconds else ""
        if seconds and seconds > self.plan["call_s"]:
            needs += ", more than a call has: pack again with fewer --tokens"
        return f"{needs}; this call has {duration_text(max(0, round(self.left())))} left"

    def one(self, recorded, cell, done, total, missing):
        """Runs a cell; returns whether it was kept."""
        arm = recorded.grid.arm(cell.arm)
        watch = BoundWatch(cell, done, total, [other for other in missing if other is not cell],
                           Estimate(recorded.store))
        typical = recorded.seconds(cell)
        watch.until = min(self.until, time.monotonic() + 2 * typical + 60 if typical else self.until)
        try:
            if cell.kind == "run":
                recorded.clock.measure(arm) # only the first run of each kind of step measures
                recorded.save()
            record = run_cell(recorded.program, cell, recorded.folder, watch)
        except OutOfTime:
            self.tell(f"{recorded.size.name} {cell.name}: out of time, {watch.text()}; not kept")
            return False
        except Problem as problem:
            self.failed.append(cell.name)
            self.tell(f"{recorded.size.name} {cell.name}: failed: {problem}")
            return False
        finally:
            watch.end()
        last = record["attempts"][-1]
        if last["why_invalid"] and not diverged(last["why_invalid"]): # the machine failed, not the method
            self.failed.append(cell.name)
            self.tell(f"{recorded.size.name} {cell.name}: failed, not kept: {last['why_invalid']}")
            return False
        with hold_signals():
            recorded.store.put(record)
            recorded.save()
        self.tell(f"{recorded.size.name} {cell.name}: {last['why_invalid'] or 'loss %.4f' % last['final_loss']}, "
                  f"{duration_text(last['took_s'])} ({done + 1} of {total})")
        return True


def environment(pack):
    """Libraries of the pack and of CUDA; the programs share their timed algorithms."""
    folders = libraries.cuda_folders(os.path.join(pack, "bin"), os.environ)
    os.environ["LD_LIBRARY_PATH"] = ":".join([*folders, os.environ.get("LD_LIBRARY_PATH", "")]).strip(":")
    os.environ.setdefault("ATOLL_ALGO_CACHE", os.path.join(pack, "work", "algorithms"))
    for name in os.listdir(os.path.join(pack, "bin")): # a copy may have lost the executable bit
        path = os.path.join(pack, "bin", name)
        if not os.access(path, os.X_OK):
            os.chmod(path, 0o755)


def run(pack, out, seconds, earlier):
    """Trains in `pack` until `seconds` have passed. Returns the exit code."""
    for folder in earlier:
        if not glob.glob(os.path.join(glob.escape(folder), "*.jsonl")):
            fail(f"--from {folder}: it has no SIZE.jsonl of an earlier call")
    out, earlier = os.path.abspath(out), [os.path.abspath(folder) for folder in earlier]
    os.chdir(pack) # the grids name their files from here
    call = Call(pack, out, seconds, earlier)
    if any(record_grid.SIZES[size.name]["gpu"] for size in call.sizes) and not libraries.gpu_here():
        fail("no NVIDIA GPU on this machine, which 30m and 124m need: for CPUs make a pack with --sizes 1m")
    os.makedirs(out, exist_ok=True)
    os.makedirs(os.path.join(pack, "work"), exist_ok=True)
    lock = open(os.path.join(pack, "work", "lock"), "w", encoding="utf-8") # held until the process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(f"another call uses {pack}: wait for it, or copy the folder")
    environment(pack)
    unpack(pack)
    catch_signals()
    try:
        return call.run()
    except Problem as problem:
        fail(problem)
    except Stopped:
        call.tell("stopped by a signal: the same command continues")
        return RESUMABLE
