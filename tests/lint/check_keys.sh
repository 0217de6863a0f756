# Every key of common/config/config_keys.c is used: in a YAML file of configs/ or examples/, as section.key in another file
# of examples/, or in a table of docs/results.md. There are at most 73.
# shellcheck shell=bash
set -euo pipefail

command -v python3 >/dev/null || exit 77
python3 - <<'PY'
import re
import sys
from pathlib import Path

MOST = 73  # each of them decides something that no measurement of the run tells; 71 and 72 are budgets, run.max_*


def keys():
    table = Path("common/config/config_keys.c").read_text(encoding="utf-8").split("config_keys[] = {", 1)[1]
    macro = r"\b(?:[A-Z]+_)?(?:TEXT|WORD|CHOICE|U32|U64|REAL)\(\s*(\w+), (\w+),"
    return [".".join(match) for match in re.findall(macro, table.split("\n};", 1)[0])]


def yaml_names(text):
    """Yields the keys of a file as paths: a.b.c for {a: {b: {c: 1}}}, in lines, in braces or with dots."""
    blocks, braces = [], []  # (indentation, name), names
    for line in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", re.sub(r'"[^"]*"|\'[^\']*\'', "0", line))
        indentation = len(line) - len(line.lstrip())
        name = ""
        for token in re.findall(r"[\w.-]+(?=:(?:\s|$))|[{}]", line):
            if token == "{":
                braces.append(name)
            elif token == "}":
                del braces[-1:]
            else:
                if not braces:
                    blocks = [block for block in blocks if block[0] < indentation] + [(indentation, token)]
                name = token
                path = [block[1] for block in blocks] + braces[1:] + [name] * bool(braces)
                yield ".".join(path)


used = ""
for path in sorted([*Path("configs").glob("*.yaml"), *Path("examples").iterdir()]):
    text = path.read_text(encoding="utf-8")
    used += "\n".join(yaml_names(text) if path.suffix == ".yaml" else [text]) + "\n"
results = Path("docs/results.md").read_text(encoding="utf-8")
used += "\n".join(line for line in results.splitlines() if line.startswith("|"))
unused = [key for key in keys() if not re.search(rf"(?<!\w){re.escape(key)}(?!\w)", used)]
if not 0 < len(keys()) <= MOST:
    sys.exit(f"common/config/config_keys.c: {len(keys())} keys, at most {MOST}: remove one")
for key in unused:
    print(f"{key}: in no file of configs/ or examples/ and in no table of docs/results.md: measure it, or remove it")
sys.exit(bool(unused))
PY
