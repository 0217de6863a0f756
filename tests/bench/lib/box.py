"""The measurements of `./run bench box`: box.py FOLDER JSON [--params 124m] [--ranks 2] [--rounds 3] [--section.key=value ...]"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import machine  # noqa: E402
from box_sizes import SIZES  # noqa: E402

BIN = Path(os.environ["ATOLL_BIN"])
LOOK_S = 0.05
GIB = 1 << 30
# The learning rate is the coordinator's bound for a delta: the change of the shards must pass it.
RUN = """
run: {{name: box, seed: 1}}
model: {{family: external}}
inner: {{learning_rate: 10.0, warmup_steps: 0, schedule: constant}}
train: {{method: diloco, max_steps: {rounds}, sync_every: 1, batch_size: {ranks}, eval_every: 0}}
codec: {{up: "int8:256", down: "int8:256"}}
coordinator: {{listen: "tcp://127.0.0.1:*"}}
checkpoint: {{every: 0, keep: 1}}
"""
STATUS = ("VmRSS", "VmHWM", "RssAnon", "RssFile", "RssShmem")
ROLLUP = ("Pss_Anon",)


def look(pid: int) -> dict[str, int]:
    """Bytes of a process; empty if it is gone."""
    found = {}
    try:
        for path, keys in (("status", STATUS), ("smaps_rollup", ROLLUP)):
            for line in Path(f"/proc/{pid}/{path}").read_text().splitlines():
                key, _, value = line.partition(":")
                if key in keys:
                    found[key] = int(value.split()[0]) * 1024
    except (OSError, IndexError):
        return {}
    return found


class Watch(threading.Thread):
    """The largest values of processes by name."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[str, dict[str, int]] = {}
        self._pids: dict[str, int] = {}
        self._ended = threading.Event()

    def add(self, name: str, pid: int) -> None:
        self.peaks[name], self._pids = {}, {**self._pids, name: pid}

    def run(self) -> None:
        while not self._ended.wait(LOOK_S):
            for name, pid in self._pids.items():
                seen, peak = look(pid), self.peaks[name]
                for key, value in seen.items():
                    peak[key] = max(peak.get(key, 0), value)

    def end(self) -> None:
        self._ended.set()
        self.join()


def refuse(text: str) -> None:
    raise SystemExit(f"bench box: {text}")


def started(folder: Path, name: str, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
    """A process that dies with this one."""
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], cwd=folder, stdout=log, stderr=log,
                                env={**os.environ, **environment})


def lines(folder: Path, ranks: int, key: str) -> list[dict]:
    """The JSON lines of the ranks that have `key`, in rank order; empty until all are there."""
    text = (folder / "box.log").read_text(errors="replace")
    parts = re.findall(r'\{"rank": .*?\}(?=\{"rank": |$)', text, re.M)  # two ranks may print into one line
    found = [json.loads(part) for part in parts]
    found = sorted((line for line in found if key in line), key=lambda line: line["rank"])
    return found if len(found) == ranks else []


def measure(folder: Path, size: str, ranks: int, rounds: int, settings: list[str]) -> tuple[Watch, list[dict], list[dict], dict]:
    (folder / "run.yaml").write_text(RUN.format(rounds=rounds, ranks=ranks))
    watch, run = Watch(), folder / "run"
    processes = [started(folder, "coordinator", [str(BIN / "atoll-coordinator"), "run.yaml", "--dir", str(run), *settings])]
    try:
        wait(folder, processes, lambda: (run / "address").exists())
        rest = look(processes[0].pid)
        Path(f"/proc/{processes[0].pid}/clear_refs").write_text("5")
        watch.add("coordinator", processes[0].pid)
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        words = [str(HERE / "box_rank.py"), size, str(rounds), str(run), str(folder / "worker")]
        processes.append(started(folder, "box", [sys.executable, *launcher, *words], OMP_NUM_THREADS="1"))
        wait(folder, processes, lambda: bool(lines(folder, ranks, "before")))
        before = lines(folder, ranks, "before")
        for line in before:
            watch.add(f"rank {line['rank']}", line["pid"])
        watch.start()
        wait(folder, processes, lambda: bool(lines(folder, ranks, "after")))
        watch.end()
        for process in reversed(processes):
            if process.wait(600):
                fail(folder)
        return watch, before, lines(folder, ranks, "after"), rest
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def fail(folder: Path) -> None:
    refuse("a process ended:\n" + "\n".join(f"--- {p.name}\n{p.read_text()[-1500:]}" for p in folder.glob("*.log")))


def wait(folder: Path, processes: list[subprocess.Popen[bytes]], condition) -> None:
    ended = threading.Event()
    while not condition():
        if any(process.poll() not in (None, 0) for process in processes):
            fail(folder)
        ended.wait(LOOK_S)


def planned(folder: Path, size: str, ranks: int, settings: list[str]) -> tuple[float, float]:
    """`atoll plan` of a model of nearly the same size: bytes a parameter of the box and of the coordinator."""
    given = [f"--model.preset={SIZES[size].preset}", "--codec.up=int8:256", "--codec.down=int8:256", *settings]
    command = [str(BIN / "atoll"), "plan", "--json", "--gpus", str(ranks), "--gpu-memory", "80", "--workers", "1",
               "--link", "1gbit", "--train.sync_every=1", *given]
    plan = json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)
    box, params = plan["box"], plan["box"]["exchange"]["params"]
    return box["host"]["total"] / params, box["exchange"]["coordinator"] / params


