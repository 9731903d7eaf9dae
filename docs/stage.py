"""Lay the site's sources out for Sphinx, in docs/_build/source: the notebooks themselves, ready to be read.

Nothing is written twice. A notebook loses its `#|` lines and hidden cells; names of notebooks, equations, theorems,
figures and functions in its prose become links; and the pages that follow from files (landing page, list of figures,
API) are made from those files.
"""
import json
import re
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
SOURCE = DOCS / "_build" / "source"
sys.path[:0] = [str(ROOT), str(DOCS)]

import api  # noqa: E402

# The order of a paper. A notebook that is not named here goes to the appendix.
PARTS = {
    "The model": ("dynamics", "populations", "adult", "metrics", "env"),
    "Yardsticks": ("policies", "oracle"),
    "Learners": ("features", "theory", "lsvi", "lucbfair", "pooled", "rtd3"),
    "Judging": ("evaluation", "comparison", "measures", "claims", "verdicts"),
}
APPENDIX = ("errata", "experiments", "plotting")
# What bears on the paper first, what is for users and builders last. A study that is not named here goes to the end.
STUDIES = ("differences", "reasons", "spread", "null_policies", "regret", "features", "lucbfair_ablation", "pooled", "rtd3_settings",
           "extend", "interactive", "lucbfair_speed", "benchmarks")


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def source(cell: dict) -> str:
    return "".join(cell["source"])


def title(nb: dict) -> str:
    "The first heading of a notebook."
    text = "\n".join(source(cell) for cell in nb["cells"] if cell["cell_type"] == "markdown")
    return re.search(r"^# (.*)$", text, re.M)[1].strip()


def promise(nb: dict) -> str:
    "The line under the title that says what a notebook is for."
    found = re.search(r"^> (.*)$", "\n".join(source(cell) for cell in nb["cells"] if cell["cell_type"] == "markdown"), re.M)
    return found[1].strip().replace("|", "\\|") if found else ""


def stem(path: Path) -> str:
    return re.sub(r"^\d+_", "", path.stem)


class Pages:
    "Which pages there are, and how prose refers to them."

    def __init__(self):
        self.library = {p: read(p) for p in sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))}
        executed = sorted((ROOT / "results/paper/notebooks").glob("*.ipynb"))
        self.figures = {p: read(p) for p in executed if re.match(r"fig\d\d", p.name)}
        studies = [p for p in executed if (ROOT / "nbs/studies" / p.name).exists()]
        self.studies = {p: read(p) for p in sorted(studies, key=lambda p: STUDIES.index(p.stem) if p.stem in STUDIES else len(STUDIES))}
        self.modules = api.modules(self.library)
        self.names = api.public_names(self.modules)
        self.labels = set(re.findall(r"^:label: ((?:eq|asm|lem|def|thm|alg)-[\w-]+)$", (DOCS / "problem.md").read_text(), re.M))

    def address(self, path: Path) -> str:
        "Where a notebook lies in the staged sources."
        folder = "" if path in self.library else "figures/" if path in self.figures else "studies/"
        return folder + path.name


def write(name: str, text: str) -> None:
    "Write a staged file if it differs, so that an incremental build stays one."
    path = SOURCE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    staged.add(path)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def copy(file: Path, name: str) -> None:
    path = SOURCE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    staged.add(path)
    if not path.exists() or path.read_bytes() != file.read_bytes():
        shutil.copyfile(file, path)


staged = set()

# --- links in prose ---------------------------------------------------------------------------------------------------

PROTECTED = re.compile(r"(```.*?```|::::*.*?^::::*$|\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]+`|!?\[[^\]]*\]\([^)]*\)|^#.*?$|\{[\w:]+\}`[^`]*`)", re.S | re.M)
KINDS = {"Thm": "thm", "Theorem": "thm", "Asm": "asm", "Assumption": "asm", "Lemma": "lem", "Def.": "def", "Def": "def", "Definition": "def",
         "Alg.": "alg", "Algorithm": "alg"}
STATEMENT = re.compile(rf"\b({'|'.join(re.escape(k) for k in sorted(KINDS, key=len, reverse=True))}) (A\.\d+|\d\.\d+|\d+)\b")


def link_words(text: str, pages: Pages, here: str) -> str:
    "Link equations, statements and figures that prose names by their number in the paper."
    up = "../" * here.count("/")

    def equation(match):
        first, last = match[2] or match[3], match[4] or match[5]
        if not {f"eq-{n}" for n in (first, last) if n} <= pages.labels:
            return match[0]
        return f"{match[1]} {{eq}}`eq-{first}`" + (f"–{{eq}}`eq-{last}`" if last else "")

    def statement(match):
        label = f"{KINDS[match[1]]}-{match[2].lower().replace('.', '-')}"
        return f"{{prf:ref}}`{match[0]} <{label}>`" if label in pages.labels else match[0]

    def figure(match):
        found = [p for p in pages.figures if p.name.startswith(f"fig{int(match[2]):02}")]
        return f"[{match[0]}]({up}{pages.address(found[0])})" if found and pages.address(found[0]) != here else match[0]

    text = re.sub(r"\b(Eqs?\.) (?:\((\d+)\)|(\d+))(?:–(?:\((\d+)\)|(\d+)))?", equation, text)
    text = STATEMENT.sub(statement, text)
    return re.sub(r"\b([Ff]ig\.? ?|[Ff]igure )(\d\d?)\b(?!\.\d)", figure, text)


