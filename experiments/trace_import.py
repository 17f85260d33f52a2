#!/usr/bin/env python3
"""How far layer times that sailor-profile import makes of PyTorch's traces are from the times that PyTorch takes without
the profiler. Needs PyTorch (on PYTHONPATH), and says so otherwise and ends with 77; no GPU but with --gpu.

Usage: experiments/trace_import.py [--rounds N] [--steps N] [--gpu TYPE [--keep FOLDER]]

GPTs of four blocks train on one core, or with --gpu in bf16 on the GPU, whose type the catalogue has by that name.
Rounds alternate between steps without the profiler, in which a clock is read (on a GPU, an event recorded) at every
block's boundary (forward: before and after the module; backward: when the gradient of its output and of its input are
there), and steps that are traced. The traces are imported with the blocks found by each of the three ways:
record_function, modules (with_stack) and repeated operations. Last, a trace with many steps is imported, to see what
memory and time that takes. Uses sailor-profile of $PATH, else of build/bin.
"""
import argparse
import json
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import torch
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, record_function
except ImportError as error:
    print(f"trace_import.py: skipped: {error}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent
SAILOR = shutil.which("sailor-profile") or ROOT / "build" / "bin" / "sailor-profile"
BLOCKS = 4
VOCABULARY = 1000


def now(x):
    """A point in time on the device of x."""
    if not x.is_cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds(begin, end):
    return end - begin if isinstance(begin, float) else 1e-3 * begin.elapsed_time(end)


class Block(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, tokens, hidden = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, hidden // 64, 64).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(y.transpose(1, 2).reshape(batch, tokens, hidden))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, hidden, tokens):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, hidden), nn.Embedding(tokens, hidden)
        self.layers = nn.ModuleList(Block(hidden) for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, VOCABULARY, bias=False)
        self.named = False
        self.clock = None  # of each block: [forward begins, forward ends, gradient of output, gradient of input]

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for i, layer in enumerate(self.layers):
            if self.clock is not None:
                times = [now(x), None, None, None]
                self.clock.append(times)
                x.register_hook(lambda _, x=x, times=times: times.__setitem__(3, now(x)))
                x = layer(x)
                times[1] = now(x)
                x.register_hook(lambda _, x=x, times=times: times.__setitem__(2, now(x)))
            elif self.named:
                with record_function(f"layers.{i}"):
                    x = layer(x)
            else:
                x = layer(x)
        return self.head(self.norm(x))


def model_file(folder, hidden, tokens):
    path = folder / f"gpt{hidden}.toml"
    path.write_text(f'''schema_version = 1
name = "gpt{hidden}"
source = "experiments/trace_import.py"
blocks = {BLOCKS}
hidden = {hidden}
attention_heads = {hidden // 64}
feed_forward = {4 * hidden}
vocabulary = {VOCABULARY}
max_sequence_length = {tokens}
norm = "layer_norm"
norm_placement = "pre"
final_norm = "in_head"
activation = "gelu"
position = "learned"
linear_bias = true
tied_embedding = false
''')
    return path


def imported(traces, model, batch, tokens, folder, gpu):
    text = folder / "rows.toml"
    subprocess.run([SAILOR, "import", *traces, "--model", model, "--gpu", gpu or "cpu", "--micro-batch", str(batch),
                    "--sequence-length", str(tokens), "--precision", "bf16" if gpu else "fp32", "--format", "toml", "--output", text],
                   check=True, stderr=subprocess.DEVNULL)
    store = folder / "rows.h5"
    subprocess.run([SAILOR, "import", text, "--output", store], check=True, stderr=subprocess.DEVNULL)
    shown = subprocess.run([SAILOR, "show", store, "--format", "json"], check=True, capture_output=True, text=True)
    return next(row for row in json.loads(shown.stdout)["layer_times"] if row["layer_kind"] == "block")


def measure(hidden, tokens, batch, rounds, steps, folder, gpu):
    torch.manual_seed(0)
    model = Gpt(hidden, tokens)
    if gpu:
        model.to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randint(0, VOCABULARY, (batch, tokens), device="cuda" if gpu else "cpu")
    synchronize = torch.cuda.synchronize if gpu else lambda: None
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if gpu else [])

    def step():
        loss = nn.functional.cross_entropy(model(data).view(-1, VOCABULARY), data.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    forward, backward = [], []
    traces = {"record_function": [], "modules": [], "repeated operations": []}
    for index in range(rounds):
        for how, files in traces.items():
            for _ in range(steps):
                model.clock = []
                step()
                synchronize()
                forward += [seconds(times[0], times[1]) for times in model.clock]
                backward += [seconds(times[2], times[3]) for times in model.clock]
            model.clock = None
            model.named = how == "record_function"
            with profile(activities=activities, with_stack=how == "modules") as recording:
                for _ in range(steps):
                    step()
                synchronize()
            model.named = False
            files.append(folder / f"{hidden}-{how.replace(' ', '-')}-{index}.json.gz")
            recording.export_chrome_trace(str(files[-1]))
    path = model_file(folder, hidden, tokens)
    direct = statistics.median(forward), statistics.median(backward)
    noise = [statistics.quantiles(times, n=10) for times in (forward, backward)]
    for how, files in traces.items():
        row = imported(files, path, batch, tokens, folder, gpu)
        line = f"hidden {hidden:4}, {tokens:3} tokens, by {how:19}"
        for name, clock, deciles in zip(("forward", "backward"), direct, noise):
            median = row[f"{name}_median_s"]
            line += (f" | {name} {1e3 * clock:6.2f} ms (P10 {1e3 * deciles[0]:.2f}, P90 {1e3 * deciles[-1]:.2f}), "
                     f"imported {1e3 * median:6.2f} ({median / clock - 1:+.1%})")
        print(line, flush=True)


def large(folder):
    """A trace of a few hundred megabytes: that of a small step, many times over."""
    model = Gpt(64, 16)
    with profile(activities=[ProfilerActivity.CPU]) as recording:
        nn.functional.cross_entropy(model(torch.zeros(1, 16, dtype=torch.long)).view(-1, VOCABULARY),
                                    torch.zeros(16, dtype=torch.long)).backward()
    small = folder / "small.json"
    recording.export_chrome_trace(str(small))
    trace = json.loads(small.read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X" and event.get("cat") == "cpu_op"]
    length = max(event["ts"] + event["dur"] for event in events) - min(event["ts"] for event in events) + 1000
    last = max(event["args"].get("Sequence number", 0) for event in events) + 1
    path = folder / "large.json"
    copies = 0
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        while file.tell() < 400e6:
            for event in events:
                copy = dict(event, ts=event["ts"] + copies * length, args=dict(event["args"]))
                if "Sequence number" in copy["args"]:
                    copy["args"]["Sequence number"] += copies * last
                file.write(("" if file.tell() < 50 else ",\n") + json.dumps(copy))
            copies += 1
        file.write("\n]}\n")
    model_path = model_file(folder, 64, 16)
    begin = time.perf_counter()
    subprocess.run([SAILOR, "import", path, "--model", model_path, "--gpu", "cpu", "--micro-batch", "1",
                    "--sequence-length", "16", "--precision", "fp32", "--output", folder / "large.h5"], check=True,
                   stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"trace of {path.stat().st_size / 1e6:.0f} MB, {copies * len(events)} operations: {seconds:.1f} s, "
          f"{peak / 1e6:.0f} MB of memory")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--no-large", action="store_true", help="no trace of 400 MB")
    parser.add_argument("--gpu", metavar="TYPE", help="train on the GPU, of this type of the catalogue")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="leave the traces there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name() if arguments.gpu else 'one core'}; medians over "
          f"{3 * arguments.rounds * arguments.steps} steps without the profiler and "
          f"{arguments.rounds * arguments.steps} with it, in turn", flush=True)
    sizes = ((1024, 2048, 4), (2048, 2048, 4), (4096, 4096, 2)) if arguments.gpu else ((128, 64, 1), (256, 128, 2), (512, 256, 2))
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.keep or pathlib.Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for hidden, tokens, batch in sizes:
            measure(hidden, tokens, batch, arguments.rounds, arguments.steps, folder, arguments.gpu)
        if not arguments.no_large:
            large(folder)


if __name__ == "__main__":
    main()
