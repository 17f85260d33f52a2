#!/usr/bin/env python3
"""What does an elastic training cost when nothing fails?

Usage: experiments/elastic_overhead.py [OPTION...]

Two processes train on the cores of this machine, in interleaved pairs (30) of short runs (60 iterations, of which the
first 10 do not count):

  --elastic (with a controller) against mpirun with --transport sockets: two pipelines
  --copies auto against never: one pipeline of two stages, whose state no replica has, on nodes of different names

Prints the median over the pairs of the ratio of the runs' median iteration times, and its 95 % interval.

Examples:
  experiments/elastic_overhead.py
  experiments/elastic_overhead.py --pairs 40 --iterations 100 --write overhead.txt

Programs: $PATH, else build/bin; needs mpirun. Files are in a temporary folder that is removed.
"""
import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys

from elastic_trace import PATIENCE_S, UNCOUNTED, Training, plan_text, positive, program, run


def median_time(file):
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return statistics.median(row["time_s"] for row in rows[UNCOUNTED:])


def finish(training, process):
    try:
        status = process.wait(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        status = "none in time"
    training.end()
    if status != 0:
        sys.exit(f"elastic_overhead.py: the training's exit status is {status}; its last lines are:\n"
                 f"{''.join(training.last)}")


def short_run(root, kind, pipelines, iterations, number):
    """Median seconds of an iteration of two ranks. --copies of elastic ones: auto or never."""
    folder = root / f"run-{number}"
    metrics = root / f"metrics-{number}.jsonl"
    ranks = sum(stages for stages, _ in pipelines)
    plan = root / f"overhead-{len(pipelines)}.toml"
    plan.write_text(plan_text(pipelines))
    more = ["--metrics", str(metrics)]
    if kind == "mpirun":
        training = Training(root, folder, 0)
        process = training.start(["mpirun", "-n", str(ranks), "--bind-to", "none", *training.training(plan, iterations),
                                  "--transport", "sockets", *more])
    else:
        training = Training(root, folder, 0)
        process = training.start([program("sailor-controller"), str(folder / "run"), "--plan", str(plan), "--copies",
                                  kind])
        for rank in range(ranks):  # each on a node of its own, so that copies are kept
            training.start(training.training(plan, iterations) + ["--elastic", str(folder / "run"), *more],
                           SAILOR_RANK=str(rank), SLURMD_NODENAME=f"n{rank}")
    finish(training, process)
    result = median_time(metrics)
    shutil.rmtree(folder)
    metrics.unlink()
    return result


def median_interval(values):
    """Of the median, by order statistics: at least 95 % for any distribution."""
    ordered, n = sorted(values), len(values)
    low, tail = 0, 0.5**n
    while low + 1 < n / 2 and tail + math.comb(n, low + 1) * 0.5**n <= 0.025:
        low += 1
        tail += math.comb(n, low) * 0.5**n
    return ordered[low], ordered[n - 1 - low]


def run_overhead(options, root, say):
    comparisons = [("--elastic against mpirun, two pipelines", "auto", "mpirun", [(1, 4), (1, 4)]),
                   ("--copies auto against never, one pipeline of two stages", "auto", "never", [(2, 8)])]
    number = 0
    for name, ours, other, pipelines in comparisons:
        times = {ours: [], other: []}
        for pair in range(options.pairs):
            for kind in (ours, other) if pair % 2 == 0 else (other, ours):
                times[kind].append(short_run(root, kind, pipelines, options.iterations, number))
                number += 1
        ratios = [a / b for a, b in zip(times[ours], times[other])]
        low, high = median_interval(ratios)
        interval = f"95 % interval of the median {low:.4f} to {high:.4f}"
        if options.pairs < 6:  # their range has the median with less than 95 %
            interval = "no interval of fewer than 6 pairs"
        say(f"{name}: iteration time {statistics.median(ratios):.4f} times as long, {interval}, over {options.pairs} "
            f"pairs; medians {statistics.median(times[ours]) * 1e3:.2f} and {statistics.median(times[other]) * 1e3:.2f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=positive, default=30, metavar="N", help="of runs, of each comparison [30]")
    parser.add_argument("--iterations", type=positive, default=60, metavar="N", help="of a run [60]")
    parser.add_argument("--write", metavar="FILE", help="append what is printed to this file, too")
    options = parser.parse_args()
    if options.iterations <= UNCOUNTED:
        parser.error(f"--iterations needs more than {UNCOUNTED}, which do not count")
    run(lambda root, say: run_overhead(options, root, say), "elastic_overhead.py", options.write)


if __name__ == "__main__":
    main()
