#!/usr/bin/env python3
"""How much better could a plan be than the one that sailor-plan finds?

Usage: experiments/planner_gaps.py [--prove] [--jobs J] [--threads T] [--only TEXT] [PROGRAM]

Plans for experiments/clusters (in fp16) and for the inputs of figures 7, 8b, 10 and 11 of the Sailor paper, which are
in experiments/fig*.toml, with Megatron-DeepSpeed and by the closed form. Prints for each the plan's score, by how much
the bound says that a plan could be better, how many plans the search looked at, and seconds; --prove: once more with
sailor-plan --prove. J jobs at a time [as many as there are cores], each with T threads [1].
TEXT: only inputs whose name contains it. PROGRAM: sailor-plan [that of $PATH, else of build/bin]; profile: the
published figures.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import tomllib

from planner_speed import TABLE, nodes_text, zones_text

HERE = pathlib.Path(__file__).resolve().parent
FIGURES = ["fig7", "fig8b", "fig10", "fig11"]
GPUS_PER_NODE = 4


def cluster_of(gpus):
    """cluster.toml of a [[clusters]] table of experiments/fig*.toml; links are the published ones."""
    text = zones_text("figure", {group["zone"]: group["zone"][:-2] for group in gpus}, None)
    return text + "".join(nodes_text(group["count"] // GPUS_PER_NODE, group["gpu"], group["zone"]) for group in gpus)


def figure_inputs(folder):
    for figure in FIGURES:
        for path in (HERE / f"{figure}.toml", HERE / f"{figure}-gpt-neo.toml"):
            sweep = tomllib.loads(path.read_text())
            limits = sweep.get("constraints", [{}])[0]
            for cluster in sweep["clusters"]:
                model = sweep["models"][0]
                where = folder / f"{path.stem}-{cluster['name'].replace(' ', '-')}.toml"
                where.write_text(cluster_of(cluster["gpus"]))
                arguments = ["--cluster", str(where), "--model", model["model"], "--global-batch", str(model["global_batch"]),
                             "--sequence-length", str(model["sequence_length"]), "--precision", model["precision"]]
                if "objective" in limits:
                    arguments += ["--objective", limits["objective"]]
                if "min_throughput_iterations_per_s" in limits:
                    arguments += ["--min-throughput", str(limits["min_throughput_iterations_per_s"])]
                yield f"{path.stem}, {cluster['name']}", arguments


def inputs(folder):
    """(name, arguments)"""
    for name, (model, batch), *_ in TABLE:
        yield name, ["--cluster", str(HERE / "clusters" / f"{name}.toml"), "--model", model, "--global-batch", str(batch),
                     "--precision", "fp16"]
    yield from figure_inputs(folder)


def search(program, arguments, prove, threads):
    """Score of the best plan, gap (None: no bound), number of plans looked at, seconds."""
    start = time.perf_counter()
    done = subprocess.run([program, *arguments, "--framework", "megatron-deepspeed", "--profile", "published", "--threads",
                           str(threads), "--top", "1", "--format", "json", *(["--prove"] if prove else [])], capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise RuntimeError(f"{program} {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
    answer = json.loads(done.stdout)
    plan = answer["plans"][0]
    is_cost = "--objective" in arguments
    score = f"{plan['cost_usd_per_iteration']:.4f} USD" if is_cost else f"{plan['throughput_iterations_per_s']:.4f} it/s"
    return score, answer["bound"]["gap"], answer["considered"], seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prove", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="J")
    parser.add_argument("--threads", type=int, default=1, metavar="T")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("program", nargs="?", default=shutil.which("sailor-plan") or str(HERE.parent / "build/bin/sailor-plan"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        chosen = [(name, arguments) for name, arguments in inputs(pathlib.Path(scratch)) if options.only in name]
        efforts = [False, True] if options.prove else [False]
        work = [(name, [pool.submit(search, options.program, arguments, prove, options.threads) for prove in efforts]) for name, arguments in chosen]
        for name, runs in work:
            answers = [run.result() for run in runs]
            print(f"{name:56}", *(f"{score:>14} {'none' if gap is None else format(gap, '.1%'):>7} {plans:>9} plans {seconds:5.0f} s"
                                  for score, gap, plans, seconds in answers), sep="  ", flush=True)


if __name__ == "__main__":
    main()
