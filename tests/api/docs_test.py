#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds documents against the code: docs_test.py SOURCE_ROOT SHARDWIRE COMPILER [ARGUMENT...]

* Links to files and headings lead somewhere, and rows of tables have as many cells as their head.
* Each public header and module of Python is on a page of docs/reference.
* Files of tests and cases of tests that are named exist; so do names of C++, variables, and options of the command.
* Examples of --help are commands with their options, and its exit statuses are those of docs/failures.md. Pages that it names are for users.
* SECURITY.md lists the fuzz targets.
* Every block of C++ compiles. What it takes from elsewhere stands in a comment before it: <!-- given: PARAMETERS -->
* `console` blocks print what they show. The `json` blocks before them, whose files are named in the text, are their input.
  After <!-- times differ --> times, the slowest rank, speeds and the version of Linux are not compared. What they draw is in docs/drawings.
* docs/layouts.md works a plan out by hand: its pieces, their holders and the sums are those of `shardwire plan --json`.
* docs/memory.md has the limits of the sources; its worked example has what `shardwire plan --json` says that ranks hold and want.
* Blocks after <!-- from FILE --> are in that file, line by line.
* docs/install.md lists the packages of `quickstart` and the options of the build, with their defaults and versions.
* Measurements in docs/performance-method.md are suites of perf/meson.build.
* Versions in docs/compatibility.md are those that the build asks for, and that the sources have.
* The metrics in docs/metrics.md are those of src/telemetry/metrics.cpp.
* The fields and reasons that docs/report.md lists are those of the headers, and the fields those that `shardwire run --report` writes.

What documents say of Python is held against the package by python/tests/torch/test_documents.py.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator

ROOT, SHARDWIRE = (pathlib.Path(one).resolve() for one in sys.argv[1:3])
COMPILER = sys.argv[3:]
EVERY_PAGE = [*ROOT.glob("*.md"), *(page for folder in (".github", "docs", "examples", "perf", "python", "schema", "src", "tests", "transport")
                                    for page in (ROOT / folder).rglob("*.md"))]
FOR_USERS = [*(ROOT / page for page in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "SUPPORT.md", "python/README.md")),
             *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.S | re.M)
INLINE = re.compile(r"`([^`\n]+)`")
TIMES = re.compile(r"\d[\d.]* ([kMGT]?B/s|[num]?s\b)|\d+\.\d{3,}|Linux [^)]*|-(?= while moving)|(?<=slowest rank )\(\d+\)")


def place(page: pathlib.Path, text: str) -> str:
    return f"{page.relative_to(ROOT)}: {text}"


def prose(page: pathlib.Path) -> str:
    return BLOCK.sub("", page.read_text())


def inline(page: pathlib.Path) -> list[str]:
    return INLINE.findall(prose(page))


