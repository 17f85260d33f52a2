#!/usr/bin/env python3
"""What is every heuristic of the planner's full search worth?

Usage: experiments/planner_ablation.py [--random N] [--seed N] [--jobs N] [--only HEURISTIC,...]
                                       [--shipped NAME...] [--output FILE]

Plans for experiments/clusters, figure 8b of the paper and N random clusters (200; one to three GPU types, one to three
zones, three models, every objective), with all heuristics and with each left out (sailor-plan --without). Prints of each
the inputs on which the plan gets more than 0.1 % worse, the largest loss and where, and how much time the search takes
without it. FILE (default: ./planner-ablation.tsv) has a line for each input and heuristic. Programs: $PATH, else
build/bin; profile: the published figures.
"""
import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

from planner_quality import CASES, cluster
from planner_speed import NEO, OPT, TABLE, nodes_text, zones_text

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = shutil.which("sailor-plan") or str(HERE.parent / "build" / "bin" / "sailor-plan")
ZONES = ["us-central1-a", "us-central1-b", "us-west1-b"]
TYPES = ["A100-40", "V100-16", "GH200-96"]
WORSE = 1e-3


def random_cluster(number, seed):
    """Bandwidth of the link of each two zones, nodes as [count, GPU type, zone], and the arguments of a search."""
    draw = random.Random(f"{seed}.{number}")
    zones = ZONES[: draw.choice([1, 1, 2, 3])]
    types = draw.sample(TYPES, draw.choice([1, 2, 2, 3]))
    links = [draw.choice([1.25e9, 5e9, 12.5e9]) for _ in itertools.combinations(zones, 2)]
    nodes = []
    for zone in zones:
        for gpu in types:
            count = draw.choice([0, 1, 2, 3, 4, 8, 12, 16, 24])
            if count or (zone, gpu) == (zones[0], types[0]):
                nodes.append([max(count, 1), gpu, zone])
    model, batch = draw.choice([OPT, NEO, (OPT[0], 256)])
    arguments = ["--model", model, "--global-batch", str(batch)]
    framework = draw.choice(["megatron-deepspeed", "sailor"])
    arguments += ["--framework", framework]
    objective = draw.choice(["throughput", "throughput", "cost", "throughput-per-usd"])
    return links, nodes, arguments + ["--objective", objective]


def cluster_file(links, nodes):
    """Text of a cluster.toml. There are links for the first zones of ZONES, whether they have nodes or not."""
    count = next(n for n in range(1, len(ZONES) + 1) if n * (n - 1) // 2 == len(links))
    bandwidths = iter(links)
    text = zones_text("random", {zone: zone[:-2] for zone in ZONES[:count]}, lambda: next(bandwidths))
    return text + "".join(nodes_text(*group) for group in nodes)


def inputs(count, seed, folder, shipped):
    """(name, arguments) of all inputs. `shipped`: names; empty: all."""
    for name, (model, batch), *_ in TABLE:
        if shipped and name not in shipped:
            continue
        yield name, ["--cluster", str(HERE / "clusters" / f"{name}.toml"), "--model", model, "--global-batch", str(batch),
                     "--framework", "megatron-deepspeed"]
    for name, model, batch, a100, v100, *_ in CASES:
        if shipped and name not in shipped:
            continue
        where = folder / f"{name.replace(' ', '-')}.toml"
        where.write_text(cluster(a100, v100))
        yield name, ["--cluster", str(where), "--model", model, "--global-batch", str(batch), "--framework",
                     "megatron-deepspeed"]
    for number in range(count):
        links, nodes, arguments = random_cluster(number, seed)
        where = folder / f"random-{number}.toml"
        where.write_text(cluster_file(links, nodes))
        yield f"random {number}", ["--cluster", str(where), *arguments]


def search(arguments, without, precision="fp16"):
    """Score of the best plan, greater is better (None: there is no plan), and seconds of the process."""
    command = [PROGRAM, *arguments, "--profile", "published", "--top", "1", "--format", "json"]
    if precision:
        command += ["--precision", precision]
    if without:
        command += ["--without", without.replace("+", ",")]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    infeasible = 3
    if done.returncode == infeasible:
        return None, seconds
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    answer = json.loads(done.stdout)
    plan = answer["plans"][0]
    objective = arguments[arguments.index("--objective") + 1] if "--objective" in arguments else "throughput"
    if objective == "cost":
        return 1.0 / plan["cost_usd_per_iteration"], seconds
    if objective == "throughput-per-usd":
        return plan["throughput_iterations_per_s"] / plan["cost_usd_per_iteration"], seconds
    return plan["throughput_iterations_per_s"], seconds


def heuristics():
    text = subprocess.run([PROGRAM, "--without", "?"], capture_output=True, text=True).stderr
    return text.split("is not one of: ")[1].split("\n")[0].split(";")[0].strip().split(", ")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", help="these heuristics; those joined by + together")
    parser.add_argument("--shipped", nargs="+", default=[], help="these of experiments/clusters and figure 8b")
    parser.add_argument("--output", default="planner-ablation.tsv")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else heuristics()
    losses = {name: [] for name in names}
    times = {name: 0.0 for name in ["", *names]}
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool, \
            open(options.output, "w") as table:
        print("input\theuristic\tscore\tloss\tseconds", file=table)
        work = [(name, arguments, [pool.submit(search, arguments, without) for without in ["", *names]])
                for name, arguments in inputs(options.random, options.seed, pathlib.Path(scratch),
                                          options.shipped)]
        planned = 0
        for name, arguments, runs in work:
            best, seconds = runs[0].result()
            print(f"{name}\t\t{best}\t0\t{seconds:.3f}", file=table, flush=True)
            if best is None:
                continue
            planned += 1
            times[""] += seconds
            for without, run in zip(names, runs[1:]):
                score, seconds = run.result()
                loss = 1.0 if score is None else 1.0 - score / best
                times[without] += seconds
                losses[without].append((loss, name))
                print(f"{name}\t{without}\t{score}\t{loss:.6f}\t{seconds:.3f}", file=table, flush=True)
    print(f"{planned} inputs with a plan")
    print(f"{'without':16} {'worse':>6} {'better':>6} {'largest loss':>12} {'time':>6}  where")
    for name in names:
        worst, where = max(losses[name], default=(0.0, "-"))
        print(f"{name:16} {sum(loss > WORSE for loss, _ in losses[name]):6} "
              f"{sum(loss < -WORSE for loss, _ in losses[name]):6} {worst:12.2%} {times[name] / max(times[''], 1e-9):6.2f}  "
              f"{where if worst > WORSE else '-'}")


if __name__ == "__main__":
    main()
