#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prepares Doxygen's XML for Breathe: header_xml.py FOLDER

* Functions, types and constants of the namespace move to the file that declares them, in its order: Breathe would show the namespace
  again for each file.
* Enumerations of C, which have no names, refer to the type just before them.
* The words `inline` are left out, and renamed words have their names again (header_comments.py).
"""
import pathlib
import sys
import xml.etree.ElementTree as Xml

from header_comments import RENAMED

folder = pathlib.Path(sys.argv[1])
for path in folder.glob("*.xml"):
    text = path.read_text().replace(' inline="yes"', ' inline="no"')
    for word, name in RENAMED.items():
        text = text.replace(name, word)
    path.write_text(text)

members: dict[str, list[Xml.Element]] = {}
for member in Xml.parse(folder / "namespaceshardwire.xml").getroot().iter("memberdef"):
    location = member.find("location")
    name = member.find("name")
    assert location is not None and name is not None
    name.text = f"shardwire::{name.text}"
    members.setdefault(location.attrib["file"], []).append(member)

for path in folder.glob("*_8hpp.xml"):
    tree = Xml.parse(path)
    [file] = tree.getroot().iter("compounddef")
    for inner in file.findall("innernamespace"):
        file.remove(inner)
    location = file.find("location")
    assert location is not None
    for kind in ("enum", "typedef", "var", "func"):
        found = [one for one in members.get(location.attrib["file"], []) if one.attrib["kind"] in (kind, {"var": "variable", "func": "function"}.get(kind))]
        if found:
            section = Xml.Element("sectiondef", kind=kind)
            section.extend(sorted(found, key=lambda one: int(one.find("location").attrib["line"])))
            file.insert(list(file).index(file.find("briefdescription")), section)
    tree.write(path, encoding="UTF-8", xml_declaration=True)

for path in folder.glob("*_8h.xml"):
    tree = Xml.parse(path)
    types = {int(one.find("location").attrib["line"]): one.find("name").text for one in tree.iter("memberdef") if one.attrib["kind"] == "typedef"}
    for enum in (one for one in tree.iter("memberdef") if one.attrib["kind"] == "enum"):
        name = types.get(int(enum.find("location").attrib["line"]) - 1)
        if name:
            text = Xml.SubElement(enum.find("detaileddescription"), "para")
            text.text = "Values of "
            Xml.SubElement(text, "computeroutput").text = name
    tree.write(path, encoding="UTF-8", xml_declaration=True)
