# SPDX-License-Identifier: Apache-2.0
"""The versions of torch that the tests were run with."""

from __future__ import annotations

import warnings

import torch

TRIED = ("2.11", "2.13", "2.14")


def warn_if_untried() -> None:
    if ".".join(torch.__version__.split(".")[:2]) not in TRIED:
        warnings.warn(f"shardwire.torch was never tried with torch {torch.__version__}, only with {', '.join(TRIED)}", stacklevel=3)
