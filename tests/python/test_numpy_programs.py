"""The commands that become the programs of the package, with a program that prints what it got."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

from folder import FolderTest

FAKE = "#!/bin/sh\nprintf '%s\\n' \"$0\" \"$*\" \"$PATH\"\nexit 75\n"


class Programs(FolderTest):
    def program(self, folder: str, name: str) -> Path:
        path = self.dir / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(FAKE)
        path.chmod(0o755)
        return path

    def command(self, function: str, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Runs a command of the package as the script `scripts/COMMAND`."""
        script = self.dir / "scripts" / "atoll"
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!{sys.executable}\nfrom atoll.programs import {function}\n{function}()\n")
        script.chmod(0o755)
        return subprocess.run([script, *words], env={**os.environ, **environment}, capture_output=True, text=True)

    def test_it_becomes_the_program(self) -> None:
        path = self.program("bin", "atoll-worker")
        got = self.command("worker", "--join", "a b", ATOLL_BIN=str(path.parent))
        self.assertEqual(got.returncode, 75, got.stderr)
        self.assertEqual(got.stdout.splitlines()[:2], [str(path), "--join a b"])

    def test_a_verb_is_searched_beside_the_command_first(self) -> None:
        path = self.program("bin", "atoll")
        got = self.command("atoll", "board", ATOLL_BIN=str(path.parent), PATH="/usr/bin:/bin")
        self.assertEqual(got.stdout.splitlines()[2], f"{self.dir}/scripts:/usr/bin:/bin")

    def test_a_missing_program_is_one_line(self) -> None:
        empty = self.dir / "empty"
        empty.mkdir()
        got = self.command("coordinator", ATOLL_BIN=str(empty))
        self.assertEqual(got.returncode, 1)
        self.assertRegex(got.stderr, r"^atoll: atoll-coordinator is not in .*empty.*\n$")

    def test_a_command_never_runs_itself(self) -> None:
        (self.dir / "scripts").mkdir()
        got = self.command("atoll", ATOLL_BIN=str(self.dir / "scripts"))
        self.assertEqual(got.returncode, 1)
        self.assertRegex(got.stderr, r"^atoll: the package lacks the program atoll: .*\n$")


if __name__ == "__main__":
    unittest.main()
