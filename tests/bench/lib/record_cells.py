"""The finished cells of `./run bench record`, one JSON object a line: record_cells.py CELLS_FOLDER FILE

`atoll compare GRID --dir OUT --import FILE` takes them."""

import json
import sys
from pathlib import Path


def main() -> None:
    folder, file = Path(sys.argv[1]), Path(sys.argv[2])
    cells = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    file.write_text("".join(json.dumps(cell, separators=(",", ":")) + "\n" for cell in cells))


main()
