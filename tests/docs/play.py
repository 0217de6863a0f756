"""Runs the commands of the documents as their sessions say, each document in a sandbox.

play.py [DOCUMENT ...]: all documents, or these. Prints a line for each document, the failed commands, and a summary.
./run test repeats the summary at its end (notes/ in the build folder).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]

import documents  # noqa: E402
import known  # noqa: E402
import session  # noqa: E402
from options import Programs  # noqa: E402
from sandbox import Failed, Sandbox  # noqa: E402
from session import Session  # noqa: E402


@dataclass
class Played:
    """The commands of a document by their ends, and why some did not run. A failure ends the session."""

    ran: set[str] = field(default_factory=set)
    not_run: dict[str, str] = field(default_factory=dict)  # the session says so
    skipped: dict[str, str] = field(default_factory=dict)  # the machine lacks what they need
    failure: str = ""


def play(steps: Session, box: Sandbox) -> Played:
    """Runs the steps of a session until one fails."""
    played = Played()
    for step in steps.steps:
        missing = "" if step.reason else box.missing(step.needs)
        if step.reason or missing:
            if step.documented:
                (played.skipped if missing else played.not_run)[step.text] = missing or step.reason
            continue
        try:
            box.run(step)
        except Failed as failed:
            played.failure = f"{steps.path}:{step.number}: {step.text}\n    {failed}{box.others()}"
            break
        if step.documented:
            played.ran.add(step.text)
    return played


class Totals:
    """Counts of commands in blocks. A document may show a command twice."""

    def __init__(self) -> None:
        self.commands = self.ran = self.failed = 0
        self.reasons: dict[str, Counter[str]] = {"not run": Counter(), "skipped": Counter()}

    def add(self, commands: list[str], played: Played) -> None:
        self.commands += len(commands)
        self.ran += sum(text in played.ran for text in commands)
        self.failed += bool(played.failure)
        for text in commands:
            for end, found in (("not run", played.not_run), ("skipped", played.skipped)):
                if text in found:
                    self.reasons[end][found[text]] += 1

    def __str__(self) -> str:
        counts = ", ".join(f"{sum(reasons.values())} {end}" for end, reasons in self.reasons.items())
        failed = f", {self.failed} failed" if self.failed else ""
        lines = [f"docs: {self.commands} commands in blocks: {self.ran} ran, {counts}{failed}"]
        for end, reasons in self.reasons.items():
            lines += [f"    {n} {end}: {reason}" for reason, n in reasons.most_common()]
        return "\n".join(lines)


def main(names: list[str], once: Path) -> int:
    """once: a folder for Sandbox."""
    programs = Path(os.environ.get("ATOLL_BIN", ROOT / "build/bin")).resolve()
    sessions = session.read(ROOT / known.SESSIONS)
    problems = [] if names else known.check(ROOT, sessions, Programs(ROOT, programs))[1]
    totals = Totals()
    for document, steps in sessions.items():
        blocks, _ = documents.split(document, (ROOT / document).read_text(encoding="utf-8"))
        commands = [line.text for line in known.commands_of(blocks, steps)]
        if not commands or (names and document not in names):
            continue
        box, began = Sandbox(ROOT, programs, once), time.monotonic()
        try:
            played = play(steps, box)
        finally:
            box.close()
        totals.add(commands, played)
        ran = sum(text in played.ran for text in commands)
        print(f"{document}: {ran} of {len(commands)} commands ran, {time.monotonic() - began:.0f} s", flush=True)
        if played.failure:
            print(played.failure, flush=True)
    print(*problems, totals, sep="\n")
    if not names:
        notes = programs.parent / "notes"
        notes.mkdir(exist_ok=True)
        (notes / "test_docs_commands").write_text(f"{totals}\n")
    return 1 if totals.failed or problems else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="atoll-docs.") as folder:
        sys.exit(main(sys.argv[1:], Path(folder)))
