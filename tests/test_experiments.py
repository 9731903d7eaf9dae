"""Results: whole or absent, the same bytes whatever happens, and noticed when they are not what they should be."""
import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ltf_nb import experiments, lucbfair, rtd3
from ltf_nb.claims import CLAIMS
from ltf_nb.env import Problem
from ltf_nb.experiments import FIGURE_CELLS, PROFILES, TRAINED, VERSIONS, Cell, is_done, load_or_run, make_config, parse_cell, places
from ltf_nb.features import train_network_features
from ltf_nb.pooled import PooledSettings, train_pooled
from ltf_nb.running import syntax_hash
from ltf_nb.verdicts import HEADLINE_CELLS

ROOT = Path(__file__).parent.parent
MODEL = ("dynamics", "populations", "adult", "metrics", "env", "evaluation", "experiments")
MODULES = {"model": MODEL, "greedy": ("policies",), "uniform": ("policies",), "optimum": ("oracle",),
           "lucbfair": ("policies", "features", "theory", "lsvi", "lucbfair"), "lucbfair_pooled": ("features", "pooled"), "rtd3": ("rtd3",)}
SMALL = [Cell(name, "adult" if name == "greedy" else "gaussian") for name in ("uniform", "greedy", "optimum", "lucbfair", "lucbfair_pooled", "rtd3")]
FILES = ["config.json", "curves.npz", "episodes.npz", "portrait.npz", "policy.json", "policy.safetensors", "provenance.json", "SHA256SUMS"]


def contents(folder):
    "The bytes that must be the same twice."
    return {p.name: p.read_bytes() for p in sorted(Path(folder).iterdir()) if p.name not in ("provenance.json", "SHA256SUMS")}


def start(cell, folder, profile="smoke"):
    "Compute a cell in a process of its own."
    code = f"from ltf_nb.experiments import *; load_or_run(parse_cell({str(cell)!r}), {profile!r}, results_dir={str(folder)!r}); print('done')"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    "Results of runs that nothing happened to."
    folder = tmp_path_factory.mktemp("undisturbed")
    return {cell: load_or_run(cell, "smoke", results_dir=folder) for cell in SMALL}


# What defines a result


def test_versions_are_raised_with_the_mathematics():
    """The syntax trees of an algorithm's modules are recorded. If they differ, either its numbers changed: raise its version in
    13_experiments and compute its results anew; or they did not: say why in a waiver. Either way record the new hash here."""
    recorded = json.loads((ROOT / "tests/versions.json").read_text())
    for name, modules in MODULES.items():
        entry = recorded[name]
        found = syntax_hash(*(ROOT / f"ltf_nb/{module}.py" for module in modules))
        if name == "model":  # the Adult table is part of it
            found = hashlib.sha256(found.encode() + (ROOT / "ltf_nb/data/SHA256SUMS").read_bytes()).hexdigest()[:12]
        assert entry["version"] == VERSIONS[name], f"version {VERSIONS[name]} of {name} is not recorded in tests/versions.json"
        assert found in (entry["hash"], *entry["waivers"]), (
            f"the code of {name} ({', '.join(modules)}) has changed: raise its version, "
            f"or add {found!r} to its waivers with the reason why no number changes")


@pytest.mark.parametrize("cell", SMALL, ids=str)
def test_config_names_all_that_matters(cell):
    config = make_config(cell, "quick", 3)
    assert config["cell"] == vars(cell) and config["seed"] == 3 and config["profile"] == "quick"
    assert make_config(cell, "paper", 3) != config != make_config(cell, "quick", 4)
    assert json.loads(json.dumps(config)) == config


def test_cells_of_figures_and_claims_have_names():
    cells = {cell for cells in FIGURE_CELLS.values() for cell in cells} | set(HEADLINE_CELLS)
    assert {parse_cell(str(cell)) for cell in cells} == cells and len({str(cell) for cell in cells}) == len(cells)


