# Orders the work: train a cell -> draw a figure -> judge the claims; and the studies. `make figures` calls it.
# What is there is decided by the result files alone (ltf_nb.experiments), so this file only asks whether they are whole.
import os
import sys
from pathlib import Path

sys.path.insert(0, str(workflow.basedir))
from ltf_nb.experiments import FIGURE_CELLS, TRAINED, Cell, check_profile, is_done, parse_cell, places
from ltf_nb.running import syntax_hash
from ltf_nb.verdicts import HEADLINE_CELLS, seeded_cells

PROFILE = check_profile(config.get("profile", "quick"))
SEEDS = range(int(config.get("n_seeds", 5)))
FIGURES = {p.stem[:5]: p.stem for p in sorted(Path("nbs/figures").glob("fig*.ipynb"))}
STUDIES = sorted(p.stem for p in Path("nbs/studies").glob("*.ipynb"))
LIBRARY = syntax_hash(*sorted(Path("ltf_nb").glob("[a-z]*.py")))
OVERVIEW_CELLS = [Cell(name, "gaussian") for name in ("greedy", "uniform", "lucbfair", "rtd3", "optimum")]
CLAIM_CELLS = sorted({cell for cells in FIGURE_CELLS.values() for cell in cells} | set(HEADLINE_CELLS))
# Seconds that a job is expected to take on one core; the time limit is many times that.
EXPECTED = {"smoke": {"rtd3": 8, "lucbfair": 10, "lucbfair_pooled": 8, "notebook": 10},
            "quick": {"rtd3": 60, "lucbfair": 60, "lucbfair_pooled": 60, "notebook": 30},
            "paper": {"rtd3": 1100, "lucbfair": 400, "lucbfair_pooled": 120, "notebook": 60}}
os.environ["SNAKEMAKE_PID"] = str(os.getpid())  # jobs end when this process does
RUN = f"exec {sys.executable} -m ltf_nb.running notebook"


def outputs_of(profile, name):
    return [f"results/{profile}/notebooks/{name}.ipynb", f"figures/{profile}/{name}.png", f"figures/{profile}/{name}.pdf"]


def mark(cell, profile, seed):
    "What the training of a cell leaves."
    return f"results/.work/{profile}/trained/{cell}-seed{seed}"


def drawn(profile, name):
    """What a drawing leaves, beside its files. In a fresh clone it is missing, so that everything is drawn there: times of files
    mean nothing after a checkout."""
    return f"results/.work/{profile}/drawn/{name}"


def look(cell, profile, seed):
    """Whether a result is there and can be used. One that is damaged or outdated is set aside now, before anything runs,
    and what was drawn from it goes too; a job on another machine only looks."""
    there = (places(cell, profile, seed)[0] / "SHA256SUMS").exists()
    if workflow.remote_exec:
        return there
    usable = is_done(cell, profile, seed)
    if not usable:
        Path(mark(cell, profile, seed)).unlink(missing_ok=True)
    if there and not usable:
        print(f"{cell}, seed {seed}, profile {profile} is set aside: damaged, or of another version; see results/.work/aside", file=sys.stderr)
    if there and not usable and seed == 0:
        paths = [path for name, cells in FIGURE_CELLS.items() if cell in cells for path in outputs_of(profile, FIGURES[name])]
        for path in (*paths, f"figures/{profile}/landing.png", f"figures/{profile}/claims.json"):
            Path(path).unlink(missing_ok=True)
    return usable


SEEDED = [(cell, seed) for seed in SEEDS for cell in (seeded_cells(PROFILE) if seed else CLAIM_CELLS)] if "n_seeds" in config else []
DONE = {key: look(*key) for key in dict.fromkeys([(cell, PROFILE, 0) for cell in CLAIM_CELLS] + [(cell, PROFILE, seed) for cell, seed in SEEDED])}


def results_of(cells, profile, seed=0):
    "What must be there first: results, by their checksums, or the marks of training. What does not train is computed by the notebooks."
    there = [str((places(cell, profile, seed)[0] / "SHA256SUMS").relative_to(Path.cwd())) for cell in cells if DONE[cell, profile, seed]]
    return there + [mark(cell, profile, seed) for cell in cells if not DONE[cell, profile, seed] and cell.algorithm in TRAINED]


def expected(what):
    return lambda w: EXPECTED[w.profile][what(w) if callable(what) else what]


