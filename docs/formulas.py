"""Formulas of the site as pictures within the page: no script, no font and no network.

matplotlib sets them; they have the colour of the text around them.
"""

from html import escape

from docutils.nodes import SkipNode
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import MathTextParser
from matplotlib.path import Path
from matplotlib.textpath import TextPath

SIZE, MARGIN = 100.0, 2.0  # units of an em, and around a picture
COMMANDS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}


def svg(formula: str) -> str:
    """A formula in LaTeX as an inline picture that stands on the line of the text."""
    text = f"${' '.join(formula.split())}$"
    font = FontProperties(size=SIZE, math_fontfamily="dejavusans")  # like furo's own font
    width, height, depth, *_ = MathTextParser("path").parse(text, 72, font)
    drawn = "".join(
        "Z" if code == Path.CLOSEPOLY else COMMANDS[code] + " ".join(_upside_down(points))
        for points, code in TextPath((0, 0), text, prop=font).iter_segments()
    )
    width, height, depth = width + 2 * MARGIN, height + MARGIN, depth + MARGIN
    box = f"{-MARGIN:g} {-height:g} {width:g} {height + depth:g}"
    style = f"height:{(height + depth) / SIZE:.3f}em;vertical-align:{-depth / SIZE:.3f}em"
    return (
        f'<svg class="formula" role="img" aria-label="{escape(formula, quote=True)}" '
        f'viewBox="{box}" style="{style}"><path d="{drawn}"/></svg>'
    )


def _upside_down(points) -> list[str]:
    """SVG's y axis points down."""
    signs = (1, -1) * (len(points) // 2)
    return [f"{sign * value:.1f}" for sign, value in zip(signs, points, strict=True)]


def inline_math(writer, node):
    writer.body.append(svg(node.astext()))
    raise SkipNode


def block_math(writer, node):
    writer.body.append(f'<div class="math">{svg(node.astext())}</div>')
    raise SkipNode


def setup(app):
    app.add_html_math_renderer("formulas", (inline_math, None), (block_math, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
