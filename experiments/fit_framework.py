#!/usr/bin/env python3
"""Fits the constants of a framework description to measured runs, and says how well they predict runs that they were
not fitted to.

Usage: experiments/fit_framework.py [--cases FILE] [--profile STORE] [--framework FILE] [--small-nodes N] [--steps N]

Time: each constant is fitted to the runs that it decides, by least squares of relative errors, one after the other:
profiling_overhead to runs of one stage; transfer_overhead_s to pipelines with micro-batches of one sequence, whose
messages are small; reduction_rate_bytes_per_s to replicas of one stage. Pipelines with larger micro-batches have no part
in it: they are the runs kept aside. Memory: base_bytes of the GPU is the least with which no run is predicted too low,
and 0.1 GB more, by which equal runs differ.

Prints the constants with the error of every run; the errors of the runs kept aside; those of each run under a fit to
all others (leave one out); those of the runs on more than N nodes (8) under a fit to the rest, a stage counting as a
node. Every prediction is one call of sailor-simulate ($PATH, else build/bin): a minute in all.
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
REPEATS_DIFFER_BY = 0.1e9  # bytes


class Case:
    """What decides the constants that a run takes part in."""

    def __init__(self, name, plan):
        self.name = name
        pipelines = plan["pipelines"]
        self.nodes = sum(pipeline.get("count", 1) * len(pipeline["stages"]) for pipeline in pipelines)
        self.stages = max(len(pipeline["stages"]) for pipeline in pipelines)
        self.micro_batch = plan["micro_batch"]

    def decides(self, constant):
        if constant == "profiling_overhead":
            return self.nodes == 1
        if constant == "transfer_overhead_s":
            return self.stages > 1 and self.micro_batch == 1
        return self.stages == 1 and self.nodes > 1


# With the value that the search starts from.
TIME = {"profiling_overhead": 0.2, "transfer_overhead_s": 1e-3, "reduction_rate_bytes_per_s": 3e9}


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


def minimize(function, start, steps):
    """Of one number, between nothing and three times the start: golden sections."""
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    low, high = 0.0 * start, 3.0 * start
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = function(a), function(b)
    for _ in range(steps):
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = function(b)
        if high - low < 1e-3 * start:
            break
    return 0.5 * (low + high)


def summary(errors):
    sizes = sorted(abs(error) for error in errors)
    at = 0.95 * (len(sizes) - 1)
    low = math.floor(at)
    p95 = sizes[low] + (at - low) * (sizes[min(low + 1, len(sizes) - 1)] - sizes[low])
    return (f"mean {100 * statistics.fmean(sizes):.2f}%  P95 {100 * p95:.2f}%  max {100 * sizes[-1]:.2f}%  "
            f"bias {100 * statistics.fmean(errors):+.2f}%  "
            f"lowest {100 * min(errors):+.2f}%")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=os.path.join(HERE, "experiments/gh200-opt-350m.toml"))
    parser.add_argument("--profile", default="published")
    parser.add_argument("--framework", default=os.path.join(HERE, "profiles/frameworks/megatron-deepspeed.toml"))
    parser.add_argument("--gpu", default="GH200-96", help="its base_bytes is fitted [default: %(default)s]")
    parser.add_argument("--steps", type=int, default=30, metavar="N", help="of each search, at most [default: %(default)s]")
    parser.add_argument("--small-nodes", type=int, default=8, metavar="N")
    arguments = parser.parse_args()
    os.environ["PATH"] += os.pathsep + os.path.join(HERE, "build/bin")
    simulator = Simulator(arguments)

    def errors(values, what="iteration_time"):
        return [row[f"{what}_error_percent"] / 100 for row in simulator.cases(values)]

    with open(arguments.cases, "rb") as file:
        cases = [Case(case["name"], case["plan"]) for case in tomllib.load(file)["cases"]]
    everything = range(len(cases))

    def fit(chosen):
        values = dict(TIME)
        for name, start in TIME.items():
            deciding = [i for i in chosen if cases[i].decides(name)]
            if not deciding:
                continue

            def loss(value):
                found = errors({**values, name: value})
                return sum(found[i] ** 2 for i in deciding)
            values[name] = minimize(loss, start, arguments.steps)
        return values

    def fit_base(chosen):
        """Errors of memory are those of a sum, so a straight line in the base."""
        rows = simulator.cases({"base_bytes": 0.0})
        lacking = [rows[i]["measured_peak_memory_bytes"] - rows[i]["peak_memory_bytes"] for i in chosen]
        return {"base_bytes": max(lacking) + REPEATS_DIFFER_BY}

    def tell(values):
        return ", ".join(f"{name} = {value:.4g}" for name, value in values.items())

    for what, fitted in (("iteration_time", fit), ("peak_memory", fit_base)):
        values = fitted(everything)
        found = errors(values, what)
        print(f"{what}: {tell(values)}")
        aside = [i for i in everything if what == "iteration_time" and not any(cases[i].decides(name) for name in TIME)]
        for i in everything:
            print(f"  {100 * found[i]:+6.2f}%  {'kept aside ' if i in aside else ''}{cases[i].name}")
        print("  all runs:            " + summary(found))
        if aside:
            print("  kept aside:          " + summary([found[i] for i in aside]))
        left_out = [errors(fitted([j for j in everything if j != i]), what)[i] for i in everything]
        print("  each by the others:  " + summary(left_out))
        large = [i for i in everything if cases[i].nodes > arguments.small_nodes]
        values = fitted([i for i in everything if i not in large])
        over = errors(values, what)
        print(f"  over {arguments.small_nodes} nodes by the rest: {tell(values)}")
        for i in large:
            print(f"    {100 * over[i]:+6.2f}%  {cases[i].name}")
        print("    " + summary([over[i] for i in large]))


if __name__ == "__main__":
    main()
