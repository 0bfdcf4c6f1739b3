"""The notebook of the examples runs from top to bottom, and says what it should."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "neuroevolution.ipynb"
#: Imported by the tests that need them only: each worker of the suite reads this file.
NEEDED = [name for name in ("nbformat", "nbclient", "ipykernel", "torch", "sklearn") if find_spec(name) is None]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(NEEDED), reason=f"needs {', '.join(NEEDED)}")]


def test_the_notebook_runs_and_its_network_is_the_same_everywhere(tmp_path: Path) -> None:
    import nbclient
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=150, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    said = ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]
    assert "the same search: True" in "".join(said)
    assert "the same as the search reported: True" in said[-1]
    assert (tmp_path / "digits-network" / "model.safetensors").stat().st_size > 1000


def test_the_notebook_is_kept_without_what_it_printed() -> None:
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and not any(cell.outputs or cell.execution_count for cell in code)
