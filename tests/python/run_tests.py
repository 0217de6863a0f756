"""Runs one file of tests: run_tests.py FILE

Exit code 77 (ctest: skipped): a module is missing, or each test of the file was skipped. The reason is printed.
"""

from __future__ import annotations

import importlib.util
import sys
import unittest
from pathlib import Path

# What a file may import, by the start of its name. A single test may need more and skip itself.
NEEDS = {
    "test_numpy_": ["numpy"],
    "test_plot_": ["matplotlib"],
    "test_torch_": ["numpy", "torch"],
    "test_venv_": ["numpy", "torch", "transformers"],
}


def main() -> int:
    path = Path(sys.argv[1])
    needs = next(modules for start, modules in NEEDS.items() if path.name.startswith(start))
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: {sys.executable} lacks {', '.join(missing)}")
        return 77
    sys.path[:0] = [str(path.parent), str(Path(__file__).parent)]  # a room and the helpers of all rooms
    tests = unittest.defaultTestLoader.loadTestsFromName(path.stem)
    result = unittest.TextTestRunner(verbosity=2).run(tests)
    if not result.wasSuccessful() or not result.testsRun:
        return 1
    if len(result.skipped) >= result.testsRun:
        print("skipped:", "; ".join(sorted({reason for _, reason in result.skipped})))
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
