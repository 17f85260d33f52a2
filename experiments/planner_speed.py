#!/usr/bin/env python3
"""How fast is sailor-plan, and how much memory does it take, beside the authors' planner?

Usage: experiments/planner_speed.py [--runs N] [--threads N] [--output FOLDER] [--largest N] [--no-growth] [ROW...]

Runs whole processes, from start to printed plan, on the clusters of experiments/clusters: wall time (median of N runs,
5), largest resident memory, best throughput and the gap that the planner states. The authors' figures are theirs, of the
same kind of machine with 2 cores (their search in CPU seconds, and the tables that they build before it). Then how time
grows with the number of GPUs, of types and of zones. Writes speed.tsv, growth.tsv and growth.png (with gnuplot) to
FOLDER, ./planner-speed. Programs: $PATH, else build/bin; profile: the published figures.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

here = pathlib.Path(__file__).resolve().parent
program = shutil.which("sailor-plan") or str(here.parent / "build" / "bin" / "sailor-plan")

OPT = ("opt-350m-sailor", 1024)
NEO = ("gpt-neo-2.7b-sailor", 2048)
# Cluster, model, wanted seconds, the authors' search and tables in seconds (None: it does not finish).
TABLE = [
    ("a100-128", OPT, 0.05, 0.16, 11.0),
    ("a100-128-v100-384", OPT, 0.5, 8.2, 12.0),
    ("a100-256-v100-256", NEO, 1.0, 16.0, 2.9),
    ("three-types-32", OPT, 1.0, 131.0, 4.0),
    ("three-types-256", OPT, 5.0, 4900.0, None),
    ("four-types-five-zones", OPT, 60.0, None, None),
    ("a100-10000", OPT, 1.0, None, None),
]


def plan(cluster, model, threads):
    """Wall seconds, resident bytes, answer (None when no plan was found)."""
    name, batch = model
    arguments = [program, "--cluster", str(cluster), "--model", name, "--global-batch", str(batch), "--profile",
                 "published", "--framework", "megatron-deepspeed", "--top", "1", "--format", "json"]
    if threads:
        arguments += ["--threads", str(threads)]
    start = time.perf_counter()
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    answer = json.loads(output) if process.returncode == 0 else None
    return wall, usage.ru_maxrss * 1024, answer


def measure(cluster, model, runs, threads):
    results = [plan(cluster, model, threads) for _ in range(runs)]
    return statistics.median(r[0] for r in results), max(r[1] for r in results), results[-1][2]


def zones_text(name, regions, bandwidth):
    """A cluster file without nodes: `regions` by zone, and what `bandwidth()` gives for the link of each two of them
    (None: no links)."""
    text = f'schema_version = 1\nname = "{name}"\n'
    zones = list(regions)
    for zone in zones:
        text += f'[[zones]]\nname = "{zone}"\nregion = "{regions[zone]}"\n'
    for i, a in enumerate(zones):
        for b in zones[i + 1:] if bandwidth else []:
            text += (f'[[links]]\nfrom = "{a}"\nto = "{b}"\nbandwidth_bytes_per_s = {bandwidth()}\nlatency_s = 0.5e-3\n'
                     'egress_usd_per_byte = 0.01e-9\n')
    return text


def nodes_text(count, gpu, zone):
    """`count` nodes of 4 GPUs."""
    return (f'[[nodes]]\ncount = {count}\ngpu = "{gpu}"\ngpus_per_node = 4\n'
            f'memory_per_node_bytes = 6.8e11\nzone = "{zone}"\n')


def cluster_text(types, zones, gpus_each):
    """`gpus_each` GPUs of every type in every zone, in nodes of 4, with the links of four-types-five-zones.toml."""
    text = zones_text("growth", dict.fromkeys(zones, "us-central1"), lambda: 12.5e9)
    for zone in zones:
        for gpu in types:
            text += nodes_text(gpus_each // 4, gpu, zone)
    return text


def growth(folder, runs, threads, largest):
    """Rows: series, x, seconds."""
    types = ["A100-40", "V100-16", "GH200-96"]
    zones = ["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-west1-b"]
    inputs = []
    inputs += [("GPUs of one type", n, types[:1], zones[:1], n) for n in (16, 64, 256, 1024, 4096, 10000)]
    inputs += [("GPUs of each of two types", n, types[:2], zones[:1], n) for n in (16, 64, 256, 1024)]
    inputs += [("types of 128", n, types[:n], zones[:1], 128) for n in (1, 2, 3)]
    inputs += [("zones of 128 A100", n, types[:1], zones[:n], 128) for n in (1, 2, 3, 4, 5)]
    rows = []
    for series, x, gpus, places, each in inputs:
        if len(gpus) * len(places) * each > largest:
            continue
        path = folder / "growth.toml"
        path.write_text(cluster_text(gpus, places, each))
        seconds, _, _ = measure(path, OPT, runs, threads)
        rows.append((series, x, seconds))
        print(f"{series}: {x}: {seconds:.3f} s", file=sys.stderr)
    path.unlink()
    return rows


def draw(folder, rows):
    if not shutil.which("gnuplot"):
        print("growth.png is not drawn: gnuplot is not there", file=sys.stderr)
        return
    by_series = {}
    for series, x, seconds in rows:
        by_series.setdefault(series, []).append((x, seconds))
    script = ['set terminal pngcairo size 1200,420', f'set output "{folder / "growth.png"}"',
              'set multiplot layout 1,3', 'set ylabel "seconds, whole process"', 'set key top left', 'set grid',
              'set yrange [0:*]']
    for titles, label, logarithmic in ((["GPUs of one type", "GPUs of each of two types"], "GPUs of a type", True),
                                       (["types of 128"], "GPU types of 128", False),
                                       (["zones of 128 A100"], "zones of 128 A100", False)):
        titles = [title for title in titles if title in by_series]
        if not titles:
            continue
        script.append(f'set xlabel "{label}"')
        script.append("set logscale x" if logarithmic else "unset logscale x\nset xtics 1")
        curves = [f"'-' with linespoints title \"{title}\"" for title in titles]
        script.append("plot " + ", ".join(curves))
        for title in titles:
            script += [f"{x} {seconds}" for x, seconds in by_series[title]] + ["e"]
    script.append("unset multiplot")
    subprocess.run(["gnuplot"], input="\n".join(script) + "\n", text=True, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="processes per input [5]")
    parser.add_argument("--threads", type=int, default=0, help="threads of the planner, 0: its own choice [0]")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("planner-speed"), help="folder")
    parser.add_argument("--no-growth", action="store_true", help="only the table")
    parser.add_argument("--largest", type=int, default=10000, help="grow up to so many GPUs in all [10000]")
    parser.add_argument("row", nargs="*", help="only inputs of the table whose name contains one of these")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)

    print(f"{'input':<24}{'wall s':>9}{'wanted':>8}{'authors s':>11}{'times faster':>14}{'MB':>7}"
          f"{'iterations/s':>14}{'gap':>8}")
    lines = ["input\twall_s\twanted_s\tauthors_search_s\tauthors_tables_s\tratio\tresident_mb\titerations_per_s\tgap"]
    for name, model, wanted, search, tables in TABLE:
        if options.row and not any(part in name for part in options.row):
            continue
        wall, resident, answer = measure(here / "clusters" / f"{name}.toml", model, options.runs, options.threads)
        authors = None if search is None else search + (tables or 0.0)
        ratio = f"{authors / wall:.0f}" if authors else "-"
        best = answer["plans"][0]["throughput_iterations_per_s"] if answer else float("nan")
        gap = answer["bound"]["gap"] if answer else None
        gap_text = f"{100 * gap:.2f}%" if gap is not None else "-"
        print(f"{name:<24}{wall:>9.3f}{wanted:>8}{authors or '-':>11}{ratio:>14}{resident / 1e6:>7.0f}{best:>14.4f}"
              f"{gap_text:>8}", flush=True)
        lines.append("\t".join(str(x) for x in (name, wall, wanted, search, tables, ratio, resident / 1e6, best, gap)))
    (options.output / "speed.tsv").write_text("\n".join(lines) + "\n")
    if options.no_growth:
        return
    rows = growth(options.output, options.runs, options.threads, options.largest)
    (options.output / "growth.tsv").write_text(
        "series\tx\tseconds\n" + "".join(f"{s}\t{x}\t{t:.4f}\n" for s, x, t in rows))
    draw(options.output, rows)


if __name__ == "__main__":
    main()