def link_code(text: str, pages: Pages, here: str) -> str:
    "Link a notebook, a function or a class that prose names as code."
    name = text.strip("`")
    up = "../" * here.count("/")
    for path in pages.library:
        if name == path.stem and here != path.name:
            return f"[{text}]({up}{pages.address(path)})"
    for path in pages.studies:
        if name in (f"nbs/studies/{path.name}", f"studies/{path.stem}"):
            return f"[{text}]({up}{pages.address(path)})"
    if name in pages.names and ("_" in name or name[0].isupper()):
        return f"{{py:obj}}`{name} <ltf_nb.{pages.names[name]}.{name}>`"
    return text


def link(text: str, pages: Pages, here: str) -> str:
    "Link what prose names, and leave code, formulas, links and headings alone."
    parts = PROTECTED.split(text)
    for i, part in enumerate(parts):
        if i % 2 == 0:
            parts[i] = link_words(part, pages, here)
        elif re.fullmatch(r"`[^`]+`", part):
            parts[i] = link_code(part, pages, here)
    return "".join(parts)


def move_targets(text: str, pages: Pages, here: str) -> str:
    "Turn links to files of the repository into links inside the site: files are copied, notebooks that are no page lose the link."
    up, folder = "../" * here.count("/"), (ROOT / "nbs" / here).parent  # the site's folders are those of nbs/

    def moved(match):
        target = (folder / match[2]).resolve()
        if target.suffix == ".ipynb":
            known = [ROOT / "nbs" / pages.address(p) for p in (pages.library | pages.figures | pages.studies)]
            return match[0] if target in known else match[1].strip("[]")
        if not target.is_file() or not target.is_relative_to(ROOT):
            return match[0]
        if target.parent == ROOT / "docs" and target.suffix == ".md":  # a page of the site itself
            return f"{match[1]}({up}{target.name})"
        copy(target, f"files/{target.relative_to(ROOT)}")
        return f"{match[1]}({up}files/{target.relative_to(ROOT)})"

    return re.sub(r"(!?\[[^\]]*\])\((?!\w+:)([^)#\s]+)\)", moved, text)


# --- notebooks --------------------------------------------------------------------------------------------------------

def stage_notebook(path: Path, nb: dict, pages: Pages, here: str) -> None:
    "Write a notebook as it should be read."
    cells = []
    for cell in nb["cells"]:
        text = source(cell)
        if cell["cell_type"] == "markdown":
            cells.append(markdown(move_targets(link(text, pages, here), pages, here)))
        elif not re.match(r"#\| (hide|default_exp)\b", text):
            cells.append(stage_code(cell))
    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i}"
    nb = {"cells": cells, "nbformat": 4, "nbformat_minor": 5,
          "metadata": {"kernelspec": nb["metadata"]["kernelspec"], "language_info": {"name": "python", "pygments_lexer": "ipython3"}}}
    write(here, json.dumps(nb, indent=1))


def markdown(text: str) -> dict:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def stage_code(cell: dict) -> dict:
    "A code cell without directives; one that only imports is folded away."
    text = re.sub(r"^#\| .*\n", "", source(cell), flags=re.M)
    statements = [line for line in text.splitlines() if line and not line.startswith((" ", ")", "#"))]
    only_imports = all(re.match(r"import |from |if TYPE_CHECKING", line) for line in statements)
    tags = [*cell["metadata"].get("tags", []), *(["hide-input"] if only_imports else [])]
    outputs = [stage_output(o) for o in cell["outputs"] if not any("widget" in kind for kind in o.get("data", {}))]
    return {"cell_type": "code", "execution_count": None, "metadata": {"tags": tags}, "outputs": outputs, "source": text}


