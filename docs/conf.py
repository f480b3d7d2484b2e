# SPDX-License-Identifier: Apache-2.0
"""The site that `ninja docs` makes of the pages as they stand in the repository; they have the same links there and here.

docs/README.md lists the pages: its tables are the groups of the navigation.
"""
import pathlib
import re

from sphinx.application import Sphinx

ROOT = pathlib.Path(__file__).resolve().parent.parent

project = "shardwire"
copyright = "2026, The shardwire authors"
extensions = ["myst_parser", "breathe", "autoapi.extension"]
root_doc = "README"
include_patterns = ["*.md", *(f"{folder}/**.md" for folder in ("docs", "perf", "python", "schema", "src", "tests", "transport"))]
exclude_patterns = ["build*", ".*", "subprojects"]
nitpicky = False

html_theme = "furo"
html_title = "shardwire"
html_additional_pages = {"index": "index.html"}
html_show_sourcelink = False
html_copy_source = False
templates_path = ["templates"]

myst_heading_anchors = 6
suppress_warnings = ["autoapi.python_import_resolution"]

breathe_default_project = "shardwire"
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}
breathe_default_members = ("members",)
breathe_show_include = False

autoapi_dirs = [str(ROOT / "python/shardwire")]
autoapi_file_patterns = ["*.pyi", "*.py"]
autoapi_generate_api_docs = False
autoapi_member_order = "groupwise"
autoapi_python_class_content = "class"
autoapi_options = ["members", "undoc-members", "imported-members"]


def groups() -> list[tuple[str, list[str]]]:
    """The caption and the pages of each table in docs/README.md."""
    text = (ROOT / "docs/README.md").read_text()
    found = []
    for caption, rows in re.findall(r"^\| (\w[\w ]*) \| \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.M):
        links = [link for row in rows.splitlines() for link in re.findall(r"\]\(([^)#]+)\.md\)", row.split(" | ")[0])]
        found.append((caption[0].upper() + caption[1:], [str((ROOT / "docs" / link).resolve().relative_to(ROOT)) for link in links]))
    return found


def toctree(pages: list[str], *options: str) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", *options, "", *(f"/{page}" for page in pages), "```", ""])


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    listed = {one for _, pages in groups() for one in pages}
    if page == root_doc:
        source[0] += toctree(["docs/README"]) + "".join(toctree(pages, f":caption: {caption}") for caption, pages in groups())
    if page == "src/README":
        source[0] += toctree(sorted(one for one in app.env.found_docs - listed - {root_doc, "docs/README"}))


def single_backticks(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Docstrings have code in single backticks, as Markdown has."""
    lines[:] = [re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line) for line in lines]


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", single_backticks)
