"""What the processes of `atoll prepare` do with a block: count its documents, or turn them into tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..command import wrong
from . import text_tokenizer
from .chat import ChatTemplate, Unusable, messages_of
from .input import BLOCK_BYTES, Block, cut_of, tail_offset
from .shards import MASKED

_BATCH_BYTES = 1 << 18  # texts that tokenizers get at once: their encodings need about 40 times as much memory


@dataclass(frozen=True)
class Plan:
    """How to read and encode; the same for all processes."""

    tokenizer: str  # "bytes", or a path
    width: int = 2  # bytes of a token
    fields: tuple[str, ...] = ("text",)
    chat: bool = False
    separator: int | None = 0  # before each document; None: none


@dataclass
class Stats:
    """Counts of a block, or of all. `notes` maps ("left out" or "changed", what) to (count, first place)."""

    documents: int = 0
    bytes: int = 0
    notes: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    names: tuple[str, ...] = ()  # fields of the first document without the wanted one

    def note(self, label: str, what: str, place: str, n: int = 1) -> None:
        count, first = self.notes.get((label, what), (0, place))
        self.notes[label, what] = (count + n, first)

    def leave_out(self, what: str, place: str) -> None:
        self.note("left out", what, place)

    def add(self, other: Stats) -> None:
        self.documents += other.documents
        self.bytes += other.bytes
        self.names = self.names or other.names
        for (label, what), (n, place) in other.notes.items():
            self.note(label, what, place, n)


@dataclass
class Encoded:
    """The tokens of a block: pieces end to end. A document is one piece or more."""

    tokens: npt.NDArray[np.unsignedinteger]  # [n]
    lengths: npt.NDArray[np.int64]  # [pieces]
    first: npt.NDArray[np.bool_]  # [pieces] begins a document
    tail: npt.NDArray[np.bool_]  # [pieces] belongs to a validation tail
    stats: Stats


@dataclass
class _Piece:
    """A document, or a part of one."""

    content: Any  # bytes, or a conversation
    place: str
    first: bool = True
    last: bool = True
    tail: bool = False


class Encoder:
    """Reads and encodes blocks. One per process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.dtype = np.dtype(np.uint16 if plan.width == 2 else np.uint32)
        self.tokenizer = None if plan.tokenizer == "bytes" else text_tokenizer.load(plan.tokenizer)
        self.template = ChatTemplate(self.tokenizer) if plan.chat and self.tokenizer else None

    # --- documents ----------------------------------------------------------------------------------------------------

    def pieces(self, block: Block, stats: Stats, tails: float = 0) -> Iterator[_Piece]:
        """Yields the documents of a block that are not empty, and counts them. Problem: it is no text."""
        for place, value, names in self._values(block):
            text = next((value[name] for name in self.plan.fields if name in value), None)
            if self.plan.chat:
                yield from self._conversation(text, place, names, stats)
            elif not isinstance(text, str):
                stats.names = stats.names or names
                stats.leave_out(f'lines or rows without a string "{self.plan.fields[0]}"', place)
            elif not text:
                stats.leave_out("empty documents", place)
            else:
                yield from self._document(self._bytes_of(text, place), place, stats, tails)
        for part in block.texts:
            zero = part.data.find(b"\0")
            if zero >= 0:
                raise wrong(f"{part.name} is not text: byte {part.at + zero} is zero; remove or convert it")
            piece = _Piece(part.data, part.name, part.first, part.last, part.tail)
            if part.data:
                stats.documents += part.first
                stats.bytes += len(part.data)
                yield piece
            else:
                stats.leave_out("empty documents", part.name)

    def _values(self, block: Block) -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
        """Yields place, fields and all names of each line or row."""
        lines = block.lines.split(b"\n") if block.lines else []
        for number, line in enumerate(lines, block.number):
            line = line.strip(b" \t\r")
            if not line:
                continue
            place = f"{block.source} line {number}"
            try:
                value = json.loads(line.decode())
            except UnicodeDecodeError as error:
                raise wrong(f"{place} is not valid UTF-8 (byte {error.start} of the line): convert the file") from None
            except ValueError as error:
                raise wrong(f"{place} is not valid JSON ({error}): fix or remove it") from None
            except RecursionError:
                raise wrong(f"{place} is nested too deeply: remove it") from None
            value = value if isinstance(value, dict) else {}
            yield place, value, tuple(value)
        chosen = next((name for name in self.plan.fields if name in block.columns), "")
        for number, row in enumerate(block.rows or [], block.number):
            yield f"{block.source} row {number}", {chosen: row} if chosen else {}, block.columns

    def _bytes_of(self, text: str, place: str) -> bytes:
        if not self.tokenizer and "\0" in text:
            raise wrong(f"{place} is not text: it contains a zero byte; remove or convert it")
        try:
            return text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, as "\ud800" in JSON
            if not self.tokenizer:
                raise wrong(f"{place} is not text: it contains half of a surrogate pair; fix or remove it") from None
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()

    def _conversation(self, value: Any, place: str, names: tuple[str, ...], stats: Stats) -> Iterator[_Piece]:
        if value is None:
            stats.names = stats.names or names
            return stats.leave_out(f'lines or rows without "{self.plan.fields[0]}"', place)
        try:
            messages = messages_of(value)
        except Unusable as reason:
            return stats.leave_out(f"conversations that {reason}", place)
        stats.documents += 1
        stats.bytes += sum(len((message["content"] or "").encode("utf-8", "replace")) for message in messages)
        yield _Piece(value, place)

    def _document(self, data: bytes, place: str, stats: Stats, tails: float) -> Iterator[_Piece]:
        """Cuts the validation tail off a document, and a long one into parts."""
        stats.documents += 1
        stats.bytes += len(data)
        start = len(data) - int(len(data) * tails)
        cut = start + tail_offset(data[start:], len(data) - start, self.tokenizer is not None)
        at = 0
        while at < len(data):
            n = len(data) - at
            if n > BLOCK_BYTES:
                n = cut_of(data[at : at + BLOCK_BYTES])
            if at < cut < at + n:
                n = cut - at
            yield _Piece(data[at : at + n], place, at == 0, at + n == len(data), at >= cut)
            at += n

    # --- results ------------------------------------------------------------------------------------------------------

    def count(self, block: Block) -> Stats:
        """The first pass: checks a block and counts its documents. Problem."""
        stats = Stats()
        for _ in self.pieces(block, stats):
            pass
        return stats

    def encode(self, block: Block, tails: float) -> Encoded:
        """The second pass; `tails`: this fraction of each document is held out. Problem."""
        stats = Stats()
        pieces = list(self.pieces(block, stats, tails))
        if self.template:
            parts = [self._chat_tokens(piece, stats) for piece in pieces]
        elif self.tokenizer:
            parts = list(self._text_tokens(pieces, stats))
        else:
            parts = [np.frombuffer(piece.content, np.uint8).astype(self.dtype) for piece in pieces]
            parts = [self._surround(piece, part, (), ()) for piece, part in zip(pieces, parts)]
        return Encoded(
            tokens=np.concatenate(parts) if parts else np.zeros(0, self.dtype),
            lengths=np.array([len(part) for part in parts], np.int64),
            first=np.array([piece.first for piece in pieces], bool),
            tail=np.array([piece.tail for piece in pieces], bool),
            stats=stats,
        )

    def _surround(
        self, piece: _Piece, tokens: npt.NDArray[Any], prefix: tuple[int, ...], suffix: tuple[int, ...]
    ) -> Any:
        before = [] if self.plan.separator is None else [self.plan.separator]
        around = [[*before, *prefix] if piece.first else [], tokens, suffix if piece.last else []]
        return np.concatenate([np.asarray(part, self.dtype) for part in around])

    def _text_tokens(self, pieces: list[_Piece], stats: Stats) -> Iterator[npt.NDArray[Any]]:
        assert self.tokenizer
        backend = self.tokenizer.backend
        encode = getattr(backend, "encode_batch_fast", backend.encode_batch)  # without offsets
        at = 0
        while at < len(pieces):
            batch: list[str] = []
            size, start = 0, at
            while at < len(pieces) and (size < _BATCH_BYTES or at == start):
                batch.append(self._decode(pieces[at], stats))
                size += len(pieces[at].content)
                at += 1
            for piece, encoding in zip(pieces[start:at], encode(batch, add_special_tokens=False)):
                tokens = np.array(encoding.ids, self.dtype)
                yield self._surround(piece, tokens, self.tokenizer.prefix, self.tokenizer.suffix)

    def _decode(self, piece: _Piece, stats: Stats) -> str:
        try:
            return str(piece.content.decode())
        except UnicodeDecodeError:
            stats.note("changed", "texts with bytes that are not UTF-8 (now U+FFFD)", piece.place)
            return str(piece.content.decode(errors="replace"))

    def _chat_tokens(self, piece: _Piece, stats: Stats) -> npt.NDArray[Any]:
        """Returns the tokens of a conversation, uint32 with bit 31 where they give no loss."""
        assert self.template
        try:
            ids, answer = self.template.encode(piece.content)
        except Unusable as reason:
            stats.leave_out(f"conversations that {reason}", piece.place)
            stats.documents -= 1
            return np.zeros(0, self.dtype)
        tokens = np.array(ids, np.uint32)
        tokens[~np.array(answer, bool)] |= MASKED
        return tokens


# --- processes --------------------------------------------------------------------------------------------------------

_encoder: Encoder | None = None


def start(plan: Plan) -> None:
    """Sets up a process of the pool. It ends with its parent, and leaves signals of the terminal to it."""
    import os
    import signal
    import threading
    from multiprocessing import parent_process

    global _encoder
    parent = parent_process()
    if parent:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"

        def follow() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=follow, daemon=True).start()
    _encoder = Encoder(plan)


def count(block: Block) -> Stats:
    assert _encoder
    return _encoder.count(block)


def encode(block: Block, tails: float) -> Encoded:
    assert _encoder
    return _encoder.encode(block, tails)
