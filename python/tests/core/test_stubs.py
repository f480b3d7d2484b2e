# SPDX-License-Identifier: Apache-2.0
"""The stubs say what the module offers, and type checkers accept programs."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import shardwire

PACKAGE = pathlib.Path(shardwire.__file__).parent


def test_stubs_are_current(tmp_path):
    made = tmp_path / "_core.pyi"
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "shardwire._core", "-o", made], check=True)
    # From Python 3.12 on, classes with the buffer protocol have a method that has no types here.
    text = re.sub(r'    def __buffer__\(self, flags, /\):\n        """.*?"""\n\n', "", made.read_text(), flags=re.DOTALL)
    assert (PACKAGE / "_core.pyi").read_text() == text, "run: python -m nanobind.stubgen -m shardwire._core"


def test_mypy_accepts_a_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text('''
import shardwire as sw


async def restore(session: sw.Session, memory: bytearray) -> int:
    wanted = sw.Catalog(0, 1)
    wanted.add("weight", "exp_avg", "f32", (4,), sw.Layout.chunk(0, 1), memory, absent="skip")
    restore = session.restore(wanted, verify="digest", timeout=5)
    report = await restore
    with session.publish(wanted, step=1, snapshot="copy") as publication:
        publication.update(wanted, 2)
    return report.needed_bytes
''')
    wrong = tmp_path / "wrong.py"
    wrong.write_text('import shardwire as sw\n\nsw.Session.join(rank="0")\nsw.Catalog(0, 1).add_value("", "v", absent="none")\n')
    check = [sys.executable, "-m", "mypy", "--strict", "--no-incremental"]
    passed = subprocess.run([*check, program], capture_output=True, text=True)
    assert passed.returncode == 0, passed.stdout
    refused = subprocess.run([*check, wrong], capture_output=True, text=True)
    assert refused.returncode == 1 and refused.stdout.count(": error:") == 2, refused.stdout
