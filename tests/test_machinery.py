"""The machinery that keeps notebooks, modules and papermill in step."""
import ast
import configparser
import json
import shutil
import subprocess
import sys
from pathlib import Path

import papermill
import pytest
from execnb.nbio import read_nb
from nbdev.clean import clean_nb

from ltf_nb.experiments import assigned
from ltf_nb.verdicts import count_verdicts

ROOT = Path(__file__).parent.parent
LIBRARY = sorted((ROOT / "nbs").glob("*.ipynb"))
PAPERMILL = sorted(p for d in ("runs", "figures", "studies") for p in (ROOT / "nbs" / d).glob("*.ipynb"))
COMMITTED = LIBRARY + PAPERMILL + sorted((ROOT / "results/paper/notebooks").glob("*.ipynb"))
BIN = Path(sys.executable).parent
names = dict(ids=lambda p: p.stem)


def modules() -> dict:
    "Module name -> number of its notebook, from the notebooks' default_exp."
    found = {}
    for nb in LIBRARY:
        for cell in read_nb(nb).cells:
            if cell.source.startswith("#| default_exp"):
                found[cell.source.split()[2]] = int(nb.name[:2])
    return found


def tags(cell) -> list:
    return cell["metadata"].get("tags", [])


def test_export_is_in_sync(tmp_path):
    for part in ("nbs", "ltf_nb", "settings.ini", "pyproject.toml"):
        source = ROOT / part
        shutil.copytree(source, tmp_path / part) if source.is_dir() else shutil.copy(source, tmp_path)
    subprocess.run([BIN / "nbdev_export"], cwd=tmp_path, check=True)
    for path in sorted((tmp_path / "ltf_nb").glob("*.py")):
        assert path.read_text() == (ROOT / "ltf_nb" / path.name).read_text(), f"{path.name} is not what the notebooks export"


def test_no_stale_module():
    on_disk = {p.stem for p in (ROOT / "ltf_nb").glob("*.py")} - {"__init__", "_modidx"}
    assert on_disk == set(modules())


