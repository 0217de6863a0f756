"""What the documents tell people to type: the commands in their blocks, and the code spans in their text.

A block is a run of lines that Markdown shows as code: a fence (```), or lines indented by four blanks after an empty
line. An empty line ends an indented block. Each line of a block is a command, unless one of these rules says otherwise:

- The fence names a language that is no shell: ```python.
- The session of the document lists the first line of the block as text (session.py).

So a new command cannot hide: a block that is neither is reported line by line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SHELLS = ("", "sh", "bash", "shell", "console")
# Reasons, records and notes of releases describe other commits than this one.
PAST = ("docs/decisions/", "docs/history/", "CHANGELOG.md")
FOLDERS = ("build", "build-*", "data", "runs", ".*")  # of the tree's root, without documents


@dataclass(frozen=True)
class Line:
    """A line of a document, or several that a backslash joins."""

    document: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.number}: {self.text}"


@dataclass(frozen=True)
class Block:
    """Lines without their indentation."""

    language: str
    lines: tuple[Line, ...]


def find(root: Path) -> list[str]:
    """The documents of a tree, by their paths below it."""
    skipped = {path for pattern in FOLDERS for path in root.glob(pattern)}
    top = [path for path in sorted(root.iterdir()) if path.is_dir() and path not in skipped]
    found = [*root.glob("*.md"), *(path for folder in top for path in folder.rglob("*.md"))]
    names = [path.relative_to(root).as_posix() for path in found]
    return sorted((name for name in names if not name.startswith(PAST)), key=lambda name: ("/" in name, name))


def split(document: str, content: str) -> tuple[list[Block], list[Line]]:
    """The blocks of a document, and the lines of its text."""
    blocks: list[Block] = []
    text: list[Line] = []
    open_lines: list[Line] | None = None  # of the block that is not yet complete
    fence = ""
    blank = True
    for number, raw in enumerate(content.splitlines(), 1):
        line = Line(document, number, raw.strip())
        mark = re.match(r" *```+ *(\w*)", raw)
        if fence:
            if mark:
                blocks.append(Block(fence.strip("`"), tuple(open_lines or ())))
                fence, open_lines = "", None
            elif open_lines is not None:
                open_lines.append(line)
            continue
        indented = re.match(r"(    |\t)", raw) and line.text and (blank or open_lines is not None)
        if open_lines is not None and not indented:
            blocks.append(Block("", tuple(open_lines)))
            open_lines = None
        if mark:
            fence, open_lines = "```" + mark[1], []
        elif indented:
            open_lines = [*(open_lines or ()), line]
        else:
            text.append(line)
        blank = not line.text
    if open_lines:
        blocks.append(Block(fence.strip("`"), tuple(open_lines)))
    return blocks, text


def without_comment(text: str) -> str:
    """A shell line without its comment: a # at a word's begin, outside of quotes."""
    quote = ""
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (i == 0 or text[i - 1].isspace()):
            return text[:i].rstrip()
    return text.rstrip()


def commands(block: Block) -> list[Line]:
    """The commands of a block: lines that end with a backslash are joined, comments and empty lines left out."""
    found: list[Line] = []
    begin: Line | None = None
    for line in block.lines:
        text = f"{begin.text} {line.text}" if begin else line.text
        begin = Line(line.document, begin.number if begin else line.number, text)
        if text.endswith("\\"):
            begin = Line(begin.document, begin.number, text[:-1].rstrip())
            continue
        command = without_comment(begin.text)
        if command:
            found.append(Line(begin.document, begin.number, command))
        begin = None
    if begin:
        found.append(begin)
    return found


def spans(text: list[Line]) -> list[Line]:
    """The code spans of lines of text."""
    return [Line(line.document, line.number, span) for line in text for span in re.findall(r"`([^`]+)`", line.text)]
