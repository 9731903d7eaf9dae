"""The pages that show how to extend the package keep their promise: short cells, public names."""
import ast
import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = {"nbs/index.ipynb": ["A population", "A loss", "A disparity", "An algorithm"],
         "nbs/studies/extend.ipynb": ["A population with a third group", "A loss", "A disparity", "A learner"]}


def cells_of(page: str) -> list:
    "The cells of a notebook as pairs (type, source)."
    return [(c["cell_type"], "".join(c["source"])) for c in json.loads((ROOT / page).read_text())["cells"]]


@pytest.mark.parametrize(("page", "heading"), [(page, heading) for page, headings in PAGES.items() for heading in headings])
def test_each_extension_is_one_short_cell(page, heading):
    cells = cells_of(page)
    at = next(i for i, (_, text) in enumerate(cells) if re.match(rf"##+ {heading}\n", text))
    kind, text = cells[at + 1]
    assert kind == "code" and len(text.splitlines()) <= 15 and not text.startswith("#|")


@pytest.mark.parametrize("page", PAGES)
def test_only_public_names_are_used(page):
    seen = 0
    for kind, text in cells_of(page):
        for node in ast.walk(ast.parse(text)) if kind == "code" else ():
            imported = [a.name for a in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            used = [node.attr] if isinstance(node, ast.Attribute) else []
            assert not any(name.startswith("_") for name in imported + used), text
            if isinstance(node, ast.ImportFrom) and node.module.startswith("ltf_nb"):
                assert set(imported) <= set(importlib.import_module(node.module).__all__), text
                seen += 1
    assert seen >= 4  # the test sees the imports it judges
