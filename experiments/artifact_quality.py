#!/usr/bin/env python3
"""How good the plans of `sailor-plan --cost-model artifact` are, by an evaluator of its own.

Runs the planner on the inputs of the Sailor artifact's figures and scores the plans that it prints (in the artifact's
JSON) with an independent implementation of the artifact's evaluator, on the data that its authors published. Compares
with what the authors' planner returns (their evaluator's score) and with the best plans known before; checks that no
plan takes more GPUs from a zone than it has.

usage: artifact_quality.py [--published DIR] [--sailor-plan FILE] [--space full|paper] [--case TEXT] [--csv FILE]

DIR (or $SAILOR_PUBLISHED_DIR) holds profiles/layer_times.json, profiles/layer_memory.json and
networks/inter_node.json of github.com/eth-easl/sailor. Exit status 1 when a plan is worse than its bar or unsound.
"""
import argparse
import collections
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

PRICES = {"A100-40": 3.673385, "V100-16": 2.859998, "GH-96": 11.06}  # USD/h
MEMORY = {"V100-16": 16, "A100-40": 40, "A100-80": 80, "GH-96": 96, "Titan-RTX": 24, "RTX-2080": 11, "RTX-3090": 24}
CATALOGUE = {"GH-96": "GH200-96"}
BUCKET = 500_000_000
SAILOR = pathlib.Path(__file__).resolve().parent.parent


def curve_time(size, coefficients):
    """Seconds of a message; no clamping, as in the original."""
    if size == 0:
        return 0.0
    x = math.log2(size / 1e6)
    bandwidth = sum(c * x ** (len(coefficients) - 1 - k) for k, c in enumerate(coefficients))
    return size / 1e9 / bandwidth


def all_reduce(size, ranks, coefficients):
    if ranks <= 1:
        return 0.0
    total = 0.0
    while size > 0:
        bucket = min(size, BUCKET)
        total += 2 * (ranks - 1) * curve_time(bucket / ranks, coefficients)
        size -= bucket
    return total


class Evaluator:
    def __init__(self, folder, model):
        folder = pathlib.Path(folder)
        self.times = json.loads((folder / "profiles/layer_times.json").read_text())[model]
        self.sizes = json.loads((folder / "profiles/layer_memory.json").read_text())[model]
        self.links = json.loads((folder / "networks/inter_node.json").read_text())

    def link(self, sender, receiver, counts=None):
        (gpu, zone, degree), (to_gpu, to_zone, to_degree) = sender, receiver
        a, b = counts or (min(degree, 4), min(to_degree, 4))
        return self.links[zone][gpu][str(a)][to_zone][to_gpu][str(b)][0]

    @staticmethod
    def egress(a, b):
        if a == b:
            return 0.0
        return (0.01 if a.split("-")[:2] == b.split("-")[:2] else 0.02) / 1e9

    def score(self, plan):
        """(seconds, USD, fits, GPUs by (type, zone)) of a plan in the original's JSON."""
        (entry,) = plan["pipeline_list"]
        batch, micro = plan["gbs"], plan["mbs"]
        layers = entry["layers_per_stage"]
        replicas = []
        for stage in entry["tmp_per_stage"]:
            replicas.append([(vms[0][0], vms[0][2], degree) for vms, degree in stage])
        stages, ranks = len(layers), entry["dp"][0]
        assert all(d == ranks for d in entry["dp"]) and all(len(r) == ranks for r in replicas)
        rounds = math.ceil(batch / (micro * ranks))
        out = [self.sizes["1"][str(l)]["act_output_floats"] * 4 * micro for l in range(len(self.sizes["1"]))]
        compute, transfer, update, reduction, money, fits = [], [], 0.0, 0.0, 0.0, True
        for i, held in enumerate(layers):
            slowest = 0.0
            for gpu, _, degree in replicas[i]:
                table = self.times[gpu][str(micro)][str(degree)]
                slowest = max(slowest, sum(table[str(l)][0] + table[str(l)][1] for l in held))
                update = max(update, table[str(held[0])][2])
                sizes = self.sizes[str(degree)]
                memory = (24 * sum(sizes[str(l)]["params_floats"] for l in held)
                          + 4 * micro * (stages - i) * sum(sizes[str(l)]["act_mem_floats"] for l in held)
                          + (2.0e9 if degree == 1 else 3.0e9))
                fits = fits and memory <= MEMORY[gpu] * 2 ** 30
            compute.append(slowest)
            forward = backward = 0.0
            if i + 1 < stages:
                forward = max(curve_time(out[held[-1]], self.link(a, b)) for a, b in zip(replicas[i], replicas[i + 1]))
                money += rounds * 2 * out[held[-1]] * sum(
                    self.egress(a[1], b[1]) for a, b in zip(replicas[i], replicas[i + 1]))
            if i > 0:
                backward = max(curve_time(out[held[0]], self.link(a, b)) for a, b in zip(replicas[i], replicas[i - 1]))
            if stages == 1:
                transfer.append(0.0)
            elif i == 0:
                transfer.append(forward if stages <= 3 else 2 * forward)
            elif i == stages - 1:
                transfer.append(2 * backward)
            else:
                transfer.append(forward + backward)
            gradients = 4 * sum(self.sizes["1"][str(l)]["params_floats"] for l in held)
            smallest = min([4] + [degree for _, _, degree in replicas[i]])
            for a, b in set(zip(replicas[i], replicas[i][1:])):
                reduction = max(reduction, all_reduce(gradients / smallest, ranks, self.link(a, b, (1, 1))))
            for j, a in enumerate(replicas[i]):
                money += self.egress(a[1], replicas[i][(j + 1) % ranks][1]) * gradients / ranks * 2 * (ranks - 1)
        total = [c + e for c, e in zip(compute, transfer)]
        seconds = (rounds - 1) * max(total) + sum(total) + update + reduction
        used = collections.Counter()
        for stage in replicas:
            for gpu, zone, degree in stage:
                used[gpu, zone] += degree
        rate = sum(count * PRICES[gpu] / 3600 for (gpu, _), count in used.items())
        return seconds, rate * seconds + money, fits, used


