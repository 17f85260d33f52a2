#!/usr/bin/env python3
"""How far predictions are from training runs that others measured.

Usage: experiments/third_party.py --runs FILE [--set NAME]... [--csv FILE] [--keep DIR]

FILE is a CSV of runs, one a row, empty where the publisher says nothing. Of every set that the simulator has a form for
(third_party_runs/sources.py), the runs of one stage and one replica in at most one node calibrate the operations of the
set's device and framework (where optimizers shard: all runs on one node; where weights do: those on the smallest number
of GPUs of each model), and nothing else does; all other runs are judged. A run is never both. What is not modelled is
counted as left out, with the reason.

Calibration, in two steps:
1. Least squares of log(predicted / measured) over the calibration runs find the shares of the catalogue's rates that
   matrix products, fused attention, everything else and links inside a node reach, and the time to start an operation
   and a collective. Leaving the general values by a factor of e costs as much as an error of 10 % in one run, so few
   runs move them little.
2. What is then left of the calibration runs' errors, by model, degree and micro-batch, scales the times of their
   layers, which go into a profile store. Layers of other degrees and micro-batches follow by the simulator's own rules
   from these (measured elsewhere, times the ratio of the estimates).

Predictions are those of sailor-simulate ($PATH, else build/bin). Beside them stands the formula "constant efficiency x
ideal bubble": forward and backward FLOP over (devices x peak x e), times (n + (p - 1) / v) / n for n micro-batches and p
stages of v chunks, with the median e of the calibration runs. Two minutes in all.
"""
import argparse
import collections
import csv
import dataclasses
import datetime
import json
import math
import os
import pathlib
import statistics
import subprocess
import tempfile

from third_party_runs import judge
from third_party_runs.sources import LEFT_OUT, NODE_LINK, SOURCES, node_size

HERE = pathlib.Path(__file__).resolve().parent.parent
# fp8 as bf16: what the formula's constant is of cancels out.
PEAK = {"A100-40": 312e12, "A100-80": 312e12, "H100-80": 989.5e12, "H200-141": 989.5e12, "B200": 2250e12, "GB200": 2500e12,
        "GB300": 2500e12}  # FLOP/s in bf16 and fp16: profiles/gpus.toml
CAPACITY = {"A100-40": 42338615296, "A100-80": 85899345920, "H100-80": 85520809984}  # bytes: profiles/gpus.toml

# What is calibrated, with the general values that it starts from: shares of the catalogue's rates; seconds to start an
# operation; seconds that a collective or message inside a node takes without bytes.
GENERAL = {"compute": 0.65, "compute_fp8": 0.6, "attention": 0.48, "memory": 0.75, "launch": 40e-6, "link": 0.8, "latency": 20e-6}
LARGEST = {"compute": 0.9, "compute_fp8": 0.9, "attention": 0.9, "memory": 0.95, "launch": 1e-3, "link": 1.0, "latency": 1e-3}
# What nine of ten times are off by that rates measured on a device predict: Sailor's own 11 runs on H200 and H100
# (results/2026-11-26-h200.md, results/2026-11-26-h100.md), none of the runs that are judged here.
ERROR_OF_RATES = 0.13
PENALTY = 0.1  # weight of log(value / general value) beside log(predicted / measured)


@dataclasses.dataclass
class Run:
    row: dict
    plan: dict
    measured: float = 0.0  # s; of failed runs 0
    predicted: float = 0.0
    low: float = 0.0  # 5th and 95th percentile of the prediction
    high: float = 0.0
    memory: float = 0.0  # bytes, predicted
    formula: float = 0.0

    @property
    def failed(self):
        return self.row["status"] != "ok"

    @property
    def measured_memory(self):
        unit = 2 ** 30 if "memory in GiB" in (self.row.get("note") or "") else 1e9
        return float(self.row["memory_gb"]) * unit if self.row["memory_gb"] else None

    @property
    def group(self):
        job = self.plan["job"]
        return job["model"], self.row["gpus"], job["global_batch"]

    @property
    def key(self):
        """What decides the times of its layers."""
        stage = self.plan["pipelines"][0]["stages"][0]
        return self.plan["job"]["model"], stage["tensor_parallel"], self.plan["micro_batch"]


