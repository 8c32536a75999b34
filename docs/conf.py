"""Sphinx's settings for the documentation site: `.ci/docs` builds it into `site/`."""

import re
import shutil
import sys
from pathlib import Path

import jaxrl

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "docs"))  # for the extensions beside this file

project = "jaxrl"
author = "the authors of jaxrl"
release = version = jaxrl.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "formulas", "names_in_search"]
exclude_patterns = ["_build"]

highlight_language = "text"
smartquotes_action = "D"  # dashes, but quotes stay as they are: code in tables is copied

html_theme = "furo"
html_title = f"jaxrl {release}"
html_search_scorer = str(ROOT / "docs" / "search_scores.js")
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_show_copyright = False
pygments_dark_style = "github-dark"
html_math_renderer = "formulas"

myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the tests run the notebooks

napoleon_custom_sections = [("Optional", "params_style")]
default_role = "literal"  # docstrings write `code`
autodoc_member_order = "bysource"
autodoc_typehints = "none"
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!jaxrl\.).*")]

PAGES_ELSEWHERE = {  # files of the repository that are pages of the site
    "../docs/": "../",  # in the notebooks
    "../examples/": "_examples/",
    "../benchmarks/README.md": "benchmarks.md",
    "../CHANGELOG.md": "changelog.md",
}


def link_to_pages(app, name, source):
    """Links that lead to a file of the repository, for readers of the sources, lead to its page."""
    for file, page in PAGES_ELSEWHERE.items():
        source[0] = source[0].replace(f"]({file}", f"]({page}")


def mark_code(app, kind, name, obj, options, lines):
    """Indented blocks of docstrings, formulas mostly, are shown as they are."""
    text = "\n".join(lines)
    if "\nSettings:\n" in text:  # docs/settings.md has them
        text = text[: text.index("\nSettings:\n")] + "\nSettings: see :doc:`settings`.\n"
    text = re.sub(r"see\s+docs/(\w+)\.md", r"see :doc:`\1`", text)
    lines[:] = re.sub(r"(?<=\S)\n\n(?= {4}\S)", "\n\n::\n\n", text).split("\n")


def collect_notebooks(app):
    """Notebooks are in examples/, and Sphinx reads nothing outside docs/."""
    collected = ROOT / "docs" / "_examples"
    shutil.rmtree(collected, ignore_errors=True)
    collected.mkdir()
    for notebook in (ROOT / "examples").glob("*.ipynb"):
        shutil.copy(notebook, collected)


def setup(app):
    app.connect("source-read", link_to_pages)
    app.connect("builder-inited", collect_notebooks)
    app.connect("autodoc-process-docstring", mark_code)
