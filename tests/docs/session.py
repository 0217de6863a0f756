"""A session says how the commands of one document run: sessions/docs/network.txt is that of docs/network.md.

    # a comment
    $ COMMAND            a command of the document, word by word, without its comment
    + COMMAND            a step that the document leaves to its reader, or a stand-in
    = LINE               the first line of a block that holds no commands
        OPTION VALUE     options of the step above, indented

| option | meaning |
|---|---|
| `code N` | the exit code; 0 otherwise |
| `prints REGEX` | the output has this; several are found in their order |
| `reads A => B` | the shell gets B in place of A |
| `on NAME` | runs in the folder of another machine, as `ssh NAME` does |
| `starts NAME` | runs in the background; `$NAME` is its process id |
| `until REGEX` | of `starts`: the next step begins when the output has this |
| `ends NAME N` | afterwards the background process NAME ends by itself with exit code N |
| `within S` | seconds that the step may take; 60 otherwise |
| `needs WORD ...` | runs only with these: Python modules, `program:X`, `commit:X`, `root`, `venv` (./run python) |
| `not REASON` | does not run |

Steps run in order, in one folder and with one environment. Variables that a step exports hold in the next one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path


class SessionError(Exception):
    """A wrong line of a session; the text is one line."""


@dataclass
class Step:
    text: str
    documented: bool
    number: int  # line of the session
    code: int = 0
    prints: list[str] = field(default_factory=list)
    reads: list[tuple[str, str]] = field(default_factory=list)
    on: str = ""
    starts: str = ""
    until: str = ""
    ends: list[tuple[str, int]] = field(default_factory=list)
    within: int = 60
    needs: list[str] = field(default_factory=list)
    reason: str = ""  # why it does not run


@dataclass
class Session:
    path: str
    steps: list[Step]
    blocks: list[str]  # first lines of blocks without commands

    def documented(self) -> set[str]:
        return {step.text for step in self.steps if step.documented}


def _set(step: Step, option: str, value: str) -> None:
    if option in ("on", "starts", "until"):
        setattr(step, option, value)
    elif option in ("code", "within"):
        setattr(step, option, int(value))
    elif option == "prints":
        re.compile(value)
        step.prints.append(value)
    elif option == "reads":
        before, after = value.split(" => ") if " => " in value else (value.removesuffix(" =>"), "")
        if before not in step.text:
            raise ValueError(f"the command has no '{before}'")
        step.reads.append((before, after))
    elif option == "ends":
        name, code = value.split()
        step.ends.append((name, int(code)))
    elif option == "needs":
        step.needs += value.split()
        wrong = [need for need in step.needs if ":" in need and not need.startswith(("program:", "commit:"))]
        if wrong:
            raise ValueError(f"unknown need '{wrong[0]}'")
    elif option == "not":
        step.reason = value
    else:
        raise ValueError(f"unknown option '{option}'")


def parse(path: str, content: str) -> Session:
    session = Session(path, [], [])
    for number, line in enumerate(content.splitlines(), 1):
        kind, _, value = line.strip().partition(" ")
        try:
            if not kind or kind.startswith("#"):
                continue
            if line[0] == " ":
                if not session.steps:
                    raise ValueError("an option without a step")
                _set(session.steps[-1], kind, value.strip())
            elif kind in ("$", "+"):
                session.steps.append(Step(value, kind == "$", number))
            elif kind == "=":
                session.blocks.append(value)
            else:
                raise ValueError("a line begins with $, +, = or #")
        except (ValueError, re.error) as error:
            raise SessionError(f"{path}:{number}: {error}") from None
    return session


def name_of(document: str) -> str:
    """The file of a document's session, below sessions/."""
    return document.removesuffix(".md") + ".txt"


def read(folder: Path) -> dict[str, Session]:
    """All sessions of a folder, by document."""
    found = {}
    for path in sorted(folder.rglob("*.txt")):
        name = path.relative_to(folder).as_posix()
        found[name.removesuffix(".txt") + ".md"] = parse(f"{folder.name}/{name}", path.read_text(encoding="utf-8"))
    return found
