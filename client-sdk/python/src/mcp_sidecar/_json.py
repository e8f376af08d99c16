"""JSON as the contract has it: text that nobody rewrites."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Union

Arguments = Union[Mapping[str, Any], str, None]
"""The members of a JSON object, JSON text that is sent exactly as it is, or nothing."""


def to_json(value: Arguments) -> str | None:
    """The text of a value. Integers of any size stay what they are; `NaN` and infinities are no JSON and refused."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(dict(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def from_json(text: str) -> Any:
    """The value of a text. Integers of any size stay what they are; other numbers become `float`, so for exact decimals
    read the text itself."""
    return json.loads(text)
