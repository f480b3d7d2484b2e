# SPDX-License-Identifier: Apache-2.0
"""The site that `ninja docs` makes of the pages as they stand in the repository; they have the same links there and here.

docs/README.md lists the pages: its tables are the groups of the navigation.
"""
import ast
import builtins
import pathlib
import re

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

ROOT = pathlib.Path(__file__).resolve().parent.parent

project = "shardwire"
copyright = "2026, The shardwire authors"
extensions = ["myst_parser", "breathe", "autoapi.extension"]
root_doc = "README"
include_patterns = ["*.md", *(f"{folder}/**.md" for folder in ("docs", "examples", "perf", "python", "schema", "src", "tests", "transport"))]
exclude_patterns = ["build*", ".*", "subprojects"]

html_theme = "furo"
html_title = "shardwire"
html_additional_pages = {"index": "index.html"}
html_show_sourcelink = False
html_copy_source = False
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["site.css"]
highlight_language = "none"  # of blocks that name none

myst_heading_anchors = 6
suppress_warnings = ["autoapi.python_import_resolution"]

breathe_default_project = "shardwire"
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}
breathe_default_members = ("members",)
breathe_show_include = False
breathe_show_enumvalue_initializer = True

autoapi_dirs = [str(ROOT / "python/shardwire")]
autoapi_file_patterns = ["*.pyi", "*.py"]
autoapi_generate_api_docs = False
autoapi_member_order = autodoc_member_order = "bysource"
autoapi_python_class_content = "class"
autoapi_options = ["members", "undoc-members", "imported-members"]
maximum_signature_line_length = 110


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


def module(found: re.Match[str]) -> str:
    """What the module lists in `__all__`; without it, what it defines."""
    path = ROOT / "python" / found[1].replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body = ast.parse(path.read_text()).body
    names = [one.name for one in body if isinstance(one, (ast.ClassDef, ast.FunctionDef)) and not one.name.startswith("_")]
    for one in body:
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__":
            names = ast.literal_eval(one.value)
    return f"```{{eval-rst}}\n.. autoapimodule:: {found[1]}\n   :members: {', '.join(names)}\n   :undoc-members:\n```"


def add_modules(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = re.sub(r"```\{module\} (\S+)\n```", module, source[0])


def single_backticks(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Docstrings have code in single backticks, as Markdown has."""
    lines[:] = [re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line) for line in lines]


def short_types(app: Sphinx, tree: nodes.document) -> None:
    """Types in signatures of Python have the names that the package exports. Those of the language are no links."""
    types = (addnodes.desc_sig_name, addnodes.desc_annotation, addnodes.desc_returns)
    for link in [*tree.findall(addnodes.pending_xref)]:
        if link.get("refdomain") != "py" or not isinstance(link.parent, types):
            continue
        target = re.sub(r"^(collections\.abc|shardwire(\.torch)?\._\w+|torch\.distributed\..*)\.", "", link["reftarget"])
        link.children[:] = []
        link += nodes.Text(target.removeprefix("shardwire."))
        link["reftarget"] = target
        if hasattr(builtins, target):
            link.replace_self(link.children)


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("source-read", add_modules)
    app.connect("autodoc-process-docstring", single_backticks)
    app.connect("doctree-read", short_types)
