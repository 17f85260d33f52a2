"""Figures 5a and 5b: what planners' own models say of measured runs, against the measurements.

Runs come from a cases file (experiments/README.md) or from a folder of the authors' run files (JSON).
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import tempfile
import tomllib

import plots
from results import DATA, number, read_csv
from sections import Section, Table, write
from toml_text import toml_value

# Name in the figure, estimator of sailor-simulate; None: its own simulator.
ESTIMATORS = [("Piper", "piper"), ("Varuna", "varuna"), ("Metis", "metis"), ("FlashFlex", "flashflex"), ("Aceso", "aceso"),
              ("AMP", "amp"), ("Galvatron", "galvatron"), ("Sailor (authors)", "artifact"), ("Sailor", None)]


def cases_of(path, scratch):
    """[(name, file of the plan, measured seconds, measured bytes or None, options)] of a cases file."""
    cases = []
    content = tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    for i, case in enumerate(content["cases"]):
        if isinstance(case.get("plan"), str):
            plan = pathlib.Path(path).parent / case["plan"]
        elif "plan" in case:
            plan = scratch / f"case-{i}.toml"
            pipelines = case["plan"].pop("pipelines")
            lines = ["schema_version = 1"] + [f"{key} = {toml_value(value)}" for key, value in case["plan"].items()]
            for pipeline in pipelines:
                lines += ["[[pipelines]]"] + [f"{key} = {toml_value(value)}" for key, value in pipeline.items()]
            plan.write_text("\n".join(lines) + "\n", encoding="utf-8")
        else:
            raise SystemExit(f"{path}: case '{case['name']}' is a run file: compare it with sailor-simulate --against")
        cases.append((case["name"], plan, case["iteration_time_s"], case.get("peak_memory_bytes"),
                      ["--framework", content["framework"]]))
    return cases


def runs_of(folder, model):
    """The same of the authors' run files: real is the time, max_mem the memory."""
    cases = []
    for path in sorted(pathlib.Path(folder).rglob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or "real" not in content:
            continue
        cases.append((str(path.relative_to(folder)), path, content["real"], content.get("max_mem"),
                      ["--framework", "megatron-deepspeed", "--model", model]))
    if not cases:
        raise SystemExit(f"{folder}: there is no run file (JSON with the key 'real') in this folder or below it")
    return cases


def ask(program, case, estimator):
    """(seconds or None, bytes or None, what went wrong)"""
    _, plan, _, _, options = case
    command = [program, str(plan), "--profile", "published", "--format", "json", *options]
    if estimator:
        command += ["--estimator", estimator, "--planner-faults", "kept"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    # Status 3: the plan does not fit, which is an answer.
    try:
        answer = json.loads(run.stdout)
    except json.JSONDecodeError:
        words = " ".join(run.stderr.split("error: ")[-1].split())
        return None, None, words[:400] or f"exit status {run.returncode}"
    if estimator:
        answer = answer.get("estimate")
        if answer is None or answer.get("estimator") != estimator:
            return None, None, f"sailor-simulate has no estimate of {estimator}"
    return answer.get("iteration_time_s"), answer.get("peak_memory_bytes"), ""


def make(cases, sailor_simulate, folder, scratch_name=""):
    """Sections fig5a (memory) and fig5b (time), and CSV files of all estimates."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        answers = {name: list(pool.map(lambda case, e=estimator: ask(sailor_simulate, case, e), cases))
                   for name, estimator in ESTIMATORS}
    theirs = authors_errors() if scratch_name == "published" else {}
    sections = []
    for name, title, quantity, column, scale, digits, unit in (
            ("fig5a", "Figure 5a: estimates of peak memory", "memory", 1, 1e-9, 2, "GB"),
            ("fig5b", "Figure 5b: estimates of iteration time", "time", 0, 1.0, 4, "s")):
        section = Section(name, f"{title}, {len(cases)} runs" + (" of OPT-350M on GH200" if scratch_name == "published" else ""))
        measured = [case[3 if quantity == "memory" else 2] for case in cases]
        entries, summary = [], Table("Errors in per cent of the measurement", [
            "estimator", "runs", "mean", "median", "largest", "bias", "the authors' code, mean", "remark"])
        for planner, _ in ESTIMATORS:
            pairs = [(answer[column], real) for answer, real in zip(answers[planner], measured) if answer[column] is not None and real]
            errors = [abs(estimate / real - 1) * 100 for estimate, real in pairs]
            reason = next((answer[2] for answer in answers[planner] if answer[2]), "" if pairs else f"it has no model of {quantity}")
            their = f"{theirs[planner, quantity]:.1f} %" if (planner, quantity) in theirs else "-"
            if errors:
                bias = sum(estimate / real - 1 for estimate, real in pairs) / len(pairs) * 100
                summary.add(planner, len(errors), f"{sum(errors) / len(errors):.2f} %", f"{plots.percentile(errors, 0.5):.2f} %",
                            f"{max(errors):.2f} %", f"{bias:+.2f} %", their, reason)
            else:
                summary.add(planner, 0, "-", "-", "-", "-", their, reason)
            missing = "not modelled" if all(not answer[2] for answer in answers[planner]) else "not run"
            entries.append((planner, errors, missing))
        path = pathlib.Path(folder) / f"{name}.svg"
        what = "peak memory" if quantity == "memory" else "iteration time"
        plots.boxes(path, section.title, f"|error| of {what} (%)", entries)
        section.picture(path, f"{section.title}: box from quartile to quartile, whiskers from the 5th to the 95th percentile, "
                              "diamond: mean, points: runs.")
        details = Table(f"Estimates in {unit}", ["run", "measured", *[planner for planner, _ in ESTIMATORS]])
        lines = ["run,measured," + ",".join(planner for planner, _ in ESTIMATORS)]
        for i, case in enumerate(cases):
            values = [answers[planner][i][column] for planner, _ in ESTIMATORS]
            cells = [None if value is None else f"{value * scale:.{digits}f}" for value in [measured[i], *values]]
            details.add(case[0], *[cell or "-" for cell in cells])
            lines.append(f'"{case[0]}",' + ",".join(cell or "" for cell in cells))
        write(pathlib.Path(folder) / f"{name}.csv", "\n".join(lines) + "\n")
        section.tables += [summary, details]
        sections.append(section)
    return sections


def authors_errors():
    """(planner, quantity) -> mean of the absolute errors of the authors' code, per cent."""
    rows = read_csv(DATA / "authors_accuracy.csv")
    errors = {}
    for row in rows:
        for planner in [key for key in row if key[0].isupper()]:
            estimate = number(row[planner])
            if estimate is not None:
                quantity = "memory" if row["quantity"] == "memory_gb" else "time"
                errors.setdefault((planner, quantity), []).append(abs(estimate / number(row["measured"]) - 1) * 100)
    return {key: sum(values) / len(values) for key, values in errors.items()}


def run(arguments, folder):
    """Writes both sections into `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.runs:
            cases, source = runs_of(arguments.runs, arguments.model), ""
        else:
            cases, source = cases_of(arguments.cases, pathlib.Path(scratch)), "published" if "gh200-opt-350m" in str(arguments.cases) else ""
        for section in make(cases, arguments.sailor_simulate, folder, source):
            if not arguments.figure or arguments.figure == section.name:
                section.save(folder)
