#!/usr/bin/env python3
"""How much faster are the plans of sailor-plan than those of the authors' planner, by Sailor's own simulator?

Usage: experiments/planner_quality.py [--bin FOLDER] [ROW...]

The inputs of figure 8b of the Sailor paper (A100 and V100 in one zone) and GPT-Neo-2.7B on 256 + 256: the authors' plans
as their planner answers (github.com/eth-easl/sailor, commit 16eebd4, run unchanged), read by sailor-simulate from the
original's JSON, beside the best plan of sailor-plan in the full space; both event by event, under the description of
Megatron-DeepSpeed and with the published figures. `bound`: by the closed form no plan of the space is faster.
Programs: --bin, else $PATH, else build/bin.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
A, V = "A100-40", "V100-16"
ZONE = "us-central1-a"
# Model, global batch, A100, V100, micro-batch, layers of every stage, and its replicas: (GPU, number, tensor parallel).
CASES = [
    ("figure 8b, row 0", "OPT-350", 1024, 32, 96, 2, [13, 13], [[(A, 3, 1), (V, 24, 4)], [(A, 27, 1)]]),
    ("figure 8b, row 1", "OPT-350", 1024, 80, 240, 1, [3, 3, 4, 4, 4, 4, 4],
     [[(V, 20, 4)]] + 4 * [[(A, 20, 1)]] + 2 * [[(V, 20, 4)]]),
    ("figure 8b, row 2", "OPT-350", 1024, 128, 384, 1, [3, 3, 4, 4, 4, 4, 4],
     [[(V, 32, 4)]] + 4 * [[(A, 32, 1)]] + 2 * [[(V, 32, 4)]]),
    ("GPT-Neo, 256 + 256", "GPT-Neo-2.7", 2048, 256, 256, 1, [2, 2] + 10 * [3],
     2 * [[(V, 26, 4)]] + 9 * [[(A, 26, 1)]] + [[(A, 14, 1), (V, 12, 4)]]),
]


def cluster(a100, v100):
    text = f'schema_version = 1\nname = "{a100} A100 + {v100} V100"\n[[zones]]\nname = "{ZONE}"\nregion = "us-central1"\n'
    for gpu, count in ((A, a100), (V, v100)):
        text += (f'[[nodes]]\ncount = {count // 4}\ngpu = "{gpu}"\ngpus_per_node = 4\ncpus_per_node = 48\n'
                 f'memory_per_node_bytes = 340e9\nzone = "{ZONE}"\n')
    return text


def original(micro_batch, batch, layers, stages):
    ranges, first = [], 0
    for count in layers:
        ranges.append(list(range(first, first + count)))
        first += count
    replicas = [[[[[gpu, 4, ZONE]], tensor] for gpu, count, tensor in stage for _ in range(count)] for stage in stages]
    return {"pipeline_list": [{"num_stages": len(layers), "layers_per_stage": ranges, "tmp_per_stage": replicas,
                               "dp": [len(stage) for stage in replicas]}], "mbs": micro_batch, "gbs": batch}


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", help="folder of the programs")
    parser.add_argument("row", nargs="*", help="only inputs whose name contains one of these")
    options = parser.parse_args()
    found = shutil.which("sailor-plan")
    folder = pathlib.Path(options.bin or (os.path.dirname(found) if found else ROOT / "build/bin"))
    common = ["--framework", "megatron-deepspeed", "--profile", "published", "--format", "json"]
    print(f"{'input':20} {'authors it/s':>12} {'sailor it/s':>12} {'ratio':>6} {'bound it/s':>11}  plan")
    with tempfile.TemporaryDirectory() as scratch:
        for name, model, batch, a100, v100, micro_batch, layers, stages in CASES:
            if options.row and not any(part in name for part in options.row):
                continue
            where = pathlib.Path(scratch) / "cluster.toml"
            where.write_text(cluster(a100, v100))
            theirs = pathlib.Path(scratch) / "plan.json"
            theirs.write_text(json.dumps(original(micro_batch, batch, layers, stages)))
            before = run([folder / "sailor-simulate", theirs, "--model", model, "--cluster", where, *common])
            after = run([folder / "sailor-plan", "--cluster", where, "--model", model, "--global-batch", str(batch),
                         "--top", "1", *common])
            authors = 1.0 / before["iteration_time_s"]
            ours = after["plans"][0]["throughput_iterations_per_s"]
            bound = after["bound"]["bound"]
            print(f"{name:20} {authors:12.4f} {ours:12.4f} {ours / authors:6.2f} "
                  f"{bound if bound is None else format(bound, '.4f'):>11}  {after['plans'][0]['description']}")


if __name__ == "__main__":
    main()
