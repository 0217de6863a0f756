"""Each command of a document has a session, each session has its document, and no command has a dead word.

known.py: checks the documents of this tree with the programs in ATOLL_BIN, and starts no run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]

import documents  # noqa: E402
import session  # noqa: E402
from documents import Line  # noqa: E402
from options import PROGRAMS, Programs  # noqa: E402
from session import Session  # noqa: E402

SESSIONS = "tests/docs/sessions"


def commands_of(blocks: list[documents.Block], known: Session | None) -> list[Line]:
    """The commands of a document: those of all blocks that the session does not list as text."""
    texts = known.blocks if known else []
    shells = [block for block in blocks if block.language in documents.SHELLS and block.lines]
    return [line for block in shells if block.lines[0].text not in texts for line in documents.commands(block)]


def check_sessions(document: str, blocks: list[documents.Block], known: Session | None) -> list[str]:
    """Commands that no session knows, and rows of the session that the document does not have."""
    where = f"{SESSIONS}/{session.name_of(document)}"
    lines = commands_of(blocks, known)
    listed = known.documented() if known else set()
    problems = [f"{line}\n    not in {where}: add it, or list the first line of its block as text" for line in lines
                if line.text not in listed]
    if known:
        texts = {line.text for line in lines}
        firsts = {block.lines[0].text for block in blocks if block.lines}
        problems += [f"{where}:{step.number}: {document} has no command {step.text}" for step in known.steps
                     if step.documented and step.text not in texts]
        problems += [f"{where}: {document} has no block that begins with {first}" for first in known.blocks
                     if first not in firsts]
    return problems


def check_options(blocks: list[documents.Block], known: Session | None, programs: Programs) -> list[str]:
    """Dead words of the commands. Those behind `git checkout` are of another commit."""
    problems = []
    texts = known.blocks if known else []
    for block in blocks:
        if block.language not in documents.SHELLS or not block.lines or block.lines[0].text in texts:
            continue
        for line in documents.commands(block):
            if line.text.startswith("git checkout "):
                break
            problems += [f"{line}\n    {problem}" for problem in programs.problems(line.text)]
    return problems


def check_spans(spans: list[Line], programs: Programs) -> tuple[int, list[str]]:
    """The number of commands in code spans, and their dead words; keys that do not exist."""
    count, problems = 0, []
    for span in spans:
        is_command = span.text.split()[:1] and span.text.split()[0] in PROGRAMS
        count += bool(is_command)
        found = programs.problems(span.text) if is_command else programs.key_problems(span.text)
        problems += [f"{span}\n    {problem}" for problem in found]
    return count, problems


def check(root: Path, sessions: dict[str, Session], programs: Programs) -> tuple[str, list[str]]:
    """A summary in one line, and the problems of a tree."""
    found = documents.find(root)
    problems = [f"{SESSIONS}/{session.name_of(name)}: there is no {name}" for name in sessions if name not in found]
    n_commands = n_spans = 0
    for name in found:
        blocks, text = documents.split(name, (root / name).read_text(encoding="utf-8"))
        known = sessions.get(name)
        n_commands += len(commands_of(blocks, known))
        problems += check_sessions(name, blocks, known) + check_options(blocks, known, programs)
        count, more = check_spans(documents.spans(text), programs)
        n_spans += count
        problems += more
    return f"{len(found)} documents: {n_commands} commands in blocks, {n_spans} inline", problems


def main() -> int:
    programs = Programs(ROOT, Path(os.environ.get("ATOLL_BIN", ROOT / "build/bin")).resolve())
    if not programs.words("atoll"):
        print(f"known.py: {programs.bin} has no atoll: ./run build, or set ATOLL_BIN")
        return 2
    try:
        summary, problems = check(ROOT, session.read(ROOT / SESSIONS), programs)
    except session.SessionError as error:
        summary, problems = "a session cannot be read", [str(error)]
    print(*problems, summary, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
