# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

tests = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(tests / "oracle"), str(tests), str(tests / "torch")]

from pool import pool  # noqa: E402, F401
from sampled import pytest_addoption, pytest_collection_modifyitems, pytest_configure  # noqa: E402, F401
