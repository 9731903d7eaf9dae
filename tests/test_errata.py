"""The errata notebook's table of contents and its items agree."""
import re
from itertools import groupby
from pathlib import Path

from execnb.nbio import read_nb

NB = Path(__file__).parent.parent / "nbs/15_errata.ipynb"


def test_contents_list_every_item_and_how_it_is_shown():
    cells = read_nb(NB).cells
    table = next(c.source for c in cells if c.source.startswith("## Contents"))
    listed = dict(re.findall(r"^\| E(\d+) \|.*\| ([^|]+) \|$", table, re.M))
    items, item = {}, None
    for cell in cells:
        heading = re.match(r"##+ (?:E(\d+)\.)?", cell.source) if cell.cell_type == "markdown" else None
        if heading:
            item = heading[1]
        if item:
            items.setdefault(item, []).append(cell.cell_type)
    assert list(listed) == list(items) == [str(n) for n in range(1, len(items) + 1)]
    for n, kinds in items.items():
        shape = [kind for kind, _ in groupby(kinds)]
        assert shape == (["markdown", "code"] if listed[n] == "cell" else ["markdown"]), f"E{n} is said to be shown by {listed[n]}"


def test_links_lead_somewhere():
    text = "\n".join(c.source for c in read_nb(NB).cells if c.cell_type == "markdown")
    links = set(re.findall(r"\]\(([\w/]+\.ipynb)\)", text))
    assert len(links) > 10
    missing = [link for link in links if not (NB.parent / link).exists()]
    assert not missing
