"""The site: what is staged, what the interactive portrait computes, and what a browser makes of the built pages."""
import functools
import html.parser
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import unquote, urldefrag

import numpy as np
import pytest
from bs4 import BeautifulSoup

from ltf_nb.claims import CLAIMS, NOT, PARTLY, REPLICATED, UNTESTABLE
from ltf_nb.dynamics import log_odds_shift
from ltf_nb.evaluation import rollout
from ltf_nb.metrics import DISPARITIES, LOSSES
from ltf_nb.policies import ConstantPolicy, neutral_threshold
from ltf_nb.populations import GaussianPopulation

ROOT = Path(__file__).parent.parent
BUILT = ROOT / "docs/_build/html"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]
PATIENCE = 300_000  # milliseconds: the machine may be busy
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


# --- what is staged ---------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def stage():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import stage
    finally:
        sys.path.remove(str(ROOT / "docs"))
    return stage


@pytest.fixture(scope="module")
def staged(stage, tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    before, stage.SOURCE = stage.SOURCE, folder
    stage.main()
    yield folder
    stage.SOURCE = before


def test_every_notebook_is_staged_without_directives(staged):
    wanted = [p.name for p in (ROOT / "nbs").glob("*.ipynb")] + [f"figures/{p.name}" for p in (ROOT / "results/paper/notebooks").glob("fig*.ipynb")]
    for name in wanted:
        cells = json.loads((staged / name).read_text())["cells"]
        assert not any(re.search(r"^#\|", c["source"], re.M) for c in cells), name
        assert not any(c["source"].startswith("import nbdev") for c in cells), name
        assert not any(re.search(r"[\x00-\x08\t\x0b-\x1f]", c["source"]) for c in cells), f"{name}: a lost backslash, as in \\tilde read as a tab"


def test_every_page_is_in_the_table_of_contents(staged):
    listed = set()
    for page in [staged / "index.ipynb", staged / "figures/index.md", staged / "api/index.md"]:
        text = "\n".join(c["source"] for c in json.loads(page.read_text())["cells"]) if page.suffix == ".ipynb" else page.read_text()
        for tree in re.findall(r"```\{toctree\}(.*?)```", text, re.S):
            listed |= {str((page.parent / line).relative_to(staged)) for line in tree.splitlines() if line and not line.startswith(":")}
    pages = {str(p.relative_to(staged).with_suffix("")) for p in staged.rglob("*") if p.suffix in (".md", ".ipynb")}
    assert pages - listed == {"index"}


def test_prose_is_linked_and_code_is_not(stage):
    pages = stage.Pages()
    for text, linked in {
        "By Thm 3.7 and Lemma 10": "By {prf:ref}`Thm 3.7 <thm-3-7>` and Lemma 10",
        "Eq. (13), Eqs. (7)–(8) (Eq. 12), Eq. (15)": "Eq. {eq}`eq-13`, Eqs. {eq}`eq-7`–{eq}`eq-8` (Eq. {eq}`eq-12`), Eq. (15)",
        "`02_populations`, fig. 6": "[`02_populations`](02_populations.ipynb), [fig. 6](figures/fig06_example_dynamics.ipynb)",
        "`replicator_step`": "{py:obj}`replicator_step <ltf_nb.dynamics.replicator_step>`",
    }.items():
        assert stage.link(text, pages, "x.ipynb") == linked
    untouched = "`Eq. (1)`, $Eq. (2)$, [Thm 3.7](x)\n## Thm 4.2\n```\nEq. (1)\n```"
    assert stage.link(untouched, pages, "x.ipynb") == untouched


def test_landing_page_shows_every_claim(staged):
    outputs = [o for c in json.loads((staged / "index.ipynb").read_text())["cells"] for o in c.get("outputs", [])]
    shown = "".join("".join(o.get("data", {}).get("text/markdown", [])) for o in outputs)
    assert all(claim.text.replace("|", "\\|") in shown for claim in CLAIMS.values())


@pytest.mark.parametrize(("verdict", "colour"), [(REPLICATED, "yes"), (NOT, "no"), (PARTLY, "partly"), (UNTESTABLE, "open")])
def test_verdicts_have_colours(stage, verdict, colour):
    assert stage.with_badge(f"{verdict}. A sentence. Measured: 1.") == f"[{verdict}]{{.verdict .verdict-{colour}}} A sentence. Measured: 1."


def test_api_pages_hold_every_public_name_with_its_docments(staged):
    import ltf_nb.dynamics
    page = (staged / "api/dynamics.md").read_text()
    assert all(re.search(rf"\{{py:\w+\}} {name}\b", page) for name in ltf_nb.dynamics.__all__)
    assert "{py:function} replicator_step(q, W)" in page and ":param q: Qualification rates $q_g$, shape (..., n_groups)" in page
    assert ":type q: np.ndarray" in page and ":returns: $q_g$ one generation later" in page
    assert ":::{py:method} step(q, a, tau)" in (staged / "api/env.md").read_text()  # patched on to its class


# --- the numbers of the interactive portrait --------------------------------------------------------------------------

COMPUTE = """(cases) => cases.map((c) => ({
  path: Portrait.rollout(c.q0, c.a, c.U, c.loss, c.disparity, c.horizon), accept: Portrait.accept(c.a),
  shift: Portrait.logOddsShift(Portrait.accept(c.a), c.U), neutral: Portrait.neutralThreshold(c.U)}))"""


def cases(n=60) -> list:
    rng = np.random.default_rng(0)
    ordered = lambda low, high: sorted(rng.uniform(low, high, 2))  # noqa: E731
    made = []
    for _ in range(n):
        (u00, u10), (u11, u01) = ordered(.05, .6), ordered(.7, 12)
        made.append(dict(q0=rng.uniform(.01, .99, 2).tolist(), a=rng.uniform(0, 1, 2).tolist(), U=[[u00, u01], [u10, u11]],
                         loss=str(rng.choice(list(LOSSES))), disparity=str(rng.choice(list(DISPARITIES))), horizon=int(rng.integers(1, 120))))
    return made + [made[0] | {"a": [0., 1.], "q0": [0., 1.], "U": [[.1, 5.5], [.5, 1.]]}]


def compare(given: list, computed: list) -> None:
    "The script's numbers against the library's, to 1e-9."
    population = GaussianPopulation()
    for case, got in zip(given, computed, strict=True):
        U = np.array(case["U"])
        run = rollout(ConstantPolicy(case["a"]), np.array(case["q0"]), population, case["loss"], case["disparity"], case["horizon"], U=U)
        rates = population.accept(case["q0"], case["a"])
        for name, expected in dict(q=run.q, loss=run.loss, disparity=run.disparity).items():
            np.testing.assert_allclose(got["path"][name], expected, rtol=0, atol=1e-9)
        np.testing.assert_allclose(got["accept"], rates, rtol=0, atol=1e-13)
        np.testing.assert_allclose(got["shift"], log_odds_shift(rates, U), rtol=0, atol=1e-12)
        shift = [log_odds_shift(population.accept([.5, .5], [a, a]), U)[0] for a in (0, 1)]
        if np.prod(shift) < 0:
            np.testing.assert_allclose(got["neutral"], neutral_threshold(np.array([.5, .5]), population, U)[0], atol=1e-9)
        else:
            assert got["neutral"] is None


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed; the browser test computes the same")
def test_portrait_computes_what_the_library_does_in_node():
    script = f"globalThis.Portrait = require({json.dumps(str(ROOT / 'docs/_static/portrait.js'))}); " \
             f"const input = JSON.parse(require('fs').readFileSync(0)); console.log(JSON.stringify(({COMPUTE})(input)))"
    done = subprocess.run(["node", "-e", script], input=json.dumps(cases()), capture_output=True, text=True, check=True)
    compare(cases(), json.loads(done.stdout))


# --- the built site ---------------------------------------------------------------------------------------------------

def missing(reason: str) -> None:
    "Skip, unless the caller insists on a browser, as .ci/run does."
    pytest.fail(reason) if os.environ.get("REQUIRE_BROWSER") else pytest.skip(reason)


@pytest.fixture(scope="module")
def site():
    "Folder of the built site, which must be newer than what it is built from."
    patterns = "nbs/*.ipynb", "results/paper/notebooks/*.ipynb", "docs/*.*", "docs/_static/*.*", "figures/paper/*"
    made_from = [p for pattern in patterns for p in ROOT.glob(pattern)]
    stamp = BUILT / "index.html"
    if not stamp.exists():
        missing("the site is not built: run make site")
    if max(p.stat().st_mtime for p in made_from) > max(p.stat().st_mtime for p in BUILT.rglob("*.html")):
        missing("the built site is older than its sources: run make site")
    return BUILT


@pytest.fixture(scope="module")
def address(site):
    handler = functools.partial(type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *a: None}), directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def browser():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        missing("no chromium is installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


def watched(context, address: str) -> tuple:
    "A page, and a list that fills with whatever goes wrong on it."
    page, wrong = context.new_page(), []
    page.set_default_timeout(PATIENCE)
    page.on("console", lambda m: wrong.append(f"console {m.type}: {m.text}") if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: wrong.append(f"script error: {e}"))
    # a request that the next page cuts short is no failure
    page.on("requestfailed", lambda r: None if r.failure == "net::ERR_ABORTED" else wrong.append(f"request failed ({r.failure}): {r.url}"))
    page.on("response", lambda r: wrong.append(f"status {r.status}: {r.url}") if r.status >= 400 else None)
    page.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else wrong.append(f"request to elsewhere: {r.url}"))
    return page, wrong


