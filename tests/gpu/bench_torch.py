#!/usr/bin/env python3
"""Iterations of a model in PyTorch on one GPU, to put beside those of bench_models: tokens/s, model FLOP utilisation,
memory, loss.

Usage: bench_torch.py MODEL SEQUENCES LENGTH MICRO_BATCHES [none|full] [--blocks N] [--iterations N]
                      [--compile whole|blocks | --no-compile] [--device cuda|cpu]

The model is built from the same file as Sailor's (profiles/models/MODEL.toml): torch.compile, fused attention (SDPA),
fused AdamW, gradients clipped at 1. The state is Sailor's: parameters, gradients and moments in float32, computing in
bfloat16 (autocast). Local attention (GPT-Neo's windows) is computed as global: SDPA has no fused kernel for windows.
Exit status 3: no PyTorch, or no usable GPU.
"""

import argparse
import pathlib
import random
import statistics
import sys
import time
import tomllib

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint
except ImportError as error:
    print(f"no PyTorch: {error}")
    sys.exit(3)


class RMSNorm(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return (y * self.weight).to(x.dtype)


def norm(model):
    epsilon = model.get("norm_epsilon", 1e-5)
    if model.get("norm", "layer_norm") == "rms_norm":
        return RMSNorm(model["hidden"], epsilon)
    return nn.LayerNorm(model["hidden"], epsilon)


class Block(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.heads = model["attention_heads"]
        self.kv_heads = model.get("key_value_heads", self.heads)
        hidden, wide = model["hidden"], model["feed_forward"]
        self.head_width = hidden // self.heads
        bias = model.get("linear_bias", True)
        self.pre = model.get("norm_placement", "pre") == "pre"
        self.scale = None if model.get("scale_attention", True) else 1.0
        self.rotary = model.get("position", "learned") == "rotary"
        self.activation = model["activation"]
        self.norm1, self.norm2 = norm(model), norm(model)
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.kv_heads) * self.head_width,
                             bias=model.get("attention_input_bias", bias))
        self.out = nn.Linear(hidden, hidden, bias=bias)
        self.up = nn.Linear(hidden, wide * (2 if self.activation == "swiglu" else 1), bias=bias)
        self.down = nn.Linear(wide, hidden, bias=bias)

    def attend(self, x, cos, sin):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).split([h * self.head_width for h in (self.heads, self.kv_heads, self.kv_heads)], -1)
        q, k, v = (t.view(batch, length, -1, self.head_width).transpose(1, 2) for t in (q, k, v))
        if self.rotary:
            def turn(t):
                a, b = t.chunk(2, -1)
                return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(t.dtype)
            q, k = turn(q), turn(k)
        if self.kv_heads != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        options = {} if self.scale is None else {"scale": self.scale}
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, **options)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))

    def feed(self, x):
        x = self.up(x)
        if self.activation == "swiglu":
            gate, value = x.chunk(2, -1)
            return self.down(F.silu(gate) * value)
        return self.down(F.relu(x) if self.activation == "relu" else F.gelu(x, approximate="tanh"))

    def forward(self, x, cos, sin):
        if self.pre:
            x = x + self.attend(self.norm1(x), cos, sin)
            return x + self.feed(self.norm2(x))
        x = self.norm1(x + self.attend(x, cos, sin))
        return self.norm2(x + self.feed(x))


class Transformer(nn.Module):
    def __init__(self, model, length, recompute):
        super().__init__()
        hidden, vocabulary = model["hidden"], model["vocabulary"]
        width = model.get("embedding_width", hidden)
        self.recompute = recompute
        self.tokens = nn.Embedding(vocabulary, width)
        self.inward = nn.Linear(width, hidden, bias=False) if width != hidden else nn.Identity()
        self.positions = nn.Embedding(model["max_sequence_length"], hidden) if model["position"] == "learned" else None
        self.blocks = nn.ModuleList(Block(model) for _ in range(model["blocks"]))
        self.norm = nn.Identity() if model.get("final_norm") == "none" else norm(model)
        self.outward = nn.Linear(hidden, width, bias=False) if width != hidden else nn.Identity()
        self.head = nn.Linear(width, vocabulary, bias=False)
        if model.get("tied_embedding", True):
            self.head.weight = self.tokens.weight
        half = hidden // model["attention_heads"] // 2
        angles = torch.outer(torch.arange(length).float(),
                             model.get("rotary_base", 1e4) ** (-torch.arange(half).float() / half))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.inward(self.tokens(tokens))
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        if torch.is_autocast_enabled():
            x = x.to(torch.bfloat16)
        for block in self.blocks:
            if self.recompute == "full":
                x = checkpoint(block, x, self.cos, self.sin, use_reentrant=False)
            else:
                x = block(x, self.cos, self.sin)
        return self.loss(x, targets)

    def loss(self, x, targets):
        logits = self.head(self.outward(self.norm(x)))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1))


