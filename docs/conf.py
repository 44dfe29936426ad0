"""Sphinx configuration. Nothing here needs the network, neither to build nor to read."""

from __future__ import annotations

import inspect
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# The pages describe the tree they lie in, whether or not it is installed.
sys.path[:0] = [str(HERE.parent), str(HERE)]

from docutils import nodes  # noqa: E402
from sphinx import addnodes  # noqa: E402
from sphinx.util import logging  # noqa: E402

import softtopk_nb  # noqa: E402
from softtopk_nb._api.operator import Operator  # noqa: E402

project = "softtopk_nb"
author = "The softtopk_nb developers"
copyright = author
release = version = softtopk_nb.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # a distribution and a module with hyphens: MathJax, served from here
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinx_proof",
    "sphinx_reredirects",
    "sphinxcontrib.bibtex",
    "dashboard_data",
]
exclude_patterns = ["_build"]
nitpicky = True

# -- text and mathematics --------------------------------------------------------------------
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
math_numfig = True
numfig = True
math_eqref_format = "({number})"
proof_minimal_theme = True

bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "alpha"
bibtex_reference_style = "author_year"

# -- reference -------------------------------------------------------------------------------
autodoc_typehints = "none"  # numpydoc's sections already say what each argument is
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
# Of every docstring on the pages: all that numpydoc checks, less
numpydoc_validation_checks = {
    "all",
    "GL01",  # the summary begins on the line of the quotes
    "ES01",  # a summary can be enough
    "PR03",  # methods name first what they share with the call
    "PR04",  # and refer to its types
    "PR08",  # a description may begin with a symbol, in small letters
    "RT02",  # results have names
    "SA01",  # not everything has a relative
    "SA03",
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# -- examples: every `>>>` on these pages is run by `sphinx-build -b doctest` -----------------
doctest_global_setup = """
import numpy as np
import softtopk_nb as stk
"""
doctest_test_doctest_blocks = "default"

# -- gallery: run when the pages are built, unless `-D plot_gallery=0` says no --------------------
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "examples",
    "within_subsection_order": "FileNameSortKey",
    "doc_module": ("softtopk_nb",),
    "capture_repr": (),  # what an example prints is shown, and nothing else
    "remove_config_comments": True,
    "write_computation_times": False,
}

# -- html ------------------------------------------------------------------------------------
html_theme = "pydata_sphinx_theme"
html_title = "softtopk_nb"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_sourcelink = False
html_context = {"default_mode": "auto"}  # without it the theme writes an error to the console
# Addresses that earlier releases' README and messages named.
redirects = {
    "quickstart": "examples/plot_feature_selection.html",
    "subset-selection": "examples/plot_random_subsets.html",
    "which-operator": "guide/operators.html",
    "conventions": "guide/inputs.html",
    "gpu": "guide/gpu.html",
    "torch": "guide/pytorch.html",
    "jax": "guide/jax.html",
    "dask": "guide/dask.html",
    "thretopk": "math/thretopk.html",
    "gradtopk": "math/gradtopk.html",
    "iterative": "math/iterative.html",
    "softmax": "math/softmax.html",
    "losses": "math/losses.html",
    "published": "math/published.html",
    "source-errors": "math/source.html",
    "notation": "math/notation.html",
    "bibliography": "math/bibliography.html",
    "contributing": "dev/contributing.html",
    "speed": "dev/speed.html",
    "dashboard": "dev/dashboard.html",
}
html_theme_options = {
    "logo": {"text": "softtopk_nb"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 7,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


# The reference imports each front, and examples scikit-learn. The extra `docs` has none of these:
# PyTorch alone is larger than all the rest.
EXTRAS = {"torch": "torch", "jax": "jax", "dask": "dask", "sklearn": "examples"}


def say_what_is_missing() -> None:
    """End with one line if extras are missing: an error of Sphinx's comes with a traceback."""
    missing = [extra for library, extra in EXTRAS.items() if not find_spec(library)]
    if missing:
        extras = ",".join(["docs", *missing])
        sys.exit(f"the pages need more than the extra docs: pip install '.[{extras}]'")


def draw_figures(_app: object) -> None:
    """Draw the figures that are missing or older than what they are drawn from."""
    import figures

    sources = [HERE / "figures.py", *Path(softtopk_nb.__file__).parent.rglob("*.py")]
    figures.draw(HERE / "_static" / "generated", newest_source=max(map(_modified, sources)))


def _modified(path: Path) -> float:
    return path.stat().st_mtime


def operator_signature(
    _app: object, _what: str, _name: str, obj: object, _options: object, signature: str, _: object
) -> tuple[str, None] | None:
    """Write an operator's own keyword arguments where the common signature has ``**options``."""
    operator = getattr(obj, "__self__", obj)
    if not isinstance(operator, Operator) or "**options" not in signature:
        return None
    own = inspect.signature(operator._options).parameters.values()
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in own]
    return signature.replace(", **options", "".join(f", {p}" for p in plain)), None


def polish_proofs(_app: object, doctree: nodes.document) -> None:
    """Set the word "Proof" in italics, and undo the ids that sphinx-proof gives to every box."""
    for box in doctree.findall(nodes.admonition):
        if box["ids"] != ["proof"]:
            continue
        box["ids"] = []
        box["classes"].append("is-proof")
        opening = next(box.findall(nodes.Text))
        word, _, rest = opening.astext().partition(" ")
        opening.parent.replace(opening, [nodes.emphasis("", word), nodes.Text(" " + rest)])
    for content in doctree.findall(nodes.section):
        if content["ids"] == ["proof-content"]:
            content["ids"] = [content.parent["ids"][0] + "-content"]


def describe_page(app: Any, doctree: nodes.document) -> None:
    """Give a page its description for search engines: the summary of what it documents first, or
    else the paragraph that opens it.
    """
    documented = next(doctree.findall(addnodes.desc_content), None)
    opening = documented or next(doctree.findall(nodes.section), doctree)
    first = next((node for node in opening.children if isinstance(node, nodes.paragraph)), None)
    if first is None:
        logger = logging.getLogger(__name__)
        logger.warning("a page without a description", location=app.env.docname)
        return
    description = " ".join(first.astext().split())
    doctree.insert(0, nodes.meta(name="description", content=description))


def setup(app: object) -> None:
    """Draw before anything is read, so that the pages find their figures."""
    say_what_is_missing()
    app.connect("builder-inited", draw_figures)
    app.connect("autodoc-process-signature", operator_signature)
    app.connect("doctree-read", polish_proofs)
    app.connect("doctree-read", describe_page)
