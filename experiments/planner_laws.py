#!/usr/bin/env python3
"""Does the planner keep the laws that any user takes for granted?

Usage: experiments/planner_laws.py [--random N] [--first N] [--seed N] [--jobs N] [--law NAME...] [--output FILE]
                                   [--zones N | --small [--goal NAME...]] [--space full|paper] [--cost-model simulator|artifact]
                                   [--keep FOLDER]

Plans for N random clusters (200; those of planner_ablation.py, or with --zones those of three to N zones, at most five),
and for each once more with less of everything: a plan of what is less must not be better, event by event, to 1e-6.

  node      one node less of some group of nodes
  type      without one of the GPU types
  one-type  with one GPU type alone
  zone      without one of the zones
  link      half the bandwidth between zones
  price     a GPU type that is a tenth dearer
  space     --space paper, where the larger is the full space
  pin       one GPU type, one tensor-parallel degree, one micro-batch size
  limit     a bound on the other of time and money that is a tenth tighter where the bound is half of what is possible

--small: one to three zones, two or three GPU types, up to five pools of one to eight nodes, small batches, and every goal:
throughput, cost, throughput-per-usd, budget (throughput within twice the least cost), floor (cost above half of the largest
throughput).
The artifact's links and prices are those of its publication, whatever the cluster says: `link` and `price` say nothing
there. Prints of each law how many inputs were tried, on how many it is broken, and the worst of them, as arguments that
try it again. FILE (default: ./planner-laws.tsv) has a line for each input and law. --keep: the cluster files stay in
FOLDER. Programs: $PATH, else build/bin; profile: the published figures. Exit status 1 if a law is broken.
"""
import argparse
import concurrent.futures
import os
import pathlib
import random
import sys
import tempfile

import planner_ablation
from planner_ablation import random_cluster
from planner_speed import NEO, OPT, nodes_text, zones_text

ZONES = ["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-west1-b"]
LAWS = ["node", "type", "one-type", "zone", "link", "price", "space", "pin", "limit"]
GOALS = ["throughput", "cost", "throughput-per-usd", "budget", "floor"]
PRICES = {"A100-40": 3.673385, "V100-16": 2.859998, "GH200-96": 11.06}  # USD per hour, of profiles/gpus.toml
TOLERANCE = 1e-6


