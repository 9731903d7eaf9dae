# One entrance to everything. `make help` lists the targets.
PYTHON  ?= python3.11
PROFILE ?= quick
JOBS    ?= 2
N_SEEDS ?= 5
BIN     := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
README  ?= README.md
# One thread to a process: two processes then run side by side on two cores at full speed.
export OMP_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1
export MKL_NUM_THREADS = 1

.DEFAULT_GOAL := help
.PHONY: help env figures claims studies report site serve check test export clean-notebooks notebooks readme table hooks lock wheel

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

env: .venv/.ready ## build .venv from requirements.lock (skipped when it is current)

# torch first and exactly: any later package that asks for "torch" then finds it installed.
.venv/.ready: requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Python 3.11 is needed: make PYTHON=/path/to/python3.11")'
	rm -rf .venv && $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $$(grep '^torch==' requirements.lock)
	$(BIN)/pip install --quiet -r requirements.lock
	$(BIN)/python -c 'import site, pathlib; pathlib.Path(site.getsitepackages()[0], "ltf_nb.pth").write_text(str(pathlib.Path.cwd()) + "\n")'
	touch $@

ENGINE = $(BIN)/python -m ltf_nb.running engine
CONFIG = --cores $(JOBS) --config profile=$(PROFILE)

figures: env ## draw the figures and judge the claims (PROFILE=smoke|quick|paper, JOBS=2; RETRAIN=1 from nothing)
	$(if $(RETRAIN),$(BIN)/python -c 'from ltf_nb.experiments import retire; retire("$(PROFILE)")')
	$(ENGINE) figures $(CONFIG)

claims: env ## judge the claims, with the headline cells on N_SEEDS=5 seeds (PROFILE=paper: figs 1, 2 and 4)
	$(ENGINE) claims $(CONFIG) n_seeds=$(N_SEEDS)

studies: env ## run the studies beyond the paper
	$(ENGINE) studies --cores 1 --config profile=$(PROFILE)

report: env ## write Snakemake's report of the figures to results/PROFILE/report.html
	$(BIN)/snakemake --nolock --config profile=$(PROFILE) --report results/$(PROFILE)/report.html -- figures

check: env export ## before a commit: export, tree, clean notebooks, lint, unit tests
	@git diff --exit-code --stat -- ltf_nb || { echo "ltf_nb/ differs from the notebooks as staged: git add nbs ltf_nb"; exit 1; }
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/pytest -q -n $(JOBS) -m "not slow and not network"

# A file's tests share one run, so they stay in one worker. A worker that dies is not replaced: xdist would wait for it for ever.
test: check ## everything: check, then the notebooks' own checks and the slow tests
	cd nbs && ../$(BIN)/nbdev_test --n_workers $(JOBS) --timing
	$(BIN)/pytest -q -n $(JOBS) --dist loadfile --max-worker-restart 0 -m slow

export: env ## write ltf_nb/ from the notebooks
	$(BIN)/nbdev_export

clean-notebooks: env ## strip what a reader does not need from the notebooks
	$(BIN)/nbdev_clean

notebooks: env export ## re-execute the library notebooks in place, then clean them
	for nb in nbs/[0-9]*.ipynb nbs/index.ipynb; do $(BIN)/papermill --no-progress-bar --cwd nbs $$nb $$nb || exit 1; done
	$(BIN)/nbdev_clean

# Links to figures and studies lead to the executed copies.
readme: env ## write README.md from nbs/index.ipynb
	$(BIN)/jupyter nbconvert --log-level ERROR --to markdown --stdout nbs/index.ipynb | sed -E 's#\]\((studies|figures)/#](results/paper/notebooks/#g; s#\]\(([0-9a-z_]*\.ipynb)#](nbs/\1#g; s#\]\(\.\./#](#g' | awk '/^```/ {inside = !inside; if (inside && $$0 == "```") $$0 = "```python"} 1' > $(README)

table: env ## rebuild the Adult score table (minutes)
	$(BIN)/python -m ltf_nb.adult

hooks: env ## install nbdev's git hooks (merge notebooks cell by cell, trust them after a merge)
	$(BIN)/nbdev_install_hooks

wheel: env ## build the wheel and the source distribution, and try the wheel in an empty environment
	$(BIN)/python -m build
	$(BIN)/pytest -q -m network

site: env ## build the paper as a website into docs/_build/html
	rm -rf docs/_build/html
	$(BIN)/python docs/stage.py
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs -d docs/_build/doctrees docs/_build/source docs/_build/html

serve: site ## build the website and serve it on http://localhost:8000
	$(BIN)/python -m http.server 8000 --bind 127.0.0.1 --directory docs/_build/html

lock: ## resolve the requirements anew and write requirements.lock
	rm -rf .venv && $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet setuptools .[rl,figures,docs,dev]
	$(BIN)/pip freeze --all --exclude pip --exclude ltf_nb | sed 's/+cpu$$//' > requirements.lock
