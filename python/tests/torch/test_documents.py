# SPDX-License-Identifier: Apache-2.0
"""What the documents say of Python: their code runs, and names, options and error codes are those of the package."""

from __future__ import annotations

import ast
import inspect
import json
import pathlib
import re
import textwrap
import time
from types import SimpleNamespace
from typing import Any, Iterator
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from test_torchrun import kept_job  # noqa: F401
from training import build, differences, reference, train

import shardwire as sw
import shardwire.torch as swt

ROOT = pathlib.Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", ROOT / "python/README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = {"sw": sw, "swt": swt}


def blocks(document: pathlib.Path) -> list[str]:
    return [textwrap.dedent(code) for code in re.findall(r"^ *```python\n(.*?)^ *```$", document.read_text(), re.S | re.M)]


def defined(document: str, name: str) -> Any:
    """The function that the document shows."""
    [code] = [code for code in blocks(ROOT / "docs" / document) if f"def {name}(" in code]
    names: dict[str, Any] = {}
    exec(compile(code, document, "exec"), names)
    return names[name]


def keywords() -> dict[str, set[str]]:
    """Of each method that the package has, the names of parameters, whatever its class."""
    found: dict[str, set[str]] = {}
    package = pathlib.Path(sw.__file__).parent
    for path in (*package.glob("*.pyi"), *package.glob("*.py"), *(package / "torch").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                arguments = node.args
                names = {one.arg for one in (*arguments.args, *arguments.kwonlyargs)}
                found.setdefault(node.name, set()).update(names | ({"**"} if arguments.kwarg else set()))
    found["join"].discard("**")  # passed on to Session.join()
    return found


def calls(code: str) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr, [one.arg for one in node.keywords if one.arg]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_and_options_are_those_of_the_package(document):
    text = document.read_text()
    for module, name in re.findall(r"\b(swt?)\.([A-Za-z]\w*)", text):
        assert hasattr(MODULES[module], name), f"{module}.{name}"
    known = keywords()
    inline = [code for code in re.findall(r"`((?:swt?|session|state|Session)\.[\w.]+\([^`]*\))`", text) if "..." not in code]
    for code in (*blocks(document), *inline):
        for method, given in calls(code):
            if method in known and "**" not in known[method]:
                assert set(given) <= known[method], f"{method}({given})"


def test_every_error_is_described():
    """Code, class and whether the call can be repeated are the columns of a table."""
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|.*\| (yes|no)\b", (ROOT / "docs/failures.md").read_text(), re.M)
    errors = {one for one in vars(sw).values() if inspect.isclass(one) and issubclass(one, sw.Error)} - {sw.Error}
    assert sorted(rows) == sorted((one.code, one.__name__, "yes" if one.retryable else "no") for one in errors)


def test_options_of_join_are_those_of_the_package():
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \|", (ROOT / "python/README.md").read_text(), re.M)
    stubs = ast.parse((pathlib.Path(sw.__file__).parent / "_core.pyi").read_text())
    [join] = [node.args for node in ast.walk(stubs) if isinstance(node, ast.FunctionDef) and node.name == "join"]
    assert rows == [(one.arg, ast.unparse(default)) for one, default in zip(join.kwonlyargs, join.kw_defaults)]


def example(rank: int, world: int, document: str, which: str) -> Any:
    [code] = [code for code in blocks(ROOT / document) if which in code]
    model, optimizer = build("fsdp2", "adamw", 1, world)
    new_model, new_optimizer = build("ddp", "adamw", 2, world)
    train(model, optimizer, 2)
    schedulers = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2)}
    names = {"model": model, "optimizer": optimizer, "new_model": new_model, "new_optimizer": new_optimizer, "step": 2, **schedulers}
    exec(compile(code, document, "exec"), names)
    dist.barrier()
    names["session"].close()
    return differences(reference(model, optimizer), reference(new_model, new_optimizer))


@pytest.mark.parametrize("document, which", [("README.md", "restore_into"), ("python/README.md", "restore_into"),
                                             ("docs/torch.md", "scheduler.load_state_dict")])
def test_an_example(pool, document, which):
    assert pool(2, example, document, which) == [[]] * 2


def dcp_example(rank: int, world: int) -> Any:
    [code] = [code for code in blocks(ROOT / "docs/dcp.md") if "PeerWriter" in code]
    model, _ = build("fsdp2", "adamw", 1, world)
    with swt.join() as session:
        names = {"session": session, "swt": swt, "dcp": dcp, "state_dict": model.state_dict(), "step": 2}
        exec(compile(code, "docs/dcp.md", "exec"), names)
        dist.barrier()
        names["writer"].close()
    return names["writer"].step


