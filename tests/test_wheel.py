"""The wheel, installed into an empty environment, steps both environments without the notebooks' tool chain."""
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STEP_BOTH = """
import gymnasium, importlib.util, numpy, ltf_nb.env
assert not importlib.util.find_spec("nbdev") and not importlib.util.find_spec("torch")
for population in ("gaussian", "adult"):
    env = gymnasium.make("ltf_nb/LongTermFairness-v0", population=population)
    env.reset(seed=0)
    assert 0 <= env.step(numpy.array([.5, .5], dtype="float32"))[1] <= 1
    envs = gymnasium.make_vec("ltf_nb/LongTermFairness-v0", num_envs=8, vectorization_mode="vector_entry_point", population=population)
    envs.reset(seed=0)
    assert envs.step(numpy.full((8, 2), .5))[0].shape == (8, 2)
from ltf_nb.adult import load_adult
assert len(load_adult()) == 48842
print(ltf_nb.__version__)
"""


@pytest.mark.network
def test_wheel_installs_into_an_empty_environment(tmp_path):
    subprocess.run([sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT], check=True)
    (wheel,), (sdist,) = (list((tmp_path / "dist").glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    assert sdist.stat().st_size < 10_000_000
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    done = subprocess.run([python, "-c", STEP_BOTH], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