def minutes(what):
    return lambda w: max(10, expected(what)(w) // 6)


localrules: figures, claims, studies

rule figures:
    input: [outputs_of(PROFILE, name)[1:] for name in FIGURES.values()], f"figures/{PROFILE}/landing.png", f"figures/{PROFILE}/claims.json", [drawn(PROFILE, name) for name in (*FIGURES.values(), "overview", "claims")]

rule claims:
    input: f"figures/{PROFILE}/claims.json", [f"results/{PROFILE}/seeds.json"] if "n_seeds" in config else []

rule studies:
    input: expand("results/{profile}/notebooks/{name}.ipynb", profile=PROFILE, name=STUDIES)

rule train:
    output: touch(mark("{cell}", "{profile}", "{seed}"))
    log: "results/.work/{profile}/logs/{cell}-seed{seed}.log"
    wildcard_constraints: seed=r"\d+"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=minutes(lambda w: parse_cell(w.cell).algorithm),
        expected=expected(lambda w: parse_cell(w.cell).algorithm)
    shell: RUN + " nbs/runs/train.ipynb results/{wildcards.profile}/notebooks/train/{wildcards.cell}-seed{wildcards.seed}.ipynb"
           " profile={wildcards.profile} cell={wildcards.cell} seed={wildcards.seed} >{log} 2>&1"

rule figure:
    input:
        ancient("nbs/figures/{name}.ipynb"),
        lambda w: results_of(FIGURE_CELLS[w.name[:5]], w.profile)
    output:
        "results/{profile}/notebooks/{name}.ipynb",
        report("figures/{profile}/{name}.png", category="Figures", labels={"figure": "{name}"}),
        "figures/{profile}/{name}.pdf",
        touch(drawn("{profile}", "{name}"))
    params: code=lambda w: LIBRARY + syntax_hash(f"nbs/figures/{w.name}.ipynb")
    log: "results/.work/{profile}/logs/{name}.log"
    wildcard_constraints: name=r"fig\d\d_\w+"
    threads: 1
    resources: mem_mb=4000, runtime=minutes("notebook"), expected=expected("notebook")
    shell: RUN + " {input[0]} {output[0]} profile={wildcards.profile} >{log} 2>&1"

rule overview:
    input:
        ancient("nbs/runs/overview.ipynb"),
        lambda w: results_of(OVERVIEW_CELLS, w.profile)
    output: report("figures/{profile}/landing.png", category="Overview"), "figures/{profile}/landing.pdf", "results/{profile}/notebooks/overview.ipynb", touch(drawn("{profile}", "overview"))
    params: code=LIBRARY + syntax_hash("nbs/runs/overview.ipynb")
    log: "results/.work/{profile}/logs/overview.log"
    threads: 1
    resources: mem_mb=4000, runtime=minutes("notebook"), expected=expected("notebook")
    shell: RUN + " {input[0]} {output[2]} profile={wildcards.profile} >{log} 2>&1"

rule judge:
    input:
        ancient("nbs/runs/claims.ipynb"),
        lambda w: [outputs_of(w.profile, name)[0] for name in FIGURES.values()],
        lambda w: results_of(CLAIM_CELLS, w.profile),
        [path for path in ("results/quick/seeds.json", "results/paper/seeds.json") if Path(path).exists() or ("n_seeds" in config and PROFILE in path)]
    output: report("figures/{profile}/claims.json", category="Claims"), "results/{profile}/notebooks/claims.ipynb", touch(drawn("{profile}", "claims"))
    params: code=LIBRARY + syntax_hash("nbs/runs/claims.ipynb")
    log: "results/.work/{profile}/logs/claims.log"
    threads: 1
    resources: mem_mb=4000, runtime=minutes("notebook"), expected=expected("notebook")
    shell: RUN + " {input[0]} {output[1]} profile={wildcards.profile} >{log} 2>&1"

if "n_seeds" in config:  # otherwise what is in the repository is used as it is

    rule seeds:
        input:
            ancient("nbs/runs/seeds.ipynb"),
            [path for cell, seed in SEEDED for path in results_of([cell], PROFILE, seed)]
        output: f"results/{PROFILE}/seeds.json", f"results/{PROFILE}/notebooks/seeds.ipynb"
        log: f"results/.work/{PROFILE}/logs/seeds.log"
        threads: 1
        resources: mem_mb=4000, runtime=120, expected=240
        shell: RUN + " {input[0]} {output[1]} profile={PROFILE} n_seeds={SEEDS.stop} >{log} 2>&1"

rule study:
    input: ancient("nbs/studies/{name}.ipynb")
    output: "results/{profile}/notebooks/{name}.ipynb"
    params: code=lambda w: syntax_hash(f"nbs/studies/{w.name}.ipynb")
    log: "results/.work/{profile}/logs/{name}.log"
    wildcard_constraints: name="|".join(STUDIES)
    threads: 1
    resources: mem_mb=6000, runtime=240, expected=600
    shell: RUN + " {input[0]} {output[0]} profile={wildcards.profile} >{log} 2>&1"
