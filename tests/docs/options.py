"""Words of a command line that a program does not know: verbs, options, keys, benchmarks, tests."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

PROGRAMS = ("atoll", "atoll-coordinator", "atoll-worker", "./run")
PACKAGE = ("prepare", "generate", "board", "compare", "report")  # verbs of python/atoll
HAVE_SUBVERBS = ("codec", "config")


def simple_commands(line: str) -> list[list[str]]:
    """The commands of a shell line: what stands between |, &&, ; and parentheses, as words without redirections."""
    if re.search(r"\[[^]]*\|", line):  # a synopsis: [A | B]
        line = re.sub(r"[][|]", " ", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    try:
        for word in lexer:
            if set(word) <= set("();<>|&"):
                found.append([])
            else:
                found[-1].append(word.strip("[]"))
    except ValueError:  # an open quote
        found = [line.split()]
    return [words for words in found if words]


def is_placeholder(word: str) -> bool:
    """NAME, FILE..., N: a word that the reader replaces."""
    return re.fullmatch(r"[A-Z][A-Z_]*(\.\.\.)?", word) is not None


class Programs:
    """The words that the programs in `bin` and the package of the tree `root` know."""

    def __init__(self, root: Path, bin_folder: Path) -> None:
        self.root, self.bin = root, bin_folder

    def _output(self, *words: str | Path, **environment: str) -> str:
        ran = subprocess.run([str(word) for word in words], env={**os.environ, **environment}, cwd=self.root, text=True,
                             stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return ran.stdout if ran.returncode == 0 else ""

    @cache
    def words(self, *command: str) -> frozenset[str]:
        """Verbs and options of `atoll`, of one of its verbs, or of another program; a key as `--train.method`."""
        text = self._output(self.bin / command[0], *command[1:], "--help=words")
        if command[0] == "atoll" and command[-1] in PACKAGE:
            code = f"import sys; from atoll.{command[-1]} import main; sys.exit(main(['--help=words']))"
            where = {"PYTHONPATH": str(self.root / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
            pythons = (sys.executable, "/usr/bin/python3")  # one of them has NumPy, if any has
            text += next(filter(None, (self._output(python, "-c", code, **where) for python in pythons)), "")
        return frozenset(line.split("\t")[0].rstrip("=") for line in text.splitlines())

    @cache
    def keys(self) -> frozenset[str]:
        return frozenset(re.findall(r"^  ([a-z]+\.[a-z_]+) ", self._output(self.bin / "atoll", "config", "help"), re.M))

    @cache
    def run_verbs(self) -> dict[str, str]:
        """The verbs of ./run, each with its lines of the help."""
        verbs: dict[str, str] = {}
        verb = ""
        for line in self._output("./run", "help").splitlines():
            named = re.match(r"\./run (\w+)", line)
            verb = named[1] if named else verb
            verbs[verb] = verbs.get(verb, "") + line
        return verbs

    @cache
    def listed(self, verb: str) -> frozenset[str]:
        """Benchmarks or fuzzers."""
        return frozenset(self._output("./run", verb).split())

    @cache
    def tests(self) -> tuple[str, ...]:
        """Names of the tests; none if CMake has not configured the build of the programs."""
        listing = self.bin.parent / "test_targets.txt"
        return tuple(line.split()[0] for line in listing.read_text().splitlines()) if listing.exists() else ()

    # ---- checks: each gives the problems of one command -------------------------------------------------------------

    def _of_run(self, words: list[str]) -> list[str]:
        if len(words) < 2:
            return []
        verb, rest = words[1], words[2:]
        if verb not in self.run_verbs():
            return [f"./run has no verb {verb}"]
        names = [word for word in rest if not word.startswith("-") and not is_placeholder(word)]
        if verb in ("bench", "fuzz"):
            name = names[0].split(":")[0] if names else ""
            return [f"./run {verb} does not list {name}"] if name and name not in self.listed(verb) else []
        problems = [f"./run {verb} has no option {word}" for word in rest
                    if word.startswith("--") and word not in self.run_verbs()[verb]]
        if verb == "test" and self.tests():
            filters = [each for name in names for each in self._alternatives(name)]
            problems += [f"no test matches {each}" for each in filters
                         if not any(re.search(each, test) for test in self.tests())]
        return problems

    @staticmethod
    def _alternatives(pattern: str) -> list[str]:
        """^test_(a|b) is ^test_a and ^test_b."""
        group = re.fullmatch(r"([^()|]*)\(([^()]*)\)([^()|]*)", pattern)
        return [group[1] + each + group[3] for each in group[2].split("|")] if group else pattern.split("|")

    def _of_program(self, words: list[str]) -> list[str]:
        command = [words[0]]
        if words[0] == "atoll" and len(words) > 1 and not words[1].startswith("-"):
            if is_placeholder(words[1]) and words[1] not in self.words("atoll"):
                return []
            if words[1] not in self.words("atoll"):
                return [f"atoll has no verb {words[1]}"]
            command = words[:2]
        name = " ".join(command)
        if command[-1] in HAVE_SUBVERBS and len(words) > 2 and words[2].isalpha() and words[2].islower():
            if not re.search(rf"\b{words[2]}\b", self._output(self.bin / "atoll", command[-1], "--help")):
                return [f"{name} has no verb {words[2]}"]
        known = self.words(*command) | {"--help", "--version"}
        options = [word.split("=")[0] for word in words if word.startswith("--") and word != "--"]
        problems = [f"{name} has no option {option}" for option in options if option not in known]
        changed = [after.split("=")[0] for word, after in zip(words, words[1:]) if word == "--change"]
        return problems + [f"there is no key {key}" for key in changed if key not in self.keys()]

    def problems(self, line: str) -> list[str]:
        """What is wrong with a shell line; it is not run."""
        found: list[str] = []
        for words in simple_commands(line):
            starts = [i for i, word in enumerate(words) if word in PROGRAMS]
            if starts:  # also behind `ssh BOX` and the like
                words = words[starts[0]:]
                found += self._of_run(words) if words[0] == "./run" else self._of_program(words)
        return found

    def key_problems(self, span: str) -> list[str]:
        """A span such as `train.method` or `coordinator.*` that names no key, although its section exists."""
        named = re.fullmatch(r"-{0,2}([a-z]+)\.([a-z_]+|\*)([:=].*)?", span)
        sections = {key.split(".")[0] for key in self.keys()}
        if not named or named[1] not in sections or named[2] in ("*", "c", "h", "yaml", "jsonl", "md", "safetensors"):
            return []
        key = f"{named[1]}.{named[2]}"
        return [] if key in self.keys() else [f"there is no key {key}"]
