# SPDX-License-Identifier: Apache-2.0
"""The code that documents show."""

from __future__ import annotations

import pathlib
import re
from typing import Any


def code_of(document: str) -> dict[str, Any]:
    """What the first Python example of docs/`document` defines."""
    text = (pathlib.Path(__file__).parents[3] / "docs" / document).read_text()
    found = re.search(r"```python\n(.*?)```", text, re.S)
    assert found is not None
    names: dict[str, Any] = {"__name__": document}
    exec(compile(found[1], document, "exec"), names)
    return names
