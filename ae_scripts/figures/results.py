"""Reads what sailor-sweep wrote and the published numbers in ae_scripts/data."""
import csv
import pathlib
import tomllib

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"


def read_csv(path):
    """Rows as dicts; lines that begin with # are comments."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def number(text):
    return float(text) if text not in (None, "") else None


class Point:
    """A row of a sweep."""

    def __init__(self, row):
        self.row = row
        self.planner, self.cluster, self.status = row["planner"], row["cluster"], row["status"]
        self.why, self.notes = row["why"], row["notes"]
        self.throughput = number(row["throughput_iterations_per_s"])
        self.cost = number(row["cost_usd_per_iteration"])
        self.gpus = row["gpu_types"]
        self.did_not_fit = number(row["did_not_fit"])

    def value(self, key):
        return number(self.row[key])

    @property
    def has_plan(self):
        return self.status == "plan"


class Sweep:
    """FOLDER/NAME.csv; points by planner and cluster."""

    def __init__(self, folder, name):
        path = pathlib.Path(folder) / f"{name}.csv"
        self.name = name
        self.points = [Point(row) for row in read_csv(path)]
        self.planners = list(dict.fromkeys(point.planner for point in self.points))
        self.clusters = list(dict.fromkeys(point.cluster for point in self.points))

    def find(self, planner, cluster):
        for point in self.points:
            if point.planner == planner and point.cluster == cluster:
                return point
        return None


def authors_planners(figure):
    """(planner, cluster) -> what the authors' own code answered."""
    rows = read_csv(DATA / "authors_planners.csv")
    return {(row["planner"], row["cluster"]): row for row in rows if row["figure"] == figure}


def claims():
    return tomllib.loads((DATA / "paper_claims.toml").read_text(encoding="utf-8"))["claims"]
