#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quickstart on a machine without packages: what it says it would do, and that a "no" at a terminal installs nothing.

usage: quickstart_test.py SOURCES
The commands that would change the machine are stubs, which note that they were called.
"""
import os
import pathlib
import pty
import shutil
import subprocess
import sys
import tempfile


def run(folder: pathlib.Path, *words: str) -> tuple[int, str]:
    """Exit status and output of quickstart at a terminal, where somebody says no. Not as root, who is not asked."""
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    other = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    terminal, theirs = pty.openpty()
    ran = subprocess.Popen([folder / "quickstart", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, **other)
    os.close(theirs)
    os.write(terminal, b"n\n")
    output = b""
    try:
        while part := os.read(terminal, 4096):
            output += part
    except OSError:  # the end of a terminal
        pass
    return ran.wait(), output.decode()


with tempfile.TemporaryDirectory() as made:
    folder = pathlib.Path(made)
    folder.chmod(0o777)
    shutil.copy(pathlib.Path(sys.argv[1]) / "quickstart", folder)  # to where anybody may read it
    stubs = {"dpkg-query": "exit 1", **{name: f'echo "$0 $*" >>{folder}/called' for name in ("sudo", "apt-get", "meson", "ninja")}}
    for name, does in stubs.items():
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    for words, status, says in [
        (["--dry-run"], 0, ["would install g++ meson", "would build product", "would run build/shardwire run"]),
        (["--dry-run", "test"], 0, ["would install g++ meson", "would build meson-test-prereq", "would run the tests"]),
        (["build"], 1, ["install g++ meson", "with sudo? [Y/n]", "nothing was installed"]),
        (["--dry", "build"], 2, ["usage: ./quickstart [--dry-run] [build | test]"]),
    ]:
        code, output = run(folder, *words)
        assert code == status, (words, code, output)
        for text in says:
            assert text in output, (words, text, output)
        assert not (folder / "called").exists(), (words, (folder / "called").read_text())
        print("passed: quickstart", *words)
print("cases: 4 passed, 0 failed, 0 skipped")
