"""Tests that need an empty folder, and call programs of the package in it."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock


class FolderTest(unittest.TestCase):
    """Base of tests with an empty folder, `self.dir`."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)

    def enter(self) -> None:
        """Makes the folder the current one until the end of the test."""
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.dir)

    def call(self, main: Callable[[Any], int], *words: str, code: int = 0, stdin: bytes = b"") -> tuple[str, str]:
        """Runs a program in this process and in the folder; returns its output and its errors."""
        out, errors, here = io.StringIO(), io.StringIO(), os.getcwd()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        os.chdir(self.dir)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), \
                    mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))):
                result = main(words)
        finally:
            os.chdir(here)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        self.assertEqual(result, code, errors.getvalue())
        return out.getvalue(), errors.getvalue()