def test_the_example_of_dcp(pool):
    assert pool(2, dcp_example) == [2] * 2


def loop(rank: int, world: int, name: str) -> Any:
    """Four steps, of which the second and the fourth are kept; then other processes go on."""
    shown = defined("pytorch-loop.md", "train")

    def run(steps: int, seed: int) -> Any:
        model, optimizer = build("fsdp2", "adamw", seed, world)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        options = {"keeper": name} if name else {}
        with swt.join(**options) as session:
            first = shown(session, model, optimizer, scheduler, lambda *trained: train(*trained, 1), steps, 2, keep=1 if name else 0)
        return first, scheduler.last_epoch, reference(model, optimizer)

    first, second = run(4, 1), run(4 if name else 5, 2)
    return first[:2], second[:2], differences(first[2], second[2])


def test_the_loop(pool):
    for first, second, differing in pool(2, loop, ""):
        assert (first, second) == ((0, 4), (0, 5)) and differing


def test_the_loop_goes_on_from_what_a_keeper_holds(pool, kept_job):  # noqa: F811
    assert pool(2, loop, kept_job) == [((0, 4), (4, 4), [])] * 2


def exported(rank: int, world: int, path: str) -> Any:
    model, optimizer = build("fsdp2", "adamw", 1, world)
    train(model, optimizer, 1)
    with swt.join() as session:
        publication = swt.publish(session, model, optimizer, step=3, snapshot="copy")
        defined("case-make.md", "write_case")(session, model, optimizer, path)
        session.barrier(60)
        del publication
    return len(list(model.parameters()))


def test_the_layouts_of_a_job_are_a_case(pool, tmp_path):
    parameters, _ = pool(2, exported, str(tmp_path / "case.json"))
    case = json.loads((tmp_path / "case.json").read_text())
    assert case["name"] == "step 3" and len(case["tensors"]) >= parameters
    for side in ("source", "target"):
        assert case[side]["ranks"] == 2 and {"mesh": [2], "placements": ["S(0)"]} in case[side]["rules"].values()


def test_a_source_stays_while_a_member_is_lost():
    path = ROOT / "examples/pytorch/fsdp2_reshard.py"
    names: dict[str, Any] = {"__name__": path.stem}
    exec(compile(path.read_text(), path, "exec"), names)
    names["time"] = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: None)
    meet = names["meet"]
    barrier = Mock(side_effect=[sw.PeerLost("member 4 is lost"), sw.TimedOut("member 4 has not come"), None])
    meet(SimpleNamespace(barrier=barrier))
    assert barrier.call_count == 3
    with pytest.raises(sw.PeerLost):  # nobody replaces it
        meet(SimpleNamespace(barrier=Mock(side_effect=sw.PeerLost("member 4 is lost"))), patience=0)
    lost = sw.PeerLost("member 0, which serves the rendezvous, is lost", ranks=[0])
    barrier = Mock(side_effect=[sw.PeerLost("member 1 is lost", ranks=[1]), sw.TimedOut("member 0 has not come", ranks=[0]), lost])
    with pytest.raises(sw.PeerLost):  # the new job has ended
        meet(SimpleNamespace(barrier=barrier))
    assert barrier.call_count == 3
    with pytest.raises(sw.InvalidArgument):
        meet(SimpleNamespace(barrier=Mock(side_effect=sw.InvalidArgument("the session is closed"))))


def fallback(rank: int, world: int) -> Any:
    """Nobody publishes; then one rank of two does; then both do."""
    shown = defined("pytorch-loop.md", "restore_or_load")
    found = []
    for publishers in (0, 1, 2):
        model, optimizer = build("fsdp2", "adamw", 1, world)
        train(model, optimizer, 1)
        with swt.join() as session:
            state = swt.State(model, optimizer)
            if rank < publishers:
                state.publish(session, step=7, snapshot="copy")
            session.gather("published", b"", timeout=60)
            restore = state.restore
            state.restore = lambda session, timeout: restore(session, timeout=timeout if publishers == 2 else 1)
            found.append(shown(session, state, lambda: 3))
    return found


def test_the_fallback_to_files(pool):
    assert pool(2, fallback) == [[3, 3, 7]] * 2