def zones(each, names, gpus):
    return [(gpu, each, "us-" + name) for name in names.split() for gpu in gpus.split()]


OPT, NEO, A, AV = "OPT-350", "GPT-Neo-2.7", "A100-40", "A100-40 V100-16"
FIVE = "central1-a central1-b central1-c central1-f west1-b"
FOUR, TWO, ONE, REGIONS = FIVE[:-8], "central1-a central1-b", "central1-a", "central1-a west1-b"
HET = lambda a, v: [("A100-40", a, "us-central1-a"), ("V100-16", v, "us-central1-a")]
# name, model, GPUs, options, the authors' plan, the best plan known before (it/s; USD for the least cost)
CASES = [
    ("fig7 row 0", OPT, zones(32, ONE, A), {}, 0.12511, 0.12971),
    ("fig7 row 1", OPT, zones(80, ONE, A), {}, 0.27224, 0.27224),
    ("fig7 row 2", OPT, zones(128, ONE, A), {}, 0.41753, 0.41753),
    ("fig8b row 0", OPT, HET(32, 96), {}, 0.16996, 0.20148),
    ("fig8b row 1", OPT, HET(80, 240), {}, 0.36091, 0.41166),
    ("fig8b row 2", OPT, HET(128, 384), {}, 0.52290, 0.58615),
    ("fig10 row 0", OPT, zones(32, FIVE, A), {}, 0.41485, 0.41485),
    ("fig10 row 1", OPT, zones(80, FIVE, A), {}, 0.72780, 0.72800),
    ("fig10 row 2", OPT, zones(128, FIVE, A), {}, None, 1.02016),
    ("fig11", OPT, zones(128, TWO, AV), {"objective": "cost", "min-throughput": 0.2}, 0.2779, 0.2773),
    ("fig12", OPT, zones(128, TWO, AV), {"max-cost": 1.2}, 0.66287, 0.66443),
    ("fig12, 0.4 USD", OPT, zones(128, TWO, AV), {"max-cost": 0.4}, 0.41528, 0.41753),
    ("fig12, 0.3 USD", OPT, zones(128, TWO, AV), {"max-cost": 0.3}, 0.23499, 0.30128),
    ("two regions, OPT", OPT, zones(32, REGIONS, A), {}, 0.15619, 0.16891),
    ("two regions, GPT-Neo", NEO, zones(32, REGIONS, A), {}, 0.03003, 0.03205),
    ("A100+V100 16 each", OPT, HET(16, 16), {}, 0.07690, 0.07690),
    ("A100+V100 32 each", OPT, HET(32, 32), {}, 0.13509, 0.13509),
    ("A100+V100 64 each", OPT, HET(64, 64), {}, 0.21715, 0.21715),
    ("A100+V100 128 each", OPT, HET(128, 128), {}, 0.41753, 0.41753),
    ("A100+V100 256 each", OPT, HET(256, 256), {}, 0.66887, 0.66887),
    ("A100+V100 256 each, GPT-Neo", NEO, HET(256, 256), {}, 0.12505, 0.1268),
    ("A100 512", OPT, zones(512, ONE, A), {}, 1.02046, 1.02046),
    ("A100 1024", OPT, zones(1024, ONE, A), {}, 1.35353, 1.35353),
    ("A100 32, GPT-Neo", NEO, zones(32, ONE, A), {}, None, 0.02164),
    ("A100 80, GPT-Neo", NEO, zones(80, ONE, A), {}, None, 0.04952),
    ("A100 128, GPT-Neo", NEO, zones(128, ONE, A), {}, 0.07360, 0.07371),
    ("A100 128, GPT-Neo, least cost", NEO, zones(128, ONE, A), {"objective": "cost"}, 1.4867, 1.4127),
    ("A100 128, GPT-Neo, least cost, 0.05 it/s", NEO, zones(128, ONE, A),
     {"objective": "cost", "min-throughput": 0.05}, 1.7862, 1.6360),
    ("three types, 32 each", OPT, zones(32, ONE, AV + " GH-96"), {}, 0.26973, 0.26973),
    ("two zones, 128 A100 each", OPT, zones(128, TWO, A), {}, 0.66443, 0.66443),
    ("three zones, 128 A100 each", OPT, zones(128, "central1-a central1-b central1-c", A), {}, None, 0.84863),
    ("four zones, 128 A100 each", OPT, zones(128, FOUR, A), {}, None, 1.02016),
    ("two zones, 32 A100 + 32 V100 each", OPT, zones(32, TWO, AV), {}, 0.21399, 0.21399),
    ("four zones, 32 A100 + 32 V100 each", OPT, zones(32, FOUR, AV), {}, 0.41485, 0.41485),
]


