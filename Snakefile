# Orders the work: one papermill run for each figure and each study. `make figures` and `make studies` call it.
from pathlib import Path

PROFILE = config.get("profile", "quick")
known = ("smoke", "quick", "paper")
if PROFILE not in known:
    raise ValueError(f"unknown profile {PROFILE!r}; known: {', '.join(known)}")

FIGURES = sorted(p.stem for p in Path("nbs/figures").glob("fig*.ipynb"))
STUDIES = sorted(p.stem for p in Path("nbs/studies").glob("*.ipynb"))
LIBRARY = sorted(str(p) for p in Path("ltf_nb").glob("[a-z]*.py"))
# nbdev_clean strips run times and papermill's records, so that an executed notebook changes only with its results.
PAPERMILL = "papermill --no-progress-bar --cwd . -p profile {wildcards.profile} {input[0]} {output[0]} >{log} 2>&1 && nbdev_clean --fname {output[0]}"


rule figures:
    input: expand("figures/{profile}/{name}.{suffix}", profile=PROFILE, name=FIGURES, suffix=("png", "pdf"))

rule studies:
    input: expand("results/{profile}/notebooks/{name}.ipynb", profile=PROFILE, name=STUDIES)

rule figure:
    input: "nbs/figures/{name}.ipynb", LIBRARY
    output: "results/{profile}/notebooks/{name}.ipynb", "figures/{profile}/{name}.png", "figures/{profile}/{name}.pdf"
    log: "results/.work/{profile}/{name}.log"
    wildcard_constraints: name=r"fig\d\d_\w+"
    shell: PAPERMILL

rule study:
    input: "nbs/studies/{name}.ipynb", LIBRARY
    output: "results/{profile}/notebooks/{name}.ipynb"
    log: "results/.work/{profile}/{name}.log"
    wildcard_constraints: name=r"(?!fig\d\d_)\w+"
    shell: PAPERMILL