def memory_rows(folder: Path, n: int, watch: Watch, before: list[dict], after: list[dict], rest: dict,
                plans: tuple[float, float]) -> list[dict]:
    """Peaks less what was there before, in bytes a parameter."""
    plan = re.search(r"memory of the outer loop in MiB: .*total (\d+)", (folder / "box.log").read_text(errors="replace"))
    # Rank 0 maps all of the segment. Pss_Shmem of all ranks would count a page twice that another one maps between two
    # readings, and Pss_File grows if another process with the same libraries ends.
    shared = max(watch.peaks[f"rank {line['rank']}"]["RssShmem"] - line["before"]["RssShmem"] for line in before)
    rows, total = [], shared
    for line, end in zip(before, after):
        peak, was = watch.peaks[f"rank {line['rank']}"], line["before"]
        own = peak["Pss_Anon"] - was["Pss_Anon"]
        total += own
        rows.append({"process": f"rank {line['rank']}", "bytes": own / n,
                     "hwm_bytes": (end["after"]["VmHWM"] - was["VmRSS"]) / n})
    rows.append({"process": "segment", "bytes": shared / n})
    rows.append({"process": "box", "bytes": total / n, "library_bytes": int(plan.group(1)) * 2**20 / n if plan else None,
                 "plan_bytes": plans[0]})
    peak = watch.peaks["coordinator"]
    rows.append({"process": "coordinator", "plan_bytes": plans[1], "bytes": (peak["RssAnon"] - rest["RssAnon"]) / n,
                 "mapped_bytes": (peak["RssFile"] - rest["RssFile"]) / n, "hwm_bytes": (peak["VmHWM"] - rest["VmRSS"]) / n})
    return [{"what": "memory", "parameters": n, "ranks": len(before), **row} for row in rows]


def speed_rows(n: int, after: list[dict]) -> list[dict]:
    """The slowest process of each part, because the ranks work beside each other; of each one its best round."""
    keys = {"memcpy": "memcpy", "shards to segment": "put", "encode": "push", "apply": "apply", "segment to shards": "take"}
    rows = []
    for part, key in keys.items():
        lists = [line[key] for line in after if line[key]]
        wall, cpu = (max(min(t[i] or 0 for t in times) for times in lists) for i in (0, 1))
        rows.append({"what": "speed", "parameters": n, "ranks": len(after), "part": part, "seconds": wall,
                     "cpu_s": cpu or None, "gb_per_s": 4e-9 * n / wall, "of_memcpy": rows[0]["seconds"] / wall if rows else 1,
                     "cpu_of_memcpy": (rows[0]["cpu_s"] / cpu if rows else 1) if cpu else None})
    return rows


def text_of(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def show(rows: list[dict]) -> None:
    print(f"{rows[0]['parameters']:,} parameters, {rows[0]['ranks']} ranks; bytes a parameter")
    print(f"{'':18} {'peak':>8} {'library':>8} {'plan':>8} {'VmHWM':>8} {'mapped':>8}")
    keys = ("bytes", "library_bytes", "plan_bytes", "hwm_bytes", "mapped_bytes")
    for row in (row for row in rows if row["what"] == "memory"):
        print(f"{row['process']:18} " + " ".join(f"{text_of(row.get(key), '8.2f'):>8}" for key in keys))
    print(f"\n{'':18} {'seconds':>8} {'CPU s':>8} {'GB/s':>8} {'of memcpy':>10} {'in CPU s':>10}")
    for row in (row for row in rows if row["what"] == "speed"):
        print(f"{row['part']:18} {row['seconds']:8.3f} {text_of(row['cpu_s'], '8.3f'):>8} {row['gb_per_s']:8.2f} "
              f"{row['of_memcpy']:10.2f} {text_of(row['cpu_of_memcpy'], '10.2f'):>10}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench box")
    parser.add_argument("folder", type=Path)
    parser.add_argument("json", type=Path)
    parser.add_argument("--params", choices=sorted(SIZES), default="124m")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    given, settings = parser.parse_known_args()
    if any(not re.fullmatch(r"--[a-z]+\.[a-z_]+=.*", setting) for setting in settings):
        refuse(f"unknown argument {settings[0]} (see the head of tests/bench/box)")
    free = next(int(line.split()[1]) * 1024 for line in Path("/proc/meminfo").read_text().splitlines()
                if line.startswith("MemAvailable:"))
    if free < SIZES[given.params].need_gib * GIB:
        refuse(f"{given.params} needs {SIZES[given.params].need_gib} GiB of memory, and {free / GIB:.1f} GiB are free")
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    try:
        watch, before, after, rest = measure(given.folder, given.params, given.ranks, given.rounds, settings)
        n = after[0]["parameters"]
        plans = planned(given.folder, given.params, given.ranks, settings)
        rows = memory_rows(given.folder, n, watch, before, after, rest, plans) + speed_rows(n, after)
    finally:
        shutil.rmtree(given.folder, ignore_errors=True)
    show(rows)
    given.json.write_text(json.dumps({"name": "box", "machine": machine.describe(), "rows": rows}, indent=1) + "\n")
    print(given.json)


if __name__ == "__main__":
    main()
