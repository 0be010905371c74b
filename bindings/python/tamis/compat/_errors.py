"""Errors of tamis.topk() for functions whose arguments have other names."""

from __future__ import annotations

import re


def renamed(error: Exception, **names: str) -> Exception:
    """The error with the caller's name of the argument that it begins with: ``renamed(error, scores="logits")``."""
    return type(error)(re.sub(r"^topk: (\w+)", lambda found: f"topk: {names.get(found[1], found[1])}", str(error)))