def run_tool(*command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"third_party.py: {command[0]} failed: {done.stderr.strip()}")
    return done.stdout


def toml(value):
    """A value as inline TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml(each) for each in value) + "]"
    return json.dumps(value)


class Predictor:
    """sailor-simulate with the models, links and kernels of one source."""

    def __init__(self, source, runs, folder):
        self.source, self.folder = source, pathlib.Path(folder)
        (self.folder / "models").mkdir(parents=True, exist_ok=True)
        self.shapes = {shape.name: shape for shape in (source.shape(run.row) for run in runs)}
        for name, shape in self.shapes.items():
            (self.folder / "models" / f"{name}.toml").write_text(shape.toml())
        self.gpus = sorted({source.gpu_of(run.row) for run in runs})
        self.nodes = {gpu: source.node_counts([run.row for run in runs], gpu) for gpu in self.gpus}
        text = ['schema_version = 1\nname = "nodes"\n[[zones]]\nname = "zone"\nregion = "region"\n']
        for gpu in self.gpus:
            text.append(f'[[nodes]]\ncount = {max(self.nodes[gpu])}\ngpu = "{gpu}"\ngpus_per_node = {node_size(gpu)}\n'
                        'memory_per_node_bytes = 1e12\nzone = "zone"\n')
        (self.folder / "cluster.toml").write_text("".join(text))
        self.layers = ""  # text of calibrated layers

    def write_cases(self, name, runs):
        text = [f'schema_version = 1\ntitle = "{name}"\nsource = "measured by others"\nframework = "sailor"\n']
        for number, run in enumerate(runs):
            text.append(f'[[cases]]\nname = "{number}"\niteration_time_s = {run.measured or 1.0!r}\n[cases.plan]\n')
            text += [f"{key} = {toml(value)}\n" for key, value in run.plan.items()]
        path = self.folder / f"{name}.toml"
        path.write_text("".join(text))
        return path

    def use(self, values):
        """Writes description and store for these values of GENERAL's keys."""
        # Those that only judge: their plans are not for users.
        own = HERE / f"experiments/third_party_runs/{self.source.framework}.toml"
        text = (own if own.exists() else HERE / f"profiles/frameworks/{self.source.framework}.toml").read_text()
        table = "\n".join(["[layers.efficiency]", f"compute = {values['compute']:.6g}",
                           f"compute_fp8 = {values['compute_fp8']:.6g}",
                           f"attention_forward = {values['attention']:.6g}",
                           f"attention_backward = {values['attention'] * 0.85:.6g}",
                           "attention_forward_half = 400",
                           "attention_backward_half = 950",
                           f"memory = {values['memory']:.6g}", f"launch_s = {values['launch']:.6g}",
                           f"error = {values['error']:.6g}" if "error" in values else "", "\n"])
        delay = self.source.launch_delay_across_nodes
        table += f"[time]\nlaunch_delay_across_nodes_s = {delay!r}" if delay else "[time]"
        (self.folder / "framework.toml").write_text(text.replace("[time]", table))
        store = ['schema_version = 2\nkind = "sailor-profile-text"\n\n[[sessions]]\nid = "third-party"\n']
        store += [line for gpu in self.gpus for line in self.links(values, gpu)] + [self.layers]
        (self.folder / "store.toml").write_text("".join(store))
        (self.folder / "store.h5").unlink(missing_ok=True)
        run_tool("sailor-profile", "import", self.folder / "store.toml", "--output", self.folder / "store.h5")

    def links(self, values, gpu):
        """All-reduces and messages: latency plus bytes over bandwidth, at powers of four. The latency of a collective
        is that of the steps of a ring: GENERAL's is of 8 ranks in a node, and every doubling of nodes adds 10 us."""
        sizes = [float(4 ** power) for power in range(5, 17)]
        bandwidth = values["link"] * NODE_LINK[gpu]
        rows = collections.defaultdict(list)
        in_node = [2 ** power for power in range(1, node_size(gpu).bit_length())]
        for ranks in in_node:
            latency = values["latency"] * (ranks - 1) / 7
            rows["intra_node", "all_reduce", ranks, ranks] = [
                latency + 2 * (ranks - 1) / ranks * size / bandwidth for size in sizes]
        rows["intra_node", "send_receive", 2, 1] = [values["latency"] / 7 + size / bandwidth for size in sizes]
        network = self.source.between_nodes
        for nodes in self.nodes[gpu]:
            if nodes < 2:
                continue
            known = min(network, key=lambda n: abs(math.log(n / nodes)))
            for here in [1, *in_node]:
                ranks = here * nodes
                latency = values["latency"] + 10e-6 * math.log2(nodes)
                rows["inter_node", "all_reduce", ranks, here] = [
                    latency + 2 * (ranks - 1) / ranks * size / min(bandwidth, network[known] * here) for size in sizes]
        rows["inter_node", "send_receive", 2, 1] = [
            values["latency"] + size / network[min(network)] for size in sizes]
        text = []
        for (scope, operation, ranks, here), times in rows.items():
            text.append(f'\n[[links]]\nfrom_gpu = "{gpu}"\nto_gpu = "{gpu}"\nfrom_zone = ""\nto_zone = ""\n'
                        f'from_ranks = {here}\nto_ranks = {here}\nscope = "{scope}"\noperation = "{operation}"\n'
                        f'ranks = {ranks}\ncolumns = ["message_bytes", "time_s"]\nrows = [\n')
            text += [f"  [{size!r}, {time!r}],\n" for size, time in zip(sizes, times)] + ["]\n"]
        return text

    def predict(self, path, runs):
        answer = json.loads(run_tool(
            "sailor-simulate", "--against", path, "--models", self.folder / "models", "--cluster",
            self.folder / "cluster.toml", "--profile", self.folder / "store.h5", "--framework",
            self.folder / "framework.toml", "--format", "json"))
        for run, case in zip(runs, answer["cases"], strict=True):
            run.predicted = case["iteration_time_s"]
            run.low, run.high = case["iteration_time_p5_s"], case["iteration_time_p95_s"]
            run.memory = case["peak_memory_bytes"]

    def keep_layers(self, runs):
        """Step 2: the layers of the calibration runs, scaled by what their predictions are off."""
        factors = collections.defaultdict(list)
        divides_sequence = "\nsequence_parallel = true" in (self.folder / "framework.toml").read_text()
        for run in runs:
            factors[run.key].append(run.measured / run.predicted)
        text = []
        for (model, tensor), keys in groups(sorted(factors), lambda key: key[:2]).items():
            shape = self.shapes[model]
            estimate = json.loads(run_tool(
                "sailor-profile", "estimate", "--model", model, "--models", self.folder / "models", "--gpu",
                self.source.gpu, "--precision", self.source.precision, "--framework", self.folder / "framework.toml",
                "--profile", self.folder / "store.h5", "--tensor-parallel", tensor, "--micro-batches",
                ",".join(str(key[2]) for key in keys), "--sequence-length", shape.sequence, "--format", "json"))
            head = (f'model = "{model}"\ngpu = "{self.source.gpu}"\nprecision = "{self.source.precision}"\n'
                    f"tensor_parallel = {tensor}\nsequence_length = {shape.sequence}\n")
            times, sizes = [], []
            for layer in estimate:
                batch = layer["micro_batch"]
                factor = statistics.median(factors[model, tensor, batch])
                kind = layer["layer_kind"]
                times.append([batch, kind, layer["forward_s"] * factor, layer["backward_s"] * factor,
                              layer["update_s"] * factor])
                output = 0.0 if kind == "head" else 2.0 * batch * shape.sequence * shape.hidden / (
                    tensor if divides_sequence else 1)
                sizes.append([batch, kind, layer["parameters"], layer["activation_bytes"], output, 0.0,
                              layer["workspace_bytes"]])
            for table, columns, rows in (
                    ("layer_times", ["micro_batch", "layer_kind", "forward_s", "backward_s", "update_s"], times),
                    ("layer_memory", ["micro_batch", "layer_kind", "parameters", "activation_bytes", "output_bytes",
                                      "input_bytes", "workspace_bytes"], sizes)):
                extra = 'update_scope = "layer"\n' if table == "layer_times" else ""
                text.append(f"\n[[{table}]]\n{head}{extra}columns = {toml(columns)}\nrows = [\n")
                text += [f"  {toml(row)},\n" for row in rows] + ["]\n"]
        self.layers = "".join(text)


