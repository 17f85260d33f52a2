#!/usr/bin/env python3
"""Does the planner keep the laws that any user takes for granted?

Usage: experiments/planner_laws.py [--random N] [--first N] [--seed N] [--jobs N] [--law NAME...] [--output FILE]
                                   [--zones N] [--space full|paper] [--cost-model simulator|artifact]

Plans for N random clusters (200; those of planner_ablation.py, or with --zones those of three to N zones, at most five),
and for each once more with less of everything: a plan of what is less must not be better, event by event, to 1e-6.

  node    one node less of some group of nodes
  type    without one of the GPU types
  zone    without one of the zones
  link    half the bandwidth between zones
  space   --space paper, where the larger is the full space
  pin     one GPU type, one tensor-parallel degree, one micro-batch size
  limit   a bound on the other of time and money that is a tenth tighter than where the bound is half of what is possible

The artifact's links are those of its publication, whatever the cluster says: `link` says nothing there.
Prints of each law how many inputs were tried, on how many it is broken, and the worst of them. FILE (default:
./planner-laws.tsv) has a line for each input and law. Programs: $PATH, else build/bin; profile: the published figures.
Exit status 1 if a law is broken.
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
LAWS = ["node", "type", "zone", "link", "space", "pin", "limit"]
TOLERANCE = 1e-6


def less(law, links, nodes, arguments, draw):
    """Links, nodes and arguments of a smaller input; None where the law says nothing."""
    if law == "node":
        index = draw.randrange(len(nodes))
        smaller = [[count - (i == index), gpu, zone] for i, (count, gpu, zone) in enumerate(nodes)]
        smaller = [group for group in smaller if group[0] > 0]
        return (links, smaller, arguments) if smaller else None
    if law in ("type", "zone"):
        column = 1 if law == "type" else 2
        values = sorted({group[column] for group in nodes})
        out = draw.choice(values)
        return (links, [group for group in nodes if group[column] != out], arguments) if len(values) > 1 else None
    if law == "link":
        return ([bandwidth / 2 for bandwidth in links], nodes, arguments) if links else None
    if law == "space":
        return links, nodes, ["--space", "paper", *arguments[2:]]
    if law == "pin":
        pins = [f"gpu={draw.choice(nodes)[1]}", f"tensor_parallel={draw.choice([1, 2, 4])}",
                f"micro_batch={draw.choice([1, 2, 4])}"]
        return links, nodes, [*arguments, "--pin", ",".join(pins)]
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


def cluster_file(links, nodes):
    """Text of a cluster.toml. There are links for the first zones of ZONES, whether they have nodes or not."""
    count = next(n for n in range(1, len(ZONES) + 1) if n * (n - 1) // 2 == len(links))
    bandwidths = iter(links)
    text = zones_text("random", {zone: zone[:-2] for zone in ZONES[:count]}, lambda: next(bandwidths))
    return text + "".join(nodes_text(*group) for group in nodes)


def check(law, number, options, folder):
    """Scores of the larger and of the smaller input, greater is better (None: no plan); None where there is no smaller."""
    by_artifact = options.cost_model == "artifact"
    if (law == "space" and options.space == "paper") or (law == "link" and by_artifact):
        return None
    draw = random.Random(f"{options.seed}.{number}.{law}")
    if options.zones:
        links, nodes, arguments = cluster_of_zones(number, options.seed, options.zones)
        write = cluster_file
    else:
        links, nodes, arguments = random_cluster(number, options.seed)
        write = planner_ablation.cluster_file
    arguments = ["--space", options.space, "--cost-model", options.cost_model, *arguments]

    def score(links, nodes, arguments, name):
        where = folder / f"{number}-{law}-{name}.toml"
        where.write_text(write(links, nodes))
        precision = None if by_artifact else "fp16"
        return planner_ablation.search(["--cluster", str(where), *arguments], None, precision)[0]

    if law == "limit":
        by_money = arguments[-1] == "throughput"
        arguments = [*arguments[:-1], "throughput" if by_money else "cost"]
        best = score(links, nodes, [*arguments[:-1], "cost" if by_money else "throughput"], "other")
        if best is None:
            return None

        def limited(times):
            return ["--max-cost", repr(times / best)] if by_money else ["--min-throughput", repr(best / times)]

        return (score(links, nodes, arguments + limited(2.2), "larger"),
                score(links, nodes, arguments + limited(2.0), "smaller"))
    smaller = less(law, links, nodes, arguments, draw)
    if smaller is None:
        return None
    return score(links, nodes, arguments, "larger"), score(*smaller, "smaller")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=200, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first input")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--law", nargs="+", choices=LAWS, default=LAWS, metavar="NAME")
    parser.add_argument("--zones", type=int, choices=[3, 4, 5], metavar="N", help="clusters of three to N zones")
    parser.add_argument("--space", choices=["full", "paper"], default="full")
    parser.add_argument("--cost-model", choices=["simulator", "artifact"], default="simulator")
    parser.add_argument("--output", default="planner-laws.tsv")
    options = parser.parse_args()
    broken = {law: [] for law in options.law}
    tried = dict.fromkeys(options.law, 0)
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool, \
            open(options.output, "w") as table:
        print("input\tlaw\tscore\tscore of less\tworse by", file=table)
        work = [(number, law, pool.submit(check, law, number, options, pathlib.Path(scratch)))
                for number in range(options.first, options.first + options.random) for law in options.law]
        for number, law, run in work:
            scores = run.result()
            if scores is None or scores[1] is None:
                continue
            more, fewer = scores
            tried[law] += 1
            worse = 1.0 if more is None else 1.0 - more / fewer
            print(f"random {number}\t{law}\t{more}\t{fewer}\t{worse:.6f}", file=table, flush=True)
            if worse > TOLERANCE:
                broken[law].append((worse, number))
    print(f"{'law':8} {'tried':>6} {'broken':>7} {'worst':>8}  where")
    for law in options.law:
        worst, where = max(broken[law], default=(0.0, None))
        print(f"{law:8} {tried[law]:6} {len(broken[law]):7} {worst:8.3%}  {'-' if where is None else f'random {where}'}")
    sys.exit(1 if any(broken.values()) else 0)


if __name__ == "__main__":
    main()
