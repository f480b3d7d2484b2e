#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints a public header as Doxygen shall read it: header_comments.py HEADER

* A heading in a comment, such as `Errors:`, begins a paragraph, and the lines indented below it belong to it.
* Below a heading, lines of a name, two spaces or more, and a text are a list.
* A comment of `//` that stands alone describes the file.
* What a comment that begins with `Internal:` describes is left out, up to the next empty line. So are private members,
  and the namespace `detail`.
* Names that Doxygen takes for words of other languages are others; header_xml.py changes them back.
"""
import re
import sys
from collections.abc import Iterator

COMMENT = re.compile(r"( *)///(?!<) ?(.*)")
HEADING = re.compile(r"([A-Z]\w*(?: id)?): +(?=\S)")
ITEM = re.compile(r"(\S+)  +(?=\S)")
RENAMED = {"local": "renamed_local"}
FIRST_HEADINGS = ("Cost", "Errors", "Ownership", "Threads")  # other comments may begin with a word and a colon, too


def paragraphs(lines: list[str]) -> Iterator[str]:
    """The lines as Markdown."""
    margin = 0  # of the text below a heading
    listed = False
    for number, line in enumerate(lines):
        heading = HEADING.match(line)
        if heading and (number > 0 or heading[1] in FIRST_HEADINGS):
            margin, listed = heading.end(), False
            yield from ("", f"**{heading[1]}:**")
        text = line[margin:]
        item = ITEM.match(text) if margin else None
        if line and line[:margin].strip() and not heading:  # the end of what a heading has
            margin, listed = 0, False
            yield from ("", line)
        elif item:
            yield from ([] if listed else [""])
            yield f"- `{item[1]}`: {text[item.end():]}"
            listed = True
        elif listed and text.startswith(" "):
            yield f"  {text.lstrip()}"
        else:
            yield from ([""] if listed else [])
            listed = False
            yield text.lstrip() if margin else text


def of_file(lines: list[str]) -> list[str]:
    """The lines, where the comment that describes the file is one for Doxygen."""
    for first, line in enumerate(lines):
        if line.startswith("// ") and "SPDX" not in line:
            last = next(number for number in range(first, len(lines)) if not lines[number].startswith("//"))
            if lines[last] == "" or lines[last].startswith("#"):
                return [*lines[:first], "/// \\file", *(f"/{one}" for one in lines[first:last]), "", *lines[last:]]
            return lines
    return lines


def closing(lines: Iterator[str]) -> str:
    """Skips to the line with the brace that closes what the lines are in."""
    depth = 1
    while depth > 0:
        line = next(lines)
        depth += line.count("{") - line.count("}")
    return line


def public(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line == "namespace detail {":
            closing(lines)
        elif line.strip() == "private:":
            yield closing(lines)
        else:
            yield line


def shown(lines: Iterator[str]) -> Iterator[str]:
    comment: list[str] = []
    indent = ""
    internal = False
    for line in public(lines):
        found = COMMENT.fullmatch(line)
        internal = bool(internal and line.strip()) or bool(found and found[2].startswith("Internal:"))
        if found and not internal:
            indent = found[1]
            comment.append(found[2])
            continue
        yield from (f"{indent}/// {text}" for text in paragraphs(comment))
        comment = []
        if not internal:
            code, mark, rest = line.partition("//")
            yield re.sub(r"\b\w+\b", lambda word: RENAMED.get(word[0], word[0]), code) + mark + rest


if __name__ == "__main__":
    with open(sys.argv[1]) as header:
        print("\n".join(shown(iter(of_file(header.read().splitlines())))))
