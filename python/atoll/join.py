"""The public name of atoll.train.join: `python -m atoll.join`."""

import sys

from .train.join import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
