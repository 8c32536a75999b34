"""The notebooks in examples/: they run, and what was committed is a run of theirs.

JAXRL_EXAMPLE_SCALE makes their trainings short here. What they show was trained at full size.
"""

import re
from pathlib import Path

import nbclient
import nbformat
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
SCALE = "0.002"
MAX_BYTES = 1_000_000
MACHINE_PATH = re.compile(
    r"(?<![\w.:/])(?:/(?:home|root|work|tmp|Users|usr|opt|var|mnt)\b|[A-Z]:\\)"
)


def read(path):
    return nbformat.read(path, as_version=4)


def outputs_of(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


@pytest.mark.docs
@pytest.mark.parametrize(
    "skipped", ["slow", pytest.param(None, marks=pytest.mark.slow)], ids=["main", "whole"]
)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_its_first_cell_to_its_last(path, skipped, tmp_path, monkeypatch):
    """Without the cells that are tagged slow, on which no other depends; `-m slow` with them."""
    monkeypatch.setenv("JAXRL_EXAMPLE_SCALE", SCALE)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    notebook = read(path)
    notebook.cells = [
        cell for cell in notebook.cells if skipped not in cell.metadata.get("tags", ())
    ]
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    lines = [
        output["data"]["text/plain"]
        for output in outputs_of(notebook)
        if output["output_type"] == "display_data"
    ]
    progress = [line for line in lines if re.match(r"iter +\d", line)]
    trainings = sum(
        cell.source.count(".fit()") for cell in notebook.cells if cell.cell_type == "code"
    )
    assert len(progress) == trainings  # one line each, of the last iteration


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_was_run_in_order_and_without_errors(path):
    notebook = read(path)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    kinds = {output["output_type"] for output in outputs_of(notebook)}
    assert kinds <= {"stream", "display_data", "execute_result"}
    assert not [output for output in outputs_of(notebook) if output.get("name") == "stderr"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_is_small_and_names_no_machine(path):
    assert path.stat().st_size < MAX_BYTES
    notebook = read(path)
    assert notebook.metadata["kernelspec"]["name"] == "python3"
    texts = [cell.source for cell in notebook.cells]
    for output in outputs_of(notebook):
        texts.append(output.get("text", ""))
        texts += [text for kind, text in output.get("data", {}).items() if kind.startswith("text/")]
    assert [found[0] for text in texts for found in MACHINE_PATH.finditer(text)] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_files_that_a_notebook_links_to_exist(path):
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    assert links
    assert [link for link in links if not (EXAMPLES / link).exists()] == []


def test_a_machine_path_is_found():
    assert MACHINE_PATH.search("folder /home/ada/runs") and MACHINE_PATH.search(r"C:\Users\ada")
    assert not MACHINE_PATH.search("runs/arena/work https://example.org/home ../docs/tmp.md")
