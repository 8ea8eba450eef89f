"""The tour: a notebook that runs, with the outputs that it had, and nothing of the machine it ran on."""

import re
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from pages import ROOT

TOUR = ROOT / "docs" / "tour.ipynb"


def read() -> Any:
    return nbformat.read(TOUR, as_version=4)  # type: ignore[no-untyped-call]


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def kinds(notebook: Any) -> list[list[str]]:
    return [sorted(output.get("data", {})) for output in outputs(notebook)]


def test_the_tour_is_stored_with_its_outputs_and_without_paths_of_a_machine() -> None:
    text = TOUR.read_text()
    assert len(text) < 400_000
    notebook = read()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert all(cell.outputs for cell in code)
    assert {output.output_type for output in outputs(notebook)} <= {"display_data", "execute_result"}
    assert sum("image/png" in each for each in kinds(notebook)) == 3
    shown = re.sub(r'"image/png": "[^"]*"', "", text)
    assert re.findall(r"(?<![\w./<:>-])/(?:tmp|home|root|work|usr|var|opt|Users)\b[^\"]*", shown) == []


@pytest.mark.slow
def test_the_tour_runs_without_an_error_or_a_warning() -> None:
    stored, notebook = read(), read()
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    assert {output.output_type for output in outputs(notebook)} <= {"display_data", "execute_result"}
    assert kinds(notebook) == kinds(stored)
