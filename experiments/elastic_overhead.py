#!/usr/bin/env python3
"""What does an elastic training cost when nothing fails?

Usage: experiments/elastic_overhead.py [OPTION...]

Two trainings of two processes take turns on the cores of this machine: each runs for a turn (0.4 s) while all processes
of the other are stopped, and the median time of the iterations in a turn counts. So whatever else the machine does
disturbs both alike; runs one after the other differ by more than what is to be seen here.

  --elastic (with a controller) against mpirun with --transport sockets: two pipelines
  --copies auto against never: one pipeline of two stages, whose state no replica has, on nodes of different names

Prints the median over the pairs of turns of the ratio of these times, and its 95 % interval.

Examples:
  experiments/elastic_overhead.py
  experiments/elastic_overhead.py --pairs 600 --hidden 32 --write overhead.txt

Programs: $PATH, else build/bin; needs mpirun. Files are in a temporary folder that is removed.
"""
import argparse
import math
import os
import signal
import statistics
import sys
import time

from elastic_trace import UNCOUNTED, Training, descendants, factor, plan_text, positive, program, run


def start(root, folder, kind, plan, ranks):
    training = Training(root, folder, 0)
    if kind == "mpirun":
        training.start(["mpirun", "-n", str(ranks), "--bind-to", "none", *training.training(plan),
                        "--transport", "sockets"])
    else:
        training.start([program("sailor-controller"), str(folder / "run"), "--plan", str(plan), "--copies", kind,
                        "--silence", "600"])  # it is stopped between its turns
        for rank in range(ranks):  # each on a node of its own, so that copies are kept
            training.start(training.training(plan) + ["--elastic", str(folder / "run")],
                           SAILOR_RANK=str(rank), SLURMD_NODENAME=f"n{rank}")
    return training


class Turns:
    """A training that runs only in its turns."""

    def __init__(self, training):
        self.training = training
        training.wait_for(UNCOUNTED)
        self.processes = [pid for process in training.processes for pid in [process.pid] + descendants(process.pid)]
        self.send(signal.SIGSTOP)

    def send(self, number):
        for pid in self.processes:
            os.kill(pid, number)

    def turn(self, seconds):
        """The median time of the iterations that lie in this turn, seconds."""
        begin = time.monotonic()
        self.send(signal.SIGCONT)
        time.sleep(seconds)
        self.send(signal.SIGSTOP)
        if any(process.poll() is not None for process in self.training.processes):
            sys.exit(f"elastic_overhead.py: a training ended; its last lines are:\n{''.join(self.training.last)}")
        with self.training.lock:
            ends = [when for when, _ in self.training.reached if when > begin]
        if len(ends) < 4:
            sys.exit(f"elastic_overhead.py: {len(ends)} iterations ended in a turn, 4 are needed; use a longer --turn or "
                     f"a smaller --hidden")
        return statistics.median(b - a for a, b in zip(ends, ends[1:]))


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
    for name, ours, other, pipelines in comparisons:
        plan = root / f"overhead-{len(pipelines)}.toml"
        plan.write_text(plan_text(pipelines))
        ranks = sum(stages for stages, _ in pipelines)
        # The second starts after the first was stopped, so that each starts alone.
        both = {kind: Turns(start(root, root / f"{len(pipelines)}-{kind}", kind, plan, ranks)) for kind in (ours, other)}
        times = {ours: [], other: []}
        for pair in range(options.pairs):
            order = (ours, other) if pair % 2 == 0 else (other, ours)
            for kind in order:
                times[kind].append(both[kind].turn(options.turn))
        for turns in both.values():
            turns.training.end()
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
    parser.add_argument("--pairs", type=positive, default=200, metavar="N", help="of turns, of each comparison [200]")
    parser.add_argument("--turn", type=factor, default=0.4, metavar="SECONDS", help="how long a turn lasts [0.4]")
    parser.add_argument("--hidden", type=positive, default=64, metavar="N",
                        help="size of the model, a multiple of 4 [64]")
    parser.add_argument("--write", metavar="FILE", help="append what is printed to this file, too")
    options = parser.parse_args()
    if options.hidden % 4 != 0:
        parser.error(f"--hidden: {options.hidden} is not a multiple of 4")
    run(lambda root, say: run_overhead(options, root, say), "elastic_overhead.py", options.write, options.hidden)


if __name__ == "__main__":
    main()
