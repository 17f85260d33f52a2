#!/usr/bin/env python3
"""Fits the constants of a framework description to measured runs, and says how well they predict runs that they were
not fitted to.

Usage: experiments/fit_framework.py [--cases FILE] [--profile STORE] [--framework FILE] [--small-nodes N]

Time: least squares of relative errors over three constants (profiling_overhead, transfer_overhead_s,
reduction_rate_bytes_per_s), by Nelder and Mead's simplex. Memory: over base_bytes of the GPU and
workspace_activations. Prints both fits with the error of every case; the errors of each case under a fit to all others
(leave one out); and those of the cases on more than N nodes (8) under a fit to the rest, a stage counting as a node.
Every prediction is one call of sailor-simulate ($PATH, else build/bin): some minutes in all.
"""
import argparse
import json
import math
import os
import re
import statistics
import subprocess
import tempfile
import tomllib

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TIME = ["profiling_overhead", "transfer_overhead_s", "reduction_rate_bytes_per_s"]
MEMORY = ["base_bytes", "workspace_activations"]


def with_values(text, values, gpu):
    """The framework file with other constants."""
    for key, value in values.items():
        key = gpu if key == "base_bytes" else key
        text, found = re.subn(rf"(?m)^{re.escape(key)} = \S+", f"{key} = {value:.9g}", text)
        if found != 1:
            raise SystemExit(f"fit_framework.py: the framework file has no line '{key} = ...'")
    return text


class Simulator:
    def __init__(self, arguments):
        self.arguments = arguments
        with open(arguments.framework) as file:
            self.text = file.read()
        self.folder = tempfile.TemporaryDirectory()

    def cases(self, values):
        """Rows of all cases, predicted with these constants."""
        path = os.path.join(self.folder.name, "framework.toml")
        with open(path, "w") as file:
            file.write(with_values(self.text, values, self.arguments.gpu))
        command = ["sailor-simulate", "--against", self.arguments.cases, "--profile", self.arguments.profile,
                   "--framework", path, "--format", "json"]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["cases"]


def minimize(function, start, steps=160):
    """Nelder and Mead 1965, on start values scaled to one."""
    def scaled(point):
        return function([p * s for p, s in zip(point, start)])
    size = len(start)
    simplex = [[1.0] * size] + [[1.15 if i == j else 1.0 for i in range(size)] for j in range(size)]
    simplex = sorted((scaled(point), point) for point in simplex)
    for _ in range(steps):
        centre = [statistics.fmean(point[i] for _, point in simplex[:-1]) for i in range(size)]
        worst = simplex[-1][1]

        def at(factor):
            point = [c + factor * (c - w) for c, w in zip(centre, worst)]
            return scaled(point), point
        new = at(1.0)
        if new[0] < simplex[0][0]:
            new = min(new, at(2.0))
        elif new[0] >= simplex[-2][0]:
            new = at(0.5 if new[0] < simplex[-1][0] else -0.5)
        if new[0] < simplex[-1][0]:
            simplex[-1] = new
        else:
            best = simplex[0][1]
            simplex = [simplex[0]] + [(scaled(p), p) for p in
                                      ([(a + b) / 2 for a, b in zip(best, point)] for _, point in simplex[1:])]
        simplex.sort()
        if max(abs(a - b) for a, b in zip(simplex[0][1], simplex[-1][1])) < 1e-3:
            break
    return [p * s for p, s in zip(simplex[0][1], start)]


def summary(errors):
    sizes = sorted(abs(error) for error in errors)
    at = 0.95 * (len(sizes) - 1)
    low = math.floor(at)
    p95 = sizes[low] + (at - low) * (sizes[min(low + 1, len(sizes) - 1)] - sizes[low])
    return (f"mean {100 * statistics.fmean(sizes):.2f}%  P95 {100 * p95:.2f}%  max {100 * sizes[-1]:.2f}%  "
            f"bias {100 * statistics.fmean(errors):+.2f}%")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=os.path.join(HERE, "experiments/gh200-opt-350m.toml"))
    parser.add_argument("--profile", default="published")
    parser.add_argument("--framework", default=os.path.join(HERE, "profiles/frameworks/megatron-deepspeed.toml"))
    parser.add_argument("--gpu", default="GH200-96", help="its base_bytes is fitted [default: %(default)s]")
    parser.add_argument("--small-nodes", type=int, default=8, metavar="N")
    arguments = parser.parse_args()
    os.environ["PATH"] += os.pathsep + os.path.join(HERE, "build/bin")
    simulator = Simulator(arguments)

    def errors(names, values, what):
        rows = simulator.cases(dict(zip(names, values)))
        return [row[f"{what}_error_percent"] / 100 for row in rows]

    def fit(names, start, what, chosen):
        def loss(values):
            if min(values) < 0:
                return math.inf
            all_errors = errors(names, values, what)
            return sum(all_errors[i] ** 2 for i in chosen)
        return minimize(loss, start)

    rows = simulator.cases({})
    everything = range(len(rows))
    with open(arguments.cases, "rb") as file:
        nodes = [sum(pipeline.get("count", 1) * len(pipeline["stages"]) for pipeline in case["plan"]["pipelines"])
                 for case in tomllib.load(file)["cases"]]
    for what, names, start in (("iteration_time", TIME, [0.2, 0.7e-3, 3e9]), ("peak_memory", MEMORY, [4.3e9, 2.1])):
        best = fit(names, start, what, everything)
        print(f"{what}: " + ", ".join(f"{name} = {value:.4g}" for name, value in zip(names, best)))
        found = errors(names, best, what)
        for row, error in zip(rows, found):
            print(f"  {100 * error:+6.2f}%  {row['name']}")
        print("  fitted to all:       " + summary(found))
        left_out = []
        for i in everything:
            values = fit(names, best, what, [j for j in everything if j != i])
            left_out.append(errors(names, values, what)[i])
        print("  each by the others:  " + summary(left_out))
        large = [i for i in everything if nodes[i] > arguments.small_nodes]
        values = fit(names, best, what, [i for i in everything if i not in large])
        over = errors(names, values, what)
        print(f"  over {arguments.small_nodes} nodes by the rest: " +
              ", ".join(f"{name} = {value:.4g}" for name, value in zip(names, values)))
        for i in large:
            print(f"    {100 * over[i]:+6.2f}%  {rows[i]['name']}")
        print("    " + summary([over[i] for i in large]))


if __name__ == "__main__":
    main()
