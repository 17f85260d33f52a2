#!/usr/bin/env python3
"""Which of several builds of sailor-plan finds the better plans?

Usage: experiments/planner_versions.py [--random N] [--seed N] [--large N] [--jobs N] [--all] PROGRAM PROGRAM...

Plans with each PROGRAM, by one thread, for N random clusters (50; those of planner_ablation.py) and for the first N (all:
108) clusters of 128 to 10,000 GPUs of one type, in fp16. Prints the inputs on which the plans differ (--all: every one), with each
program's score as a share of the best, its seconds and its gap to the bound; then each one's mean loss, mean gap and
seconds in all.
Profile: the published figures that belong to the programs.
"""
import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import subprocess
import tempfile
import time

from planner_ablation import NEO, OPT, TYPES, ZONES, cluster_file, random_cluster

SIZES = [128, 512, 1000, 2048, 4000, 10000]
EQUAL = 1e-7


def inputs(count, seed, large, folder):
    """(name, arguments)"""
    for number in range(count):
        links, nodes, arguments = random_cluster(number, seed)
        where = folder / f"random-{number}.toml"
        where.write_text(cluster_file(links, nodes))
        yield f"random {number}", ["--cluster", str(where), *arguments]
    cases = itertools.product(TYPES, SIZES, [OPT, (OPT[0], 256), NEO], ["megatron-deepspeed", "sailor"])
    for gpu, gpus, (model, batch), framework in itertools.islice(cases, large):
        where = folder / f"{gpu}-{gpus}.toml"
        if not where.exists():
            where.write_text(cluster_file([], [[gpus // 4, gpu, ZONES[0]]]))
        yield f"{gpus} {gpu}, {model} {batch}, {framework}", ["--cluster", str(where), "--model", model, "--global-batch",
                                                             str(batch), "--framework", framework]


def search(program, arguments):
    """Score of the best plan, greater is better (0: there is none), seconds, and the gap to the bound."""
    start = time.perf_counter()
    done = subprocess.run([program, *arguments, "--profile", "published", "--precision", "fp16", "--threads", "1", "--top",
                           "1", "--format", "json"], capture_output=True, text=True)
    seconds = time.perf_counter() - start
    infeasible = 3
    if done.returncode == infeasible:
        return 0.0, seconds, 0.0
    if done.returncode != 0:
        raise RuntimeError(f"{program} {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
    answer = json.loads(done.stdout)
    plan = answer["plans"][0]
    objective = arguments[-1] if "--objective" in arguments else "throughput"
    score = 1.0 if objective == "cost" else plan["throughput_iterations_per_s"]
    if objective != "throughput":
        score /= plan["cost_usd_per_iteration"]
    return score, seconds, answer["bound"]["gap"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=50, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--large", type=int, default=None, metavar="N")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    losses = [0.0] * len(options.program)
    seconds = [0.0] * len(options.program)
    gaps = [0.0] * len(options.program)
    planned = differ = 0
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        work = [(name, [pool.submit(search, program, arguments) for program in options.program])
                for name, arguments in inputs(options.random, options.seed, options.large, pathlib.Path(scratch))]
        for name, runs in work:
            answers = [run.result() for run in runs]
            best = max(score for score, _, _ in answers)
            if best <= 0.0:
                continue
            planned += 1
            for i, (score, taken, gap) in enumerate(answers):
                losses[i] += 1.0 - score / best
                seconds[i] += taken
                gaps[i] += gap
            differs = any(score < best * (1.0 - EQUAL) for score, _, _ in answers)
            differ += differs
            if differs or options.all:
                print(f"{name:52}", *(f"{score / best:.4f} {taken:5.1f} s {gap:6.1%}" for score, taken, gap in answers),
                      sep="  ", flush=True)
    print(f"{planned} inputs with a plan, {differ} with different ones")
    for program, loss, gap, taken in zip(options.program, losses, gaps, seconds):
        print(f"{program}: mean loss {loss / max(planned, 1):.3%}, mean gap {gap / max(planned, 1):.1%}, {taken:.1f} s")


if __name__ == "__main__":
    main()
