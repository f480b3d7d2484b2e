#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The library exports what its public headers declare, all of that, and nothing else; a module exports its two functions.
symbols_test.py NM LIBRARY HEADER... [--modules MODULE...]"""
import collections
import dataclasses
import pathlib
import re
import subprocess
import sys

MODULE_SYMBOLS = {"shardwire_module_build", "shardwire_module_table"}


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


def symbols(nm, library):
    lines = subprocess.run([nm, "-DC", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return [line.split(maxsplit=2)[2] for line in lines.splitlines()]


def name_of(symbol):
    """Of a function or type of ours; None for anything else."""
    match = re.match(r"shardwire::((?:\w+::)*(?:operator[^\w\s(]+|~?\w+))(?:\[abi:\w+\])?\(", symbol)
    return match and match.group(1)


def is_public_type(symbol, header):
    match = re.match(r"(?:typeinfo|typeinfo name|vtable) for shardwire::([\w:]+)$", symbol)
    return match and match.group(1) in header.classes


def main():
    nm, library, *rest = sys.argv[1:]
    split = rest.index("--modules") if "--modules" in rest else len(rest)
    header = read(rest[:split])
    exported = set(symbols(nm, library))
    counts = collections.Counter(map(name_of, exported))
    bad = [f"{symbol}: in no public header" for symbol in sorted(exported)
           if not is_public_type(symbol, header) and name_of(symbol) not in header.exported
           and name_of(symbol) not in header.inline
           and symbol.removeprefix("shardwire::") not in header.constants]
    bad += [f"shardwire::{name}: {declared} declared, {counts[name]} exported"
            for name, declared in sorted(header.exported.items()) if declared != counts[name]]
    for module in rest[split + 1:]:
        others = set(symbols(nm, module)) ^ MODULE_SYMBOLS
        bad += [f"{module}: {symbol}" for symbol in sorted(others)]
    print("\n".join(bad[:40]))
    print(f"{len(exported)} symbols exported, {header.exported.total()} functions declared, {len(bad)} wrong")
    return 1 if bad or not header.exported else 0


if __name__ == "__main__":
    sys.exit(main())
