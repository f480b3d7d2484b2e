#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The library exports what its public headers declare, all of that, and nothing else; a module exports its two functions.
Functions of the C API have the version of a node SHARDWIRE_C_<n>, all other symbols that of C++.
symbols_test.py NM LIBRARY HEADER... --c HEADER... [--modules MODULE...]"""
import argparse
import collections
import dataclasses
import pathlib
import re
import subprocess
import sys

MODULE_SYMBOLS = {"shardwire_module_build", "shardwire_module_table"}
CXX_VERSION = "SHARDWIRE_CXX"
C_VERSION = re.compile(r"SHARDWIRE_C_[1-9]\d*")


@dataclasses.dataclass
class Header:
    """Qualified names below namespace shardwire."""
    classes: set                    # classes that programs may use
    exported: collections.Counter   # number of functions per name that programs may call and the library defines
    constants: set                  # constants that a sanitizer keeps in memory for its checks
    inline: set                     # functions of no class whose bodies a build without optimization keeps


@dataclasses.dataclass
class Declaration:
    name: str
    public: bool
    elsewhere: bool  # its body is not in the header
    at: int          # position in the text without comments


def without_comments(text):
    """As long as before, so that positions stay."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())
    return re.sub(r'//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S | re.M)


def closing(text, opening):
    depth = 0
    for at in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise ValueError("a brace is not closed")


def end_of(text, at):
    """Of the declaration at `at`: its semicolon, opening brace, or the closing brace of the scope around it."""
    depth = 0
    while depth > 0 or text[at] not in ";{}":
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at


def declarations(text, at, end, scope, public, classes):
    """Functions declared between `at` and `end`. Adds public classes to `classes`."""
    out = []
    inside_class = bool(scope)
    access = not inside_class or public
    while text[at:end].strip():
        stop = min(end_of(text + ";", at), end)
        chunk = text[at:stop]
        if label := re.match(r"\s*(public|private|protected)\s*:(?!:)", chunk):
            access = label.group(1) == "public"
            at += label.end()
            continue
        start = at + len(chunk) - len(chunk.lstrip())
        opens = stop < end and text[stop] == "{"
        at = (closing(text, stop) if opens else stop) + 1
        bare = re.sub(r"\[\[.*?\]\]|\bSHARDWIRE_API_(BEGIN|END)\b", " ", chunk)
        while (fewer := re.sub(r"<[^<>=]*>", " ", bare)) != bare:
            bare = fewer
        bare = re.sub(r"\btemplate\b", " ", bare).strip()
        if name := re.match(r"namespace\s+(\w+)", bare):
            if name.group(1) in ("shardwire", "detail"):  # inline functions of headers call those of detail
                inner = scope + (("detail",) if name.group(1) == "detail" else ())
                out += declarations(text, stop + 1, at - 1, inner, True, classes)
        elif name := re.match(r"(class|struct)\s+(\w+)", bare):
            if opens:
                qualified = scope + (name.group(2),)
                if access:
                    classes.add("::".join(qualified))
                is_public = access and name.group(1) == "struct"
                inner = declarations(text, stop + 1, at - 1, qualified, is_public, classes)
                out += [d if access else dataclasses.replace(d, public=False) for d in inner]
                at = end_of(text + ";", at) + 1
        elif re.match(r"(enum|using|typedef|friend|static_assert|extern)\b", bare):
            at = end_of(text + ";", at) + 1 if opens else at
        elif name := re.match(r"[^(=]*?(operator\s*\S+?|~?\b\w+)\s*\(", bare):
            inline = opens or re.search(r"=\s*(default|delete|0)\s*$", bare) or "constexpr" in bare
            qualified = "::".join(scope + (re.sub(r"\s", "", name.group(1)),))
            out.append(Declaration(qualified, access, not inline, start))
        elif opens:
            at = end_of(text + ";", at) + 1  # a variable with an initialiser
    return out


def read(headers):
    out = Header(set(), collections.Counter(), set(), set())
    for header in headers:
        text = without_comments(pathlib.Path(header).read_text(encoding="utf-8"))
        declared = declarations(text, 0, len(text), (), True, out.classes)
        out.constants.update(re.findall(r"^inline constexpr [\w:]+ (\w+) =", text, re.M))
        for one in declared:
            called = re.search(rf"(return|=)\s+{re.escape(one.name.rpartition('::')[2])}\(", text)
            if one.elsewhere and (one.public or called):
                out.exported[one.name] += 1
            if not one.elsewhere and one.public and "::" not in one.name:
                out.inline.add(one.name)
    return out


def read_c(headers):
    """Names of the functions that the headers of the C API declare."""
    texts = [without_comments(pathlib.Path(header).read_text(encoding="utf-8")) for header in headers]
    return {name for text in texts for name in re.findall(r"^[a-z][\w ]*[ *]+(shardwire_\w+)\(", text, re.M)}


def symbols(nm, library):
    """The version of each symbol; empty for none. Leaves out the symbols that stand for versions."""
    lines = subprocess.run([nm, "-DC", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    found = [line.split(maxsplit=2)[1:] for line in lines.splitlines()]
    return dict(symbol.partition("@@")[::2] for kind, symbol in found if kind != "A")


def wrong_in_c(versions, declared):
    """What is wrong with the functions of the C API, given the versions of the symbols without a namespace."""
    bad = [f"{name}: in no header of the C API" for name in sorted(versions.keys() - declared)]
    bad += [f"{name}: not exported; add it to src/support/library.map" for name in sorted(declared - versions.keys())]
    return bad + [f"{name}: version '{version}'" for name, version in sorted(versions.items())
                  if not C_VERSION.fullmatch(version)]


def name_of(symbol):
    """Of a function or type of ours; None for anything else."""
    match = re.match(r"shardwire::((?:\w+::)*(?:operator[^\w\s(]+|~?\w+))(?:\[abi:\w+\])?\(", symbol)
    return match and match.group(1)


def is_public_type(symbol, header):
    match = re.match(r"(?:typeinfo|typeinfo name|vtable) for shardwire::([\w:]+)$", symbol)
    return match and match.group(1) in header.classes


def main():
    parser = argparse.ArgumentParser()
    for name, count in {"nm": None, "library": None, "headers": "+", "--c": "+", "--modules": "*"}.items():
        parser.add_argument(name, nargs=count, default=[])
    options = parser.parse_args()
    header = read(options.headers)
    versions = symbols(options.nm, options.library)
    c_functions = read_c(options.c)
    c_versions = {symbol: version for symbol, version in versions.items() if re.fullmatch(r"shardwire_\w+", symbol)}
    exported = versions.keys() - c_versions.keys()
    counts = collections.Counter(map(name_of, exported))
    bad = [f"{symbol}: in no public header" for symbol in sorted(exported)
           if not is_public_type(symbol, header) and name_of(symbol) not in header.exported
           and name_of(symbol) not in header.inline
           and symbol.removeprefix("shardwire::") not in header.constants]
    bad += [f"shardwire::{name}: {declared} declared, {counts[name]} exported"
            for name, declared in sorted(header.exported.items()) if declared != counts[name]]
    bad += [f"{symbol}: version '{versions[symbol]}'" for symbol in sorted(exported) if versions[symbol] != CXX_VERSION]
    bad += wrong_in_c(c_versions, c_functions)
    for module in options.modules:
        others = symbols(options.nm, module).keys() ^ MODULE_SYMBOLS
        bad += [f"{module}: {symbol}" for symbol in sorted(others)]
    print("\n".join(bad[:40]))
    print(f"{len(exported)} symbols of C++ and {len(c_versions)} of C exported, "
          f"{header.exported.total()} and {len(c_functions)} functions declared, {len(bad)} wrong")
    return 1 if bad or not header.exported or not c_functions else 0


if __name__ == "__main__":
    sys.exit(main())
