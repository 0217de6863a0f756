"""What the command-line programs of the package share: one-line errors, exit codes, help, signals, whole files.

Exit codes are those of the C programs: 0 done, 1 failed, 2 wrong arguments, 75 stopped and resumable.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any, NoReturn

DONE, FAILED, USAGE, RESUMABLE = 0, 1, 2, 75


class Problem(Exception):
    """A failure with one line for the user: what is wrong, where, and what to do."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


class Stopped(BaseException):
    """A signal asked the program to end."""


def wrong(text: str) -> Problem:
    """A wrong argument, setting or input: exit code 2."""
    return Problem(text, USAGE)


# Libraries that ./run python installs, and by another name than they are imported.
_WITH_PACKAGE = ("matplotlib", "numpy", "yaml")
_WITH_ALL = ("accelerate", "datasets", "peft", "pyarrow", "tensorboard", "tokenizers", "torch", "transformers",
             "zstandard")
_PIP_NAMES = {"yaml": "PyYAML"}


def need_text(module: str, what: str) -> str:
    """What to install if `what` lacks a library."""
    verb = "./run python" if module in _WITH_PACKAGE else "./run python --all" if module in _WITH_ALL else ""
    installs = f"{verb} installs it, or: " if verb else ""
    return f"{what} needs the Python library {module}: {installs}pip install {_PIP_NAMES.get(module, module)}"


def need(module: str, what: str) -> Problem:
    """The error for a missing library."""
    return wrong(need_text(module, what))


def warn(text: str) -> None:
    """Writes a line to standard error, in the form of the C programs."""
    now = datetime.datetime.now().isoformat(" ", "milliseconds")
    sys.stderr.write(f"{now} warn: {clean(text)}\n")


def clean(text: str) -> str:
    """Replaces control characters, which a terminal obeys, in a name from a file or the command line."""
    return "".join(c if c.isprintable() else "?" for c in text)


def say(text: str) -> None:
    """Prints a line whose names come from files or the command line."""
    print(clean(text), flush=True)


# What a terminal obeys or hides: control characters but tab and newline, zero width, changes of direction, surrogates.
# common/base/text.c has the same list.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
                     "\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]")


def shown(text: str) -> str:
    """Puts U+FFFD in place of characters that a terminal obeys or hides. Tabs and newlines stay."""
    return _UNSEEN.sub("\ufffd", text)


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file as a whole, also if the machine stops meanwhile: then the old file stays."""
    temporary = f"{os.fspath(path)}.tmp"
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def version() -> str:
    try:
        return metadata.version("atoll")
    except metadata.PackageNotFoundError:
        return "of a source tree"


# --- arguments --------------------------------------------------------------------------------------------------------


class Options(argparse.ArgumentParser):
    """A command line as the C programs have it: errors of one line with the nearest name, `--help=words`."""

    def __init__(self, program: str, usage: str, about: str, exit_codes: str = "") -> None:
        super().__init__(
            prog=program,
            usage=f"{program} {usage}",
            description=about,
            epilog=exit_codes,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.add_argument("--help", "-h", action="help", help="this text")
        self.add_argument("--version", action="version", version=f"{program} {version()}", help="the version")

    def error(self, message: str) -> NoReturn:
        unknown, required = "unrecognized arguments: ", "the following arguments are required: "
        if message.startswith(unknown):
            raise wrong(self._unknown(message[len(unknown) :].split()[0]))
        if message.startswith(required):
            raise wrong(f"too few arguments: usage is {self.usage}")
        message = message.replace("argument --", "--").replace("argument ", "")
        raise wrong(message.replace(": expected one argument", " has no value"))

    def _unknown(self, word: str) -> str:
        name = word.split("=")[0]
        if not name.startswith("-"):
            return f"unexpected argument '{word}': usage is {self.usage}"
        names = [option for action in self._actions for option in action.option_strings]
        near = difflib.get_close_matches(name, names, 1)
        advice = f"did you mean {near[0]}? ({self.prog} --help lists all)" if near else f"{self.prog} --help lists all"
        return f"unknown option {name}: {advice}"

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parses the words behind the program's name; options and arguments may alternate."""
        if list(words) == ["--help=words"]:
            for action in self._actions:
                if action.option_strings:
                    print(f"{action.option_strings[0]}\t{action.help}")
            raise SystemExit(DONE)
        return self.parse_intermixed_args(words)


def real(low: float, high: float) -> Callable[[str], float]:
    """A type for add_argument: a number in [low, high]."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number from {low:g} to {high:g}")
        return value

    return convert


def whole(low: int, high: int) -> Callable[[str], int]:
    """A type for add_argument: a whole number in [low, high]."""

    def convert(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from {low} to {high}")
        return int(text)

    return convert


# --- signals ----------------------------------------------------------------------------------------------------------

_held = False
_caught = 0


def _on_signal(number: int, frame: Any) -> None:
    global _caught
    signal.signal(number, signal.SIG_DFL)  # a second signal ends the process
    _caught = number
    if not _held:
        raise Stopped


@contextmanager
def hold_signals() -> Iterator[None]:
    """Delays a signal to the end of the block, so that the block is not left half-way. Blocks may nest."""
    global _held
    before, _held = _held, True
    try:
        yield
    finally:
        _held = before
    if _caught and not before:
        raise Stopped


def catch_signals() -> None:
    """Makes SIGINT, SIGTERM and SIGHUP raise Stopped. Signals that are ignored (nohup) stay ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _on_signal)


# --- main -------------------------------------------------------------------------------------------------------------


def run(body: Callable[[Sequence[str]], int], words: Sequence[str] | None, stopped: str) -> int:
    """The body of a main: calls `body` with the words behind the program's name and returns the exit code.

    A Problem, a failed read or write and a signal are one line on standard error. `stopped` is the line after a signal.
    """
    try:
        code = body(sys.argv[1:] if words is None else words)
        sys.stdout.flush()
        return code
    except Problem as problem:
        line, code = str(problem), problem.code
    except (Stopped, KeyboardInterrupt):
        line, code = stopped, RESUMABLE
    except BrokenPipeError:  # the reader of the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except MemoryError:
        line, code = "out of memory", FAILED
    except OSError as error:
        what = f" {error.filename}" if error.filename else ""
        line, code = f"cannot read or write{what}: {error.strerror or error}", FAILED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else DONE
    sys.stderr.write(f"atoll: {clean(line)}\n")
    return code
