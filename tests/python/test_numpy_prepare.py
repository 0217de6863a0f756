"""atoll-prepare with bytes as tokens: the same files as `atoll prepare` in C, more inputs, and what it refuses."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path
from unittest import mock

import numpy as np

from folder import FolderTest

from atoll.data import cmd as prepare, input as prepare_input, shards

# Fraction held out, how, and the start of the SHA-256 of the shards.
RECORDED = (("0.06", "tails", "36904cd07289dc53"), ("0.3", "documents", "a4803278e339be3e"),
            ("0", "tails", "762bb25bfd24125b"))
ATOLL = Path(os.environ.get("ATOLL_BIN", "build/bin")).resolve() / "atoll"


def words_of(random_: random.Random, n: int) -> str:
    """Text with characters of one to four bytes."""
    return " ".join(random_.choice(["tide", "boat", "für", "日本", "😀", "x\ny", "0"]) for _ in range(n))


class PrepareTest(FolderTest):
    def wait_for(self, pattern: str, process: subprocess.Popen[bytes]) -> None:
        """Waits for a file that the program makes."""
        until = time.monotonic() + 30
        while not list(self.dir.glob(pattern)):
            self.assertIsNone(process.poll(), "the program ended early")
            self.assertLess(time.monotonic(), until, f"no file {pattern}")
            time.sleep(0.02)

    def run_c(self, *words: str, code: int = 0) -> str:
        """Runs the C program without the package; returns standard error."""
        env = {**os.environ, "PATH": "/usr/bin:/bin"}
        done = subprocess.run([str(ATOLL), "prepare", *words], cwd=self.dir, capture_output=True, env=env)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr.decode()

    def run_program(self, *words: str, code: int = 0, stdin: bytes = b"") -> tuple[str, str]:
        """Runs the Python program, in this process unless it needs more; returns its output and its errors."""
        if "--processes" not in words:
            words = (*words, "--processes", "1")
        return self.call(prepare.main, *words, code=code, stdin=stdin)

    def fails(self, line: str, *words: str, code: int = 2, stdin: bytes = b"") -> None:
        _, errors = self.run_program(*words, code=code, stdin=stdin)
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertRegex(errors, f"^atoll: {line}")

    def same(self, a: str, b: str) -> None:
        """Checks that two data sets have the same files with the same bytes."""
        names = sorted(os.listdir(self.dir / a))
        self.assertEqual(names, sorted(os.listdir(self.dir / b)))
        for name in names:
            self.assertEqual((self.dir / a / name).read_bytes(), (self.dir / b / name).read_bytes(), name)

    def tokens(self, out: str, name: str = "train") -> list[int]:
        paths = sorted((self.dir / out).glob(f"{name}_*.bin"))
        return [int(t) for path in paths for t in np.fromfile(path, "<u2", offset=1024)]

    def test_long_input_shows_progress(self) -> None:
        (self.dir / "a.txt").write_text("ab" * 50)
        with mock.patch.object(prepare, "BytesProgress", functools.partial(prepare.BytesProgress, every=0)):
            _, errors = self.run_program("out", "a.txt")
        first, second = errors.splitlines()
        self.assertRegex(first, r"^reading, pass 1 of 2: 100 B of 100 B, 100 %, \S+ [kM]?B/s, 0 s left$")
        self.assertRegex(second, "^encoding, pass 2 of 2: 100 B of 100 B, ")

    def test_same_as_c(self) -> None:
        """Texts: the C program writes the same files."""
        random_ = random.Random(5)
        folder = self.dir / "in" / "below"
        folder.mkdir(parents=True)
        (folder / "long.txt").write_bytes(b"\xef\xbb\xbf" + words_of(random_, 600_000).encode())  # several blocks
        (folder / "one.md").write_text("z")
        (folder / "bytes.txt").write_bytes(bytes(range(1, 256)) * 9)  # no UTF-8
        (folder / "empty.txt").write_text("")
        for i in range(40):
            (folder / f"{i}.txt").write_text(words_of(random_, i * 40))
        texts = [str(path) for path in sorted(folder.glob("*"))]
        cases = [(texts, "0.06", "--shard-tokens", "1000003"), (texts, "0.3", "--seed", "7"), (texts, "0")]
        for size in range(1, 9):  # tails of short texts
            (self.dir / f"short{size}.txt").write_bytes(b"a\nb\xc3\xa4\ncd"[:size])
            cases.append(([f"short{size}.txt"], "0.5"))
        for words in [(*inputs, "--val-fraction", *more) for inputs, *more in cases]:
            self.run_c("c", *words, "--force")
            self.run_program("python", *words, "--force")
            self.same("c", "python")

    def test_lines(self) -> None:
        """Documents in lines, as the C program wrote them before it left them to this one; also with two processes."""
        random_ = random.Random(5)
        with open(self.dir / "lines.jsonl", "w", encoding="utf-8") as file:
            for i in range(150):
                line = json.dumps({"text": words_of(random_, i * 40), "n": i}, ensure_ascii=i % 2 == 0)
                file.write(line + "\n\n"[i % 2 :])
        for fraction, held_out, want in RECORDED:
            for n in ("1", "2"):
                self.run_program("out", "lines.jsonl", "--val-fraction", fraction, "--force", "--processes", n)
                found = hashlib.sha256()
                for path in sorted((self.dir / "out").glob("*.bin")):
                    found.update(path.read_bytes())
                self.assertEqual(found.hexdigest()[:16], want)
                self.assertEqual(json.loads((self.dir / "out/meta.json").read_text())["held_out"], held_out)

    def test_permutation(self) -> None:
        for n in (1, 2, 3, 64, 65, 1000, 4097):
            k = np.arange(n, dtype=np.uint64)
            mapped = shards.permute(3, 1, k, n)
            self.assertEqual(sorted(mapped.tolist()), k.tolist())
        self.assertNotEqual(shards.permute(3, 1, k, n).tolist(), shards.permute(4, 1, k, n).tolist())

    def test_cuts(self) -> None:
        """A part of a long text ends between a letter and a blank, else at a line end, else between characters."""
        for data, want in (
            (b"ab cd ef", 5),
            (b"ab\ncd", 3),
            ("日本".encode()[:5], 3),
            ("日本".encode(), 6),
            (b"\x80" * 9, 9),
        ):
            self.assertEqual(prepare_input.cut_of(data), want, data)

    def test_lines_and_folders(self) -> None:
        """The documents of jsonl files and folders are those of text files."""
        random_ = random.Random(6)
        folder = self.dir / "in"
        folder.mkdir()
        texts = [words_of(random_, i * 4 + 1) for i in range(50)]
        for i, text in enumerate(texts):
            (folder / f"{i:02}.txt").write_text(text, encoding="utf-8")
        lines = [json.dumps({"text": text, "n": i}, ensure_ascii=i % 2 == 0) for i, text in enumerate(texts)]
        (self.dir / "lines.jsonl").write_text("\ufeff" + "\n\n".join(lines), encoding="utf-8")
        self.run_c("files", *(f"in/{i:02}.txt" for i in range(50)), "--val-fraction", "0.3")
        for name, source in (("folder", "in"), ("lines", "lines.jsonl")):
            self.run_program(name, source, "--val-fraction", "0.3")
            self.same("files", name)

    def test_skipped(self) -> None:
        """What is left out of a folder is listed with the reason, and counted when the list is long."""
        folder = self.dir / "in"
        (folder / "below").mkdir(parents=True)
        (folder / "below" / "b.TXT").write_text("z")
        for name in (".hidden.txt", "c.TAR", "skip.bin"):
            (folder / name).touch()
        os.mkfifo(folder / "pipe")
        for name, target in (("again", "below"), ("below/up", ".."), ("gone.txt", "nowhere"), ("itself", "itself")):
            (folder / name).symlink_to(target)
        out, errors = self.run_program("out", "in", "--val-fraction", "0")
        self.assertEqual(self.tokens("out"), [0, 122])
        self.assertEqual(sorted(re.findall("skipped (.*)", errors)), [
            "in/.hidden.txt: hidden",
            "in/again/up: folder already read through another path",
            "in/below: folder already read through another path",
            "in/c.TAR: compressed or packed: unpack it first",
            "in/gone.txt: broken link",
            "in/itself: broken link",
            "in/pipe: neither a file nor a folder",
            "in/skip.bin: not a .txt, .md, .jsonl or .parquet file: convert it first"])  # fmt: skip
        self.assertRegex(out, "skipped +8  files and folders")
        for i in range(100, 131):
            (folder / f"{i}.csv").touch()
        _, errors = self.run_program("many", "in")
        self.assertEqual(len(re.findall("skipped in", errors)), 20)
        self.assertIn("skipped 19 more files and folders", errors)

    def test_compressed(self) -> None:
        text = "".join(json.dumps({"text": f"number {i}"}) + "\n" for i in range(3000)).encode()
        (self.dir / "plain.jsonl").write_bytes(text)
        with open(self.dir / "packed.jsonl.gz", "wb") as file:  # two members
            file.write(gzip.compress(text[:5000]) + gzip.compress(text[5000:]))
        self.run_program("a", "plain.jsonl")
        self.run_program("b", "packed.jsonl.gz")
        self.same("a", "b")
        self.run_program("c", "-", stdin=text)
        self.same("a", "c")
        self.run_program("d", "-", stdin=gzip.compress(text))
        self.same("a", "d")
        self.run_program("e", "-", stdin=b"no object\nlines")
        self.assertEqual(bytes(self.tokens("e") + self.tokens("e", "val")), b"\0no object\nlines")
        (self.dir / "torn.jsonl.gz").write_bytes(gzip.compress(text)[:-100])
        self.fails(r"torn\.jsonl\.gz is damaged: ", "f", "torn.jsonl.gz", code=1)
        self.assertFalse((self.dir / "f").exists())

    def test_left_out(self) -> None:
        lines = ['{"text":"a"}', '{"text":3}', "", '{"other":"x"}', '{"text":""}', "[1]", '{"text":"b"}']
        (self.dir / "some.jsonl").write_text("\n".join(lines))
        (self.dir / "empty.txt").write_text("")
        out, _ = self.run_program("out", "some.jsonl", "empty.txt", "--val-fraction", "0")
        self.assertEqual(self.tokens("out"), [0, 97, 0, 98])
        self.assertRegex(out, r'left out +3  lines or rows without a string "text"; the first: some.jsonl line 2\n')
        self.assertRegex(out, r"left out +2  empty documents; the first: some.jsonl line 5\n")
        (self.dir / "content.jsonl").write_text('{"id": 1, "content": "x"}\n')
        self.fails(
            r'1 lines or rows without a string "text", the first content.jsonl line 1: '
            r"name one of its fields with --field: id, content$", "no", "content.jsonl")  # fmt: skip
        self.run_program("field", "content.jsonl", "--field", "content", "--val-fraction", "0")
        self.assertEqual(self.tokens("field"), [0, 120])

    def test_folder_of_a_data_set(self) -> None:
        folder = self.dir / "set"
        folder.mkdir()
        for name in ("train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "test-00000-of-00001.jsonl"):
            (folder / name).write_text(json.dumps({"text": name[:2]}) + "\n")
        (folder / "README.md").write_text("# a data set")
        _, errors = self.run_program("out", "set", "--val-fraction", "0")
        self.assertEqual(bytes(self.tokens("out")), b"\0tr\0tr")
        self.assertIn("skipped set/README.md: describes the data set\n", errors)
        self.assertIn("skipped set/test-00000-of-00001.jsonl: of the split test", errors)

    def test_refusals(self) -> None:
        (self.dir / "a.txt").write_text("text")
        (self.dir / "zero.txt").write_bytes(b"ab\0c")
        (self.dir / "bad.jsonl").write_text('{"text":"a"}\nnonsense\n')
        (self.dir / "latin.jsonl").write_bytes(b'{"text":"\xe4"}\n')
        (self.dir / "set.tar.gz").write_bytes(gzip.compress(b"x"))
        os.mkdir(self.dir / "empty")
        self.fails("too few arguments: usage is atoll prepare OUT INPUT", "out")
        self.fails("unknown option --sed: did you mean --seed", "out", "a.txt", "--sed", "3")
        self.fails("--seed: 'x' is not a whole number from 0", "out", "a.txt", "--seed", "x")
        self.fails("--val-fraction: '0.7' is not a number from 0 to 0.5", "out", "a.txt", "--val-fraction=0.7")
        self.fails("cannot read the input nowhere: No such file", "out", "nowhere")
        self.fails("no text in empty: ", "out", "empty")
        self.fails("zero.txt is not text: byte 2 is zero", "out", "a.txt", "zero.txt")
        self.fails("bad.jsonl line 2 is not valid JSON", "out", "bad.jsonl")
        self.fails("latin.jsonl line 1 is not valid UTF-8", "out", "latin.jsonl")
        self.fails("set.tar.gz is an archive: unpack it first", "out", "set.tar.gz")
        self.fails("the input has no text: - has only empty documents", "out", "-")
        self.fails("--chat needs a tokenizer", "out", "a.txt", "--chat")
        self.assertFalse((self.dir / "out").exists())
        self.run_program("out", "a.txt")
        before = sorted(os.listdir(self.dir / "out"))
        self.fails("out exists and is not empty: choose a new folder, or .* --force", "out", "a.txt", code=1)
        self.fails("bad.jsonl line 2", "out", "bad.jsonl", "--force")
        self.assertEqual(sorted(os.listdir(self.dir / "out")), before)

    def test_force_replaces(self) -> None:
        (self.dir / "a.txt").write_text("text " * 200)
        self.run_program("out", "a.txt", "--shard-tokens", "256")
        self.assertEqual(len(list((self.dir / "out").glob("train_*.bin"))), 4)
        (self.dir / "out" / "notes").touch()
        self.run_program("out", "a.txt", "--force")
        self.assertEqual(
            sorted(os.listdir(self.dir / "out")), ["meta.json", "notes", "train_000000.bin", "val_000000.bin"]
        )

    def test_stopped(self) -> None:
        """After SIGTERM nothing is left; after SIGKILL the next run removes the rest, and no process stays."""
        (self.dir / "a.txt").write_text("text")
        command = [sys.executable, "-m", "atoll.prepare", "out/below", "-", "--processes", "2"]
        for number, code in ((signal.SIGTERM, 75), (signal.SIGKILL, -9)):
            with subprocess.Popen(command, cwd=self.dir, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                self.wait_for("out/below/set.tmp-*/input", process)
                process.send_signal(number)
                assert process.stdin and process.stderr
                errors = process.stderr.read().decode()
                process.stdin.close()
                self.assertEqual(process.wait(), code, errors)
            if code == 75:
                self.assertRegex(errors, "^atoll: stopped by a signal; the unfinished output is removed")
                self.assertFalse((self.dir / "out").exists())
        self.run_program("out/below", "a.txt")
        self.assertEqual(list(self.dir.glob("out/below/set.tmp-*")), [])

    def test_full_disk(self) -> None:
        (self.dir / "a.txt").write_text("text " * 9000)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, before)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
        self.fails("cannot write to out: File too large: make room", "out", "a.txt", code=1)
        self.assertFalse((self.dir / "out").exists())

    def test_two_writers(self) -> None:
        command = [sys.executable, "-m", "atoll.prepare", "out", "-"]
        (self.dir / "a.txt").write_text("text")
        with subprocess.Popen(command, cwd=self.dir, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            self.wait_for("out/set.tmp-*", process)
            self.fails("another program is writing to out: wait", "out", "a.txt", "--force", code=1)
            self.assertIn("another program is writing to out", self.run_c("out", "a.txt", "--force", code=1))
            process.communicate(b"some text")
            self.assertEqual(process.returncode, 0)


if __name__ == "__main__":
    unittest.main()
