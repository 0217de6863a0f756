"""Runs the commands of the documents as their sessions say, each document in a sandbox.

play.py [DOCUMENT ...]: all documents, or these. Prints a line for each, the commands that did not run with the reason,
and a summary, which ./run test repeats at its end (notes/ in the build folder).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]

import documents  # noqa: E402
import known  # noqa: E402
import session  # noqa: E402
from options import Programs  # noqa: E402
from sandbox import Failed, Sandbox  # noqa: E402


class Count:
    def __init__(self) -> None:
        self.ran: set[str] = set()
        self.failed: list[str] = []
        self.skipped: dict[str, str] = {}  # command to reason


def play(document: str, steps: session.Session, blocks: list[documents.Block], box: Sandbox) -> Count:
    """Runs the steps of a session until one fails."""
    count = Count()
    for step in steps.steps:
        reason = step.reason or box.missing(step.needs)
        if reason:
            if step.documented:
                count.skipped[step.text] = reason
            continue
        like = [line.text for block in blocks if step.like and block.lines[0].text.startswith(step.like) for line in block.lines]
        try:
            box.run(step, like)
        except Failed as failed:
            count.failed.append(f"{document}: {step.text}\n    {failed}{box.others()}")
            break
        if step.documented:
            count.ran.add(step.text)
    return count


def main(names: list[str], once: Path) -> int:
    programs = Path(os.environ.get("ATOLL_BIN", ROOT / "build/bin")).resolve()
    sessions = session.read(ROOT / known.SESSIONS)
    summary, problems = known.check(ROOT, sessions, Programs(ROOT, programs))
    n_ran = n_skipped = n_failed = 0
    started = time.monotonic()
    for document, steps in sessions.items():
        blocks, _ = documents.split(document, (ROOT / document).read_text(encoding="utf-8"))
        lines = [line.text for line in known.commands_of(blocks, steps)]
        if not lines or (names and document not in names):
            continue
        box, began = Sandbox(ROOT, programs, once), time.monotonic()
        try:
            count = play(document, steps, blocks, box)
        finally:
            box.close()
        # A document may show a command twice.
        ran = sum(text in count.ran for text in lines)
        n_ran, n_failed = n_ran + ran, n_failed + len(count.failed)
        n_skipped += sum(text in count.skipped for text in lines)
        print(f"{document}: {ran} of {len(lines)} commands ran, {time.monotonic() - began:.0f} s")
        for text, reason in count.skipped.items():
            print(f"    not: {text}  ({reason})")
        print(*count.failed, sep="\n", end="\n" if count.failed else "", flush=True)
    inline = summary.rpartition(", ")[2]
    summary = f"docs: {n_ran} commands ran, {n_skipped} not (their reasons: {known.SESSIONS}), {inline}"
    problems = [] if names else problems
    print(*problems, f"{summary}, {n_failed} failed, {time.monotonic() - started:.0f} s", sep="\n")
    if not names:
        notes = programs.parent / "notes"
        notes.mkdir(exist_ok=True)
        (notes / "test_docs_run").write_text(summary + "\n")
    return 1 if n_failed or problems else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="atoll-docs.") as folder:
        sys.exit(main(sys.argv[1:], Path(folder)))