@pytest.mark.parametrize(("arguments", "message"), [
    ((Cell("rtd3", "gaussian"), "huge"), "unknown profile 'huge'; known: smoke, quick, paper"),
    ((Cell("rtd3", "gaussian"), "smoke", -1), "seed must be a whole number of at least 0; got -1"),
    ((Cell("rtd3", "gaussian"), "smoke", 0.5), "seed must be a whole number of at least 0; got 0.5"),
    (("rtd3-gaussian-tp-dp", "smoke"), "cell must be a Cell.*got 'rtd3-gaussian-tp-dp'"),
])
def test_bad_requests_touch_nothing(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        load_or_run(*arguments, results_dir=tmp_path)
    assert not list(tmp_path.iterdir())


# The same bytes


@pytest.mark.parametrize("cell", SMALL, ids=str)
def test_result_is_complete_and_the_same_in_another_process(undisturbed, tmp_path, cell):
    result = undisturbed[cell]
    process = start(cell, tmp_path)
    assert process.wait() == 0, process.stderr.read()
    assert contents(places(cell, "smoke", 0, tmp_path)[0]) == contents(result.folder)
    size = PROFILES["smoke"]
    assert result.episodes["loss"].shape == (size.horizon, size.episodes) and result.portrait.flow.shape == (size.n, size.n, 2)
    assert (result.late_portrait is not None) == (cell.algorithm in ("optimum", "lucbfair", "lucbfair_pooled"))
    assert set(result.curves) >= ({"loss", "disparity"} if cell.algorithm in TRAINED else set())
    assert not (tmp_path / ".work/smoke" / str(cell) / "seed0").exists(), "unfinished work is left behind"


def test_policy_read_back_is_the_one_judged(undisturbed):
    for cell, result in undisturbed.items():
        again = experiments.evaluate_policy(cell, result.policy, PROFILES["smoke"], experiments.streams_of(0))[1]
        np.testing.assert_array_equal(again["loss"], result.episodes["loss"])


def test_all_policies_start_from_the_same_states(undisturbed):
    starts = [result.episodes["q"][0] for result in undisturbed.values()]
    assert all(np.array_equal(q, starts[0]) for q in starts)


def test_seeds_differ(undisturbed, tmp_path):
    other = load_or_run(Cell("uniform", "gaussian"), "smoke", 1, tmp_path)
    assert not np.array_equal(other.episodes["q"], undisturbed[Cell("uniform", "gaussian")].episodes["q"])


# What may happen to a run or to a file


@pytest.mark.slow
@pytest.mark.parametrize("cell", [Cell("lucbfair", "gaussian"), Cell("lucbfair_pooled", "gaussian"), Cell("rtd3", "gaussian")], ids=str)
def test_killed_at_random_moments(undisturbed, tmp_path, cell):
    "Kill -9 again and again; the run that is left alone ends with the same bytes."
    moments, kills = random.Random(str(cell)), 0
    for _ in range(4):
        process, begun = start(cell, tmp_path), places(cell, "smoke", 0, tmp_path)[1] / "config.json"
        while process.poll() is None and not begun.exists():
            time.sleep(.01)
        time.sleep(moments.uniform(0, 1.5))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert start(cell, tmp_path).wait() == 0
    assert kills and contents(places(cell, "smoke", 0, tmp_path)[0]) == contents(undisturbed[cell].folder)


def last_bit(folder):
    "A checkpoint of L-UCBFair whose fingerprint another processor or torch computed."
    size, streams = PROFILES["smoke"], experiments.streams_of(0)
    feature_map, _ = train_network_features("gaussian", "tp", "dp", streams["features"], size.samples, size.epochs)
    task, rngs = lucbfair.PopulationTask(Problem(horizon=size.horizon)), streams["training"].spawn(2)
    known, began = lucbfair.fingerprint(task, feature_map), [rng.bit_generator.state for rng in rngs]
    policy = lucbfair.LUCBFairPolicy(feature_map, np.zeros((20, 2, 64)), np.tile(np.eye(64), (20, 1, 1)), 1.0, 25, 0.5, 31.6)
    episode, _, _ = lucbfair.play(task, policy, *rngs)
    known[-1] = np.nextafter(known[-1], 1)
    lucbfair.save_checkpoint(folder / "checkpoint.npz", [episode], rngs, lucbfair.LUCBFairSettings(size.lucbfair_episodes), known, began)


OTHER_RUNS = {
    "lucbfair": last_bit,
    "lucbfair_pooled": lambda folder: train_pooled(Problem(horizon=20), PooledSettings(), 1, np.random.default_rng(9), folder / "checkpoint.npz"),
    "rtd3": lambda folder: rtd3.train(steps=400, horizon=20, rng=np.random.default_rng(9), checkpoints=folder / "checkpoints"),
}


@pytest.mark.parametrize("algorithm", OTHER_RUNS)
def test_checkpoint_of_another_run_is_dropped(undisturbed, tmp_path, algorithm):
    "With the right config beside it there is nobody who could resolve the conflict: the run starts anew, and ends with the same bytes."
    cell = Cell(algorithm, "gaussian")
    folder, work = places(cell, "smoke", 0, tmp_path)
    work.mkdir(parents=True)
    (work / "config.json").write_text(json.dumps(make_config(cell, "smoke", 0)))
    OTHER_RUNS[algorithm](work)
    with pytest.warns(UserWarning, match="; starting anew"):
        load_or_run(cell, "smoke", results_dir=tmp_path)
    assert contents(folder) == contents(undisturbed[cell].folder)


@pytest.mark.parametrize("name", FILES)
def test_changed_byte_is_noticed_and_the_cell_computed_anew(undisturbed, tmp_path, name):
    cell = Cell("rtd3", "gaussian")
    folder, _ = places(cell, "smoke", 0, tmp_path)
    shutil.copytree(undisturbed[cell].folder, folder)
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.warns(UserWarning, match="set aside"):
        load_or_run(cell, "smoke", results_dir=tmp_path)
    assert contents(folder) == contents(undisturbed[cell].folder)
    assert (tmp_path / f".work/aside/{cell}-seed0-0").is_dir(), "the damaged folder is kept for a look"


@pytest.mark.parametrize("change", ["missing", "extra", "other config"])
def test_folder_that_is_not_what_was_asked_for(undisturbed, tmp_path, change):
    cell = Cell("uniform", "gaussian")
    folder, _ = places(cell, "smoke", 0, tmp_path)
    shutil.copytree(undisturbed[cell].folder, folder)
    if change == "missing":
        (folder / "curves.npz").unlink()
    elif change == "extra":
        (folder / "extra.txt").write_text("?")
    else:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"U": [[0, 0], [0, 0]]}))
        (folder / "SHA256SUMS").write_text(experiments.sums_of(folder))
    with pytest.warns(UserWarning, match="another U" if change == "other config" else "checksums"):
        assert not is_done(cell, "smoke", 0, tmp_path)
    assert not folder.exists()