class Input:
    """A cluster and what is asked about it; `arguments` are a list."""

    def __init__(self, links, nodes, arguments, prices=None):
        self.links, self.nodes, self.arguments, self.prices = links, nodes, arguments, prices or {}

    def but(self, **changes):
        return Input(**{**self.__dict__, **changes})

    def zones(self):
        """Zones of the file. There are links for all of them, whether they have nodes or not."""
        return ZONES[: next(n for n in range(1, len(ZONES) + 1) if n * (n - 1) // 2 == len(self.links))]

    def text(self, zones):
        bandwidths = iter(self.links)
        text = zones_text("random", {zone: zone[:-2] for zone in zones}, lambda: next(bandwidths))
        text += "".join(f'[[prices]]\ngpu = "{gpu}"\nusd_per_hour = {price}\n' for gpu, price in self.prices.items())
        return text + "".join(nodes_text(*group) for group in self.nodes)


def less(law, given, draw):
    """A smaller input; None where the law says nothing."""
    nodes = given.nodes
    types = sorted({group[1] for group in nodes})
    if law == "node":
        index = draw.randrange(len(nodes))
        smaller = [[count - (i == index), gpu, zone] for i, (count, gpu, zone) in enumerate(nodes)]
        smaller = [group for group in smaller if group[0] > 0]
        return given.but(nodes=smaller) if smaller else None
    if law in ("type", "zone"):
        column = 1 if law == "type" else 2
        values = sorted({group[column] for group in nodes})
        out = draw.choice(values)
        return given.but(nodes=[group for group in nodes if group[column] != out]) if len(values) > 1 else None
    if law == "one-type":
        only = draw.choice(types)
        return given.but(nodes=[group for group in nodes if group[1] == only]) if len(types) > 1 else None
    if law == "link":
        return given.but(links=[bandwidth / 2 for bandwidth in given.links]) if given.links else None
    if law == "price":
        gpu = draw.choice(types)
        return given.but(prices={gpu: PRICES[gpu] * 1.1})
    if law == "space":
        return given.but(arguments=["--space", "paper", *given.arguments[2:]])
    if law == "pin":
        pins = [f"gpu={draw.choice(nodes)[1]}", f"tensor_parallel={draw.choice([1, 2, 4])}",
                f"micro_batch={draw.choice([1, 2, 4])}"]
        return given.but(arguments=[*given.arguments, "--pin", ",".join(pins)])
    raise ValueError(law)


def cluster_of_zones(number, seed, most):
    """As random_cluster(), of three to `most` zones with one or two GPU types."""
    draw = random.Random(f"zones.{seed}.{number}")
    zones = ZONES[: draw.randint(3, most)]
    types = draw.sample(planner_ablation.TYPES, draw.choice([1, 2]))
    links = [draw.choice([1.25e9, 5e9, 12.5e9]) for _ in range(len(zones) * (len(zones) - 1) // 2)]
    nodes = [[count, gpu, zone] for zone in zones for gpu in types if (count := draw.choice([0, 1, 2, 4, 8, 16]))]
    model, batch = draw.choice([OPT, NEO, (OPT[0], 256)])
    arguments = ["--model", model, "--global-batch", str(batch), "--framework", draw.choice(["megatron-deepspeed", "sailor"])]
    return links, nodes or [[1, types[0], zones[0]]], [*arguments, "--objective", draw.choice(["throughput", "cost"])]


def small_cluster(number, seed, goals):
    draw = random.Random(f"hunt.{seed}.{number}")
    zones = ZONES[: draw.choice([1, 2, 2, 3])]
    types = draw.sample(planner_ablation.TYPES, draw.choice([2, 3, 3]))
    links = [draw.choice([1.25e9, 5e9, 12.5e9]) for _ in range(len(zones) * (len(zones) - 1) // 2)]
    pools = [(gpu, zone) for zone in zones for gpu in types]
    chosen = sorted(draw.sample(range(len(pools)), draw.randint(2, min(len(pools), 5))))
    nodes = [[draw.choice([1, 1, 2, 3, 5, 8]), *pools[i]] for i in chosen]
    model, batch = draw.choice([(OPT[0], 64), (OPT[0], 128), (NEO[0], 64)])
    goal = draw.choice(goals)
    framework = draw.choice(["megatron-deepspeed", "sailor"])
    return links, nodes, ["--model", model, "--global-batch", str(batch), "--framework", framework, "--objective", goal]


class Trial:
    """One random input, and what is less than it."""

    def __init__(self, number, options, folder):
        self.number, self.options, self.folder = number, options, folder
        if options.small:
            links, nodes, arguments = small_cluster(number, options.seed, options.goal)
        elif options.zones:
            links, nodes, arguments = cluster_of_zones(number, options.seed, options.zones)
        else:
            links, nodes, arguments = random_cluster(number, options.seed)
        given = Input(links, nodes, ["--space", options.space, "--cost-model", options.cost_model, *arguments])
        self.zones = (ZONES if options.small or options.zones else planner_ablation.ZONES)[: len(given.zones())]
        self.given = self.with_limit(given)

    def score(self, given, name):
        where = self.folder / f"{self.number}-{name}.toml"
        where.write_text(given.text(self.zones))
        precision = None if self.options.cost_model == "artifact" else "fp16"
        arguments = ["--cluster", str(where), *given.arguments, "--threads", "1"]
        return planner_ablation.search(arguments, None, precision)[0]

    def with_limit(self, given):
        """The goals `budget` and `floor` as an objective and a limit."""
        goal = given.arguments[-1]
        if goal not in ("budget", "floor"):
            return given
        objective = "throughput" if goal == "budget" else "cost"
        return self.limited(given.but(arguments=[*given.arguments[:-1], objective]), 2.0) or given.but(
            arguments=[*given.arguments[:-1], objective])

    def limited(self, given, times):
        """With a limit that is `times` what is possible; None where nothing is."""
        by_money = given.arguments[-1] == "throughput"
        best = self.score(given.but(arguments=[*given.arguments[:-1], "cost" if by_money else "throughput"]), "other")
        if best is None:
            return None
        limit = ["--max-cost", repr(times / best)] if by_money else ["--min-throughput", repr(best / times)]
        return given.but(arguments=[*given.arguments[:-1], given.arguments[-1], *limit])

    def run(self):
        """(law, score of the larger, of the smaller) of every law that says something; greater is better, None: no plan."""
        whole = self.score(self.given, "whole")
        return [(law, *scores) for law in self.options.law if (scores := self.check(law, whole)) and scores[1] is not None]

    def check(self, law, whole):
        options = self.options
        if (law == "space" and options.space == "paper") or (law in ("link", "price") and options.cost_model == "artifact"):
            return None
        draw = random.Random(f"{options.seed}.{self.number}.{law}")
        if law == "limit":
            plain = self.given.arguments
            plain = plain[: plain.index("--objective") + 2]
            by_money = plain[-1] == "throughput"
            given = self.given.but(arguments=[*plain[:-1], "throughput" if by_money else "cost"])
            looser, tighter = self.limited(given, 2.2), self.limited(given, 2.0)
            return (self.score(looser, "looser"), self.score(tighter, "tighter")) if looser and tighter else None
        smaller = less(law, self.given, draw)
        return (whole, self.score(smaller, law)) if smaller else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=200, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first input")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--law", nargs="+", choices=LAWS, default=LAWS, metavar="NAME")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--zones", type=int, choices=[3, 4, 5], metavar="N", help="clusters of three to N zones")
    which.add_argument("--small", action="store_true", help="small clusters of two or three GPU types")
    parser.add_argument("--goal", nargs="+", choices=GOALS, default=GOALS, metavar="NAME", help="of the small clusters")
    parser.add_argument("--space", choices=["full", "paper"], default="full")
    parser.add_argument("--cost-model", choices=["simulator", "artifact"], default="simulator")
    parser.add_argument("--output", default="planner-laws.tsv")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER")
    options = parser.parse_args()
    broken = {law: [] for law in options.law}
    tried = dict.fromkeys(options.law, 0)
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool, \
            open(options.output, "w") as table:
        folder = options.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        print("input\tlaw\tscore\tscore of less\tworse by", file=table)
        numbers = range(options.first, options.first + options.random)
        work = [(number, pool.submit(lambda of: Trial(of, options, folder).run(), number)) for number in numbers]
        for number, run in work:
            for law, more, fewer in run.result():
                tried[law] += 1
                worse = 1.0 if more is None else 1.0 - more / fewer
                print(f"random {number}\t{law}\t{more}\t{fewer}\t{worse:.6f}", file=table, flush=True)
                if worse > TOLERANCE:
                    broken[law].append((worse, number))
    print(f"{'law':8} {'tried':>6} {'broken':>7} {'worst':>8}  where")
    for law in options.law:
        worst, where = max(broken[law], default=(0.0, None))
        again = "-" if where is None else f"--seed {options.seed} --first {where} --random 1 --law {law}"
        print(f"{law:8} {tried[law]:6} {len(broken[law]):7} {worst:8.3%}  {again}")
    sys.exit(1 if any(broken.values()) else 0)


if __name__ == "__main__":
    main()
