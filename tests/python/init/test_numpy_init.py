"""atoll init: as a new user with two machines, for a script, and its refusals."""

from __future__ import annotations

import re
import subprocess
import time

from init_case import ROUND, InitCase, free_port, machines_of


class InitTest(InitCase):
    def test_new_user_with_two_machines(self) -> None:
        """Two folders are the two machines. From the first question to the first joint round."""
        begin = time.monotonic()
        code, text = self.at_terminal(["mine", f"--port={free_port()}"], ["novel.txt", "", "2", "", "10min"])
        self.assertEqual(code, 0, text)
        self.assertEqual(len(re.findall(r"^\d\. ", text, re.M)), 5, text)
        planned = time.monotonic() - begin
        first, second = self.dir, self.dir / "second"
        second.mkdir()
        commands = list(machines_of(text).values())
        self.assertEqual(len(commands), 4, text)
        coordinator, worker, other, status = commands
        self.start(" && ".join(coordinator), first)
        self.wait_for(first / "mine/run/address", re.compile("tcp://"))
        self.start(" && ".join(worker), first)
        copy = "cp -r ../mine/data data && (umask 077; tail -n 1 ../mine/run/address >join)"
        subprocess.run(["bash", "-c", copy], cwd=second, check=True)
        self.start(" && ".join(other), second)
        self.wait_for(first / "mine/run/metrics.jsonl", ROUND)
        seconds = time.monotonic() - begin
        events = (first / "mine/run/metrics.jsonl").read_text()
        self.assertIn('"delivered":2', events.replace(" ", ""))
        shown = subprocess.run(["bash", "-c", " && ".join(status[:2]).replace(" --watch", "")], cwd=first, env=self.env,
                               capture_output=True, text=True)
        self.assertIn("machine-2", shown.stdout)
        print(f"\nquestions and plan {planned:.1f} s, first joint round after {seconds:.1f} s")
        self.assertLess(seconds, 300)
        self.assertIn("max_steps", self.check_config(first / "mine"))

    def test_wrong_answer_comes_again(self) -> None:
        """Data is read as by a shell; a wrong answer costs only its own question."""
        (self.dir / "a part.txt").write_text("a cat sat. " * 4000)
        answers = ["nothing.txt", "'a part.txt' nov*.txt", "huge", "", "0", "2", "fast", "", "soon", "10min"]
        code, text = self.at_terminal(["mine"], answers)
        self.assertEqual(code, 0, text)
        self.assertEqual(re.findall(r"^(\d)\. ", text, re.M), list("1122334455"), text)
        self.assertIn(f"atoll prepare data '{self.dir.resolve()}/a part.txt' {self.dir.resolve()}/novel.txt\n", text)

    def test_script_gets_three_lines(self) -> None:
        (self.dir / "train.py").write_text("")
        done = self.init("--model=train.py", "--machines=2")
        self.assertIn('run = atoll.launch("runs/mine"', done.stdout)
        self.assertIn("\n    python train.py\n", done.stdout)
        self.assertIn("\n    python -m atoll.join join train.py\n", done.stdout)
        self.assertFalse((self.dir / "run.yaml").exists())

    def test_wrong_answers_are_one_line(self) -> None:
        for words, text in (
            (["--data=nowhere"], "cannot find nowhere: No such file or directory"),
            (["--data=."], "--data: . holds no train_*.bin: give text files, or a folder that atoll prepare made"),
            (["--data=novel.txt", "--model=huge"], "--model is 'huge': give tiny, small, gpt2, a Hugging Face folder or"
             " a PyTorch script (.py)"),
            (["--data=novel.txt", "--machines=0"], "--machines is 0: give 1 to 256"),
            (["--data=novel.txt", "--budget=fast"],
             "--budget is 'fast': give hours, traffic or both: 2h, 30min, 10GB, 2h,10GB"),
        ):
            done = self.init("new", *words, code=2)
            self.assertEqual(done.stderr, f"atoll: {text}\n")
            self.assertFalse((self.dir / "new").exists())
