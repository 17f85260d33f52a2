#!/usr/bin/env python3
"""What does an elastic training lose when devices go and come, beside one that stops and starts again at each change?

Usage: experiments/elastic_trace.py [OPTION...]

Replays an availability of A100 over 97 minutes (12 steps between 8 and 16 GPUs), N times as fast (--compress, 60), on
the cores of this machine with a process for every N GPUs (--divide, 2). In each of the rounds (3), in turns:

  elastic  sailor-controller and sailor-train --elastic: a fall kills processes (SIGKILL), a rise starts further ones
  restart  mpirun sailor-train --transport sockets: a fall kills all processes, a rise stops them with a checkpoint;
           all start again from the newest checkpoint with a plan for the devices that are there, known in no time

Both have the same plans (pipelines of one and of two stages) and write a checkpoint every N iterations
(--checkpoint-every, 50). Reported per change: the seconds from the change to the first iteration that was not reached
before, and the seconds lost: the longest time between two such iterations, standstill and iterations made again, less
the time of one. The goodput of a replay is the share of its time that its iterations take once settled: each step's
second half says how long one takes, so that the load of the machine counts for nothing; where a step is shorter than 4
s, an undisturbed training of --steady iterations.

Examples:
  experiments/elastic_trace.py                                  # 12 minutes
  experiments/elastic_trace.py --compress 20 --divide 1 --rounds 1
  experiments/elastic_trace.py --until 5 --rounds 1 --write trace.txt  # only the first falls

Programs: $PATH, else build/bin; needs mpirun. Files are in a temporary folder that is removed.
"""
import argparse
import collections
import functools
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

here = pathlib.Path(__file__).resolve().parent

# Seconds, GPUs. clusters/a100_trace_original.json of the measurements that the authors of Sailor (SOSP'25, arXiv
# 2504.17096) published at github.com/eth-easl/sailor, commit 16eebd4, under the MIT licence.
TRACE = [(0, 16), (630, 10), (693, 9), (882, 8), (1134, 9), (1701, 12), (1764, 15), (2394, 16), (2835, 15), (3528, 16),
         (4032, 15), (5229, 16)]
TRACE_END_S = 5859  # the trace does not say how long its last step lasts: as long as its first
MANY = 10**6        # iterations: more than a replay makes
PATIENCE_S = 120.0
UNCOUNTED = 10      # iterations at the beginning of a run whose times do not count
SETTLING_S = 4.0    # a step that is shorter may have ended before its change was over
LAYERS = 6

MODEL = """schema_version = 1
name = "elastic"
source = "experiments/elastic_trace.py"
blocks = {blocks}
hidden = {hidden}
attention_heads = 4
feed_forward = {feed_forward}
vocabulary = 256
max_sequence_length = 64
norm = "layer_norm"
norm_placement = "pre"
final_norm = "in_head"
activation = "gelu"
position = "learned"
linear_bias = true
tied_embedding = true
"""


def program(name):
    return shutil.which(name) or str(here.parent / "build" / "bin" / name)


def plan_text(pipelines):
    """Pipelines as (stages, micro-batches of 2 sequences)."""
    text = ('schema_version = 1\nmicro_batch = 2\nschedule = "1f1b"\n[job]\nmodel = "elastic"\n'
            f'global_batch = {2 * sum(count for _, count in pipelines)}\nsequence_length = 32\nprecision = "fp32"\n'
            'optimizer = "adamw"\n')
    for stages, micro_batches in pipelines:
        text += f"[[pipelines]]\nmicro_batches = {micro_batches}\n"
        for stage in range(stages):
            first, last = LAYERS * stage // stages, LAYERS * (stage + 1) // stages
            text += f'[[pipelines.stages]]\nlayers = [{first}, {last}]\ngpu = "A100-40"\n'
    return text


