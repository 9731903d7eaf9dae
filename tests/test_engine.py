"""The run of everything at the smoke size: complete, repeatable, and not to be spoilt by kills, damage or a second run."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ltf_nb.claims import CLAIMS
from ltf_nb.experiments import FIGURE_CELLS

ROOT = Path(__file__).parent.parent
FIGURES = sorted(p.stem for p in (ROOT / "nbs/figures").glob("fig*.ipynb"))
pytestmark = pytest.mark.slow


def copy_of_project(folder):
    "The project without results but what was found over seeds, in a folder of its own."
    for part in ("nbs", "ltf_nb"):
        shutil.copytree(ROOT / part, folder / part)
    (folder / "results/quick").mkdir(parents=True)
    for part in ("Snakefile", "settings.ini", "results/quick/seeds.json"):
        shutil.copy(ROOT / part, folder / part)
    return folder


def start(folder, target="figures", cores=2, profile="smoke", *config):
    command = [sys.executable, "-m", "ltf_nb.running", "engine", target, "--cores", str(cores), "--config", f"profile={profile}", *config]
    env = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    return out + err


def bytes_below(folder, *parts):
    "Bytes of all files that must be the same twice: figures and results, without provenance and what is made from it."
    files = (p for part in parts for p in sorted((folder / part).rglob("*")) if p.is_file() and "notebooks" not in p.parts)
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if p.name not in ("provenance.json", "SHA256SUMS")}


def finished_at(folder):
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in sorted((folder / "results/smoke").glob("*/seed*/SHA256SUMS"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    "All figures, drawn from nothing by two jobs at a time."
    folder = copy_of_project(tmp_path_factory.mktemp("whole"))
    said = finish(start(folder))
    assert "jobs done in" in said
    return folder


def test_everything_is_there(whole):
    assert [name[:5] for name in FIGURES] == list(FIGURE_CELLS)
    for name in FIGURES:
        for path in (f"figures/smoke/{name}.png", f"figures/smoke/{name}.pdf", f"results/smoke/notebooks/{name}.ipynb"):
            assert (whole / path).stat().st_size > 1000, path
        cells = json.loads((whole / f"results/smoke/notebooks/{name}.ipynb").read_text())["cells"]
        said = "".join("".join(o.get("text", "")) for c in cells for o in c.get("outputs", []))
        assert "Verdict: " in said, f"{name} ends without a verdict"
    records = json.loads((whole / "figures/smoke/claims.json").read_text())
    assert [r["key"] for r in records] == list(CLAIMS)
    assert {r["verdict"] for r in records} <= {"replicated", "partly", "not replicated", "not testable"}


def test_second_run_has_nothing_to_do(whole):
    before = bytes_below(whole, "figures", "results/smoke")
    assert "nothing to do" in finish(start(whole))
    assert bytes_below(whole, "figures", "results/smoke") == before


def test_a_fresh_clone_draws_everything_and_trains_nothing(whole, tmp_path):
    "Although all files are there and of the same age, as in an archive."
    folder = copy_of_project(tmp_path)
    for part in ("figures", "results/smoke"):
        shutil.copytree(whole / part, folder / part)
    for path in folder.rglob("*"):
        os.utime(path, (1e9, 1e9))
    command = [sys.executable, "-m", "snakemake", "--nolock", "--dry-run", "--cores", "1", "--config", "profile=smoke", "--", "figures"]
    plan = subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=True).stdout
    stats = plan.rsplit("Job stats:", 1)[1].splitlines()
    jobs = {words[0]: int(words[1]) for line in stats if len(words := line.split()) == 2 and words[1].isdigit()}
    assert jobs == {"figure": len(FIGURES), "overview": 1, "judge": 1, "figures": 1, "total": len(FIGURES) + 3}


def test_one_job_at_a_time_killed_at_random_moments_gives_the_same_bytes(whole, tmp_path):
    "Also: nothing that was finished before a kill is computed again."
    folder, moments, kills = copy_of_project(tmp_path), random.Random(0), 0
    target = "figures/smoke/fig03_training.png"
    for _ in range(4):
        process, before = start(folder, target, cores=1), finished_at(folder)
        time.sleep(moments.uniform(6, 20))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
        after = finished_at(folder)
        assert all(after[name] == when for name, when in before.items())
    before = finished_at(folder)
    finish(start(folder, target, cores=1))
    assert kills and all(finished_at(folder)[name] == when for name, when in before.items())
    mine, theirs = bytes_below(folder, "figures", "results/smoke"), bytes_below(whole, "figures", "results/smoke")
    assert {"figures/smoke/fig03_training.png", "figures/smoke/fig03_training.pdf"} <= set(mine)
    assert all(theirs[name] == data for name, data in mine.items())


def test_damaged_results_alone_are_computed_again(whole, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    expected, before = bytes_below(folder, "figures", "results/smoke"), finished_at(folder)
    damaged = ["results/smoke/rtd3-adult-tp_tn-eo/seed0/policy.safetensors", "results/smoke/greedy-gaussian-tp_tn-eo/seed0/episodes.npz"]
    for name in damaged:
        data = bytearray((folder / name).read_bytes())
        data[-100] ^= 1
        (folder / name).write_bytes(data)
    said = finish(start(folder))
    assert said.count("is set aside: ") == 2
    assert bytes_below(folder, "figures", "results/smoke") == expected
    again = {name for name, when in finished_at(folder).items() if before[name] != when}
    assert again == {str(Path(name).parent / "SHA256SUMS") for name in damaged}


def test_second_run_in_the_same_folder_waits(whole):
    (whole / "figures/smoke/fig05_loop.png").unlink()
    first = start(whole)
    time.sleep(2)
    second = start(whole)
    finish(first)
    said = finish(second)
    assert "another run works in this folder; waiting" in said and "nothing to do" in said


def test_unknown_profile_is_refused(whole):
    process = start(whole, profile="huge")
    out, err = process.communicate()
    assert process.returncode != 0 and "unknown profile 'huge'; known: smoke, quick, paper" in out + err


def test_failure_is_reported_and_the_rest_goes_on(whole, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    broken = folder / "nbs/figures/fig05_loop.ipynb"
    broken.write_text(broken.read_text().replace("check_parameters(In)", "raise RuntimeError('broken by hand')"))
    (folder / "figures/smoke/fig06_example_dynamics.png").unlink()
    process = start(folder)
    out, err = process.communicate()
    assert process.returncode != 0 and "fig05_loop.log" in err and "broken by hand" in err
    assert (folder / "figures/smoke/fig06_example_dynamics.png").exists()


def test_claims_are_measured_on_several_seeds(whole):
    finish(start(whole, "claims", 2, "smoke", "n_seeds=2"))
    found = json.loads((whole / "results/smoke/seeds.json").read_text())
    assert found["profile"] == "smoke"
    assert {key: len(x["values"]) for key, x in found["claims"].items()} == {key: 1 + claim.headline for key, claim in CLAIMS.items()}
    assert found["claims"]["lucbfair-qualification"]["measured"] and found["spread"] > 0
    assert "nothing to do" in finish(start(whole, "claims", 2, "smoke", "n_seeds=2"))