def cluster_toml(gpus):
    names = sorted({zone for _, _, zone in gpus})
    text = 'schema_version = 1\nname = "artifact"\n'
    for name in names:
        text += f'\n[[zones]]\nname = "{name}"\nregion = "{"-".join(name.split("-")[:2])}"\n'
    for gpu, count, zone in gpus:
        text += (f'\n[[nodes]]\ncount = {count // 4}\ngpu = "{CATALOGUE.get(gpu, gpu)}"\ngpus_per_node = 4\n'
                 f'memory_per_node_bytes = 6.4e11\nzone = "{zone}"\n')
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--published", default=os.environ.get("SAILOR_PUBLISHED_DIR"))
    parser.add_argument("--sailor-plan", default=str(SAILOR / "build/bin/sailor-plan"))
    parser.add_argument("--space", default="full", choices=["full", "paper"])
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--csv", help="write the table here")
    arguments = parser.parse_args()
    if not arguments.published:
        parser.error("--published or SAILOR_PUBLISHED_DIR must name the folder of the published files")
    worse = 0
    rows = [("case", "authors", "known_before", "sailor", "cost_usd", "seconds", "verdict")]
    for name, model, gpus, options, authors, known in CASES:
        if arguments.case not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "cluster.toml"
            path.write_text(cluster_toml(gpus))
            command = [arguments.sailor_plan, "--cost-model", "artifact", "--format", "sailor-json",
                       "--profile", "published", "--space", arguments.space, "--memory-margin", "0", "--cluster", str(path), "--model", model,
                       "--global-batch", "1024" if model == OPT else "2048", "--top", "1"]
            for key, value in options.items():
                command += ["--" + key, str(value)]
            start = time.monotonic()
            run = subprocess.run(command, capture_output=True, text=True)
            seconds = time.monotonic() - start
        if run.returncode != 0:
            print(f"{name}: {' '.join(command)}: {run.stderr.strip()}", file=sys.stderr)
            worse += 1
            continue
        plan = json.loads(run.stdout)
        plan = plan[0] if isinstance(plan, list) else plan
        took, cost, fits, used = Evaluator(arguments.published, model).score(plan)
        have = collections.Counter()
        for gpu, count, zone in gpus:
            have[gpu, zone] += count
        sound = fits and all(count <= have[place] for place, count in used.items())
        sound = sound and cost <= options.get("max-cost", math.inf)
        sound = sound and 1 / took >= options.get("min-throughput", 0)
        least = options.get("objective") == "cost"
        value, bar = (cost, known) if least else (1 / took, known)
        if arguments.space == "paper":
            bar = authors
        # The bars are rounded figures.
        good = bar is None or (value <= bar * (1 + 2e-4) if least else value >= bar * (1 - 4e-5))
        verdict = ("as good or better" if good else "worse") if sound else "unsound"
        worse += verdict != "as good or better"
        rows.append((name, authors or "-", known, f"{value:.5f}", f"{cost:.4f}", f"{seconds:.2f}", verdict))
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)))
    if arguments.csv:
        pathlib.Path(arguments.csv).write_text("".join(",".join(f'"{c}"' for c in row) + "\n" for row in rows))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