def pages_of(site: Path) -> list:
    return sorted(str(p.relative_to(site)) for p in site.rglob("*.html") if "_static" not in p.parts)


FAULTS = """async () => {
  await window.MathJax?.startup?.promise;
  const faults = [], say = (text) => faults.push(text);
  for (const e of document.querySelectorAll(".math")) if (!e.querySelector("mjx-container")) say("not typeset: " + e.textContent.slice(0, 60));
  for (const e of document.querySelectorAll("mjx-merror, [data-mjx-error]")) say("maths error: " + e.textContent.slice(0, 60));
  for (const e of document.images) if (!e.complete || e.naturalWidth === 0) say("empty picture: " + e.src);
  const width = document.documentElement.scrollWidth;
  if (width > innerWidth) say(`${width} pixels wide on a screen of ${innerWidth}`);
  return faults;
}"""


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_pages_load_clean(site, address, browser, viewport):
    context, faults = browser.new_context(viewport=viewport), {}
    page, wrong = watched(context, address)
    for name in pages_of(site):
        wrong.clear()
        page.goto(address + name, wait_until="networkidle")
        page.wait_for_function("!document.querySelector('.math') || window.MathJax?.startup?.promise")  # its script comes late on a busy machine
        found = wrong + page.evaluate(FAULTS)
        if found:
            faults[name] = found
    context.close()
    assert not faults


