"""One call of tests/gpu/run: calls programs with time limits, runs all sections even if some fail, and keeps the file
of results up to date."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time

import libraries
import programs

STARTED = time.monotonic()


class Failed(Exception):
    output = "" # the whole output of the program


class OutOfTime(Failed):
    """The time of an item, its section or the whole run is over; Run.over() tells the whole run apart."""


class Stopped(Failed):
    pass


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError: # the group has ended
        pass
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired: # it hangs in the driver, which blocks signals
        pass


def with_hint(line, output, env):
    """The line of an error, with a hint if the machine shows less memory than it has."""
    if "of the host's memory" in output and not env.get("ATOLL_HOST_MEMORY"):
        return line + " (set ATOLL_HOST_MEMORY=BYTES if the machine has more: docs/gpu.md)"
    return line


class Watchdog:
    """Kills a process group after a time limit."""

    def __init__(self, process, seconds):
        self.fired = False
        self.process = process
        self.timer = threading.Timer(seconds, self.fire)
        self.timer.daemon = True
        self.timer.start()

    def fire(self):
        self.fired = True
        end_group(self.process)

    def stop(self):
        self.timer.cancel()


class Run:
    def __init__(self, args):
        self.args = args
        self.emulated = args.emulated
        # The working directory of the programs is not that of the caller.
        self.bin = os.path.abspath(args.bin or os.path.join(programs.BUILD, "bin"))
        self.out = os.path.abspath(args.out or os.path.join(programs.BUILD, "gpu", "results.json"))
        packed = os.path.dirname(self.bin)
        self.cwd = packed if os.path.isdir(os.path.join(packed, programs.GOLDEN)) else programs.ROOT
        self.device = "cuda:0"
        self.seconds = 0.02 if self.emulated else 0.5
        self.deadline = STARTED + args.minutes * 60
        self.item_until = self.deadline
        self.stopped = 0 # the number of a signal
        self.starting = False
        self.until = self.deadline
        self.results = {"emulated": self.emulated, "sections": self.earlier() if args.only else {}}
        self.ran = []
        self.env = dict(os.environ)
        if self.emulated:
            self.env["ATOLL_CUDA_PLUGIN"] = os.path.join(self.bin, "atoll_cuda_emulated.so")
            self.env.setdefault("ATOLL_EMULATED_GPUS", "2") # for the section ranks
        else:
            self.folders = libraries.cuda_folders(self.bin, self.env)
            self.env["LD_LIBRARY_PATH"] = ":".join(self.folders + [self.env.get("LD_LIBRARY_PATH", "")]).strip(":")
            # All programs of this run share their timed algorithms; older timings do not count.
            self.env.setdefault("ATOLL_ALGO_CACHE", self.out + ".algorithms")
        for name in programs.targets(self.emulated): # a copy may have lost the executable bit
            path = os.path.join(self.bin, name)
            try:
                if not os.access(path, os.X_OK):
                    os.chmod(path, 0o755)
            except OSError: # the call of a missing program reports the error
                pass

    def earlier(self):
        """The sections of an earlier call: they stay unless this call runs them again."""
        try:
            with open(self.out, encoding="utf-8") as file:
                results = json.load(file)
            return results["sections"] if results["emulated"] == self.emulated else {}
        except (OSError, ValueError, LookupError, TypeError):
            return {}

    def forget_others(self, before, device):
        """Drop the sections of another device: one file holds the results of one device."""
        was = before.get("bf16", {}).get("device")
        if was == device:
            return
        others = [name for name in self.results["sections"] if name != "info"]
        for name in others:
            del self.results["sections"][name]
        if others:
            print(f"    dropped the results of {was} from {self.out}: {', '.join(others)}", flush=True)

    def stop(self, number, _frame):
        """Handler of signals: ends the run after writing its results. A second signal kills it at once."""
        signal.signal(number, signal.SIG_DFL)
        self.stopped = number
        self.deadline = time.monotonic()
        if not self.starting: # else child() raises it, when it knows the process that it must end
            raise Stopped(f"stopped by signal {number}")

    @contextlib.contextmanager
    def child(self, command, **more):
        """A program in a process group of its own, which ends with the block; then the GPU is free."""
        process, self.starting = None, True
        try:
            process = subprocess.Popen(command, cwd=self.cwd, stdout=subprocess.PIPE, text=True, errors="replace",
                                       start_new_session=True, **more)
            self.starting = False
            if self.stopped:
                raise Stopped(f"stopped by signal {self.stopped}")
            yield process
        finally:
            self.starting = False
            if process:
                end_group(process)

    def over(self):
        """Whether the time of the whole run is over: a timeout is no failure then."""
        return not self.stopped and time.monotonic() >= self.deadline

    def cut_short(self, entry, what):
        """Record that the run had no time for `what`."""
        entry["out_of_time"] = True
        entry.setdefault("no_time_for", []).append(f"{what}")

    def left(self):
        return max(1.0, min(self.until, self.deadline, self.item_until) - time.monotonic())

    def call(self, command, **more):
        """Run a program and return its output. Raises Failed with its error line, OutOfTime, or Stopped."""
        env = {**self.env, **more.pop("env", {})}
        given = more.pop("input", None)
        stdin = subprocess.PIPE if given is not None else subprocess.DEVNULL
        try:
            with self.child(command, env=env, stderr=subprocess.STDOUT, stdin=stdin, **more) as process:
                output, _ = process.communicate(given, timeout=self.left())
        except OSError as error:
            raise Failed(f"{command[0]}: {error.strerror}") from None
        except subprocess.TimeoutExpired as error:
            self.keep(command, "out of time", (error.output or b"").decode(errors="replace"))
            raise OutOfTime(f"{os.path.basename(command[0])}: out of time") from None
        if process.returncode:
            self.keep(command, f"exit {process.returncode}", output)
            lines = [line for line in output.splitlines() if line.strip()]
            own = os.path.basename(command[0]) + ": " # prefix of the error line of Atoll's programs
            why = [line for line in lines if "ERROR" in line or line.startswith(own)][:1] or \
                [line for line in lines if ": " in line][:1] or lines[-1:] or ["no output"]
            error = Failed(f"{os.path.basename(command[0])} {' '.join(command[1:3])}: exit {process.returncode}: "
                           f"{with_hint(why[0][:300], output, env)}")
            error.output = output
            raise error
        return output

    def keep(self, command, why, output):
        """Append the whole output of a failed program to OUT.failed; the JSON has one line of it."""
        try:
            with open(self.out + ".failed", "a", encoding="utf-8", errors="replace") as file:
                file.write(f"--- {' '.join(str(word) for word in command)}: {why}\n{output}\n")
        except OSError: # the JSON still has its line
            pass

    def bench(self, *words, env=None):
        out = self.call([os.path.join(self.bin, "bench_gpu")] + [str(word) for word in words], env=env or {})
        return json.loads([line for line in out.splitlines() if line.startswith("{")][-1])

    def section(self, name, budget, body):
        if self.args.only and name not in self.args.only + ["info"]: # info always runs: it names the device
            return
        start = time.monotonic()
        self.until = start + budget
        self.item_until = self.until
        entry = {"ok": False, "errors": []} # until the section ends
        self.before = self.results["sections"].get(name, {})
        self.results["sections"][name] = entry
        self.ran.append(name)
        try:
            if self.deadline - start < 2:
                self.cut_short(entry, name)
            else:
                body(self, entry)
        except Exception as error: # the next section must run after any error
            if isinstance(error, OutOfTime) and self.over():
                self.cut_short(entry, error)
            else:
                entry["errors"].append(f"{error}" if isinstance(error, Failed) else f"{type(error).__name__}: {error}")
        entry["ok"] = False if entry["errors"] else None if entry.get("out_of_time") else True
        entry["seconds"] = round(time.monotonic() - start, 2)
        state = {True: "ok", False: "FAILED", None: "out of time"}[entry["ok"]]
        print(f"{name}: {state} in {entry['seconds']} s", flush=True)
        for error in entry["errors"]:
            print(f"    {error}", flush=True)
        if entry.get("out_of_time"):
            print(f"    the time of the run is over, no time for {'; '.join(entry['no_time_for'])}", flush=True)
        self.save()

    def save(self):
        try:
            self.write()
        except OSError as error: # the disk may have space again after the next section
            print(f"tests/gpu/run: cannot write {self.out}: {error.strerror}", flush=True)

    def write(self):
        os.makedirs(os.path.dirname(self.out), exist_ok=True)
        with open(self.out + ".new", "w", encoding="utf-8") as file:
            json.dump(self.results, file, indent=1)
            file.write("\n")
        os.replace(self.out + ".new", self.out)

    def each(self, entry, key, items, body):
        """Append body(item) of every item to entry[key]. A failed item is recorded and the next one runs. An item has
        three times its share of the section's remaining time, so that a hang leaves time for the others. The results
        are saved after each item, because the machine may be reclaimed at any time."""
        entry[key] = []
        for i, item in enumerate(items):
            now = time.monotonic()
            left = min(self.until, self.deadline) - now
            if left < 1:
                rest = ", ".join(str(item) for item in list(items)[i:])
                if not self.stopped and self.deadline <= self.until:
                    self.cut_short(entry, f"{key} {rest}")
                else:
                    entry["errors"].append(f"{key}: no time for {rest}")
                break
            self.item_until = now + max(5, 3 * left / (len(items) - i))
            try:
                entry[key].append(body(item))
            except Stopped:
                raise
            except (Failed, ValueError, LookupError, TypeError) as error:
                if isinstance(error, OutOfTime) and self.over():
                    self.cut_short(entry, f"{key} {item}")
                else:
                    entry["errors"].append(f"{key} {item}: {error or type(error).__name__}")
            self.save()
        self.item_until = self.until
