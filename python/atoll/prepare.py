"""The public name of atoll.data.cmd: `python -m atoll.prepare`."""

import sys

from .data.cmd import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
