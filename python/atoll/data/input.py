"""Input of `atoll prepare`: files, folders, data sets and standard input in, blocks of about 1 MiB out.

The rules of cli/prepare_input.h hold. These inputs come in addition:

- `.txt`, `.md` and `.jsonl` files that end in `.gz` or `.zst`.
- `.parquet` files: a document per row.
- A folder of the library datasets (`save_to_disk`).
- `-`: standard input. It may be compressed. Objects in lines are jsonl; everything else is one text.

Blocks depend on the input alone, so a set is the same for any number of processes.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import shutil
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from ..command import Problem, need, warn, wrong

BLOCK_BYTES = 1 << 20
BLOCK_ROWS = 4096
SKIPPED_SHOWN = 20
_CUT_SEARCH = 1 << 16  # a long text is cut within these last bytes of a part
_TAIL_SEARCH = 256  # a validation tail begins behind a line end, if one is this near
_BOM = b"\xef\xbb\xbf"
_TEXT = re.compile(r".*\.(txt|md|jsonl)(\.gz|\.zst)?", re.IGNORECASE | re.DOTALL)
_PACKED = (".gz", ".zst", ".xz", ".bz2", ".zip", ".tgz", ".tar", ".7z")
_SPLIT = re.compile(r"(.+)-\d{5}-of-\d{5}\.(parquet|jsonl|txt)(\.gz|\.zst)?")
_DATA_SET_MARKS = ("state.json", "dataset_dict.json")


@dataclass(frozen=True)
class Source:
    """One input: a file or a data set folder."""

    path: str
    kind: str  # "text", "jsonl", "parquet", "datasets"
    packing: str = ""  # "", "gz", "zst"
    name: str = ""  # for messages; "": the path

    @property
    def shown(self) -> str:
        return self.name or self.path

    @property
    def size(self) -> int:
        """Bytes on the disk, for the progress bar."""
        if self.kind != "datasets":
            return os.path.getsize(self.path)
        return sum(os.path.getsize(os.path.join(at, f)) for at, _, files in os.walk(self.path) for f in files)


@dataclass(frozen=True)
class TextPart:
    """A piece of a text file."""

    name: str  # of the file, for messages
    at: int  # offset in the text
    data: bytes
    first: bool  # it begins the document
    last: bool  # it ends the document
    tail: bool  # it belongs to the validation tail


@dataclass
class Block:
    """A unit of work: whole lines of jsonl, or rows of a table, or pieces of texts."""

    source: str  # for messages
    number: int = 1  # of the first line or row, from 1
    lines: bytes = b""
    rows: list[Any] | None = None
    columns: tuple[str, ...] = ()  # of rows: the names to choose from, if the field is missing
    texts: list[TextPart] = field(default_factory=list)
    consumed: int = 0  # bytes on the disk since the block before


@dataclass
class Inputs:
    sources: list[Source] = field(default_factory=list)
    n_skipped: int = 0


# --- the list of inputs -----------------------------------------------------------------------------------------------


def packing_of(path: str) -> str:
    lower = path.lower()
    return "gz" if lower.endswith(".gz") else "zst" if lower.endswith(".zst") else ""


def is_data_set(path: str) -> bool:
    return os.path.isdir(path) and any(os.path.exists(os.path.join(path, mark)) for mark in _DATA_SET_MARKS)


class _Walk:
    """The walk below one argument."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.visited: set[tuple[int, int]] = set()

    def skip(self, path: str, why: str) -> None:
        self.inputs.n_skipped += 1
        if self.inputs.n_skipped <= SKIPPED_SHOWN:
            warn(f"skipped {path}: {why}")

    def add(self, path: str, named: bool) -> None:
        try:
            status = os.stat(path)
        except OSError as error:
            if not named and error.errno in (errno.ENOENT, errno.ELOOP):
                return self.skip(path, "broken link")
            raise wrong(f"cannot read the input {path}: {error.strerror}") from None
        if stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) in self.visited:
                return self.skip(path, "folder already read through another path")
            self.visited.add((status.st_dev, status.st_ino))
            if is_data_set(path):
                self.inputs.sources.append(Source(path, "datasets"))
            else:
                self.add_folder(path)
        elif not stat.S_ISREG(status.st_mode):
            if named:
                raise wrong(f"the input {path} is neither a file nor a folder: give text files")
            self.skip(path, "neither a file nor a folder")
        else:
            self.add_file(path, named)

    def add_file(self, path: str, named: bool) -> None:
        packing = packing_of(path)
        inner = path[: len(path) - len(packing) - 1] if packing else path
        kind = "jsonl" if inner.lower().endswith(".jsonl") else "text"
        if path.lower().endswith(".parquet"):
            self.inputs.sources.append(Source(path, "parquet"))
        elif _TEXT.fullmatch(path) or named:
            if inner.lower().endswith((".tar", ".zip")):
                raise wrong(f"{path} is an archive: unpack it first")
            if packing and not _TEXT.fullmatch(path) and looks_like_jsonl(path, packing):
                kind = "jsonl"
            self.inputs.sources.append(Source(path, kind, packing))
        elif path.lower().endswith(_PACKED):
            self.skip(path, "compressed or packed: unpack it first")
        else:
            self.skip(path, "not a .txt, .md, .jsonl or .parquet file: convert it first")

    def add_folder(self, path: str) -> None:
        names = sorted(os.listdir(path), key=os.fsencode)
        splits = {match[1] for name in names if (match := _SPLIT.fullmatch(name))}
        data = any(name.lower().endswith((".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst")) for name in names)
        data = data or any(os.path.isdir(os.path.join(path, name)) and name == "data" for name in names)
        for name in names:
            below = os.path.join(path, name)
            match = _SPLIT.fullmatch(name)
            if name.startswith("."):
                self.skip(below, "hidden")
            elif match and "train" in splits and match[1] != "train":
                self.skip(below, f"of the split {match[1]}, and only train is read: name this file to read it")
            elif data and name.lower() == "readme.md":
                self.skip(below, "describes the data set")
            else:
                self.add(below, False)


