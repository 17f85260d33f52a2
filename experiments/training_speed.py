#!/usr/bin/env python3
"""How fast does sailor-train train on this machine's cores, beside PyTorch, and two ranks beside two processes?

Usage: experiments/training_speed.py [--rounds N] [--iterations N] [--blocks N] [--threads N,N] [--openblas FOLDER]
                                     [--python PROGRAM] [ROW...]

Two tables, every row in interleaved rounds (5), medians of the rounds and of their ratios; fp32,
so many iterations (7) a run, of which the first 2 do not count:

1. One process, with 1 thread and with 2: blocks of OPT-350M forward and backward (bench_block), and a whole iteration
   with AdamW of a GPT of 12 blocks of width 256 (sailor-train), against PyTorch: as packaged, and tuned as its users
   can: malloc that keeps its memory, and with --openblas FOLDER the OpenMP build of OpenBLAS in it (Debian's
   libopenblas0-openmp, which need not be installed: `dpkg -x`). The ratio is to the faster of the two.
2. Two ranks with one core each against what two processes with one core each do together in the same round: data
   parallel, and pipelines of two stages with n micro-batches, whose ratio cannot exceed n / (n + 1).

ROW: only rows whose name contains one of these. --blocks: of the GPT (12). --python: one that can import torch (this
one, else /usr/bin/python3).
Programs: $PATH, else build/bin; bench_block: $PATH, else build/tests. Needs mpirun, taskset and 2 cores. Files stay in
./training-speed. 15 minutes.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

here = pathlib.Path(__file__).resolve().parent
iterations = 7
layers = 14  # of the GPT: embedding, blocks, head
UNCOUNTED = 2

GPT = """schema_version = 1
name = "gpt-12"
source = "experiments/training_speed.py"
blocks = {blocks}
hidden = 256
attention_heads = 8
feed_forward = 1024
vocabulary = 8192
max_sequence_length = 256
norm = "layer_norm"
norm_placement = "pre"
final_norm = "in_head"
activation = "gelu"
position = "learned"
linear_bias = true
tied_embedding = true
"""

# Run by a Python that has torch: the name of a row, threads. Prints the median seconds.
PEER = '''
import statistics, sys, time
import torch
from torch import nn
from torch.nn import functional as F

kind, sequences, length, blocks, threads, iterations, uncounted = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(threads)
torch.manual_seed(0)

class Block(nn.Module):
    """Pre-norm with GELU (GPT), or post-norm with ReLU (OPT-350M)."""
    def __init__(self, hidden, heads, feed_forward, post):
        super().__init__()
        self.heads, self.post = heads, post
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.projected = nn.Linear(hidden, 3 * hidden)
        self.attended = nn.Linear(hidden, hidden)
        self.inner, self.outer = nn.Linear(hidden, feed_forward), nn.Linear(feed_forward, hidden)
        self.activation = F.relu if post else lambda x: F.gelu(x, approximate="tanh")
    def attention(self, x, mask):
        b, t, h = x.shape
        q, k, v = (y.view(b, t, self.heads, h // self.heads).transpose(1, 2)
                   for y in self.projected(x).split(h, dim=-1))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.softmax(q * (h // self.heads) ** -0.5 @ k.transpose(-1, -2) + mask, dim=-1) @ v
        return self.attended(y.transpose(1, 2).reshape(b, t, h))
    def forward(self, x, mask):
        if self.post:
            x = self.norm1(x + self.attention(x, mask))
            return self.norm2(x + self.outer(self.activation(self.inner(x))))
        x = x + self.attention(self.norm1(x), mask)
        return x + self.outer(self.activation(self.inner(self.norm2(x))))

class Gpt(nn.Module):
    def __init__(self, blocks, hidden, heads, vocabulary, length):
        super().__init__()
        self.table, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(length, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, 4 * hidden, False) for _ in range(blocks))
        self.norm = nn.LayerNorm(hidden)
    def forward(self, tokens, targets, mask):
        x = self.table(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x, mask)
        logits = self.norm(x) @ self.table.weight.T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

mask = torch.full((length, length), float("-inf")).triu(1)
if kind == "block":
    model, x = Block(1024, 16, 4096, True), torch.randn(sequences, length, 1024, requires_grad=True)
    gradient = torch.randn(sequences, length, 1024)
    def iteration():
        model(x, mask).backward(gradient)
        x.grad = None
        model.zero_grad(set_to_none=True)
else:
    model = Gpt(blocks, 256, 8, 8192, length)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    tokens = torch.randint(0, 256, (sequences, length + 1))
    def iteration():
        optimizer.zero_grad(set_to_none=True)
        model(tokens[:, :-1], tokens[:, 1:], mask).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
times = []
for _ in range(iterations):
    start = time.perf_counter()
    iteration()
    times.append(time.perf_counter() - start)
print(statistics.median(times[uncounted:]))
'''


def program(name, folder="bin"):
    return shutil.which(name) or str(here.parent / "build" / folder / name)


def environment(threads, **more):
    return os.environ | {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads),
                         "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} | more


def output(command, env, cores=None):
    """Starts; the function that is returned waits and gives what was printed."""
    if cores is not None:
        command = ["taskset", "-c", cores, *command]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait():
        text, error = process.communicate()
        if process.returncode:
            sys.exit(f"{' '.join(command)}: exit status {process.returncode}\n{error}")
        return text
    return wait


def cores_of(threads):
    return f"0-{threads - 1}"


def torch_seconds(python, kind, sequences, length, threads, more):
    return float(output([python, "-c", PEER, kind, *map(str, (sequences, length, layers - 2, threads, iterations,
                                                                 UNCOUNTED))],
                        environment(threads, **more), cores_of(threads))())


def block_seconds(sequences, length, threads):
    text = output([program("bench_block", "tests"), "--benchmark_format=json", "--benchmark_min_time=1.5",
                   f"--benchmark_filter=sequences:{sequences}/sequence:{length}/"],
                  environment(threads), cores_of(threads))()
    return json.loads(text)["benchmarks"][0]["real_time"] / 1e3


def plan(name, pipelines, micro_batches, stages):
    """Pipelines with as many micro-batches of 2 sequences each, and the layers of every stage."""
    text = f"""schema_version = 1
