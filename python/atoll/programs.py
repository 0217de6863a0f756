"""The commands ``atoll``, ``atoll-coordinator`` and ``atoll-worker``: each replaces itself with the program of the
package."""

from __future__ import annotations

import os
import sys

from . import _lib


def _become(name: str) -> None:
    command = os.path.abspath(sys.argv[0])
    try:
        program = _lib.program(name)
    except _lib.Error as error:
        sys.exit(f"atoll: {error}")
    if os.path.realpath(program) == os.path.realpath(command):  # found in PATH, because the package has none
        sys.exit(f"atoll: the package lacks the program {name}: install the package again")
    # `atoll VERB` runs atoll-VERB from PATH: first that of this environment, also if it is not activated.
    os.environ["PATH"] = os.path.dirname(command) + os.pathsep + os.environ.get("PATH", os.defpath)
    os.execv(program, [name, *sys.argv[1:]])


def atoll() -> None:
    """The command ``atoll``."""
    _become("atoll")


def coordinator() -> None:
    """The command ``atoll-coordinator``."""
    _become("atoll-coordinator")


def worker() -> None:
    """The command ``atoll-worker``."""
    _become("atoll-worker")
