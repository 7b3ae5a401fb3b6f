"""docs/examples: the notebook's cells of code as a notebook runs them, top to bottom, and that they show what they say; and the
client that has the protos alone."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from conftest import start

from seine_kv.client import Client

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOK = ROOT / "docs" / "examples" / "retrieval.ipynb"


def test_every_cell_runs(monkeypatch, capsys):
    page = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = [cell for cell in page["cells"] if cell["cell_type"] == "code"]
    assert page["nbformat"] == 4 and len(cells) > 5
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)  # nothing of one machine is kept
    monkeypatch.chdir(NOTEBOOK.parent)
    monkeypatch.setenv("MPLBACKEND", "agg")
    namespace = {"__name__": "__main__"}
    for i, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}: cell of code {i}", "exec"), namespace)
    namespace["index"].delete()
    shown = namespace["page"].read_text(encoding="utf-8")
    data = json.loads(shown.partition('id="data">')[2].partition("</script>")[0])
    assert len(data["tokens"]) == 8192 and [step["tokens"] for step in data["steps"]] == list(range(8185, 8193))
    looked = data["steps"][-1]["heads"][0]
    assert len(looked) == 9 and all(len(head["found"]) == 100 and len(head["missed"]) <= 20 for head in looked)
    printed = capsys.readouterr().out
    assert printed.count("tokens attended of 8,192") == 2
    by_beta, by_top_k = (np.array(list(namespace[name].values())) for name in ("by_beta", "by_top_k"))
    assert by_beta.shape == (4, 4) and by_top_k.shape == (5, 4)
    recall = by_beta[:, 0]
    assert recall[-1] > 0.98 and (np.diff(recall) > -0.01).all() and recall[0] < recall[-1]
    _, mass, error, attended = by_top_k.T
    assert (np.diff(mass) > 0).all() and mass[-1] > 0.97 and (np.diff(attended) > 0).all()
    assert error[-1] < error[0] and error[-1] < 0.1


def test_the_client_of_the_protos_alone(tmp_path):
    socket = tmp_path / "seine.sock"
    process = start(socket)
    try:
        with Client(f"unix://{socket}") as client:
            client.wait_until_ready(20)
        for _ in range(2):  # it leaves nothing behind
            command = [sys.executable, str(NOTEBOOK.parent / "grpc_client.py"), f"unix:{socket}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0 and done.stdout.count(", 10 of the 10 that were planted") == 2, done
    finally:
        process.terminate()
        assert process.wait(20) == 0