def anchors(page: pathlib.Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def links() -> Iterator[str]:
    for page in EVERY_PAGE:
        for link in re.findall(r"\]\(([^)\s]+)\)", INLINE.sub("", prose(page))):
            path, _, heading = link.partition("#")
            if re.match(r"\w+:", link):
                continue
            target = (page.parent / path).resolve() if path else page
            if not target.exists():
                yield place(page, f"{link} does not exist")
            elif heading and heading not in anchors(target):
                yield place(page, f"{link}: there is no such heading")


def tables() -> Iterator[str]:
    """A `|` in code ends a cell too."""
    for page in EVERY_PAGE:
        for table in re.findall(r"(?:^\|.*\n)+", prose(page), re.M):
            head, *rows = table.splitlines()
            for row in rows:
                if len(re.findall(r"(?<!\\)\|", row)) != len(re.findall(r"(?<!\\)\|", head)):
                    yield place(page, f"not as many cells as in the first row: {row[:100]}")


def readme_length() -> Iterator[str]:
    lines = len((ROOT / "README.md").read_text().splitlines())
    if lines > 120:
        yield f"README.md has {lines} lines, more than 120"


def pages_are_listed() -> Iterator[str]:
    index = (ROOT / "docs/README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        if page.name != "README.md" and f"({page.name})" not in index:
            yield f"docs/README.md does not list {page.name}"


def references() -> Iterator[str]:
    """Each public header, and each public module of Python, has a place in the site's reference."""
    reference = "".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    known = set(re.findall(r"^```\{(?:doxygenfile|module)\} (\S+)$", reference, re.M))
    headers = {header.name.removesuffix(".in") for header in (ROOT / "include").rglob("*.h*")} - {"export.hpp", "shardwire.hpp", "shardwire.h"}
    paths = (module.relative_to(ROOT / "python").with_suffix("") for module in (ROOT / "python/shardwire").rglob("[!_]*.py"))
    modules = {"shardwire", "shardwire.torch", *(".".join(path.parts) for path in paths)}
    for name in sorted((headers | modules) ^ known):
        yield f"docs/reference: {name} is {'on no page' if name not in known else 'no public header or module'}"


def tests() -> Iterator[str]:
    """`tests/area/unit_test.cpp`: `case`, `case`, or the same of a file in Python."""
    for page in FOR_USERS:
        for path in inline(page):
            if re.fullmatch(r"(tests|perf|python|\.ci)/[\w./-]+", path) and not (ROOT / path).exists():
                yield place(page, f"{path} does not exist")
        for path, names in re.findall(r"`([\w/]+_test\.cpp|[\w/]+\.py)`: (`\w+`(?:, `\w+`)*)", page.read_text()):
            code = (ROOT / path).read_text()
            for name in INLINE.findall(names):
                if not re.search(rf"(def |TEST_CASE\(){name}\b", code):
                    yield place(page, f"{path} has no case {name}")


def variables() -> Iterator[str]:
    known = set(re.findall(r'"(SHARDWIRE_\w+)"', (ROOT / "src/support/environment.cpp").read_text()))
    of_c = set(re.findall(r"\bSHARDWIRE_\w+", "".join(header.read_text() for header in (ROOT / "include").rglob("*.*"))))
    symbols = {"SHARDWIRE_C_1"}
    for page in FOR_USERS:
        for name in sorted(set(re.findall(r"\bSHARDWIRE_[A-Z0-9_]*[A-Z0-9]\b", page.read_text())) - known - of_c - symbols):
            yield place(page, f"there is no {name}")
    described = set(re.findall(r"^\| `(SHARDWIRE_\w+)`", (ROOT / "docs/ports-and-processes.md").read_text(), re.M))
    for name in sorted(known ^ described):
        yield f"docs/ports-and-processes.md: {name} is {'not described' if name in known else 'no variable'}"


def names_of_cpp() -> Iterator[str]:
    words = set(re.findall(r"\w+", "".join(header.read_text() for header in (ROOT / "include").rglob("*.*"))))
    for page in FOR_USERS:
        for code in inline(page):
            qualified = re.match(r"\w+(?:::\w+)+", code)
            for name in qualified[0].split("::") if qualified else []:
                if name not in words:
                    yield place(page, f"{code}: no public header has {name}")


def help_of(command: str, known: dict[str, str] = {}) -> str:
    if command not in known:
        result = subprocess.run([SHARDWIRE, *command.split(), "--help"], capture_output=True, text=True)
        known[command] = result.stdout if f"shardwire {command} " in result.stdout else ""
    return known[command]


def wrong_commands(lines: Iterable[str]) -> Iterator[str]:
    for code in lines:
        for command, rest in re.findall(r"\bshardwire ([a-z]+)\b([^#|&]*)", code):
            within = re.match(r" ([a-z]+(?:-[a-z]+)*)", rest)  # `case check`
            if within and help_of(f"{command} {within[1]}"):
                command = f"{command} {within[1]}"
            if not help_of(command):
                yield f"{code}: there is no command {command}"
            for option in re.findall(r"--[a-z-]+", rest):
                if not re.search(rf"{option}\b", help_of(command).partition("\nExamples:\n")[0]):
                    yield f"{code}: {command} has no {option}"


def options() -> Iterator[str]:
    for page in FOR_USERS:
        blocks = (code for language, code in BLOCK.findall(page.read_text()) if language in ("", "sh", "console"))
        yield from (place(page, problem) for problem in wrong_commands((*inline(page), *"".join(blocks).splitlines())))


def helps() -> Iterator[str]:
    """Each --help has examples that the command takes, and the exit statuses of docs/failures.md. It names only pages for users."""
    listed = re.findall(r"^\| (\d+) \| (.*) \|$", (ROOT / "docs/failures.md").read_text(), re.M)
    commands = [""]
    for command in commands:  # grows by the subcommands of each
        text = subprocess.run([SHARDWIRE, *command.split(), "--help"], capture_output=True, text=True).stdout
        _, _, subcommands = text.partition("\nSubcommands:\n")
        names = re.findall(r"^  ([a-z-]+) ", subcommands.partition("\n\n")[0], re.M)
        commands += [f"{command} {name}".strip() for name in names]
        statuses, _, examples = text.partition("\nExit status:\n")[2].partition("\n\nExamples:\n")
        if re.findall(r"^  (\d+) +(.*)$", statuses, re.M) != listed:
            yield f"shardwire {command} --help: its exit statuses are not those of docs/failures.md"
        if not examples.strip():
            yield f"shardwire {command} --help: there is no example"
        yield from (f"shardwire {command} --help: {problem}" for problem in wrong_commands(examples.splitlines()))
        for page in re.findall(r"[\w./-]+\.md\b", text):
            if ROOT / page not in FOR_USERS:
                yield f"shardwire {command} --help: {page} is no page for users"


def fuzz_targets() -> Iterator[str]:
    [table] = re.findall(r"^fuzz_targets = \[(.*?)\]", (ROOT / "tests/fuzz/meson.build").read_text(), re.M | re.S)
    [section] = re.findall(r"^## Fuzzing$(.*?)(?=^## |\Z)", (ROOT / "SECURITY.md").read_text(), re.M | re.S)
    for name in sorted(set(re.findall(r"'(\w+)'", table)) ^ set(re.findall(r"`(\w+)`", section))):
        yield f"SECURITY.md: the fuzz target {name} is missing there or in tests/fuzz/meson.build"


def compiles() -> Iterator[str]:
    """Whole programs are left out: README's, that of docs/c.md and those of examples/ are built and run elsewhere."""
    program = "#include <shardwire/shardwire.hpp>\n#include <thread>\nusing namespace shardwire;\nusing namespace std::chrono_literals;\n"
    fragments = re.compile(r"(?:<!-- given: (.*?) -->\n)?^```cpp\n(.*?)^```$", re.S | re.M)
    for number, page in enumerate(FOR_USERS):
        for given, code in fragments.findall(page.read_text()):
            if "int main(" not in code:
                line = page.read_text()[: page.read_text().index(code)].count("\n") + 1
                program += f'void block_{number}_{line}({given}) {{\n#line {line} "{place(page, "")[:-2]}"\n{code}}}\n'
    # Errors name the page. Variables that a fragment only shows may be unused.
    result = subprocess.run([*COMPILER, "-std=c++20", "-fsyntax-only", "-xc++", "-"], input=program, capture_output=True, text=True)
    if result.returncode != 0:
        yield result.stderr


def consoles() -> Iterator[str]:
    drawings = set((ROOT / "docs/drawings").iterdir())
    for page in FOR_USERS:
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "shardwire").symlink_to(SHARDWIRE)
            text = page.read_text()
            for found in BLOCK.finditer(text):
                language, code = found.groups()
                if language == "json":
                    named = re.findall(r"`(\w+\.json)`", text[: found.start()])
                    (pathlib.Path(folder) / named[-1]).write_text(code)
                    plan = subprocess.run(["./shardwire", "plan", named[-1], "--json"], cwd=folder, capture_output=True, text=True)
                    if plan.returncode > 1 and '"source"' in code:  # a case, not a model's configuration
                        yield place(page, plan.stderr)
                if language == "console":
                    command, _, shown = code.removeprefix("$ ").partition("\n")
                    ran = subprocess.run(["bash", "-c", f"PATH=.:$PATH; exec 2>&1; {command}"], cwd=folder, capture_output=True, text=True)
                    same = (lambda text: TIMES.sub("#", text)) if text[: found.start()].endswith("<!-- times differ -->\n") else str
                    if same(ran.stdout) != same(shown):
                        yield place(page, f"{command} prints\n{ran.stdout}")
            for drawn in pathlib.Path(folder).glob("*.svg"):
                kept = ROOT / "docs/drawings" / drawn.name
                if kept not in drawings or kept.read_text() != drawn.read_text():
                    yield place(page, f"docs/drawings/{drawn.name} is not what its command draws")
                drawings.discard(kept)
    for kept in sorted(drawings):
        yield place(kept, "no console block draws it")


def plan_by_hand() -> Iterator[str]:
    """A rank holds the pieces that are no gaps if all other ranks are lost."""
    page = ROOT / "docs/layouts.md"
    text = page.read_text()
    [code] = re.findall(r"`hand\.json`:\n```json\n(.*?)^```$", text, re.S | re.M)

    def planned(lost: list[int]) -> dict[str, list[dict[str, object]]]:
        case = json.loads(code)
        case["source"]["lost"] = lost
        return json.loads(subprocess.run([SHARDWIRE, "plan", "-", "--json"], input=json.dumps(case), capture_output=True, text=True).stdout)

    def box(item: dict[str, object]) -> str:
        return ", ".join(f"{lower}:{lower + size}" for lower, size in zip(item["offset"], item["size"]))

    ranks = range(json.loads(code)["source"]["ranks"])
    gaps = {rank: [(gap["rank"], box(gap)) for gap in planned([other for other in ranks if other != rank])["gaps"]] for rank in ranks}
    plan = planned([])
    rows = sorted((piece["dst"], box(piece), ", ".join(str(rank) for rank in ranks if (piece["dst"], box(piece)) not in gaps[rank]),
                   piece["src"], piece["bytes"]) for piece in plan["pieces"])
    table = re.findall(r"^\| (\d+) \| `\[(.*?)\]` \| ([\d, ]+) \| (\d+) \| (\d+) \|$", text, re.M)
    if table != [tuple(map(str, row)) for row in rows]:
        yield place(page, f"the plan has the pieces {rows}")
    wanted = [sum(row[-1] for row in rows if row[0] == rank) for rank in range(json.loads(code)["target"]["ranks"])]
    totals = plan["totals"]
    for sums in (f"{', '.join(map(str, wanted[:-1]))} and {wanted[-1]} of {totals['needed']} bytes",
                 f"{totals['local']} bytes stay in their process, {totals['remote']} move"):
        if sums not in text.replace("\n   ", " "):
            yield place(page, f"it does not say: {sums}")


def memory_of_a_rank() -> Iterator[str]:
    """The limits are those of the sources. What ranks of the example hold and want is planned; the rest are sums of both."""
    page = ROOT / "docs/memory.md"
    text = page.read_text()
    limits = {"staging that serves its readers": ("src/session/settings.cpp", r"return (\d+)u << 20"),
              "staging of its own restore": ("include/shardwire/options.hpp", r"struct RestoreOptions \{.*?staging_bytes = (\d+)u << 20"),
              "code, connections, bookkeeping": ("perf/measure/member.cpp", r"memory_allowance = (\d+)u << 20"),
              "memory of peers that it mapped, after they have withdrawn it": ("src/peers/link_table.cpp", r"max_idle_bytes = (\d+)u << 20"),
              "pinned memory for copies from and to devices": ("src/session/core.cpp", r"max_pinned_bytes = (\d+)u << 20")}
    known = {what: int(re.findall(pattern, (ROOT / path).read_text(), re.S)[0]) for what, (path, pattern) in limits.items()}
    listed = {what: int(size) for what, size in re.findall(r"^\| ([^|]+) \| (\d+) MiB\b", text, re.M)}
    if listed != known:
        yield place(page, f"the limits in MiB are {known}")
    [code] = re.findall(r"`llama\.json`:\n```json\n(.*?)^```$", text, re.S | re.M)
    case = json.loads(code)

    def wanted(rank: int, target: str) -> int:
        planned = subprocess.run([SHARDWIRE, "plan", "-", "--totals", "--json", "--rank", str(rank)], capture_output=True, text=True,
                                 input=json.dumps(case | {"target": case[target]}))
        return json.loads(planned.stdout)["totals"]["needed"]

    held = wanted(0, "source")
    most = max(wanted(rank, "target") for rank in range(case["target"]["ranks"]))
    serving, restoring, other = (megabytes << 20 for megabytes in list(known.values())[:3])
    in_place, of_host = held + most + serving + restoring + other, case["source"]["ranks"] // 2
    expected = [held, most, serving, restoring, other, in_place, in_place + held, in_place + 2 * held,
                2 * of_host * held, 3 * 2 * of_host * held]
    if [int(one.replace(",", "")) for one in re.findall(r"^\| .* \| ([\d,]+) \|$", text, re.M)] != expected:
        yield place(page, f"the bytes of the example are {', '.join(f'{one:,}' for one in expected)}")


def quotes() -> Iterator[str]:
    for page in FOR_USERS:
        for path, code in re.findall(r"^<!-- from (\S+) -->\n```\w*\n(.*?)^```$", page.read_text(), re.S | re.M):
            lines, size = (ROOT / path).read_text().splitlines(), len(code.splitlines())
            parts = ("\n".join(lines[first : first + size]) for first in range(len(lines)))
            if textwrap.dedent(code).rstrip() not in map(textwrap.dedent, parts):
                yield place(page, f"{path} does not have these lines:\n{code}")


def install() -> Iterator[str]:
    page = ROOT / "docs/install.md"
    text = page.read_text()
    [packages] = re.findall(r"^packages=\(\n(.*?)^\)", (ROOT / "quickstart").read_text(), re.S | re.M)
    needed = {word for line in packages.splitlines() for word in line.partition("#")[0].split()}
    [table] = re.findall(r"^\| packages \| for \|\n((?:\|.*\n)+)", text, re.M)
    for name in sorted(needed ^ set(re.findall(r"`([\w+-]+)`", table))):
        yield place(page, f"{name} is {'not listed' if name in needed else 'no package of quickstart'}")
    built = dict(re.findall(r"^option\('(\w+)'.*?value: '?([\w\[\]]*)", (ROOT / "meson_options.txt").read_text(), re.M))
    listed = dict(re.findall(r"^\| `(\w+)` \| `?(\w+)`? \|", text, re.M))
    for name in sorted({*built, *listed}):
        default = built.get(name, "no option")
        if listed.get(name) != ("empty" if default in ("", "[]") else default):
            yield place(page, f"{name}: the build has {default or 'an empty text'}, the page says {listed.get(name)}")
    for name, version in asked_versions().items():
        title = {"ucx": "UCX", "pmix": "PMIx", "openssl": "OpenSSL", "ompi": "Open MPI", "boost": "Boost"}.get(name, name)
        if version and f"{title} {version}" not in text:
            yield place(page, f"it does not say: {title} {version}")


def measurements() -> Iterator[str]:
    page = ROOT / "docs/performance-method.md"
    [section] = re.findall(r"^## One command for each question$(.*?)^## ", page.read_text(), re.M | re.S)
    suites = (ROOT / "perf/meson.build").read_text()
    for word, row in re.findall(r"^\| `([a-z-]+)` (\|.*)$", section, re.M):
        if f"'{word}'" not in suites and f"--target {word}" not in (ROOT / "perf/gpu").read_text():
            yield place(page, f"perf/meson.build has no {word}")
        for name in re.findall(r"`([\w-]+(?:-layer|-tensors))`", row):
            if not (ROOT / f"perf/cases/{name}.json").exists():
                yield place(page, f"there is no perf/cases/{name}.json")


def asked_versions() -> dict[str, str]:
    """What the build asks for, by the names in docs/compatibility.md."""
    builds = "".join((ROOT / path).read_text() for path in ("meson.build", "src/cli/meson.build", "src/control/meson.build",
                                                            "transport/ucx/meson.build", "transport/libfabric/meson.build",
                                                            "perf/measure/meson.build", "tests/meson.build"))
    asked = dict(re.findall(r"dependency\('(\w+)',(?: version: '>=([\d.]+)',)?[^\n]*include_type", builds))
    asked["Meson"] = re.findall(r"meson_version: '>=([\d.]+)'", builds)[0]
    asked["nvcc"] = re.findall(r"nvcc_version.version_compare\('<([\d.]+)'\)", (ROOT / "src/memory/cuda/meson.build").read_text())[0]
    asked["Python"] = re.findall(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[0]
    return asked


def versions() -> Iterator[str]:
    page = ROOT / "docs/compatibility.md"
    text = page.read_text()
    listed = dict(re.findall(r"^\| `?([\w+]+)`? \| (?:(\d[\d.]*)[^|]*)?\|", text[text.index("## What it needs") :], re.M))
    for name, version in asked_versions().items():
        if listed.get(name) != version:
            yield place(page, f"{name}: the build asks for {version or 'any version'}, the page says {listed.get(name)}")
    [protocol] = re.findall(r"protocol_version = (\d+);", (ROOT / "src/wire/messages.hpp").read_text())
    [torch] = re.findall(r"^TRIED = \((.*)\)", (ROOT / "python/shardwire/torch/_version.py").read_text(), re.M)
    [project] = re.findall(r"^  version: '([\d.]+)'", (ROOT / "meson.build").read_text(), re.M)
    for known in (f"shardwire {project} ", f"| protocol {protocol} |", f"tested with {' and '.join(torch.rsplit(', ', 1))};".replace('"', "")):
        if known not in text:
            yield place(page, f"it does not say: {known}")


def paths_in(value: object, path: str = "") -> set[str]:
    """Of each number and text in JSON: `ranks[].seconds.wall`."""
    if isinstance(value, dict):
        return {one for name, item in value.items() for one in paths_in(item, f"{path}.{name}" if path else name)}
    if isinstance(value, list):
        return {one for item in value for one in paths_in(item, path + "[]")}
    return {path}


def reports() -> Iterator[str]:
    page = ROOT / "docs/report.md"
    sections = re.findall(r"^##+ (?:The JSON report of )?`(\w+)`\n(.*?)(?=^##|\Z)", page.read_text(), re.S | re.M)
    listed = {name: set(re.findall(r"^\| `([^`]+)` \|", text, re.M)) for name, text in sections}
    structs = re.findall(r"^struct (\w+) \{\n(.*?)^\};", (ROOT / "include/shardwire/report.hpp").read_text(), re.S | re.M)
    known = {name: set(re.findall(r"^  [\w:<>]+ (\w+)(?:\{\}| = .*?)?;", text, re.M)) for name, text in structs if name in listed}
    case = json.loads(next(code for language, code in BLOCK.findall((ROOT / "docs/case-format.md").read_text()) if language == "json"))
    [reasons] = re.findall(r"^enum class FallbackReason .*?\{\n(.*?)^\};", (ROOT / "include/shardwire/costs.hpp").read_text(), re.S | re.M)
    known |= {"FallbackReason": set(re.findall(r"^  (\w+),", reasons, re.M)), "run": set()}
    with tempfile.TemporaryDirectory() as folder:
        for lost, fault in ([], []), ([2], ["--fault", "slow:0@plan"]):  # what succeeds, and what has errors, gaps and faults
            case["source"]["lost"] = lost
            command = [SHARDWIRE, "run", "-", "--transport", "shm,tcp", "--report", f"{folder}/report.json", *fault]
            subprocess.run(command, input=json.dumps(case), capture_output=True, text=True)
            known["run"] |= paths_in(json.loads(pathlib.Path(folder, "report.json").read_text()))
    for name in sorted({*listed, *known}):
        for field in sorted(listed.get(name, set()) ^ known.get(name, set())):
            yield place(page, f"{field} of {name} is {'not listed' if field in known.get(name, set()) else 'no field'}")


def metrics() -> Iterator[str]:
    page = ROOT / "docs/metrics.md"
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \|", page.read_text(), re.M)
    source = (ROOT / "src/telemetry/metrics.cpp").read_text()
    names = dict(re.findall(r'^constexpr std::string_view (\w+) = "(\w+)";', source, re.M))
    known = [(names[name], kind) for name, kind in re.findall(r"^    \{(\w+), Type::(\w+),", source, re.M)]
    if sorted(listed) != sorted(known):
        yield place(page, f"the metrics are {known}")


CASES = [links, tables, readme_length, pages_are_listed, references, tests, variables, names_of_cpp, options, helps, fuzz_targets, compiles, consoles,
         plan_by_hand, memory_of_a_rank, quotes, install, measurements, versions, reports, metrics]
failed = 0
for case in CASES:
    problems = list(case())
    failed += bool(problems)
    for problem in problems:
        print(f"{case.__name__}: {problem}")
print(f"cases: {len(CASES) - failed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
