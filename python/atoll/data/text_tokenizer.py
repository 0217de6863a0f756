"""Tokenizers of Hugging Face models: a tokenizer.json, or a folder with the files of a tokenizer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ..command import need, wrong
from .pretrained import load_tokenizer, read_json

# End-of-text tokens by the names that models use, for a tokenizer.json without the files that name it.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<｜end▁of▁sentence｜>", "[SEP]")
# Files that transformers reads beside tokenizer.json.
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")


@dataclass(frozen=True)
class TextTokenizer:
    """A loaded tokenizer and what surrounds a document."""

    path: str  # as given
    folder: str  # of its other files; "": none
    backend: Any  # tokenizers.Tokenizer, without padding and truncation
    vocab_size: int  # largest token + 1
    prefix: tuple[int, ...]  # tokens that the tokenizer itself puts before and behind a text
    suffix: tuple[int, ...]
    end: int | None  # the end-of-text token

    def name(self, token: int) -> str:
        return str(self.backend.id_to_token(token))

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text, with the prefix and without the suffix: a text to continue."""
        return [*self.prefix, *self.backend.encode(text, add_special_tokens=False).ids]

    def files(self) -> dict[str, bytes]:
        """Returns the files of the tokenizer by name: tokenizer.json, and those beside it."""
        files = {"tokenizer.json": self.json_text().encode()}
        for name in _BESIDE:
            path = os.path.join(self.folder, name)
            if self.folder and os.path.isfile(path):
                with open(path, "rb") as file:
                    files[name] = file.read()
        return files

    def json_text(self) -> str:
        """Returns the content of its tokenizer.json: the file itself, or what transformers made of older files."""
        path = os.path.join(self.folder, "tokenizer.json") if os.path.isdir(self.path) else self.path
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                return file.read()
        return str(self.backend.to_str(pretty=True))


def load(path: str) -> TextTokenizer:
    """Loads a tokenizer.json or a folder. Problem: it is neither, or a library is missing."""
    try:
        import tokenizers
    except ImportError:
        raise need("tokenizers", f"the tokenizer {path}") from None
    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    if not os.path.exists(path):
        raise wrong(f"the tokenizer {path} does not exist: give a tokenizer.json, or the folder of a model")
    if os.path.isfile(file):
        try:
            backend = tokenizers.Tokenizer.from_file(file)
        except Exception as error:
            raise wrong(f"{file} is not a tokenizer.json: {str(error).splitlines()[0]}") from None
    else:
        backend = _from_older_files(path)
    backend.no_padding()
    backend.no_truncation()
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    prefix, suffix = _around(backend)
    vocab = backend.get_vocab(with_added_tokens=True)
    if not vocab:
        raise wrong(f"the tokenizer {path} has an empty vocabulary: train it first")
    return TextTokenizer(path, folder, backend, max(vocab.values()) + 1, prefix, suffix, _find_end(folder, backend))


def _from_older_files(folder: str) -> Any:
    try:
        tokenizer = load_tokenizer(folder)
    except ImportError:
        raise need("transformers", f"{folder} has no tokenizer.json: its tokenizer") from None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise wrong(f"the tokenizer in {folder} has no tokenizer.json and cannot be converted: convert it first")
    return backend


def _around(backend: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns what the tokenizer puts before and behind each text: a begin token, for example."""
    whole = backend.encode("a", add_special_tokens=True).ids
    bare = backend.encode("a", add_special_tokens=False).ids
    for at in range(len(whole) - len(bare) + 1):
        if whole[at : at + len(bare)] == bare:
            return tuple(whole[:at]), tuple(whole[at + len(bare) :])
    return (), ()


def _find_end(folder: str, backend: Any) -> int | None:
    """Returns the end-of-text token that the files of the folder name, or that has a usual name."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = read_json(os.path.join(folder, name)).get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and (found := backend.token_to_id(text)) is not None:
            return int(found)
    for name in ("generation_config.json", "config.json"):
        number = read_json(os.path.join(folder, name)).get("eos_token_id")
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(number, int) and 0 <= number < 2**32 and backend.id_to_token(number) is not None:
            return number
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    return next((int(backend.token_to_id(name)) for name in _ENDS if name in added), None)


class TextStream:
    """Turns tokens into text as they come. A character of several tokens appears when it is complete."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.ids: list[int] = []
        self.shown = 0  # tokens before this one are printed
        self.start = 0  # decoding begins here: the first tokens of a text decode in another way

    def put(self, token: int) -> str:
        """Returns the new text; "" while a character is incomplete."""
        self.ids.append(token)
        before = self.backend.decode(self.ids[self.start : self.shown], skip_special_tokens=True)
        text = self.backend.decode(self.ids[self.start :], skip_special_tokens=True)
        if text.endswith("\ufffd") or len(text) < len(before):
            return ""
        self.start, self.shown = self.shown, len(self.ids)
        return str(text[len(before) :])

    def end(self) -> str:
        """Returns the rest, with U+FFFD for an incomplete character."""
        before = self.backend.decode(self.ids[self.start : self.shown], skip_special_tokens=True)
        return str(self.backend.decode(self.ids[self.start :], skip_special_tokens=True)[len(before) :])
