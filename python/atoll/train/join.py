"""``python -m atoll.join``: runs a training script on this machine as a worker of a run that another machine launched.

The script's :func:`atoll.launch` then starts no coordinator, and ``Worker(join=None)`` finds the run.
"""

from __future__ import annotations

import os
import re
import stat
import sys

from ..command import clean

USAGE = """\
usage: python -m atoll.join LINE|FILE|-|RUN SCRIPT.py [ARGS ...]
       python -m atoll.join LINE|FILE|-|RUN -m MODULE [ARGS ...]

Runs SCRIPT.py with this Python as a worker of a run. The variable ATOLL_JOIN tells the script which run.

  LINE   the join line that atoll.launch() printed: tcp://HOST:PORT/SERVERKEY/SECRET
  FILE   a file whose first line is the join line
  -      the join line is the first line of standard input; the script reads what follows
  RUN    a run folder on this machine

The join line holds a secret. As an argument it stands in the list of processes until the script starts, and in the
history of the shell. FILE and - keep it out of both."""

_LINE = re.compile(r"tcp://[^/]+/[0-9a-fA-F]{64}(/[0-9a-fA-F]{64})?")
_FORM = "tcp://HOST:PORT/SERVERKEY/SECRET"


class JoinError(ValueError):
    """A wrong word on the command line. The text is one line and holds no key."""


def _first_line(fd: int) -> str:
    """Reads one line byte by byte, so that the script finds the rest."""
    line = b""
    while len(line) < 1024:
        byte = os.read(fd, 1)
        if byte in (b"", b"\n"):
            break
        line += byte
    return line.decode("ascii", "replace").strip()


def _checked(line: str, where: str) -> str:
    if not _LINE.fullmatch(line):
        raise JoinError(f"{where} is no join line: copy the whole line, {_FORM}")
    return line


def target_of(word: str) -> str:
    """Returns the value of ATOLL_JOIN for a word of the command line: a join line, or an absolute path.

    :raises JoinError: the word is neither a join line, nor a file with one, nor a run folder.
    """
    if word == "-":
        return _checked(_first_line(0), "the first line of standard input")
    if word.startswith("tcp://"):
        return _checked(word, "the argument")
    try:
        mode = os.stat(word).st_mode
        if stat.S_ISDIR(mode):
            return os.path.abspath(word)
        fd = os.open(word, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise JoinError(f"{_shown(word)}: no such file or folder, and no join line: write {_FORM}") from None
    except OSError as error:
        raise JoinError(f"cannot read {word}: {error.strerror}") from None
    try:
        line = _checked(_first_line(fd), f"the first line of {word}")
    finally:
        os.close(fd)
    return os.path.abspath(word) if stat.S_ISREG(mode) else line


def _shown(word: str) -> str:
    """The word without keys: a mistyped join line still holds its secret."""
    return re.sub(r"[0-9a-fA-F]{16,}.*", "...", word)


def _interpreter_flags() -> list[str]:
    words = sys.orig_argv
    for i, word in enumerate(words):
        if word == "-matoll.join" or (word == "-m" and words[i + 1:i + 2] == ["atoll.join"]):
            return words[1:i]
    return []


def _warn_of_list(target: str) -> None:
    if target.startswith("tcp://") and target.count("/") == 4:
        print("atoll: the join line stood in the list of processes, where other users can read its secret: give it in "
              "a file, or - for standard input", file=sys.stderr)


def _run(words: list[str]) -> None:
    if not words:
        raise JoinError("the join line is missing: python -m atoll.join LINE SCRIPT.py")
    if words[0].startswith("-") and words[0] != "-":
        raise JoinError(f"unknown option {words[0]}: python -m atoll.join --help")
    script = words[1:]
    if not script or script == ["-m"]:
        raise JoinError("the script is missing: python -m atoll.join LINE SCRIPT.py")
    if script[0] != "-m" and not os.path.exists(script[0]):
        raise JoinError(f"there is no script {_shown(script[0])}: give the join line first, then the script")
    os.environ["ATOLL_JOIN"] = target_of(words[0])
    if words[0].startswith("tcp://"):
        _warn_of_list(words[0])
    # exec replaces the command line of this process, and the script runs as if the user had started it.
    os.execv(sys.executable, [sys.executable, *_interpreter_flags(), *script])


def main(words: list[str] | None = None) -> int:
    """Runs the script in place of this process. Returns an exit code only if it could not: 2 after a usage error."""
    words = sys.argv[1:] if words is None else words
    if words and words[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    try:
        _run(words)
    except JoinError as error:
        print(f"atoll: {clean(str(error))}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"atoll: cannot start {sys.executable}: {error.strerror}", file=sys.stderr)
    return 1