def draw_tokens(state, count, vocabulary):
    """The tokens that bench_models trains on: each follows from the one before, but for some noise."""
    tokens, last = [], 1
    for _ in range(count):
        last = state.randrange(1000) if state.randrange(4) == 0 else (last * 31 + 7) % min(vocabulary, 5000)
        tokens.append(last)
    return tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("sequences", type=int)
    parser.add_argument("length", type=int)
    parser.add_argument("micro_batches", type=int)
    parser.add_argument("recompute", nargs="?", default="none", choices=["none", "full"])
    parser.add_argument("--blocks", type=int, help="so many blocks instead of the model's")
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--compile", default="whole", choices=["whole", "blocks"], help="the model as a whole, or block "
                        "by block and then the loss, which takes seconds instead of a minute")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("no usable GPU: PyTorch finds none")
        return 3
    folder = pathlib.Path(__file__).resolve().parents[2] / "profiles/models"
    model = tomllib.loads((folder / f"{arguments.model}.toml").read_text())
    if arguments.blocks:
        model["blocks"] = arguments.blocks
    on_gpu = arguments.device == "cuda"
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.device(arguments.device):  # a CPU takes minutes to initialize billions of parameters
        network = Transformer(model, arguments.length, arguments.recompute)
    parameters = sum(p.numel() for p in network.parameters())
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                  **({"fused": True} if on_gpu else {}))
    step = network
    if arguments.compile == "whole" and not arguments.no_compile:
        step = torch.compile(network)
    elif not arguments.no_compile:
        for block in network.blocks:
            block.compile()
        network.loss = torch.compile(network.loss)
    how = "eager" if arguments.no_compile else f"torch.compile ({arguments.compile})"
    shape = (arguments.sequences, arguments.length + 1)
    state = random.Random(1)
    times, losses = [], []
    for iteration in range(arguments.iterations):
        # New ones each time: the largest models learn two batches by heart in a few iterations.
        batches = [torch.tensor(draw_tokens(state, shape[0] * shape[1], model["vocabulary"]),
                                device=arguments.device).view(shape) for _ in range(arguments.micro_batches)]
        if on_gpu:
            torch.cuda.synchronize()
            if iteration == 2:
                torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        total = 0.0
        for batch in batches:
            with torch.autocast(arguments.device, dtype=torch.bfloat16, enabled=on_gpu):
                loss = step(batch[:, :-1], batch[:, 1:]) / arguments.micro_batches
            loss.backward()
            total = total + loss.detach()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        losses.append(float(total))
        if iteration >= 2:
            times.append(time.perf_counter() - start)
    seconds = statistics.median(times)
    tokens = arguments.sequences * arguments.length * arguments.micro_batches
    flop = 6.0 * parameters + 12.0 * model["blocks"] * model["hidden"] * arguments.length
    peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else float("nan")
    print(f"PyTorch {torch.__version__}, {how}, {arguments.model}{f', {arguments.blocks} blocks' if arguments.blocks else ''}: "
          f"{arguments.micro_batches} x {arguments.sequences} x {arguments.length} tokens, recompute "
          f"{arguments.recompute}: {seconds * 1e3:.1f} ms, {tokens / seconds:.0f} tokens/s, "
          f"{tokens / seconds * flop / 989e12 * 100:.1f} % of 989 TFLOP/s (6N + 12LhT), {peak:.2f} GiB in tensors, "
          f"losses {' '.join(f'{loss:.3f}' for loss in losses)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