def test_modules_import_only_downwards():
    number, seen = modules(), 0
    for name in number:
        for node in ast.walk(ast.parse((ROOT / f"ltf_nb/{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("ltf_nb")):
                # nbdev writes "from .x import y", or "from . import x"
                module = (node.module or "").removeprefix("ltf_nb").lstrip(".")
                for imported in [module] if module else [alias.name for alias in node.names]:
                    assert number[imported] < number[name], f"{name} imports {imported}"
                    seen += 1
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith("ltf_nb") for alias in node.names), f"{name}: write from ltf_nb.x import y"
    assert seen > len(number)  # the test sees the imports it judges


@pytest.mark.parametrize("nb", PAPERMILL, **names)
def test_papermill_notebook_declares_its_parameters(nb):
    cells = json.loads(nb.read_text())["cells"]
    code = [c for c in cells if c["cell_type"] == "code"]
    at = [i for i, c in enumerate(code) if "parameters" in tags(c)]
    assert len(at) == 1
    assert "".join(code[at[0] + 1]["source"]).startswith("check_parameters(In)")
    seen = papermill.inspect_notebook(str(nb))
    assert set(seen) == set(assigned("".join(code[at[0]]["source"]))), "papermill --help-notebook does not list every parameter"
    for name, parameter in seen.items():
        assert parameter["inferred_type_name"] != "None" and parameter["help"], f"{name} needs a type and a comment"


def test_tags_survive_cleaning():
    config = configparser.ConfigParser()
    config.read(ROOT / "settings.ini")
    assert "tags" in config["DEFAULT"]["allowed_cell_metadata_keys"].split()


@pytest.mark.parametrize("nb", COMMITTED, **names)
def test_notebook_is_clean_and_without_errors(nb):
    before = json.loads(nb.read_text())
    for cell in before["cells"]:
        assert not any(o["output_type"] == "error" for o in cell.get("outputs", []))
    after = json.loads(nb.read_text())
    clean_nb(after, allowed_cell_metadata_keys=["tags"])
    assert after == before, "run make clean-notebooks"


def test_readme_is_generated_from_the_index(tmp_path):
    out = tmp_path / "README.md"
    subprocess.run(["make", "--silent", "-C", ROOT, "readme", f"README={out}"], check=True)
    assert out.read_text() == (ROOT / "README.md").read_text(), "run make readme"


def test_readme_counts_the_verdicts_that_are_kept():
    counted = count_verdicts(json.loads((ROOT / "figures/paper/claims.json").read_text()))
    assert (ROOT / "README.md").read_text().count(counted) == 2  # in the opening and above the table


def test_a_test_that_waits_for_ever_fails(tmp_path):
    "Also where it is a fixture that waits, and where the process that is waited for has started another."
    conftest = (ROOT / "tests/conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(conftest.replace("PATIENCE = 1200", "PATIENCE = 2"))
    (tmp_path / "test_waits.py").write_text("""
import subprocess, pytest
@pytest.fixture(scope="module")
def answer(): return subprocess.run(["sh", "-c", "sleep 600; echo done"], capture_output=True, text=True)
def test_waits(answer): assert answer.stdout == "done"
def test_goes_on(): pass
""")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "test_waits has not ended in 2 seconds" in done.stdout and "sleep 600" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_a_wait_for_an_orphan_ends_too(tmp_path):
    "A process whose parent is gone is nobody's child, so it is not killed; it keeps a pipe open on which the test waits."
    (tmp_path / "test_orphan.py").write_text("""
import subprocess
def test_orphan(): subprocess.run(["sh", "-c", "sleep 30 &"], capture_output=True)
""")
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-o", "faulthandler_timeout=2", "-p", "no:cacheprovider", tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=20)
    assert done.returncode != 0 and "Timeout (0:00:02)!" in done.stderr and "test_orphan.py" in done.stderr


def test_lock_is_exact():
    lines = (ROOT / "requirements.lock").read_text().split()
    assert lines and all(line.count("==") == 1 and "+" not in line for line in lines)


def run_papermill(nb, out, *parameters):
    command = [BIN / "papermill", "--no-progress-bar", nb, out]
    for name, value in parameters:
        command += ["-p", name, value]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_figure_runs_alone_and_gives_the_same_bytes(tmp_path):
    nb = ROOT / "nbs/figures/fig06_example_dynamics.ipynb"
    for run in "ab":
        done = run_papermill(nb, tmp_path / "out.ipynb", ("profile", "smoke"), ("figures_dir", str(tmp_path / run)))
        assert done.returncode == 0, done.stderr
    for suffix in ("png", "pdf"):
        first, second = ((tmp_path / run / f"smoke/fig06_example_dynamics.{suffix}").read_bytes() for run in "ab")
        assert first == second


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value", "message"), [
    ("rules", "0.4", "unknown parameter 'rules'; known: profile"),
    ("rule", "high", "parameter rule must be of type float"),
    ("profile", "huge", "unknown profile 'huge'; known: smoke, quick, paper"),
])
def test_figure_refuses_bad_parameters(tmp_path, name, value, message):
    done = run_papermill(ROOT / "nbs/figures/fig06_example_dynamics.ipynb", tmp_path / "out.ipynb", ("figures_dir", str(tmp_path)), (name, value))
    assert done.returncode != 0 and message in done.stderr
    assert not list(tmp_path.rglob("*.png"))


@pytest.mark.slow
@pytest.mark.parametrize("nb", sorted((ROOT / "nbs/studies").glob("*.ipynb")), **names)
def test_study_runs(tmp_path, nb):
    command = [sys.executable, "-m", "ltf_nb.running", "notebook", nb, tmp_path / "out.ipynb", "profile=smoke"]  # as make studies does
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