def stage_output(output: dict) -> dict:
    "An output whose tables say whether they hold sentences, which may wrap, or numbers, which must not."
    page = "".join(output.get("data", {}).get("text/html", []))
    if "<table" not in page:
        return output
    wordy = any(len(re.sub(r"<[^>]*>", "", cell)) > 60 for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", page, re.S))
    page = f'<div class="{"wordy" if wordy else "numbers"}">{page}</div>'
    return output | {"data": output["data"] | {"text/html": page}}


# --- pages that follow from files -------------------------------------------------------------------------------------

def verdicts(nb: dict) -> list:
    "The lines of a figure's output that begin with Verdict."
    texts = ["".join(o.get("text", []) or o.get("data", {}).get("text/markdown", [])) for c in nb["cells"] for o in c.get("outputs", [])]
    lines = [line.strip("*_ ") for text in texts for line in text.splitlines()]
    return [re.sub(r"^Verdict\W*", "", line) for line in lines if re.match(r"[*_ ]*verdict\b", line, re.I)]


COLOURS = {"replicated": "yes", "partly": "partly", "not replicated": "no", "not testable": "open"}


def with_badge(line: str) -> str:
    "A verdict line whose first sentence, if it is a bare verdict, is a badge with a class for its colour."
    verdict, _, rest = line.partition(". ")
    return f"[{verdict}]{{.verdict .verdict-{COLOURS[verdict]}}} {rest}" if verdict in COLOURS else line


def landing(pages: Pages) -> None:
    "The landing page: nbs/index.ipynb, with ways into the site and the table of contents."
    nb = read(ROOT / "nbs/index.ipynb")
    head, paragraph, *rest = source(nb["cells"][0]).split("\n\n")
    ways = {"The problem": "problem.md", "All figures": "figures/index.md", "Extending it": "studies/extend.ipynb", "API": "api/index.md"}
    there = {pages.address(path) for path in pages.studies}
    links = [f"[{name}]({page})" for name, page in ways.items() if page.endswith(".md") or page in there]
    paragraph += "\n\n" + " · ".join(["**[Move the thresholds yourself](interactive.md)**", *links])
    nb["cells"][0] = markdown("\n\n".join([head, paragraph, *rest]))
    nb["cells"].append(markdown("\n\n".join(toctrees(pages))))
    stage_notebook(ROOT / "nbs/index.ipynb", nb, pages, "index.ipynb")


def toctrees(pages: Pages) -> list:
    "The table of contents, in the order of a paper."
    by_stem = {stem(p): p.stem for p in pages.library}
    placed = {name for names in PARTS.values() for name in names}
    trees = [("The paper", ["problem", "interactive"])]
    trees += [(part, [by_stem[n] for n in names if n in by_stem]) for part, names in PARTS.items()]
    trees += [("Results", ["figures/index"]), ("Studies", [pages.address(p).removesuffix(".ipynb") for p in pages.studies])]
    rest = [name for name in by_stem if name not in placed and name not in APPENDIX]
    trees += [("Appendix", [by_stem[n] for n in (*APPENDIX, *rest) if n in by_stem] + ["cluster", "api/index", "references"])]
    return ["\n".join([f"```{{toctree}}\n:hidden:\n:caption: {caption}\n", *entries, "```"]) for caption, entries in trees if entries]


def figures_page(pages: Pages) -> None:
    "All figures with their verdicts on one page."
    lines = ["# Figures", "", "Each figure of the paper is a notebook: it runs alone, draws, and ends with a verdict on what the paper says.", ""]
    for path, nb in pages.figures.items():
        lines += [f"## {title(nb)}", ""]
        picture = ROOT / f"figures/paper/{path.stem}.png"
        if picture.exists():
            copy(picture, f"files/figures/paper/{picture.name}")
            lines += [f"```{{image}} ../files/figures/paper/{picture.name}\n:alt: {title(nb)}\n:width: 100%\n:target: {path.stem}.html\n```", ""]
        lines += [f"- {with_badge(link(line, pages, 'figures/index.md'))}" for line in verdicts(nb)] + [""]
        lines += [f"[The notebook]({path.name})", ""]
    lines += ["```{toctree}\n:hidden:\n", *[p.stem for p in pages.figures], "```"]
    write("figures/index.md", "\n".join(lines))


def api_pages(pages: Pages) -> None:
    lines = ["# API", "", "What the library offers, module by module: each function with its parameters, as its notebook defines it.", "",
             "| module | notebook | |", "|---|---|---|"]
    for module, path in pages.modules.items():
        page_title = title(pages.library[path])
        lines.append(f"| [`ltf_nb.{module}`]({module}.md) | [{page_title}](../{path.name}) | {promise(pages.library[path])} |")
        write(f"api/{module}.md", api.module_page(module, page_title, f"../{path.name}"))
    write("api/index.md", "\n".join([*lines, "", "```{toctree}\n:hidden:\n", *pages.modules, "```"]))


def main() -> None:
    pages = Pages()
    for path, nb in (pages.library | pages.figures | pages.studies).items():
        stage_notebook(path, nb, pages, pages.address(path))
    for path in DOCS.glob("*.md"):
        write(path.name, link(path.read_text(encoding="utf-8"), pages, path.name))
    landing(pages)
    figures_page(pages)
    api_pages(pages)
    for path in SOURCE.rglob("*"):  # a page whose notebook is gone
        if path.is_file() and path not in staged:
            path.unlink()


if __name__ == "__main__":
    main()
