"""atoll init: without a terminal, with one machine, and with a measured link."""

# ctest: labels=long
from __future__ import annotations

import re
import subprocess

from init_case import BIN, ROUND, InitCase, machines_of


class InitLongTest(InitCase):
    def test_one_machine(self) -> None:
        done = self.init("one", "--data=novel.txt", "--machines=1", "--model=tiny", "--budget=20MB")
        self.assertNotIn("taken without a question", done.stderr)
        self.assertIn("budget of traffic", done.stdout)
        run, _ = machines_of(done.stdout).values()
        self.start(" && ".join(run), self.dir)
        self.wait_for(self.dir / "one/run/metrics.jsonl", ROUND)
        self.check_config(self.dir / "one")

    def test_defaults_are_said_and_data_is_needed(self) -> None:
        refused = self.init("none", code=2)
        self.assertEqual(refused.stderr,
                         "atoll: --data is missing: give text files, or a folder that atoll prepare made\n")
        self.assertFalse((self.dir / "none").exists())
        subprocess.run([BIN / "atoll", "prepare", "data", "novel.txt"], cwd=self.dir, check=True, capture_output=True)
        done = self.init("--data", "data", "--machines", "box1,box2")
        self.assertIn("taken without a question: --model tiny, --link 100mbit,rtt=30ms, --budget 1h\n", done.stderr)
        self.assertIn("ssh box2 'umask 077; cat > join'", done.stdout)
        self.assertNotIn("atoll prepare", done.stdout)
        self.assertIn(f'"{self.dir.resolve()}/data/train_*.bin"', self.check_config(self.dir))
        before = (self.dir / "run.yaml").read_bytes()
        again = self.init("--data", "data", code=1)
        self.assertEqual(again.stderr, "atoll: ./run.yaml exists: give another folder, atoll init DIR\n")
        self.assertEqual((self.dir / "run.yaml").read_bytes(), before)

    def test_link_is_measured(self) -> None:
        """The join line of a running coordinator in place of a SPEC."""
        config = self.dir / "run.yaml"
        config.write_text('data: {train: "x"}\ncoordinator: {listen: "tcp://127.0.0.1:*"}\n')
        self.start("atoll-coordinator run.yaml --dir run", self.dir)
        self.wait_for(self.dir / "run/address", re.compile("tcp://"))
        done = self.init("mine", "--data=novel.txt", "--link=run", "--budget=1min")
        self.assertIn("measuring the link\n", done.stderr)
