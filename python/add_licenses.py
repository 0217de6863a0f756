"""Adds the licenses of bundled libraries to a wheel: add_licenses.py WHEEL

`auditwheel repair` copies shared libraries of the system into the wheel's folder atoll.libs. For each of them, Debian's
package database names the package, which has its license in /usr/share/doc. The wheel gets it as
dist-info/licenses/PACKAGE.txt.
"""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path


def package_of(library: str) -> str:
    """The Debian package of a library, from its name in the wheel: libzmq-98f0defc.so.5.2.4 -> libzmq5."""
    name = re.sub(r"-[0-9a-f]{8}(?=\.)", "", library)
    found = subprocess.run(["dpkg-query", "-S", f"*/{name}"], capture_output=True, text=True, check=False).stdout
    if not found:
        sys.exit(f"add_licenses: no Debian package contains {name}: build the wheel with Debian's libraries")
    return re.split("[:,]", found)[0]


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def main() -> None:
    wheel = Path(sys.argv[1])
    part = wheel.with_suffix(".part")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as new:
        names = old.namelist()
        record = next(name for name in names if name.endswith(".dist-info/RECORD"))
        info = record.rpartition("/")[0]
        packages = sorted({package_of(Path(name).name) for name in names if re.match(r"atoll\.libs/.", name)})
        added = {f"{info}/licenses/{p}.txt": Path(f"/usr/share/doc/{p}/copyright").read_bytes() for p in packages}
        for item in old.infolist():
            if item.filename != record:
                new.writestr(item, old.read(item))
        for name, data in added.items():
            new.writestr(name, data)
        new.writestr(record, old.read(record).decode() + "".join(record_line(*item) for item in added.items()))
    part.replace(wheel)
    print(f"bundled, with its license: {', '.join(packages)}")


main()
