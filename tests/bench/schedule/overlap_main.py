"""./run bench overlap {cells,cost,unequal,plan} [...]: overlap_main.py FOLDER DATA NAME [ARGS]"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[3] not in ("cells", "cost", "unequal", "plan"):
        raise SystemExit("bench overlap: name one of cells, cost, unequal, plan")
    importlib.import_module(f"overlap_{sys.argv[3]}").main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[4:])
