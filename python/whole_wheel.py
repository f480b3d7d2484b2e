# SPDX-License-Identifier: Apache-2.0
"""Puts the installed library, third parties' licences and a list of these into a wheel: whole_wheel.py WHEEL INSTALLED FOLDER.

The library becomes shardwire/{bin,include,lib} in the package, which can be moved as a whole. python/wheels calls this, with the
packages `wheel` and `nanobind` installed.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Part:
    """What is linked into the wheel and is not ours."""
    name: str
    version: str
    licence: str
    text: str
    url: str  # by https://github.com/package-url


def of_debian(package: str, name: str, licence: str) -> Part:
    query = ["dpkg-query", "-W", "-f", "${source:Package} ${source:Version}", package]
    source, version = subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()
    text = Path("/usr/share/doc", package, "copyright").read_text(encoding="utf-8")
    return Part(name, version, licence, text, f"pkg:deb/debian/{source}@{version.replace('+', '%2B').replace('~', '%7E')}?arch=source")


def third_parties() -> list[Part]:
    nanobind = importlib.metadata.distribution("nanobind")
    licence = next(file for file in nanobind.files or [] if file.name == "LICENSE")
    robin_map = Path(str(nanobind.locate_file("nanobind/ext/robin_map/include/tsl/robin_map.h"))).read_text(encoding="utf-8")
    return [
        of_debian("libcapnp-dev", "capnproto", "MIT"),
        of_debian("libfmt-dev", "fmt", "MIT"),
        of_debian("libuv1-dev", "libuv", "MIT AND BSD-2-Clause AND BSD-3-Clause AND ISC"),
        of_debian("libsodium-dev", "libsodium", "ISC"),
        of_debian("libxxhash-dev", "xxhash", "BSD-2-Clause"),
        of_debian("libssl-dev", "openssl", "Apache-2.0"),
        of_debian("nlohmann-json3-dev", "nlohmann-json", "MIT"),
        of_debian("libcli11-dev", "cli11", "BSD-3-Clause"),
        Part("nanobind", nanobind.version, "BSD-3-Clause", licence.read_text(), f"pkg:pypi/nanobind@{nanobind.version}"),
        Part("robin-map", "in nanobind", "MIT", robin_map[:robin_map.index("*/")], "pkg:github/Tessil/robin-map"),
    ]


def bill_of_materials(version: str, parts: list[Part]) -> str:
    """CycloneDX 1.6."""
    own = {"type": "library", "bom-ref": "shardwire", "name": "shardwire", "version": version, "purl": f"pkg:pypi/shardwire@{version}",
           "licenses": [{"expression": "Apache-2.0"}]}
    components = [{"type": "library", "bom-ref": part.url, "name": part.name, "version": part.version, "purl": part.url,
                   "licenses": [{"expression": part.licence}]} for part in parts]
    return json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": own}, "components": components,
                       "dependencies": [{"ref": "shardwire", "dependsOn": [part.url for part in parts]}]}, indent=1) + "\n"


def add_library(installed: Path, package: Path) -> None:
    for name in ("bin", "include", "lib"):
        shutil.copytree(installed / name, package / name, symlinks=True)
    folder = package / "lib"
    real = next(path for path in folder.glob("libshardwire.so.*") if not path.is_symlink())
    links = sorted(path for path in folder.glob("libshardwire.so*") if path.is_symlink())
    named = next(path for path in links if path.name != "libshardwire.so")
    for link in links:
        link.unlink()
    # A wheel has no links: the file has the name that the loader wants, and linkers get a text that names it.
    before = real.name
    real.rename(named)
    (folder / "libshardwire.so").write_text(f"/* linker script */ INPUT(-l:{named.name})\n", encoding="utf-8")
    for config in (folder / "cmake").rglob("*.cmake"):
        config.write_text(config.read_text(encoding="utf-8").replace(before, named.name), encoding="utf-8")
    for module in package.glob("_core*.so"):
        subprocess.run(["strip", module], check=True)
        subprocess.run(["patchelf", "--set-rpath", "$ORIGIN/lib", module], check=True)


def add_texts(info: Path) -> None:
    parts = third_parties()
    metadata = info / "METADATA"
    head, separator, body = metadata.read_text(encoding="utf-8").partition("\n\n")
    lines = head.split("\n")
    version = next(line.removeprefix("Version: ") for line in lines if line.startswith("Version: "))
    licences = sorted({licence for part in parts for licence in part.licence.split(" AND ")} | {"Apache-2.0"})
    where = lines.index("License-Expression: Apache-2.0")
    lines[where] = "License-Expression: " + " AND ".join(licences)
    (info / "licenses" / "third-party").mkdir(parents=True)
    for part in parts:
        (info / "licenses" / "third-party" / f"{part.name}.txt").write_text(part.text, encoding="utf-8")
        lines.append(f"License-File: third-party/{part.name}.txt")
    metadata.write_text("\n".join(lines) + separator + body, encoding="utf-8")
    (info / "sboms").mkdir()
    (info / "sboms" / "shardwire.cdx.json").write_text(bill_of_materials(version, parts), encoding="utf-8")
    (info / "entry_points.txt").write_text("[console_scripts]\nshardwire = shardwire.__main__:main\n", encoding="utf-8")


def main() -> None:
    wheel, installed, folder = (Path(argument) for argument in sys.argv[1:])
    tree = wheel.parent / "tree"
    subprocess.run([sys.executable, "-m", "wheel", "unpack", "--dest", tree, wheel], check=True, stdout=subprocess.DEVNULL)
    root = next(tree.iterdir())
    add_library(installed, root / "shardwire")
    add_texts(next(root.glob("*.dist-info")))
    subprocess.run([sys.executable, "-m", "wheel", "pack", "--dest-dir", folder, root], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