def groups(items, key):
    grouped = collections.defaultdict(list)
    for item in items:
        grouped[key(item)].append(item)
    return grouped


def solve(matrix, right):
    """Gaussian elimination with pivots."""
    size = len(right)
    rows = [list(matrix[i]) + [right[i]] for i in range(size)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, size):
            factor = rows[r][i] / rows[i][i]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i])]
    solution = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - rest) / rows[i][i]
    return solution


def fit(predictor, runs, steps=8):
    """Step 1 of the calibration: Gauss-Newton on logarithms, with steps of at most a factor of 1.6."""
    path = predictor.write_cases("calibration", runs)
    names = [name for name in GENERAL if name != "compute_fp8" or predictor.source.precision == "fp8"]

    def residuals(logs):
        values = GENERAL | {name: min(math.exp(log), LARGEST[name]) for name, log in zip(names, logs)}
        predictor.use(values)
        predictor.predict(path, runs)
        off = [math.log(run.predicted / run.measured) for run in runs]
        return off + [PENALTY * math.log(values[name] / GENERAL[name]) for name in names], values

    logs = [math.log(GENERAL[name]) for name in names]
    best, values = residuals(logs)
    for _ in range(steps):
        slopes = []
        for i in range(len(names)):
            moved = list(logs)
            moved[i] -= 0.05
            slopes.append([(a - b) / 0.05 for a, b in zip(best, residuals(moved)[0])])
        matrix = [[sum(a * b for a, b in zip(one, other)) + (1e-6 if i == j else 0.0)
                   for j, other in enumerate(slopes)] for i, one in enumerate(slopes)]
        step = solve(matrix, [-sum(a * b for a, b in zip(slope, best)) for slope in slopes])
        for scale in (1.0, 0.5, 0.2):
            tried = [min(log + max(-0.47, min(0.47, scale * s)), math.log(LARGEST[name]))
                     for log, s, name in zip(logs, step, names)]
            new, new_values = residuals(tried)
            if sum(r * r for r in new) < sum(r * r for r in best):
                break
        else:
            break
        gain = 1.0 - sum(r * r for r in new) / sum(r * r for r in best)
        logs, best, values = tried, new, new_values
        if gain < 1e-3:
            break
    predictor.use(values)
    predictor.predict(path, runs)
    off = sorted(abs(math.log(run.predicted / run.measured)) for run in runs)
    return values | {"error": max(ERROR_OF_RATES, math.exp(off[int(0.9 * len(off))]) - 1.0)}


