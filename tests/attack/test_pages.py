"""Pages show names that hold HTML as the text that they are."""

import json
import re
from importlib import resources
from pathlib import Path

import pytest

from jaxrl.replay.page import page_of

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    [
        *Path(str(resources.files("jaxrl.replay"))).glob("*.js"),
        *(ROOT / "client" / "javascript").glob("*.js"),
        *(ROOT / "examples" / "browser").glob("*.*"),
    ]
)
HOSTILE = (
    "</script><script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    "<!--<script>",
    "\u2028\u2029&lt;b&gt;",
    "@DATA@ @SCRIPT@ @STYLE@",
    "javascript:window.hit=1",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_the_data_of_a_page_stay_inside_of_their_script(name):
    data = {"title": name, "note": name, "agents": [{"name": name, "policy": name}]}
    plain, page = page_of({"title": "plain"}), page_of(data)
    assert page.count("<script") == plain.count("<script")
    assert page.count("</script") == plain.count("</script")
    assert page.count("<!--") == plain.count("<!--")
    (text,) = re.findall(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.S)
    assert json.loads(text) == data


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_makes_html_or_code_of_a_text(script):
    text = script.read_text(errors="replace")
    makers = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function\("
    assert not re.findall(makers, text), script
