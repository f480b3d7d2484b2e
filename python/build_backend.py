# SPDX-License-Identifier: Apache-2.0
"""meson-python, for the stable ABI from Python 3.12 on: nanobind needs what the stable ABI of earlier versions lacks."""

from __future__ import annotations

import sys
from typing import Any

import mesonpy
from mesonpy import build_sdist, get_requires_for_build_editable, get_requires_for_build_sdist, get_requires_for_build_wheel

__all__ = ["build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable", "get_requires_for_build_sdist",
           "get_requires_for_build_wheel"]


def _settings(given: dict[str, Any] | None) -> dict[str, Any]:
    arguments = (given or {}).get("setup-args", [])
    arguments = [arguments] if isinstance(arguments, str) else arguments
    return {**(given or {}), "setup-args": [*arguments, *["-Dpython.allow_limited_api=false"] * (sys.version_info < (3, 12))]}


def build_wheel(folder: str, settings: dict[str, Any] | None = None, metadata: str | None = None) -> str:
    return mesonpy.build_wheel(folder, _settings(settings), metadata)


def build_editable(folder: str, settings: dict[str, Any] | None = None, metadata: str | None = None) -> str:
    return mesonpy.build_editable(folder, _settings(settings), metadata)
