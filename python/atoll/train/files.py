"""Files of a model's folder that the program gives: config.json, tokenizer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import _lib

_LOADABLE = (".json", ".txt", ".model", ".jinja")


def given_files(files: Any) -> dict[str, bytes]:
    """files=: a folder, a dict of name -> bytes or text, a tokenizer (has save_pretrained), or a list of these."""
    if files is None:
        return {}
    if isinstance(files, Mapping) and not hasattr(files, "save_pretrained"):
        return {name: data.encode() if isinstance(data, str) else bytes(data) for name, data in files.items()}
    if isinstance(files, (list, tuple)):
        return {name: data for item in files for name, data in given_files(item).items()}
    if hasattr(files, "save_pretrained"):
        with tempfile.TemporaryDirectory() as temporary:
            files.save_pretrained(temporary)
            return given_files(temporary)
    folder = Path(os.fspath(files))
    if not folder.is_dir():
        raise _lib.InvalidError(f"files={files}: there is no such folder")
    names = [p for p in sorted(folder.iterdir()) if p.is_file() and p.name.endswith(_LOADABLE)]
    return {p.name: p.read_bytes() for p in names if not p.name.endswith(".index.json")}