def collect(arguments: Sequence[str]) -> Inputs:
    """Lists the inputs. Problem for one that cannot be read, or if there is none. `-` gives a source without path."""
    inputs = Inputs()
    for argument in arguments:
        if argument == "-":
            if any(source.path == "-" for source in inputs.sources):
                raise wrong("the input - is given twice: remove one")
            inputs.sources.append(Source("-", "text", name="standard input"))
        else:
            _Walk(inputs).add(argument, True)
    if inputs.n_skipped > SKIPPED_SHOWN:
        warn(f"skipped {inputs.n_skipped - SKIPPED_SHOWN} more files and folders")
    if not inputs.sources:
        raise wrong(
            f"no text in {arguments[0]}: give .txt, .md, .jsonl or .parquet files (also .gz, .zst), or their folders"
        )
    return inputs


def spool(path: str) -> Source:
    """Copies standard input to the file `path`, because it is read twice, and returns it as a source."""
    with open(path, "xb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, BLOCK_BYTES)
    with open(path, "rb") as file:
        head = file.read(4)
    if head[:4] == b"PAR1":
        return Source(path, "parquet", name="standard input")
    packing = "gz" if head[:2] == b"\x1f\x8b" else "zst" if head == b"\x28\xb5\x2f\xfd" else ""
    kind = "jsonl" if looks_like_jsonl(path, packing) else "text"
    return Source(path, kind, packing, "standard input")


def looks_like_jsonl(path: str, packing: str) -> bool:
    """Returns True if the first line with content is a JSON object, or the beginning of one of more than 1 MiB."""
    with _open_counted(Source(path, "text", packing)) as (stream, _):
        head = read_full(stream, BLOCK_BYTES).removeprefix(_BOM).lstrip()
    line, newline, _ = head.partition(b"\n")
    if not newline and len(head) > BLOCK_BYTES // 2:
        return line.startswith(b'{"')
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


# --- reading ----------------------------------------------------------------------------------------------------------


class _Counted(io.RawIOBase):
    """A file that counts the bytes read from the disk."""

    def __init__(self, path: str) -> None:
        self.file = open(path, "rb", buffering=0)
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n = self.file.readinto(buffer) or 0
        self.count += n
        return n

    def close(self) -> None:
        self.file.close()
        super().close()


def _decompressed(source: Source, counted: _Counted) -> Any:
    """Returns a binary stream."""
    raw: Any = io.BufferedReader(counted, BLOCK_BYTES)
    if source.packing == "gz":
        return gzip.GzipFile(fileobj=raw)
    if source.packing == "zst":
        try:
            import zstandard
        except ImportError:
            raise need("zstandard", f"reading {source.shown}") from None
        return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return raw


@contextmanager
def _open_counted(source: Source) -> Iterator[tuple[BinaryIO, _Counted]]:
    """Opens a file for reading, decompressed; a damaged one is a Problem that names it."""
    counted = _Counted(source.path)
    try:
        with _decompressed(source, counted) as stream:
            yield stream, counted
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Problem(f"{source.shown} is damaged: {error}") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise Problem(f"{source.shown} is damaged: {error}") from None
    finally:
        counted.close()


def read_full(stream: BinaryIO, n: int) -> bytes:
    """Reads n bytes, or fewer at the end of the stream."""
    parts = []
    while n:
        part = stream.read(n)
        if not part:
            break
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def cut_of(data: bytes) -> int:
    """Returns where a part of a long text should end: in 1 .. len(data), within the last 64 KiB.

    Between a letter and a blank, byte-level BPE gives the same tokens for two parts as for the whole text.
    """
    start = max(0, len(data) - _CUT_SEARCH)
    places = [match.end() for match in re.finditer(rb"[0-9A-Za-z](?= [0-9A-Za-z])", data[start:])]
    if places:
        return start + places[-1]
    newline = data.rfind(b"\n", start)
    if newline >= 0:
        return newline + 1
    return len(data) - _unfinished(data) or len(data)


def _unfinished(data: bytes) -> int:
    """Returns the length of an incomplete UTF-8 character at the end: 0 to 3."""
    for n in range(1, min(4, len(data) + 1)):
        byte = data[-n]
        if byte >= 0xC0:
            return n if n < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
        if byte < 0x80:
            return 0
    return 0


def tail_cut(source: Source, size: int, fraction: float, characters: bool) -> int:
    """Returns where the validation tail of a text begins: behind the first line end of the tail if one is near.

    :param size: bytes of the text, decompressed and without a byte order mark.
    :param characters: cut at the beginning of a UTF-8 character; False: of any byte.
    """
    start = size - int(size * fraction)
    with _open_counted(source) as (stream, _):
        head = read_full(stream, len(_BOM)).removeprefix(_BOM)
        left = start - len(head)
        while left > 0 and (part := read_full(stream, min(left, BLOCK_BYTES))):
            left -= len(part)
        return start + tail_offset(head[start:] + read_full(stream, _TAIL_SEARCH), size - start, characters)


def tail_offset(after: bytes, size: int, characters: bool) -> int:
    """The same for the bytes behind the first place of a tail of `size` bytes: what to add to that place."""
    newline = after.find(b"\n", 0, min(size, _TAIL_SEARCH))
    if 0 <= newline < size - 1:
        return newline + 1
    n = 0
    while characters and n < min(3, size) and after[n] & 0xC0 == 0x80:
        n += 1
    return n


class Reader:
    """Reads the sources in order, twice or more.

    :param fields: names of the column or key with the text, the first one that exists counts.
    """

    def __init__(self, sources: Sequence[Source], fields: Sequence[str]) -> None:
        self.sources = sources
        self.fields = tuple(fields)
        self.sizes: dict[str, int] = {}  # of texts, after they were read once

    def blocks(self, cuts: dict[str, int] | None = None) -> Iterator[Block]:
        """Yields all blocks. `cuts`: by path, where the validation tails of texts begin. Problem, OSError."""
        small: list[TextPart] = []
        size = consumed = 0
        for source in self.sources:
            if source.kind == "text":
                before = 0
                for part, count in self._text_parts(source, (cuts or {}).get(source.path)):
                    small.append(part)
                    size += len(part.data)
                    consumed += count - before
                    before = count
                    if size >= BLOCK_BYTES // 2 or len(small) == BLOCK_ROWS:
                        yield Block(source.shown, texts=small, consumed=consumed)
                        small, size, consumed = [], 0, 0
                continue
            if small:
                yield Block(source.shown, texts=small, consumed=consumed)
                small, size, consumed = [], 0, 0
            yield from {"jsonl": self._lines, "parquet": self._parquet, "datasets": self._data_set}[source.kind](source)
        if small:
            yield Block(self.sources[-1].shown, texts=small, consumed=consumed)

    def _text_parts(self, source: Source, cut: int | None) -> Iterator[tuple[TextPart, int]]:
        """Yields the pieces of a text, with the bytes read from the disk so far."""
        with _open_counted(source) as (stream, counted):
            at, data, ended, first = 0, b"", False, True
            while not ended or data or first:
                if not ended and len(data) <= BLOCK_BYTES:
                    more = read_full(stream, BLOCK_BYTES + 1 - len(data))
                    ended = len(data) + len(more) <= BLOCK_BYTES
                    data = data + more if at or data else more.removeprefix(_BOM)
                n = len(data) if ended and len(data) <= BLOCK_BYTES else cut_of(data[:BLOCK_BYTES])
                if cut is not None and at < cut < at + n:
                    n = cut - at
                part, data = data[:n], data[n:]
                tail = cut is not None and at >= cut
                yield TextPart(source.shown, at, part, first, ended and not data, tail), counted.count
                at += n
                first = False
            self.sizes[source.path] = at

    def _lines(self, source: Source) -> Iterator[Block]:
        number, before = 1, 0
        with _open_counted(source) as (stream, counted):
            data = read_full(stream, BLOCK_BYTES).removeprefix(_BOM)
            while data:
                end = data.rfind(b"\n") + 1
                if not end:  # a line of more than a block
                    more = read_full(stream, max(BLOCK_BYTES, len(data)))
                    if more:
                        data += more
                        continue
                    end = len(data)
                lines, data = data[:end], data[end:]
                yield Block(source.shown, number, lines=lines, consumed=counted.count - before)
                before = counted.count
                number += lines.count(b"\n")
                data += read_full(stream, BLOCK_BYTES)

    def _parquet(self, source: Source) -> Iterator[Block]:
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise need("pyarrow", f"reading {source.shown}") from None
        try:
            file = parquet.ParquetFile(source.path, memory_map=False)
        except Exception as error:
            raise wrong(f"{source.shown} is no parquet file: {str(error).splitlines()[0]}") from None
        with file:
            names = tuple(file.schema_arrow.names)
            chosen = next((name for name in self.fields if name in names), None)
            batches = file.iter_batches(BLOCK_ROWS, columns=[chosen] if chosen else [], use_threads=False)
            rows = (batch.column(0).to_pylist() if chosen else [None] * batch.num_rows for batch in batches)
            yield from self._tables(source, rows, names, file.metadata.num_rows)

    def _data_set(self, source: Source) -> Iterator[Block]:
        try:
            import datasets
        except ImportError:
            raise need("datasets", f"reading {source.shown}") from None
        try:
            data: Any = datasets.load_from_disk(source.path)
        except Exception as error:
            raise wrong(f"cannot read the data set {source.shown}: {str(error).splitlines()[0]}") from None
        if isinstance(data, datasets.DatasetDict):
            if len(data) > 1 and "train" not in data:
                raise wrong(f"{source.shown} has the splits {', '.join(data)}: name the folder of one")
            data = data["train"] if "train" in data else next(iter(data.values()))
        names = tuple(data.column_names)
        chosen = next((name for name in self.fields if name in names), None)
        total = len(data)
        if chosen:
            parts = data.select_columns([chosen]).with_format("arrow").iter(BLOCK_ROWS)
            rows = (part.column(0).to_pylist() for part in parts)
        else:
            rows = ([None] * min(BLOCK_ROWS, total - at) for at in range(0, total, BLOCK_ROWS))
        yield from self._tables(source, rows, names, total)

    def _tables(
        self, source: Source, lists: Iterator[list[Any]], names: tuple[str, ...], total: int
    ) -> Iterator[Block]:
        """Cuts lists of rows to blocks of about BLOCK_BYTES."""
        number, share = 1, source.size / max(1, total)
        for rows in lists:
            start = size = 0
            for i, row in enumerate(rows):
                size += len(row) if isinstance(row, str) else 1024 if row is not None else 1
                if size >= BLOCK_BYTES or i + 1 == len(rows):
                    part = rows[start : i + 1]
                    yield Block(source.shown, number, rows=part, columns=names, consumed=int(share * len(part)))
                    number += len(part)
                    start, size = i + 1, 0
