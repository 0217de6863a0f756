"""`python -m atoll.board`."""

import sys

from .cmd import main

sys.exit(main())