def add_formula(source, calibration, judged, efficiency=None):
    """Constant efficiency x ideal bubble; without an efficiency that of the calibration runs."""
    def ideal(run):
        shape = source.shape(run.row)
        pipeline = run.plan["pipelines"][0]
        stages, micro_batches = len(pipeline["stages"]), pipeline["micro_batches"]
        tokens = run.plan["job"]["global_batch"] * run.plan["job"]["sequence_length"]
        passes = 4 if pipeline["stages"][0]["recompute"] == "full" else 3
        busy = passes * shape.forward_flop(tokens) / (int(run.row["gpus"]) * PEAK[source.gpu_of(run.row)])
        bubbles = (stages - 1) / source.number(run.row, "virtual_stages")
        return busy * (micro_batches + bubbles) / micro_batches

    efficiency = efficiency or statistics.median(ideal(run) / run.measured for run in calibration)
    for run in judged:
        run.formula = ideal(run) / efficiency
    return efficiency


def percent(share, signed=False):
    return f"{100.0 * share:{'+' if signed else ''}.1f} %"


def error_row(name, pairs):
    figures = judge.errors(pairs)
    return (f"| {name} | {figures['runs']} | {percent(figures['mean'])} | {percent(figures['median'])} | "
            f"{percent(figures['p95'])} | {percent(figures['bias'], True)} | {percent(figures['lowest'], True)} |")