def test_nothing_finished_is_computed_again(undisturbed, tmp_path, monkeypatch):
    cell = Cell("uniform", "gaussian")
    shutil.copytree(undisturbed[cell].folder, places(cell, "smoke", 0, tmp_path)[0])
    monkeypatch.setattr(experiments, "run_cell", lambda *_: pytest.fail("computed again"))
    load_or_run(cell, "smoke", results_dir=tmp_path)


def test_two_processes_want_the_same_cell(undisturbed, tmp_path):
    "One computes, the other waits and finds the result."
    cell = Cell("rtd3", "gaussian")
    processes = [start(cell, tmp_path) for _ in range(2)]
    assert [p.wait() for p in processes] == [0, 0], [p.stderr.read() for p in processes]
    assert contents(places(cell, "smoke", 0, tmp_path)[0]) == contents(undisturbed[cell].folder)
    assert not (tmp_path / ".work/aside").exists()


@pytest.mark.parametrize(("options", "number"), [("ro", errno.EROFS), ("size=32k", errno.ENOSPC)], ids=["read-only", "full"])
def test_folder_that_cannot_be_written_to(tmp_path, options, number):
    "A real file system that is read-only or full, in a namespace of its own."
    code = ("import sys; from ltf_nb.experiments import *\n"
            "try: load_or_run(Cell('rtd3', 'gaussian'), 'smoke', results_dir=sys.argv[1])\n"
            "except OSError as e: print(e.errno, e)")
    script = f'mount -t tmpfs -o {options} tmpfs "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", tmp_path, sys.executable, code]
    if shutil.which("unshare") is None or subprocess.run([*command[:4], 'mount -t tmpfs tmpfs "$1"', "sh", tmp_path], capture_output=True).returncode:
        pytest.skip("this system does not let us mount a file system of our own")
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.stdout.startswith(str(number)) and "cannot be written" in done.stdout and "untouched" in done.stdout, done.stdout + done.stderr


# Claims


def test_claims_are_stated_whole():
    for claim in CLAIMS.values():
        assert claim.text and claim.place and claim.rule and claim.figures
        assert set(claim.figures) <= set(FIGURE_CELLS)
