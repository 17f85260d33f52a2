"""Figures 7, 8b, 10, 11 and 12: planners on the inputs of the paper, judged by the evaluator of its artifact."""
import plots
from results import Sweep, authors_planners, number
from sections import Section, Table

X_TITLES = {"fig7": "GPUs", "fig8b": "GPUs", "fig10": "GPUs in each of five zones"}
REFERENCE = "the authors' code"
BY_ITSELF = "Sailor, by simulator"


def figure_of(name):
    """The paper's figure, also of another model."""
    return name.split("-")[0]


def digits(value, count=4):
    return "-" if value is None else f"{value:.{count}f}"


def seconds(value):
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def difference(ours, theirs):
    if ours is None or not theirs:
        return "-"
    return f"{(ours / theirs - 1) * 100:+.1f} %".replace("-0.0", "+0.0")


def short(gpus):
    """The GPUs of the figures have one memory size each."""
    return gpus.replace("A100-40", "A100").replace("V100-16", "V100")


def remark(point):
    # Without sailor-plan's advice to its user.
    text = point.why.split("; relax the limits")[0] if not point.has_plan else point.notes
    return text if len(text) <= 160 else text[:157] + "..."


def bar(point, authors, with_cost):
    """For the picture. A planner that has no plan is a cross."""
    if point is None:
        return None
    label = []
    if point.has_plan and with_cost and point.cost is not None:
        label.append(f"{point.cost:.2f} USD")
    if point.did_not_fit:
        label.append(f"{point.did_not_fit:.0f} out of memory")
    if point.status == "failed":
        label.append("not run")
    return {"value": point.throughput if point.has_plan else 0.0, "label": ", ".join(label),
            "reference": number(authors["throughput_iterations_per_s"]) if authors else None}


def main_table(sweep, planners, authors):
    """Every planner as published, beside the authors' code where it was run."""
    table = Table("Plans as published, judged by the artifact's evaluator",
                  ["input", "planner", "iterations/s", "authors' code, it/s", "difference", "USD/iteration", "authors' code, USD",
                   "out of memory", "authors' code, OOM", "expected it/s", "GPUs used", "search s", "authors' search s", "remark"],
                  ["search s"])
    for cluster in sweep.clusters:
        for planner in planners:
            point = sweep.find(planner, cluster)
            if point is None:
                continue
            theirs = authors.get((planner, cluster), {})
            their_throughput = number(theirs.get("throughput_iterations_per_s"))
            oom = point.did_not_fit
            table.add(cluster, planner, digits(point.throughput) if point.has_plan else point.status,
                      digits(their_throughput) if their_throughput != 0 else "no plan",
                      difference(point.throughput, their_throughput), digits(point.cost), digits(number(theirs.get("cost_usd_per_iteration"))),
                      "-" if oom is None else f"{oom:.0f}", theirs.get("out_of_memory", "-"),
                      digits(point.value("expected_throughput_iterations_per_s")), short(point.gpus) or "-",
                      seconds(point.value("measured_search_time_s") or point.value("measured_wall_time_s")),
                      theirs.get("search_time_s") or "-", "; ".join(x for x in (remark(point), theirs.get("remark") and "authors' code: " + theirs["remark"]) if x))
    return table


def judges_table(sweep):
    """The same plans without the adaptations' faults, and by the event-driven simulator."""
    table = Table("Without the plain faults of the adaptations, and by Sailor's own simulator (event by event)",
                  ["input", "planner", "iterations/s by the artifact's evaluator", "faults fixed", "iterations/s by the simulator",
                   "faults fixed, simulator", "fits by the simulator"])
    for cluster in sweep.clusters:
        for planner in [p for p in sweep.planners if not p.endswith(", fixed")]:
            kept, fixed = sweep.find(planner, cluster), sweep.find(planner + ", fixed", cluster)
            fits = kept.value("simulator_fits") if kept else None

            def of(point, key):
                if point is None:
                    return "-"
                if not point.has_plan:
                    return point.status
                value = point.value(key)
                bound = point.value("simulator_is_bound") if key.startswith("simulator") else None
                return digits(value) if value is None or not bound else "at most " + digits(value)

            table.add(cluster, planner, of(kept, "artifact_throughput_iterations_per_s"),
                      of(fixed, "artifact_throughput_iterations_per_s"), of(kept, "simulator_throughput_iterations_per_s"),
                      of(fixed, "simulator_throughput_iterations_per_s"), "-" if fits is None else "yes" if fits else "no")
    return table


def grouped(section, sweep, planners, authors, folder, with_cost):
    series = [(planner, [bar(sweep.find(planner, cluster), authors.get((planner, cluster)), with_cost)
                         for cluster in sweep.clusters]) for planner in planners]
    groups = [cluster.replace(" per zone", "") for cluster in sweep.clusters]
    path = folder / f"{sweep.name}.svg"
    plots.bars(path, section.title, groups, series, X_TITLES[figure_of(sweep.name)], "throughput (iterations/s)", REFERENCE)
    section.picture(path, f"{section.title}: throughput by the artifact's evaluator; crosses: no plan. Above the bars: "
                          + ("cost of an iteration and " if with_cost else "") + "plans that ran out of memory before the one shown.")


def constrained(section, sweep, planners, authors, folder, limit, on_cost):
    entries = []
    for planner in planners:
        point = sweep.find(planner, sweep.clusters[0])
        theirs = authors.get((planner, sweep.clusters[0]))
        has = point is not None and point.has_plan
        entries.append({"name": planner, "throughput": point.throughput if has else 0.0, "cost": point.cost if has else None,
                        "label": f"{point.did_not_fit:.0f} OOM" if point is not None and point.did_not_fit else
                                 "" if has else "no plan" if point is not None and point.status == "no plan" else "not run",
                        "reference": number(theirs["throughput_iterations_per_s"]) if theirs else None})
    path = folder / f"{sweep.name}.svg"
    plots.bars_and_cost(path, section.title, entries, limit, on_cost, REFERENCE)
    section.picture(path, f"{section.title}: throughput (bars, left) and cost (stars, right) by the artifact's evaluator, "
                          "the limit as a dashed line; OOM: plans that ran out of memory before the one shown.")


LIMITS = {"fig11": (0.2, False), "fig12": (1.2, True), "fig11-gpt-neo": (0.05, False), "fig12-gpt-neo": (2.0, True)}


def make(name, title, sweep_folder, folder):
    """The section of a figure; its pictures go to `folder`."""
    sweep = Sweep(sweep_folder, name)
    section = Section(name, title)
    figure = figure_of(name)
    authors = authors_planners(name)
    planners = [p for p in sweep.planners if not p.endswith(", fixed") and p != BY_ITSELF]
    if name != figure:
        section.text.append("The paper has this figure for OPT-350M only, so that there are no numbers of the authors.")
    if figure in LIMITS:
        constrained(section, sweep, planners, authors, folder, *LIMITS[name])
    else:
        grouped(section, sweep, planners, authors, folder, figure != "fig7")
    failed = [point for point in sweep.points if point.status == "failed"]
    if failed:
        section.text.append(f"{len(failed)} of {len(sweep.points)} points failed; the tables say why.")
    section.tables += [main_table(sweep, planners, authors), judges_table(sweep)]
    return section