class Anchors(html.parser.HTMLParser):
    "Ids and links of a page."
    def __init__(self, path: Path):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs[key] for key in ("id", "name") if attrs.get(key)}
        self.links += [attrs["href"]] if tag == "a" and attrs.get("href") else []


@pytest.mark.browser
@pytest.mark.slow
def test_links_and_cross_references_resolve(site):
    read, broken, seen = functools.cache(Anchors), [], 0
    for name in pages_of(site):
        for href in read(site / name).links:
            target, anchor = urldefrag(unquote(href))
            if re.match(r"\w+:", target):
                continue
            path = (site / name).parent / target if target else site / name
            path, seen = (path / "index.html" if path.is_dir() else path), seen + 1
            if not path.exists() or (anchor and path.suffix == ".html" and anchor not in read(path.resolve() if target else site / name).ids):
                broken.append(f"{name}: {href}")
    assert seen > 1000 and not broken


@pytest.mark.browser
@pytest.mark.slow
def test_no_markup_is_left_over(site):
    left = {}
    for name in pages_of(site):
        article = BeautifulSoup((site / name).read_text(encoding="utf-8"), "html.parser").find("article")
        for part in article.select("pre, code, .math, .sig, script, style") if article else ():
            part.decompose()
        found = re.findall(r"\{[a-z:]+\}`|\$[^\s$]+\$|\\[a-z]{3,}|#\||\]\([^)]*\)|(?<!\w)\*\*\w+|:::", article.get_text() if article else "")
        left |= {name: found} if found else {}
    assert not left


