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

SECTIONS = {"enum": "enum", "typedef": "typedef", "variable": "var", "function": "func"}  # by kind of member, in the order on a page


def part(element: Xml.Element, name: str) -> Xml.Element:
    found = element.find(name)
    assert found is not None, name
    return found


def file_of(element: Xml.Element) -> str:
    return part(element, "location").attrib["file"]


def line_of(element: Xml.Element) -> int:
    return int(part(element, "location").attrib["line"])


def move_members(file: Xml.Element, members: list[Xml.Element]) -> None:
    for inner in file.findall("innernamespace"):
        file.remove(inner)
    for kind, section in SECTIONS.items():
        found = [one for one in members if one.attrib["kind"] == kind and file_of(one) == file_of(file)]
        if found:
            element = Xml.Element("sectiondef", kind=section)
            element.extend(sorted(found, key=line_of))
            file.insert(list(file).index(part(file, "briefdescription")), element)


def name_enumerations(file: Xml.Element) -> None:
    members = [*file.iter("memberdef")]
    types = {line_of(one): part(one, "name").text for one in members if one.attrib["kind"] == "typedef"}
    for enum in members:
        name = types.get(line_of(enum) - 1)
        if enum.attrib["kind"] == "enum" and name:
            text = Xml.SubElement(part(enum, "detaileddescription"), "para")
            text.text = "Values of "
            Xml.SubElement(text, "computeroutput").text = name


folder = pathlib.Path(sys.argv[1])
for path in folder.glob("*.xml"):
    text = path.read_text().replace(' inline="yes"', ' inline="no"')
    for word, other in RENAMED.items():
        text = text.replace(other, word)
    path.write_text(text)

of_namespace = [*Xml.parse(folder / "namespaceshardwire.xml").iter("memberdef")]
for member in of_namespace:
    part(member, "name").text = f"shardwire::{part(member, 'name').text}"
for path in [*folder.glob("*_8hpp.xml"), *folder.glob("*_8h.xml")]:
    tree = Xml.parse(path)
    file = part(tree.getroot(), "compounddef")
    if path.name.endswith("_8hpp.xml"):
        move_members(file, of_namespace)
    else:
        name_enumerations(file)
    tree.write(path, encoding="UTF-8", xml_declaration=True)