def out_of_memory(runs, judged, capacity):
    """Lines on runs that failed: predicted not to fit or not."""
    failed = [run for run in runs if run.failed]
    fitted = [run for run in judged if run.measured_memory]
    if not failed:
        return []

    def near_limit(run):
        """Another micro-batch or sharding of the same layout took more than 70 GB."""
        same = ("model", "gpus", "tensor_parallel", "pipeline_parallel", "data_parallel")
        return any(all(other.row[key] == run.row[key] for key in same) and other.measured_memory > 70e9
                   for other in fitted)

    def recall(those):
        found = sum(run.memory > capacity for run in those)
        return f"{found} of {len(those)} ({percent(found / len(those))})" if those else "none such"

    alarms = sum(run.memory > capacity for run in fitted)
    return ["", f"Failed runs (time-outs among them) predicted not to fit: {recall(failed)}; of those beside a run of the "
            f"same layout that took more than 70 GB: {recall([run for run in failed if near_limit(run)])}. Runs that "
            f"fitted and are predicted not to: {alarms} of {len(fitted)} ({percent(alarms / len(fitted))})."]


@dataclasses.dataclass
class Rates:
    """What a source's calibration found."""
    values: dict  # of GENERAL's keys
    efficiency: float  # of the formula


def report(name, source, rates, calibration, judged, failed, left_out):
    values, efficiency = rates.values, rates.efficiency
    lines = ["", f"## {name}", "",
             f"Description: {source.framework}. Assumed: {source.assumptions}. Runs: {len(calibration)} calibrate, "
             f"{len(judged)} with a time and {len(failed)} that failed are judged"
             + (", " + "; ".join(f"{count} left out ({why})" for why, count in sorted(left_out.items()))
                if left_out else "") + ".",
             f"Calibrated on {source.gpu or source.rates_of}: products {percent(values['compute'])} of the peak rate"
             + (f" (in fp8 {percent(values['compute_fp8'])})" if source.precision == "fp8" else "") + ", fused attention "
             f"{percent(values['attention'])}, memory {percent(values['memory'])}, links in a node "
             f"{percent(values['link'])}; {values['launch'] * 1e6:.0f} us to start an operation, "
             f"{values['latency'] * 1e6:.0f} us a collective of 8"
             + (f"; nine of ten layer times are taken to be within {percent(values['error'])}" if "error" in values else "")
             + f". Formula: e = {percent(efficiency)}.", "",
             "| judged runs | runs | mean error | median | P95 | bias | lowest |", "|---|---|---|---|---|---|---|",
             error_row("time", [(run.predicted, run.measured) for run in judged]),
             error_row("time by the formula", [(run.formula, run.measured) for run in judged])]
    kinds = groups(judged, lambda run: (
        ("pipeline" if len(run.plan["pipelines"][0]["stages"]) > 1 else "one stage")
        + (", replicas" if run.plan["pipelines"][0]["count"] > 1 else "")
        + (", several nodes" if int(run.row["gpus"]) > 8 else "")))
    for kind, runs in sorted(kinds.items()):
        lines.append(error_row(f"time: {kind}", [(run.predicted, run.measured) for run in runs]))
    with_memory = [run for run in judged + calibration if run.measured_memory]
    if with_memory:
        lines.append(error_row("peak memory (with the runs that calibrate times)",
                               [(run.memory, run.measured_memory) for run in with_memory]))
    inside = sum(run.low <= run.measured <= run.high for run in judged)
    lines += ["", f"Within the printed P5 to P95: {percent(inside / len(judged))} of the judged times."]
    for what, member in (("predictions", "predicted"), ("the formula", "formula")):
        ranked = judge.ranking(judge.groups_of(judged, member))
        if ranked:
            lines.append(f"Ranking by {what}, over {ranked['groups']} jobs of at least five plans: tau "
                         f"{ranked['tau']:.2f}, regret {percent(ranked['regret'])} (worst "
                         f"{percent(ranked['worst_regret'])}).")
    return lines + out_of_memory(judged + failed, judged + calibration, CAPACITY.get(source.gpu))


