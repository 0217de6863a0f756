"""Attacks on a run: python3 tests/attack/run.py [GROUP...]; needs python3-zmq. Exit code 77: it is missing."""
import sys

try:
    import zmq  # noqa: F401
except ImportError:
    print("skipped: python3-zmq is missing")
    sys.exit(77)

import rig


def main(names):
    rig.make_data()
    for name in names or ["strangers", "liars", "floods", "faults"]:
        __import__(name).go()
    rig.finish()


main(sys.argv[1:])
