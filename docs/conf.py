"""Sphinx over the notebooks, as docs/stage.py lays them out. `make site` builds it."""
import re
from pathlib import Path

from pygments.formatters import HtmlFormatter
from sphinx.highlighting import PygmentsBridge

project = "Long-Term Fairness with Unknown Dynamics"
author = "the ltf_nb authors"
copyright = "2026, the ltf_nb authors"
language = "en"

extensions = ["myst_nb", "sphinx_proof", "sphinxcontrib.bibtex"]
exclude_patterns = ["_build", "jupyter_execute", "**.ipynb_checkpoints", "files"]

nb_execution_mode = "off"  # the notebooks are committed with their outputs
nb_ipywidgets_js = {}  # nothing is loaded from elsewhere
nb_code_prompt_show = "Show imports"  # nothing else is folded
nb_code_prompt_hide = "Hide imports"
nb_merge_streams = True
nb_render_markdown_format = "myst"
myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "dollarmath", "fieldlist"]
myst_heading_anchors = 3

bibtex_bibfiles = [str(Path(__file__).parent / "references.bib")]
bibtex_reference_style = "author_year"

add_module_names = False
python_maximum_signature_line_length = 90
math_eqref_format = "({number})"
numfig_secnum_depth = 0

html_theme = "sphinx_book_theme"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["phone.js", "formulas.js", "excerpts.js"]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_show_sphinx = False
html_domain_indices = False
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navbar_persistent": [],
    "show_toc_level": 2,
    "home_page_in_toc": False,
    "pygments_light_style": "a11y-high-contrast-light",
}
html_context = {"default_mode": "auto"}
mathjax_path = "mathjax/tex-chtml-full.js"  # with its fonts beside it: no request leaves the site


class HangingFormatter(HtmlFormatter):
    "Code in which a line that is too long goes on under its own indentation; site.css does the rest."

    def wrap(self, source):
        return super().wrap(self.lines(source))

    def lines(self, source):
        for is_code, text in source:
            plain = re.sub(r"<[^>]*>", "", text)
            indent = len(plain) - len(plain.lstrip(" "))
            yield is_code, f'<span class="code-line" style="--indent: {indent}ch">{text}</span>' if is_code else text


PygmentsBridge.html_formatter = HangingFormatter


def paper_numbers(app, env):
    "Give each statement the number it has in the paper, which its label carries: thm-3-7 is Theorem 3.7."
    for kinds in env.toc_fignumbers.values():
        for kind, numbers in kinds.items():
            for label in numbers:
                if label in getattr(env, "proof_list", {}):
                    kinds[kind][label] = tuple(label.upper().split("-")[1:])
    return []


def setup(app):
    app.connect("env-get-updated", paper_numbers, priority=900)