def first_pipelines(ranks):
    """One pipeline of one stage, pipelines of two stages, and one-stage pipelines on the ranks that are left."""
    twos = max(1, ranks // 4)
    return [(1, 2)] + twos * [(2, 4)] + (ranks - 1 - 2 * twos) * [(1, 2)]


def adapted(before, ranks):
    """What the controller makes of a plan for other devices: its pipelines as far as the ranks are enough, then more of
    the same, the global batch divided in proportion, alike ones together."""
    chosen = []
    for entry in before:
        if sum(stages for stages, _ in chosen) + entry[0] <= ranks:
            chosen.append(entry)
    for entry in before:
        while sum(stages for stages, _ in chosen) + entry[0] <= ranks:
            chosen.append(entry)
    batch = sum(micro_batches for _, micro_batches in before)
    shares = [batch * weight / sum(weight for _, weight in chosen) for _, weight in chosen]
    given = [max(1, int(share)) for share in shares]
    for _ in range(batch - sum(given)):
        given[min(range(len(given)), key=lambda i: given[i] / shares[i])] += 1
    made = [(stages, micro_batches) for (stages, _), micro_batches in zip(chosen, given)]
    return sorted(made, key=made.index)


def describe(pipelines):
    return f"{sum(stages for stages, _ in pipelines)} processes in pipelines of " + "+".join(
        str(stages) for stages, _ in pipelines) + " stages"


def clean_environment():
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("SLURM", "SAILOR", "OMPI", "PMI"))} | {
                "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def descendants(pid):
    children = collections.defaultdict(list)
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = pathlib.Path("/proc", entry, "stat").read_text(errors="replace")
            children[int(stat.rsplit(")", 1)[1].split()[1])].append(int(entry))
        except (OSError, IndexError, ValueError):
            pass  # it has just ended
    found = children[pid]
    return sum((descendants(child) for child in found), []) + found if found else []


class Training:
    """Processes of one training, and when which iteration ended."""

    running = []  # of all trainings: what is left of them when this script ends is killed

    def __init__(self, root, folder, every):
        self.root, self.folder, self.every = root, folder, every
        self.lock = threading.Lock()
        self.reached = []  # (time, iteration), only those that were not reached before
        self.last = collections.deque(maxlen=40)  # lines, for errors
        self.processes = []
        folder.mkdir()

    def start(self, command, **environment):
        # In a process group of its own, but in this session: Linux divides cores among sessions first, and ranks that
        # wait would not yield theirs to ranks of other sessions.
        process = subprocess.Popen(command, env=clean_environment() | environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace", preexec_fn=os.setpgrp)
        process.reader = threading.Thread(target=self.read, args=(process,), daemon=True)
        process.reader.start()
        self.processes.append(process)
        Training.running.append(process)
        return process

    def read(self, process):
        for line in process.stdout:
            now = time.monotonic()
            # Iteration, loss, time, tokens per second.
            match = re.match(r"\s+(\d+)\s+\d+\.\d+\s+\S+\s+\d+$", line)
            with self.lock:
                if not match:
                    self.last.append(line)
                elif not self.reached or int(match[1]) > self.reached[-1][1]:
                    self.reached.append((now, int(match[1])))

    def training(self, plan, iterations=MANY):
        return [program("sailor-train"), str(plan), "--data", str(self.root / "corpus"), "--models",
                str(self.root / "models"), "--device", "cpu", "--iterations", str(iterations), "--timeout", "60",
                "--checkpoints", str(self.folder / "checkpoints"), "--checkpoint-every", str(self.every)]

    def plan(self, pipelines):
        file = self.folder / "plan.toml"
        file.write_text(plan_text(pipelines))
        return file

    def iteration(self):
        with self.lock:
            return self.reached[-1][1] if self.reached else -1

    def wait_for(self, iteration):
        deadline = time.monotonic() + PATIENCE_S
        while self.iteration() < iteration:
            if time.monotonic() > deadline:
                self.end()
                sys.exit(f"elastic_trace.py: iteration {iteration} was not reached within {PATIENCE_S:.0f} s; the last "
                         f"lines of the training are:\n{''.join(self.last)}")
            time.sleep(0.02)

    @staticmethod
    def kill(process):
        """With all that it started: mpirun's ranks would train on for a second without it."""
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)  # it starts nothing more
            for pid in descendants(process.pid) + [process.pid]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        process.wait()

    def end(self):
        for process in self.processes:
            self.kill(process)
            process.reader.join(5)
            Training.running.remove(process)
        self.processes.clear()


class Elastic(Training):
    def __init__(self, root, folder, every, pipelines, rng):
        super().__init__(root, folder, every)
        self.rng = rng
        self.first_plan = self.plan(pipelines)
        self.start([program("sailor-controller"), str(folder / "run"), "--plan", str(self.first_plan), "--wait", "60"])
        self.ranks = []
        self.started = 0
        for rank in range(sum(stages for stages, _ in pipelines)):
            self.start_rank(rank)

    def start_rank(self, rank=None):
        # A node for two of them, whatever node the machine is.
        numbered = {} if rank is None else {"SAILOR_RANK": str(rank)}
        self.ranks.append(self.start(
            self.training(self.first_plan) + ["--elastic", str(self.folder / "run")],
            SLURMD_NODENAME=f"n{self.started // 2}", **numbered))
        self.started += 1

    def change(self, pipelines):
        ranks = sum(stages for stages, _ in pipelines)
        while len(self.ranks) < ranks:
            self.start_rank()
        victims = self.rng.sample(self.ranks, len(self.ranks) - ranks)
        for victim in victims:
            victim.kill()
        for victim in victims:
            victim.wait(timeout=PATIENCE_S)
        self.ranks = [rank for rank in self.ranks if rank not in victims]

    def sources(self):
        """Where state came from after each change."""
        lines = (self.folder / "run" / "events.jsonl").read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return collections.Counter(event["from"] for event in events if event["what"] == "goes_on")


class Restart(Training):
    def __init__(self, root, folder, every, pipelines):
        super().__init__(root, folder, every)
        self.count = 0
        self.change(pipelines)

    def change(self, pipelines):
        ranks = sum(stages for stages, _ in pipelines)
        if self.count > ranks:
            self.kill(self.launcher)
        elif self.count and self.launcher.poll() is None:
            # mpirun passes it on; the ranks write a checkpoint. One that is just starting may not know the signal yet.
            os.kill(self.launcher.pid, signal.SIGUSR2)
            try:
                self.launcher.wait(timeout=20)
            except subprocess.TimeoutExpired:
                pass
            self.kill(self.launcher)
        self.count = ranks
        # With the default of that parameter mpirun needs a second more to end.
        self.launcher = self.start(["mpirun", "--mca", "odls_base_sigkill_timeout", "0", "-n", str(ranks), "--bind-to",
                                    "none", *self.training(self.plan(pipelines)), "--transport", "sockets"])


def steady_time(root, every, pipelines, iterations):
    """Mean seconds of an iteration, undisturbed."""
    training = Elastic(root, root / "steady", every, pipelines, random.Random(1))
    training.wait_for(UNCOUNTED + iterations)
    training.end()
    shutil.rmtree(training.folder)
    ends = [at for at, iteration in training.reached if iteration >= UNCOUNTED]
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def replay(training, steps, end, compress):
    """Plays the trace; (begin of each step, end), in seconds of the machine's clock."""
    training.wait_for(UNCOUNTED)
    begin = time.monotonic()
    begins = [begin]
    for at, pipelines in steps[1:]:
        time.sleep(max(0.0, begin + at / compress - time.monotonic()))
        begins.append(time.monotonic())
        training.change(list(pipelines))
    time.sleep(max(0.0, begin + end / compress - time.monotonic()))
    over = time.monotonic()
    training.end()
    return begins + [over]


def settled_times(training, begins, steps, fallback):
    """Seconds of an iteration in each step once its change is over: the mean of its second half. Of a step that is too
    short for that, those of an undisturbed training."""
    times = []
    for begin, end, (_, pipelines) in zip(begins, begins[1:], steps):
        ends = [at for at, _ in training.reached if (begin + end) / 2 <= at <= end]
        long_enough = end - begin >= SETTLING_S and len(ends) > UNCOUNTED
        times.append((ends[-1] - ends[0]) / (len(ends) - 1) if long_enough else fallback(pipelines))
    return times


def losses(training, begins, times):
    """Per change: (seconds to a new iteration, seconds lost). None: that was not reached before the next change, and
    counts with that. Then the goodput. `times` are the seconds of a settled iteration of each step."""
    reached = training.reached
    found = []
    since = None
    for i in range(1, len(times)):
        begin, end = begins[i], begins[i + 1]
        since = begin if since is None else since
        first = next((at for at, _ in reached if at > begin), math.inf)
        if first > end and i + 1 < len(times):
            found.append(None)
            continue
        # At the end of the trace a wait is cut short: it is at least so long.
        ends = [at for at, _ in reached if at <= end] + ([end] if i + 1 == len(times) else [])
        gaps = [b - a for a, b in zip(ends, ends[1:]) if b > begin]
        found.append((min(first, end) - since, max(0.0, max(gaps) - times[i])))
        since = None
    useful = sum(times[i] * sum(begins[i] < at <= begins[i + 1] for at, _ in reached) for i in range(len(times)))
    return found, useful / (begins[-1] - begins[0])


def spread(values, form="{:.2f}"):
    if not values:
        return "-"
    return f"{form.format(statistics.median(values))} ({form.format(min(values))} to {form.format(max(values))})"


def steps_of(divide, until):
    """Steps of the trace as (time, pipelines), its end, and the number of processes in each step."""
    counts = []
    for at, gpus in TRACE[:until]:
        if not counts or counts[-1][1] != gpus // divide:
            counts.append((at, gpus // divide))
    end = TRACE[until][0] if until < len(TRACE) else TRACE_END_S
    ranks = [count for _, count in counts]
    if len(ranks) < 2 or min(ranks) < 2 or ranks[0] < 3:
        sys.exit(f"elastic_trace.py: --divide {divide} and --until {until} leave no change between 2 or more "
                 "processes; give a smaller --divide or a larger --until")
    pipelines = first_pipelines(ranks[0])
    steps = []
    for at, count in counts:
        pipelines = adapted(pipelines, count) if steps else pipelines
        steps.append((at, tuple(pipelines)))
    return steps, end, ranks


def run_replays(options, root, say):
    steps, end, ranks = steps_of(options.divide, options.until)
    say(f"{len(steps) - 1} changes between {min(ranks)} and {max(ranks)} processes in {end / options.compress:.0f} s: "
        f"the trace of {end} s {options.compress:g} times as fast, a process for {options.divide} GPUs; a checkpoint "
        f"every {options.checkpoint_every} iterations")
    found = {"elastic": [], "restart": []}
    goodput = {"elastic": [], "restart": []}
    sources = collections.Counter()
    settled = {"elastic": [], "restart": []}
    reached = {"elastic": [], "restart": []}
    rng = random.Random(options.seed)
    for number in range(options.rounds):
        @functools.cache
        def undisturbed(pipelines):
            return steady_time(root, options.checkpoint_every, pipelines, options.steady)
        for kind in ("elastic", "restart") if number % 2 == 0 else ("restart", "elastic"):
            folder = root / f"{kind}-{number}"
            if kind == "elastic":
                training = Elastic(root, folder, options.checkpoint_every, steps[0][1], rng)
            else:
                training = Restart(root, folder, options.checkpoint_every, steps[0][1])
            try:
                begins = replay(training, steps, end, options.compress)
            finally:
                training.end()
            if kind == "elastic":
                sources += training.sources()
            shutil.rmtree(folder)
            times = settled_times(training, begins, steps, undisturbed)
            changes, share = losses(training, begins, times)
            settled[kind].append(times)
            found[kind].append(changes)
            goodput[kind].append(share)
            reached[kind].append(sum(begins[0] < at <= begins[-1] for at, _ in training.reached))
    for i, (at, pipelines) in enumerate(steps):
        say(f"from {at} s on: {describe(pipelines)}; seconds of a settled iteration: " + ", ".join(
            f"{kind} {spread([times[i] for times in settled[kind]], '{:.3f}')}" for kind in settled))
    say(f"{'trace s':>7}  {'processes':>9}  {'elastic: to a new iteration':27}  {'lost s':22}  "
        f"{'restart: to a new iteration':27}  lost s")

    def of(kind, chosen, part):
        return [changes[i][part] for changes in found[kind] for i in chosen if changes[i] is not None]
    for i, (at, _) in enumerate(steps[1:]):
        say(f"{at:7}  {ranks[i]:4} > {ranks[i + 1]:2}  {spread(of('elastic', [i], 0)):27}  "
            f"{spread(of('elastic', [i], 1)):22}  {spread(of('restart', [i], 0)):27}  {spread(of('restart', [i], 1))}")
    say("  -: no new iteration before the next change, whose time then counts from the earlier one on")
    falls = [i for i in range(len(steps) - 1) if ranks[i + 1] < ranks[i]]
    rises = [i for i in range(len(steps) - 1) if i not in falls]
    for kind in found:
        for name, chosen in (("falls", falls), ("rises", rises)):
            say(f"{kind}, {name}: to a new iteration {spread(of(kind, chosen, 0))} s, lost "
                f"{spread(of(kind, chosen, 1))} s, median (least to most) over {len(of(kind, chosen, 0))}")
        shares = [100 * share for share in goodput[kind]]
        say(f"{kind}: goodput in the compressed replay {spread(shares, '{:.1f}')} % of what the same processes do once "
            f"settled; {spread(reached[kind], '{:.0f}')} iterations")
        together = [sum(change[1] for change in changes if change) for changes in found[kind]]
        say(f"{kind}: lost in a replay {spread(together)} s, of {end / options.compress:.0f} s")
        if lost := of(kind, falls, 1):
            mean = statistics.mean(lost)
            say(f"{kind}: goodput at a failure every 300 s {100 * (1 - mean / 300):.2f} %, which is 1 - mean seconds "
                f"lost at a fall ({mean:.2f}) / 300: reckoned, not replayed")
    say(f"elastic: state came from {dict(sources)}")


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def factor(text):
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def run(work, name, write, hidden=32):
    """work(root, say) in a folder with a model and a corpus; nothing is left when it ends."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    for wanted in ("sailor-train", "sailor-controller", "sailor-data", "mpirun"):
        if not shutil.which(program(wanted)):
            sys.exit(f"{name}: {wanted} was not found; build it, or put its folder into $PATH")

    def say(line):
        print(line, flush=True)
        if write:
            with open(write, "a", encoding="utf-8") as file:
                file.write(line + "\n")
    root = pathlib.Path(tempfile.mkdtemp(prefix="sailor-trace-"))
    try:
        (root / "models").mkdir()
        (root / "models" / "elastic.toml").write_text(
            MODEL.format(blocks=LAYERS - 2, hidden=hidden, feed_forward=2 * hidden))
        words = random.Random(1)
        (root / "text").write_text(" ".join(f"{words.randrange(10**6)} apples" for _ in range(20000)))
        subprocess.run([program("sailor-data"), "bytes", "--output", str(root / "corpus"), str(root / "text")],
                       check=True, stdout=subprocess.DEVNULL)
        work(root, say)
    finally:
        for process in Training.running:
            Training.kill(process)
        shutil.rmtree(root, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage=argparse.SUPPRESS)
    for name, kind, default, text in (
            ("compress", factor, 60.0, "how much faster than the trace [60]"),
            ("divide", positive, 2, "GPUs of the trace for a process [2]"),
            ("rounds", positive, 3, "replays of each kind [3]"),
            ("until", positive, len(TRACE), "only the first N steps of the trace [all: 12]"),
            ("checkpoint-every", positive, 50, "iterations from one checkpoint to the next [50]"),
            ("steady", positive, 40, "iterations of a steady training [40]"),
            ("seed", int, 1, "of the choice of the processes that are killed [1]")):
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=text)
    parser.add_argument("--write", metavar="FILE", help="append what is printed to this file, too")
    options = parser.parse_args()
    if options.until > len(TRACE):
        parser.error(f"--until: the trace has {len(TRACE)} steps")
    run(lambda root, say: run_replays(options, root, say), "elastic_trace.py", options.write)


if __name__ == "__main__":
    main()
