"""The paper's claims, each with its number, the authors' code's, the rebuilt planner's and this planner's.

A claim is reproduced when the rebuilt planner of the authors, with its faults, has the paper's number within a tenth (a
range: both ends), or is better where the claim is an upper bound on an error. What this project's planner reaches stands
beside it.
"""
import pathlib

from accuracy import authors_errors
from results import Sweep, authors_planners, claims, number, read_csv
from sections import Table

REBUILT, OWN = "Sailor (authors)", "Sailor"
TOLERANCE = 0.10


class Authors:
    """What the authors' own code answered, with the interface of a sweep."""

    def __init__(self, figure):
        self.rows = authors_planners(figure)
        self.clusters = list(dict.fromkeys(cluster for _, cluster in self.rows))
        self.planners = list(dict.fromkeys(planner for planner, _ in self.rows))

    def value(self, planner, cluster, key):
        row = self.rows.get((planner, cluster))
        value = number(row[key]) if row else None
        return value if value else None

    def out_of_memory(self, planner, cluster):
        row = self.rows.get((planner, cluster))
        return number(row["out_of_memory"]) if row else None


class Ours:
    def __init__(self, sweep):
        self.sweep, self.clusters = sweep, sweep.clusters
        self.planners = [p for p in sweep.planners if not p.endswith(", fixed") and p != "Sailor, by simulator"]

    def value(self, planner, cluster, key):
        point = self.sweep.find(planner, cluster)
        return point.value(key) if point is not None and point.has_plan else None

    def out_of_memory(self, planner, cluster):
        point = self.sweep.find(planner, cluster)
        if point is None or point.status == "failed":
            return None
        return point.did_not_fit or 0


THROUGHPUT, COST = "throughput_iterations_per_s", "cost_usd_per_iteration"


def ratios(results, sailor, other, key):
    """Sailor over the other planner for each input where both have a plan."""
    pairs = [(results.value(sailor, c, key), results.value(other, c, key)) for c in results.clusters]
    return [a / b for a, b in pairs if a and b]


def mean(values):
    return sum(values) / len(values) if values else None


def number_of(claim, results, sailor):
    """The claim's number (a pair for a range); None where something was not run."""
    kind = claim["kind"]
    if kind == "throughput_ratio":
        return mean(ratios(results, sailor, claim["planner"], THROUGHPUT))
    if kind == "cost_ratio":
        values = ratios(results, sailor, claim["planner"], COST)
        return mean([1 / value for value in values])
    if kind == "saving":
        values = ratios(results, sailor, claim["planner"], COST)
        return (1 - mean(values)) * 100 if values else None
    if kind == "throughput_range":
        values = [ratio for p in results.planners if p not in (REBUILT, OWN) for ratio in ratios(results, sailor, p, THROUGHPUT)]
        return (min(values), max(values)) if values else None
    if kind == "out_of_memory":
        counts = [results.out_of_memory(sailor, c) for c in results.clusters]
        return None if any(count is None for count in counts) or not counts else sum(counts)
    raise ValueError(f"paper_claims.toml: unknown kind '{kind}'")


def errors_of(path):
    """planner -> mean of the absolute errors (%) of a file of accuracy.py."""
    errors = {}
    for row in read_csv(path):
        for planner, text in row.items():
            if planner not in ("run", "measured") and number(text) is not None and number(row["measured"]):
                errors.setdefault(planner, []).append(abs(number(text) / number(row["measured"]) - 1) * 100)
    return {planner: mean(values) for planner, values in errors.items()}


# The planners of the paper's figures 5a and 5b; AMP and Galvatron are not among them.
COMPARED = ("Piper", "Varuna", "Metis", "FlashFlex", "Aceso")


def accuracy_of(claim, errors, estimator):
    if claim["kind"] == "accuracy":
        return errors.get(estimator)
    values = [errors[planner] for planner in COMPARED if planner in errors]
    return (min(values), max(values)) if values else None


def agrees(claim, value):
    paper = claim["paper"]
    if claim["kind"] == "out_of_memory":
        return value == paper
    if claim["kind"] == "accuracy":
        return value <= paper * (1 + TOLERANCE)
    if isinstance(paper, list):
        return all(abs(v / p - 1) <= TOLERANCE for v, p in zip(value, paper))
    return abs(value / paper - 1) <= TOLERANCE


def text_of(claim, value):
    if value is None:
        return "-"
    unit = claim.get("unit", "")
    if isinstance(value, (tuple, list)):
        return f"{value[0]:.3g} to {value[1]:.3g}" + (f" {unit}" if unit else "")
    if claim["kind"] == "out_of_memory":
        return f"{value:.0f}"
    return f"{value:.3g} {unit}" if unit else f"{value:.2f}"


def verdict_of(claim, rebuilt):
    if rebuilt is None:
        return "not run"
    if agrees(claim, rebuilt):
        return "reproduced"
    return "differs, because " + (claim["differs"] or "of other inputs: see the figure's table")


def table(folder, figure=None):
    """All claims, or those of a figure."""
    folder = pathlib.Path(folder)
    out = Table("" if figure is None else "The paper's claims",
                ["figure", "claim", "paper", "authors' code", "rebuilt planner of the authors", "Sailor", "verdict"])
    for claim in claims():
        if figure not in (None, claim["figure"]):
            continue
        name = claim["figure"]
        if claim["kind"].startswith("accuracy"):
            quantity = "memory_gb" if claim["quantity"] == "memory" else "time_s"
            theirs = {p: e for (p, q), e in authors_errors().items() if q == quantity.split("_")[0]}
            path = folder / f"{name}.csv"
            ours = errors_of(path) if path.exists() else {}
            values = (accuracy_of(claim, theirs, REBUILT), accuracy_of(claim, ours, REBUILT), accuracy_of(claim, ours, OWN))
            if claim["kind"] == "accuracy_range":
                values = (values[0], values[1], None)
        else:
            path = folder / "sweeps" / name / f"{name}.csv"
            results = Ours(Sweep(path.parent, name)) if path.exists() else None
            values = (number_of(claim, Authors(name), REBUILT),
                      number_of(claim, results, REBUILT) if results else None, number_of(claim, results, OWN) if results else None)
        out.add(name.replace("fig", "Fig. "), claim["claim"], text_of(claim, claim["paper"]), *[text_of(claim, v) for v in values],
                verdict_of(claim, values[1]))
    return out