@pytest.mark.browser
@pytest.mark.slow
def test_statements_and_equations_carry_the_papers_numbers(site, address, browser):
    page, _ = watched(browser, address)
    page.goto(address + "problem.html", wait_until="networkidle")
    titles = [" ".join(t.split()[:2]) for t in page.locator(".proof > .admonition-title").all_inner_texts()]
    assert titles[:11] == ["Assumption 2.1", "Lemma 3.1", "Assumption 3.2", "Definition 3.3", "Lemma 3.4", "Theorem 3.5", "Assumption 3.6",
                           "Algorithm 1", "Theorem 3.7", "Assumption 4.1", "Theorem 4.2"]
    assert [text.strip("()#\n ") for text in page.locator("span.eqno").all_inner_texts()] == [str(i) for i in range(1, 15)]
    page.goto(address + "10_theory.html", wait_until="networkidle")
    page.locator("a", has_text="Thm 3.7").first.click()
    assert page.url.endswith("problem.html#thm-3-7")
    page.close()


@pytest.mark.browser
@pytest.mark.slow
def test_portrait_computes_what_the_library_does_in_the_browser(address, browser):
    page, _ = watched(browser, address)
    page.goto(address + "interactive.html")
    compare(cases(), page.evaluate(COMPUTE, cases()))
    page.close()


def shown(page) -> dict:
    "What the page's table says, at full precision, the settings it says it for, and its picture."
    return page.evaluate("""() => {
    const flow = document.getElementById("flow"), copy = document.createElement("canvas");
    copy.width = flow.width; copy.height = flow.height;
    const pixels = copy.getContext("2d", { willReadFrequently: true });
    pixels.drawImage(flow, 0, 0);
    return {
      numbers: [...document.querySelectorAll("#numbers tr")].map((row) => [...row.querySelectorAll("td")].map((cell) => +cell.dataset.value)),
      settings: Object.fromEntries([...document.querySelectorAll("#controls input, #controls select")].map((input) => [input.id, input.value])),
      picture: copy.toDataURL(),
      colours: new Set(new Uint32Array(pixels.getImageData(0, 0, copy.width, copy.height).data.buffer)).size}}""")


def expected(settings: dict) -> np.ndarray:
    v = {key: float(value) for key, value in settings.items() if key not in ("loss", "disparity")}
    run = rollout(ConstantPolicy([v["a1"], v["a2"]]), np.array([v["q1"], v["q2"]]), GaussianPopulation(), settings["loss"], settings["disparity"],
                  U=np.array([[v["u00"], v["u01"]], [v["u10"], v["u11"]]]))
    return np.array([[x[0], x.mean(), x[-1]] for x in (run.loss, run.disparity, run.q[:100, 0], run.q[:100, 1])])


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_portrait_reacts(address, browser, viewport):
    context = browser.new_context(viewport=viewport)
    page, wrong = watched(context, address)
    page.goto(address + "interactive.html", wait_until="networkidle")
    seen = [shown(page)]

    def changed():
        seen.append(shown(page))
        np.testing.assert_allclose(seen[-1]["numbers"], expected(seen[-1]["settings"]), atol=1e-9)
        assert seen[-1]["picture"] != seen[-2]["picture"] and seen[-1]["colours"] > 100
        return {k for k in seen[-1]["settings"] if seen[-1]["settings"][k] != seen[-2]["settings"][k]}

    page.focus("#a1")  # with the keyboard alone
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    assert changed() == {"a1"} and float(seen[-1]["settings"]["a1"]) == pytest.approx(.52)
    page.focus("#u01")
    page.keyboard.press("PageUp")
    assert changed() == {"u01"}
    page.focus("#flow")
    page.keyboard.press("ArrowUp")
    assert changed() == {"q2"}
    frame = page.locator("#flow").bounding_box()
    page.mouse.click(frame["x"] + .7*frame["width"], frame["y"] + .8*frame["height"])  # right and low: group 1 ahead
    assert changed() == {"q1", "q2"} and float(seen[-1]["settings"]["q1"]) > .5 > float(seen[-1]["settings"]["q2"])
    page.select_option("#disparity", "qr")
    assert changed() == {"disparity"}
    page.click("button[data-a=neutral]")
    assert changed() == {"a1", "a2"} and "stays" in page.inner_text("#sentence")
    page.click("#reset")
    assert changed() and seen[-1]["settings"] == seen[0]["settings"]
    assert not wrong
    context.close()
