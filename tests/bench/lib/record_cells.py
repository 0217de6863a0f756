"""The finished cells of `./run bench record`, one JSON object a line: record_cells.py pack|unpack CELLS_FOLDER FILE

unpack writes the cells that the folder lacks. `atoll compare` runs a cell again if its settings, base or data differ.
"""

import json
import sys
from pathlib import Path


def main() -> None:
    verb, folder, file = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if verb == "pack":
        cells = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        file.write_text("".join(json.dumps(cell, separators=(",", ":")) + "\n" for cell in cells))
        return
    folder.mkdir(parents=True, exist_ok=True)
    for line in file.read_text().splitlines():
        path = folder / (json.loads(line)["name"] + ".json")
        if not path.exists():
            path.write_text(line + "\n")


main()