def evaluate(name, source, rows, folder, log, known):
    """Lines on a source. `known`: Rates by title, of the sources before."""
    calibration, judged, failed, left_out = [], [], [], collections.Counter()
    source.prepare(rows)
    for row in rows:
        reason = source.reason(row)
        plan = None if reason else source.plan(row)
        if reason or isinstance(plan, str):
            left_out[reason or plan] += 1
            continue
        run = Run(row, plan)
        if run.failed:
            failed.append(run)
            continue
        run.measured = source.time(row)
        (calibration if source.calibrates(row) else judged).append(run)
    if not (calibration or source.rates_of) or not judged:
        return ["", f"## {name}", "", f"Nothing to judge: {len(calibration)} runs calibrate, {len(judged)} are judged, "
                f"{sum(left_out.values())} left out."]
    predictor = Predictor(source, calibration + judged + failed, folder)
    if source.rates_of:
        if source.rates_of not in known:
            raise SystemExit(f"third_party.py: {name} is predicted with the rates of {source.rates_of}: add --set "
                             f"{source.rates_of.split(',')[0]}")
        values = {key: value for key, value in known[source.rates_of].values.items() if key != "error"}
    else:
        values = fit(predictor, calibration)
        predictor.keep_layers(calibration)
    predictor.use(values)
    everything = calibration + judged + failed
    predictor.predict(predictor.write_cases("runs", everything), everything)
    given = known[source.rates_of].efficiency if source.rates_of else None
    known[name] = Rates(values, add_formula(source, calibration, judged, given))
    for run in everything:
        part = "calibrates" if run in calibration else "failed" if run.failed else "judged"
        log.append([name, part, *run.group, *run.key[1:], len(run.plan["pipelines"][0]["stages"]),
                    run.plan["pipelines"][0]["count"], run.plan["optimizer_sharding"], run.measured, run.predicted,
                    run.low, run.high, run.formula, run.measured_memory, run.memory])
    return report(name, source, known[name], calibration, judged, failed, left_out)


LOG = ["set", "part", "model", "gpus", "global_batch", "tensor_parallel", "micro_batch", "stages", "replicas", "sharding",
       "measured_s", "predicted_s", "p5_s", "p95_s", "formula_s", "measured_memory_bytes", "predicted_memory_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", required=True, metavar="FILE", help="CSV of measured runs")
    parser.add_argument("--set", action="append", metavar="NAME", help="this set only; may be repeated")
    parser.add_argument("--csv", metavar="FILE", help="write every run and its prediction to this file")
    parser.add_argument("--keep", metavar="DIR", help="keep descriptions, stores and cases in this folder")
    arguments = parser.parse_args()
    os.environ["PATH"] += os.pathsep + str(HERE / "build/bin")
    with open(arguments.runs, newline="") as file:
        sets = groups(csv.DictReader(file), lambda row: row["set"])
    if unknown := set(arguments.set or []) - set(sets):
        raise SystemExit(f"third_party.py: no set {', '.join(sorted(unknown))} in {arguments.runs} (there: "
                         f"{', '.join(sets)})")
    version = run_tool("sailor-simulate", "--version").strip().splitlines()[0]
    lines = ["# Predictions beside runs that others measured", "",
             f"{datetime.date.today()}, {version}; experiments/third_party.py, which says what calibrates and what is "
             "judged. Errors are predicted / measured - 1."]
    log, rest, known = [], [], {}
    with tempfile.TemporaryDirectory() as temporary:
        # Those that need the rates of others come last.
        for name, rows in sorted(sets.items(), key=lambda each: any(s.rates_of for s in SOURCES.get(each[0], []))):
            if arguments.set and name not in arguments.set:
                continue
            taken = 0
            for source in SOURCES.get(name, []):
                own = [row for row in rows if source.takes(row)]
                title = name + (", fp8" if source.precision == "fp8" else "")
                lines += evaluate(title, source, own, pathlib.Path(arguments.keep or temporary) / title, log, known)
                taken += len(own)
            if taken < len(rows):
                why = LEFT_OUT.get(name) or ("fp8, and nothing to judge" if taken else "no description of its framework")
                rest.append(f"| {name} | {len(rows) - taken} | {why} |")
    if rest:
        lines += ["", "## Left out", "", "| set | runs | why |", "|---|---|---|"] + rest
    print("\n".join(lines))
    if arguments.csv:
        with open(arguments.csv, "w", newline="") as file:
            csv.writer(file).writerows([LOG] + log)


if __name__ == "__main__":
    main()
