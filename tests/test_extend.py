"""The page that shows how to extend the package keeps its promise: short cells, public names."""
import ast
import json
from pathlib import Path

import pytest

CELLS = json.loads((Path(__file__).parent.parent / "nbs/studies/extend.ipynb").read_text())["cells"]
SOURCES = ["".join(c["source"]) for c in CELLS]


@pytest.mark.parametrize("heading", ["A population with a third group", "A loss", "A disparity", "A learner"])
def test_each_extension_is_one_short_cell(heading):
    at = next(i for i, text in enumerate(SOURCES) if text.startswith(f"## {heading}\n"))
    assert CELLS[at + 1]["cell_type"] == "code" and len(SOURCES[at + 1].splitlines()) <= 15


def test_only_public_names_are_used():
    for cell, text in zip(CELLS, SOURCES, strict=True):
        if cell["cell_type"] == "code":
            for node in ast.walk(ast.parse(text)):
                imported = [a.name for a in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
                used = [node.attr] if isinstance(node, ast.Attribute) else []
                assert not any(name.startswith("_") for name in imported + used), text
