"""The version and the data behind the cells of atoll compare: a cell with another version or other tokens runs again.

The version is that of `atoll --version`: a rebuild of the same version keeps the finished cells. Data counts by its
content. OUT/data_hashes.json keeps the hash of each shard with its path, size and time of change, so that a shard is
read once.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..progress import BytesProgress
from .grid import Grid
from .run import program_version
from .store import write_json

_DIGEST_BYTES = 16
_BLOCK = 1 << 22


class Hashes:
    """Hashes of files. `out`: the folder that keeps them; it need not exist."""

    def __init__(self, out: str) -> None:
        self.path = os.path.join(out, "data_hashes.json")
        self.known: dict[str, dict[str, Any]] = {}
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as file:
                self.known = json.load(file)

    def _entry(self, path: str) -> dict[str, Any]:
        """What identifies the state of a file, without its hash."""
        status = os.stat(path)
        return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}

    def _is_known(self, path: str) -> bool:
        known = self.known.get(path, {})
        return {**self._entry(path), "hash": known.get("hash")} == known

    def read(self, paths: Iterable[str]) -> None:
        """Reads the files whose hash is not known, and remembers it."""
        new = [path for path in paths if not self._is_known(path)]
        progress = BytesProgress(sum(os.path.getsize(path) for path in new))
        progress.begin("reading the token shards:")
        try:
            for path in new:
                entry, digest = self._entry(path), hashlib.blake2b(digest_size=_DIGEST_BYTES)
                with open(path, "rb") as file:
                    while block := file.read(_BLOCK):
                        digest.update(block)
                        progress.add(len(block))
                self.known[path] = {**entry, "hash": digest.hexdigest()}
        finally:
            progress.clear()
            if new and os.path.isdir(os.path.dirname(self.path)):
                write_json(self.path, self.known)

    def of(self, paths: Iterable[str]) -> str:
        """One hash of several files, in their order."""
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for path in paths:
            digest.update(bytes.fromhex(self.known[path]["hash"]))
        return digest.hexdigest()


def identify(grid: Grid, program: str, out: str) -> Grid:
    """The grid whose arms know the version and the data of their runs."""
    sets = {arm.resolved[key] for arm in grid.arms for key in ("data.train", "data.val")}
    shards = {pattern: [os.path.abspath(path) for path in sorted(glob.glob(pattern))] for pattern in sets}
    hashes = Hashes(out)
    hashes.read(dict.fromkeys(path for paths in shards.values() for path in paths))
    found, version = {pattern: hashes.of(paths) for pattern, paths in shards.items()}, program_version(program)
    return replace(grid, arms=tuple(
        replace(arm, origin={"atoll": version, "data": {key: found[arm.resolved[f"data.{key}"]]
                                                        for key in ("train", "val")}}) for arm in grid.arms))
