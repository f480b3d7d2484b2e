# SPDX-License-Identifier: Apache-2.0
"""Versions of torch."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch

import shardwire.torch as swt
from shardwire.torch._version import TRIED


def test_an_untried_torch_is_warned_about_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in TRIED:
        monkeypatch.setattr(torch, "__version__", f"{version}.1+cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            importlib.reload(swt)
    monkeypatch.setattr(torch, "__version__", "2.99.0a0+git1")
    with pytest.warns(UserWarning, match=r"never tried with torch 2\.99\.0a0") as caught:
        importlib.reload(swt)
    assert len(caught) == 1