micro_batch = 2
schedule = "1f1b"
[job]
model = "gpt-12"
global_batch = {2 * pipelines * micro_batches}
sequence_length = 256
precision = "fp32"
optimizer = "adamw"
[[pipelines]]
count = {pipelines}
micro_batches = {micro_batches}
"""
    for first, last in stages:
        text += f'[[pipelines.stages]]\nlayers = [{first}, {last}]\ngpu = "cpu"\n'
    pathlib.Path(f"{name}.toml").write_text(text)
    return f"{name}.toml"


def training(plan_file, ranks, threads, cores, metrics):
    """Starts; the function that is returned waits and gives the median seconds of an iteration."""
    pathlib.Path(metrics).unlink(missing_ok=True)
    binding = ["--bind-to", "none"] if ranks == 1 else ["--bind-to", "core"]
    wait = output(["mpirun", "-n", str(ranks), *binding, program("sailor-train"), plan_file, "--models", "models", "--data",
                   "corpus", "--iterations", str(iterations), "--clip-norm", "1", "--metrics", metrics,
                   "--log-every", str(iterations)], environment(threads), cores)

    def seconds():
        wait()
        rows = [json.loads(line) for line in pathlib.Path(metrics).read_text().splitlines()]
        return statistics.median(row["time_s"] for row in rows[UNCOUNTED:])
    return seconds


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def against_torch(name, threads, rounds, python, variants, ours, kind, sequences, length):
    times = {variant: [] for variant in ("sailor", *variants)}
    for number in range(rounds):
        order = list(times)
        for variant in order[number % len(order):] + order[:number % len(order)]:
            if variant == "sailor":
                times[variant].append(ours(threads))
            else:
                times[variant].append(torch_seconds(python, kind, sequences, length, threads, variants[variant]))
    best = [min(times[variant][i] for variant in variants) for i in range(rounds)]
    ratios = [peer / own for peer, own in zip(best, times["sailor"])]
    columns = "  ".join(f"{statistics.median(times[variant]) * 1e3:10.0f}" for variant in times)
    print(f"{name:22}  {threads:7}  {columns}  {spread(ratios)}", flush=True)


def beside_processes(rounds, wanted):
    single = plan("one", 1, 8, [(0, layers)])
    rows = [("data-parallel", plan("data", 2, 8, [(0, layers)]), 1.0)]
    # 8 and 32 micro-batches over two stages; the head, with its 8,192 columns, weighs as much as 2 or 3 blocks.
    middle = layers * 4 // 7
    for micro_batches in (8, 32):
        file = plan(f"stages-{micro_batches}", 1, micro_batches, [(0, middle), (middle, layers)])
        rows.append((f"pipeline, n = {micro_batches}", file, micro_batches / (micro_batches + 1)))
    rows = [row for row in rows if wanted(row[0])]
    if not rows:
        return
    batches = {"one.toml": 16, "data.toml": 32, "stages-8.toml": 16, "stages-32.toml": 64}
    rates = {name: [] for name, _, _ in rows}
    together = []
    for _ in range(rounds):
        both = [training(single, 1, 1, str(core), f"one-{core}.jsonl") for core in (0, 1)]
        together.append(sum(batches[single] / wait() for wait in both))
        for name, file, _ in rows:
            rates[name].append(batches[file] / training(file, 2, 1, None, f"{file}.jsonl")())
    print(f"\n{'two ranks':22}  sequences/s  two processes  ratio                  ratio / (n / (n + 1))")
    for name, _, limit in rows:
        ratios = [rate / base for rate, base in zip(rates[name], together)]
        print(f"{name:22}  {statistics.median(rates[name]):11.2f}  {statistics.median(together):13.2f}  "
              f"{spread(ratios):21}  {spread([ratio / limit for ratio in ratios])}", flush=True)


def main():
    global iterations, layers
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=layers - 2)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--openblas", type=pathlib.Path)
    parser.add_argument("--python")
    parser.add_argument("row", nargs="*")
    parser.add_argument("--iterations", type=int, default=iterations)
    options = parser.parse_args()
    if options.iterations <= UNCOUNTED:
        sys.exit(f"training_speed.py: --iterations needs more than {UNCOUNTED}, which do not count")
    if options.blocks < 1:
        sys.exit("training_speed.py: --blocks needs at least 1")
    iterations, layers = options.iterations, options.blocks + 2

    def wanted(name):
        return not options.row or any(part in name for part in options.row)

    def has_torch(python):
        return subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0
    rows = [(f"block {length} x {sequences}", "block", sequences, length,
             lambda threads, s=sequences, l=length: block_seconds(s, l, threads))
            for sequences, length in ((1, 512), (2, 512), (1, 2048))]
    # PyTorch takes the batch of 16 at once, which is its fastest way; sailor-train in 8 micro-batches.
    rows.append(("gpt-12, an iteration", "gpt", 16, 256,
                 lambda threads: training(plan("one", 1, 8, [(0, layers)]), 1, threads, cores_of(threads), "one.jsonl")()))
    rows = [row for row in rows if wanted(row[0])]
    pythons = [options.python] if options.python else [sys.executable, "/usr/bin/python3"]
    python = next((python for python in pythons if has_torch(python)), None)
    if rows and python is None:
        sys.exit(f"training_speed.py: no torch in {' or '.join(pythons)}; install python3-torch or give --python")
    variants = {"torch": {}}
    keep = str(1 << 35)
    variants["tuned"] = {"MALLOC_MMAP_THRESHOLD_": keep, "MALLOC_TRIM_THRESHOLD_": keep,
                         "MALLOC_TOP_PAD_": str(1 << 28)}
    if options.openblas:
        if not (options.openblas / "libopenblas.so.0").exists():
            sys.exit(f"training_speed.py: no libopenblas.so.0 in {options.openblas}")
        variants["tuned"]["LD_LIBRARY_PATH"] = str(options.openblas.resolve())
    elif rows:
        print("without --openblas: PyTorch runs with the packaged OpenBLAS in both columns", file=sys.stderr)

    folder = pathlib.Path("training-speed")
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    pathlib.Path("models").mkdir(exist_ok=True)
    pathlib.Path("models/gpt-12.toml").write_text(GPT.format(blocks=options.blocks))
    sources = sorted(str(file) for file in here.parent.glob("src/*/*.cpp"))
    output([program("sailor-data"), "bytes", "--output", "corpus", *sources], environment(1))()

    if rows:
        print(f"{'one process, fwd+bwd':22}  threads   sailor ms    torch ms    tuned ms  ratio to the faster")
    for name, kind, sequences, length, ours in rows:
        for threads in map(int, options.threads.split(",")):
            against_torch(name, threads, options.rounds, python, variants, ours, kind, sequences, length)
    beside_processes(options.rounds, wanted)


if __name__ == "__main__":
    main()
