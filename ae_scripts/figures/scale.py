"""Search time and memory of planners against the number of GPUs."""
import plots
from planners import digits, remark, seconds
from results import DATA, Sweep, number, read_csv
from sections import Section, Table

KINDS = {"one": 1, "two": 2, "three": 3}


def size_of(cluster):
    """("512 of two types") -> 512 GPUs, 2 types."""
    words = cluster.split()
    return int(words[0]), KINDS[words[2]]


def make(name, title, sweep_folder, folder):
    sweep = Sweep(sweep_folder, name)
    section = Section(name, title)
    theirs = {row["cluster"]: row for row in read_csv(DATA / "authors_scale.csv")}
    section.text.append(
        "Times are those of whole processes of sailor-plan, reading of the measurements included. The authors' numbers are "
        "processor time of their search, with the time for building its tables before it in a column of its own: they leave "
        "it out. Their planner, rebuilt, is not asked about 384 and 1,020 GPUs of three types, where it searches for minutes; the "
        "paper gives 4,900 s for 256 GPUs of each of three types.")
    for key, unit, column, factor, their_column in (
            ("time", "processor time (s)", "measured_processor_time_s", 1.0, "search_s"),
            ("memory", "peak resident memory (GB)", "measured_peak_resident_memory_bytes", 1e-9, "peak_resident_memory_gb")):
        series = []
        for planner in [p for p in sweep.planners if p != "Sailor, by simulator"]:
            for kind in (1, 2, 3):
                points = []
                for cluster in sweep.clusters:
                    point = sweep.find(planner, cluster)
                    if size_of(cluster)[1] == kind and point is not None and point.has_plan and not point.value("out_of_time") and point.value(column):
                        points.append((size_of(cluster)[0], point.value(column) * factor))
                series.append((planner, kind, False, points))
        for kind in (1, 2, 3):
            points = [(size_of(c)[0], number(row[their_column])) for c, row in theirs.items() if size_of(c)[1] == kind]
            series.append(("Sailor (authors)", kind, True, points))
        path = folder / f"{name}-{key}.svg"
        plots.lines(path, title, "GPUs", unit, series)
        section.picture(path, f"{title}: {unit}", measured=True)
    measured = ["wall s", "processor s", "memory GB"]
    table = Table("", ["input", "planner", "iterations/s", *measured, "authors' search s", "authors' tables s", "authors' memory GB",
                       "authors' it/s", "remark"], measured)
    for cluster in sweep.clusters:
        for planner in sweep.planners:
            point = sweep.find(planner, cluster)
            if point is None:
                continue
            row = theirs.get(cluster, {}) if planner.startswith("Sailor") else {}
            memory = point.value("measured_peak_resident_memory_bytes")
            table.add(cluster, planner, digits(point.throughput) if point.has_plan else point.status,
                      seconds(point.value("measured_wall_time_s")), seconds(point.value("measured_processor_time_s")),
                      "-" if memory is None else f"{memory / 1e9:.2f}", row.get("search_s", "-"), row.get("tables_s", "-"),
                      row.get("peak_resident_memory_gb", "-"), row.get("throughput_iterations_per_s", "-"),
                      remark(point))
    section.tables.append(table)
    return section
