"""atoll.launch and python -m atoll.join: one script on several machines, its ends, and wrong uses."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
import threading
import unittest
from pathlib import Path

import atoll
import rig

# Trains three numbers. Arguments: name, run folder, pause before each step, address to listen on.
SCRIPT = """
import sys, time
import numpy as np
import atoll

name, run, pause, listen = sys.argv[1:5]
target = atoll.launch(run, max_steps=20, every=5, batch_size=4, workers={workers}, listen=listen, codec_up="fp32",
                      **{{"codec.down": "fp32"}}, change={change})
print("target", target, flush=True)
data = np.random.default_rng(3).normal(size=(64, 3)).astype(np.float32)
w = np.zeros(3, np.float32)
with atoll.Worker({{"w": w}}, join=target, name=name) as worker:
    for x in atoll.batches(data, worker, batch_size=4, collate_fn=np.stack):
        w -= 0.05 * (w - x.mean(0))
        time.sleep(float(pause))
        worker.step(loss=float((w**2).sum()))
print("done", worker.done, worker.info().theta_hash)
"""
LOOPBACK = "tcp://127.0.0.1:*"


class LaunchTest(rig.RunTest):
    def launch(self, name: str, *, workers: int = 1, pause: float = 0, listen: str = LOOPBACK,
               change: dict | None = None, **environment: str) -> subprocess.Popen:
        """Starts the script as the first machine would."""
        script = SCRIPT.format(workers=workers, change=change)
        return self.start_script(script, name, str(self.run_dir), str(pause), listen, **environment)

    def join(self, word: str, name: str, stdin: str | None = None, script: str = "w0.py") -> subprocess.Popen:
        """Starts the script of w0 through atoll.join, as another machine would."""
        command = [sys.executable, "-m", "atoll.join", word, script, name, "unused", "0", LOOPBACK]
        with open(self.folder / f"{name}.log", "ab") as out:
            p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out, cwd=self.folder, text=True)
        self.processes.append(p)
        p.stdin.write(stdin or "")
        p.stdin.close()
        return p

    def wait_for_address(self) -> str:
        """Waits until the coordinator listens; returns the join line."""
        address = self.run_dir / "address"
        rig.wait_for(20, "the address", address.exists)
        return address.read_text().splitlines()[-1]

    def coordinators(self) -> list[int]:
        """Process ids of the coordinators of this test's run folder."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"/atoll-coordinator") and f"--dir={self.run_dir}".encode() in words:
                found.append(int(entry.name))
        return found

    def wait_for_end(self) -> None:
        rig.wait_for(30, "the coordinator to end", lambda: not self.coordinators())

    def test_two_machines_train_one_run(self) -> None:
        first = self.launch("w0", workers=2)
        line = self.wait_for_address()
        second = self.join("-", "w1", stdin=line + "\n")
        self.finish(first)
        self.finish(second)
        self.wait_for_end()
        done = f"done True {self.summary()['theta_hash']}"
        self.assertIn(done, self.log("w0"))
        self.assertIn(done, self.log("w1"))
        self.assertEqual((self.summary()["rounds"], self.summary()["workers"]), (4, 2))
        self.assertIn(f"target {self.run_dir}\n", self.log("w0"))
        self.assertFalse((self.folder / "unused").exists(), "the joined script started a coordinator")
        self.assertRegex((self.run_dir / "config.yaml").read_text(), r"(?s)codec:.* up: .?fp32.* down: .?fp32")

    def test_every_way_to_name_the_run(self) -> None:
        first = self.launch("w0", pause=0.2, listen="tcp://0.0.0.0:*")
        line = self.wait_for_address()
        (self.folder / "file").write_text(line + "\n")
        (self.folder / "file").chmod(0o600)
        (self.folder / "package").mkdir()
        (self.folder / "package" / "__main__.py").write_text(
            "import os, sys\nprint('run', os.environ['ATOLL_JOIN'], sys.argv[1:])\n"
            "print('command', open('/proc/self/cmdline').read().split('\\0'))\n"
        )
        for word, target in (
            (line, line),
            ("file", str(self.folder / "file")),
            (str(self.run_dir), str(self.run_dir)),
        ):
            command = [sys.executable, "-X", "utf8", "-m", "atoll.join", word, "-m", "package", "--lr", "1"]
            got = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=60)
            self.assertIn(f"run {target} ['--lr', '1']", got.stdout, got.stderr)
            shown = got.stdout.splitlines()[1]
            self.assertIn("'-X', 'utf8', '-m', 'package'", shown)
            self.assertNotIn(line.split("/")[-1], shown)
            self.assertEqual("list of processes" in got.stderr, word == line)
        self.kill(first)

    def test_killed_script_takes_its_coordinator_with_it_and_continues(self) -> None:
        first = self.launch("w0", pause=0.1)
        rig.wait_for(20, "a round", lambda: self.rounds() >= 1)
        self.assertEqual(len(self.coordinators()), 1)
        self.kill(first)
        self.wait_for_end()
        self.assertFalse((self.run_dir / "address").exists())
        self.finish(self.launch("w0"))
        self.assertEqual((self.summary()["rounds"], self.summary()["restarts"]), (4, 1))
        self.assertIn(f"done True {self.summary()['theta_hash']}", self.log("w0"))
        self.finish(self.launch("w0"))  # a finished run stays finished
        self.assertEqual(self.summary()["rounds"], 4)

    def test_interrupted_script_stops_its_coordinator(self) -> None:
        first = self.launch("w0", pause=0.1)
        rig.wait_for(20, "a round", lambda: self.rounds() >= 1)
        first.send_signal(signal.SIGINT)
        first.wait(20)
        self.assertFalse(self.coordinators())
        self.assertIn(f"stopped the coordinator of {self.run_dir}: run the script again to continue", self.log("w0"))
        self.finish(self.launch("w0"))
        self.assertEqual(self.summary()["rounds"], 4)

    def test_script_says_that_its_coordinator_ended(self) -> None:
        first = self.launch("w0", pause=0.1)
        rig.wait_for(20, "a round", lambda: self.rounds() >= 1)
        os.kill(self.coordinators()[0], signal.SIGKILL)
        text = f"the coordinator of {self.run_dir} ended with code -9"
        rig.wait_for(30, "the line", lambda: text in self.log("w0"))
        self.kill(first)
        self.finish(self.launch("w0"))
        self.assertEqual(self.summary()["rounds"], 4)

    def test_change_makes_a_finished_run_longer(self) -> None:
        steps = []
        for change in (None, {"train_max_steps": 40, "outer.momentum": 0.8}, None):
            self.finish(self.launch("w0", change=change))
            self.wait_for_end()
            steps.append(self.summary()["steps"])
        self.assertEqual(steps, [20, 40, 40])
        self.assertIn("momentum: 0.8", (self.run_dir / "config.yaml").read_text())

    def test_second_script_of_a_run_folder_joins_the_first(self) -> None:
        first = self.launch("w0", workers=2)
        self.wait_for_address()
        second = self.launch("w1", workers=2)
        self.finish(first)
        self.finish(second)
        self.assertIn(f"a coordinator already serves {self.run_dir}: this script joins it", self.log("w1"))
        self.assertEqual(self.summary()["workers"], 2)

    def test_only_a_terminal_sees_the_secret(self) -> None:
        first = self.launch("w0", pause=0.2, listen="tcp://0.0.0.0:*")
        line = self.wait_for_address()
        rig.wait_for(20, "the invitation", lambda: "join on another machine" in self.log("w0"))
        self.kill(first)
        self.wait_for_end()
        secret = line.split("/")[-1]
        self.assertNotIn(secret, self.log("w0"))
        self.assertIn(f"python -m atoll.join FILE {self.folder}/w0.py w0 {self.run_dir} 0.2", self.log("w0"))
        self.assertNotIn(secret, (self.run_dir / "logs" / "coordinator.log").read_text())

        master, slave = pty.openpty()
        command = [sys.executable, "w0.py", "w0", str(self.run_dir), "0", "tcp://0.0.0.0:*"]
        second = subprocess.Popen(command, cwd=self.folder, stdout=slave, stderr=slave)
        self.processes.append(second)
        os.close(slave)
        shown = b""
        try:
            while chunk := os.read(master, 65536):
                shown += chunk
        except OSError:  # the script has ended
            pass
        os.close(master)
        self.finish(second)
        self.assertIn(f"python -m atoll.join '{line}' w0.py w0 {self.run_dir} 0 ", shown.decode())

    def test_command_for_other_machines_repeats_torchrun(self) -> None:
        script = f"{self.folder}/w0.py w0 {self.run_dir} 0 "
        for world, words in (
            ("8", "--standalone --nproc-per-node=8"),
            ("12", "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT --nproc-per-node=8"),
        ):
            with self.subTest(world=world):
                self.finish(self.launch("w0", TORCHELASTIC_RUN_ID="none", RANK="0", LOCAL_WORLD_SIZE="8",
                                        WORLD_SIZE=world))
                self.assertIn(f"python -m atoll.join {self.run_dir} -m torch.distributed.run {words} {script}",
                              self.log("w0"))
                self.assertEqual("2 machines join as one worker" in self.log("w0"), world == "12")

    def test_printed_command_starts_torchrun(self) -> None:
        """A stand-in for torch.distributed.run shows its words and the run to join."""
        place = self.folder / "torch" / "distributed"
        place.mkdir(parents=True)
        for package in (place.parent, place):
            (package / "__init__.py").touch()
        (place / "run.py").write_text("import os, sys\nprint(os.environ['ATOLL_JOIN'], sys.argv[1:])\n")
        first = self.launch("w0", pause=0.2, TORCHELASTIC_RUN_ID="none", RANK="0", LOCAL_WORLD_SIZE="2",
                            WORLD_SIZE="2")
        rig.wait_for(20, "the invitation", lambda: "join on this machine with: " in self.log("w0"))
        printed = self.log("w0").split("join on this machine with: ")[1].splitlines()[0]
        self.assertEqual(shlex.split(printed)[0], "python")
        command = [sys.executable, *shlex.split(printed)[1:]]
        got = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=60)
        words = ["--standalone", "--nproc-per-node=2", f"{self.folder}/w0.py", "w0", str(self.run_dir), "0.2", LOOPBACK]
        self.assertEqual(got.stdout, f"{self.run_dir} {words}\n", got.stderr)
        self.kill(first)

    def test_wrong_uses_of_launch_are_one_line(self) -> None:
        cases = (
            (dict(max_steps=0), "train.max_steps"),
            (dict(max_steps=10), "train.sync_every: 30 exceeds train.max_steps = 10: no round would end; nearest: 10"),
            (dict(max_steps=30, method="fedavg"), "atoll.launch: train.method: \"fedavg\" is not a choice"),
            (dict(max_steps=30, codec_upp="fp32"), "unknown option --codec.upp; the nearest is --codec.up"),
            (dict(max_steps=30, listen="127.0.0.1"), "127.0.0.1"),
        )
        for options, text in cases:
            with self.assertRaises(atoll.InvalidError) as caught:
                atoll.launch(self.folder / "wrong", **options)
            self.assertIn(text, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))
            self.assertFalse((self.folder / "wrong").exists())
        with self.assertRaisesRegex(TypeError, "max_steps"):
            atoll.launch(self.folder / "wrong")
        (self.folder / "data").mkdir()
        (self.folder / "data" / "meta.json").write_text("{}")
        with self.assertRaisesRegex(atoll.InvalidError, "contains meta.json but no run"):
            atoll.launch(self.folder / "data", max_steps=30)
        (self.folder / "run").write_text("a script, as in the root of Atoll's sources")
        with self.assertRaisesRegex(atoll.InvalidError, "run is not a folder: give atoll.launch another run_dir"):
            atoll.launch(self.folder / "run", max_steps=30)
        raised: list[BaseException] = []

        def in_thread() -> None:
            try:
                atoll.launch(self.folder / "wrong", max_steps=30)
            except atoll.Error as error:
                raised.append(error)

        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
        self.assertIn("call atoll.launch() in the main thread", str(raised[0]))

    def test_wrong_uses_of_join_are_one_line(self) -> None:
        (self.folder / "w0.py").write_text("raise SystemExit('it ran')")
        (self.folder / "text").write_text("no line\n")
        key = "0123456789abcdef" * 4
        cases = (
            ([], "the join line is missing: python -m atoll.join LINE SCRIPT.py"),
            (["--nam", "w0.py"], "unknown option --nam: python -m atoll.join --help"),
            (["text"], "the script is missing: python -m atoll.join LINE SCRIPT.py"),
            (["text", "-m"], "the script is missing: python -m atoll.join LINE SCRIPT.py"),
            (["text", "w1.py"], "there is no script w1.py: give the join line first, then the script"),
            (["w0.py", f"tcp://h:1/{key}"], "there is no script tcp://h:1/...: give the join line first, then the "
             "script"),
            (["text", "w0.py"], "the first line of text is no join line: copy the whole line, "
             "tcp://HOST:PORT/SERVERKEY/SECRET"),
            (["tcp://h:1/abc", "w0.py"], "the argument is no join line: copy the whole line, "
             "tcp://HOST:PORT/SERVERKEY/SECRET"),
            ([f"tcp:/h:1/{key}/{key}", "w0.py"], "tcp:/h:1/...: no such file or folder, and no join line: write "
             "tcp://HOST:PORT/SERVERKEY/SECRET"),
            (["-", "w0.py"], "the first line of standard input is no join line: copy the whole line, "
             "tcp://HOST:PORT/SERVERKEY/SECRET"),
        )  # fmt: skip
        for words, text in cases:
            command = [sys.executable, "-m", "atoll.join", *words]
            got = subprocess.run(command, cwd=self.folder, input="", capture_output=True, text=True, timeout=60)
            self.assertEqual((got.returncode, got.stdout, got.stderr), (2, "", f"atoll: {text}\n"))

    def test_other_ranks_start_nothing(self) -> None:
        os.environ["RANK"] = "1"
        self.addCleanup(os.environ.pop, "RANK")
        self.assertEqual(atoll.launch(self.folder / "other", max_steps=30), str(self.folder / "other"))
        self.assertFalse((self.folder / "other").exists())


if __name__ == "__main__":
    unittest.main()
