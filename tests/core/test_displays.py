"""Displays of a notebook: well-formed HTML in which every text is escaped."""

from xml.etree import ElementTree

from jaxrl.core.displays import Display


def texts_of(display):
    """The element of a display, and the texts of its table rows, each a list of cells."""
    element = ElementTree.fromstring(display.html)
    rows = [["".join(cell.itertext()) for cell in row] for row in element.iter("tr")]
    return element, rows


def test_a_display_has_its_title_its_lines_and_then_its_table():
    display = Display("Sweep", [("metric", "x"), ("trials", 2)], [["lr", "score"], [0.1, 5]])
    element, rows = texts_of(display)
    assert element.find("strong").text == "Sweep"
    assert rows == [["metric", "x"], ["trials", "2"], ["lr", "score"], ["0.1", "5"]]
    lines, table = element.findall("table")
    assert [cell.tag for cell in lines.iter() if cell.tag in ("th", "td")] == ["th", "td"] * 2
    assert [[cell.tag for cell in row] for row in table] == [["th", "th"], ["td", "td"]]


def test_a_display_without_lines_has_no_table():
    element, rows = texts_of(Display("Result"))
    assert [part.tag for part in element] == ["style", "strong"] and rows == []


def test_a_line_without_a_label_keeps_its_columns_across_the_whole_table():
    element, rows = texts_of(Display("Networks", [(None, "a   b\nc   d")]))
    assert rows == [["a   b\nc   d"]]
    assert element.find(".//td").get("colspan") == "2" and element.find(".//pre") is not None


def test_what_is_folded_opens_below_its_title():
    element, _ = texts_of(Display("Config", [("lr", 1)], folded=Display("others", [("gamma", 2)])))
    details = element.find("details")
    assert details.find("summary").text == "others"
    assert ["".join(row.itertext()) for row in details.iter("tr")] == ["gamma2"]


def test_every_text_of_a_display_is_escaped():
    bad = "<script>alert('&')</script>"
    inner = Display(bad, [(bad, bad), (None, bad)], [[bad], [bad]])
    display = Display(bad, [(bad, bad), (None, bad)], [[bad], [bad]], folded=inner)
    element, rows = texts_of(display)
    assert element.find(".//script") is None and "<script" not in display.html
    assert rows == [[bad, bad], [bad], [bad], [bad]] * 2
    assert element.find("strong").text == element.find(".//summary").text == bad


def test_a_display_has_no_colours_of_its_own_so_a_dark_notebook_stays_dark():
    display = Display("Sweep", [("metric", "x"), (None, "y")], [["lr"], [1]], Display("more"))
    assert "color" not in display.html and "background" not in display.html
