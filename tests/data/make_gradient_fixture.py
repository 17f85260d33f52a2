#!/usr/bin/python3
"""Writes gradients_pytorch.toml: losses and gradients of the test models (tests/unit/runtime_models.hpp), computed by
PyTorch in double precision. Needs python3-torch:  /usr/bin/python3 make_gradient_fixture.py > gradients_pytorch.toml"""

import math

import torch
import torch.nn.functional as F

BLOCKS, VOCABULARY, POSITIONS = 2, 23, 12
SEQUENCES, LENGTH = 2, 9

MODELS = {
    "gpt": {},
    "opt": dict(width=8, post=True, in_head=False, activation="relu"),
    "neo": dict(scale=False, window=3, input_bias=False),
    "untied": dict(tied=False, bias=False, input_bias=False),
    "llama": dict(hidden=32, heads=8, key_value_heads=4, feed_forward=24, rms=True, epsilon=1e-6, activation="swiglu",
                  rotary=100.0, tied=False, bias=False, input_bias=False),
    "llama-sailor": dict(rms=True, activation="swiglu", rotary=10000.0, separate=True),
    "mixed": dict(width=8, post=True, key_value_heads=2, window=3, rotary=50.0, separate=True, in_head=False,
                  tied=False),
}
LLAMA = MODELS["llama"]
MODELS["experts"] = dict(LLAMA, experts=dict(count=4, per_token=2, feed_forward=12))
MODELS["shared_expert"] = dict(LLAMA, experts=dict(count=3, per_token=2, feed_forward=20, shared=8, first_dense=1))

# Of the load-balancing loss; models that are there again.
BALANCED = {"experts": 0.05, "shared_expert": 0.02}


def formula(number, shape, one):
    i = torch.arange(math.prod(shape), dtype=torch.float64)
    wave = 0.15 * torch.sin(1.0 + number + 0.73 * i + 0.0011 * i * i)
    # The runtime's weights are floats: the same rounding here.
    return (wave + (1.0 if one else 0.0)).float().double().reshape(shape).requires_grad_()


def rotated(x, base):
    """Hugging Face's LLaMA: rotate_half over (sequences, heads, length, width)."""
    half = x.shape[-1] // 2
    frequencies = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(LENGTH, dtype=torch.float64)[:, None] * frequencies
    cos, sin = (torch.cat([f(angles)] * 2, dim=-1) for f in (torch.cos, torch.sin))
    return (x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin).to(x.dtype)


class Reference:
    def __init__(self, hidden=16, heads=4, key_value_heads=None, feed_forward=32, width=None, post=False, rms=False,
                 epsilon=1e-5, separate=False, in_head=True, activation="gelu", rotary=0.0, scale=True, window=0,
                 input_bias=True, tied=True, bias=True, experts=None):
        self.hidden, self.heads, self.key_value_heads = hidden, heads, key_value_heads or heads
        self.feed_forward_width, self.activation, self.rotary = feed_forward, activation, rotary
        self.post, self.rms, self.epsilon = post, rms, epsilon
        self.scale, self.window, self.tied = scale, window, tied
        self.experts = experts
        self.key_value_width = self.key_value_heads * (hidden // heads)
        width = width or hidden
        self.parameters = {}
        self.add("0.token_embedding.weight", VOCABULARY, width)
        if not rotary:
            self.add("0.position_embedding.weight", POSITIONS, hidden)
        if width != hidden:
            self.add("0.projection.weight", hidden, width)
        for layer in range(1, BLOCKS + 1):
            self.add_norm(f"{layer}.norm1")
            self.add_linear(f"{layer}.attention.input", hidden + 2 * self.key_value_width, hidden, input_bias)
            self.add_linear(f"{layer}.attention.output", hidden, hidden, bias, rows_are_inputs=True)
            self.add_norm(f"{layer}.norm2")
            name, wide = f"{layer}.feed_forward", feed_forward
            if self.has_experts(layer):
                count, inner = experts["count"], experts["feed_forward"]
                self.add(f"{layer}.router.weight", count, hidden)
                self.add(f"{layer}.experts.input.weight", count * 2 * inner, hidden)
                self.add(f"{layer}.experts.output.weight", count * inner, hidden)
                name, wide = f"{layer}.shared_expert", experts.get("shared", 0)
            if wide:
                self.add_linear(f"{name}.input", (2 if activation == "swiglu" else 1) * wide, hidden, bias)
                self.add_linear(f"{name}.output", hidden, wide, bias, rows_are_inputs=True)
        self.norms = []  # after the blocks
        head = BLOCKS + 1
        if separate:
            self.norms.append(f"{head}.final_norm")
            head += 1
        if in_head:
            self.norms.append(f"{head}.final_norm")
        for name in self.norms:
            self.add_norm(name)
        self.head = head
        if width != hidden:
            self.add(f"{head}.projection.weight", width, hidden)
        if not tied:
            self.add(f"{head}.output.weight", VOCABULARY, width)

    def has_experts(self, layer):
        return self.experts is not None and layer > self.experts.get("first_dense", 0)

    def add(self, name, *shape, one=False):
        self.parameters[name] = formula(len(self.parameters), shape, one)

    def add_norm(self, name):
        self.add(name + ".weight", self.hidden, one=True)
        if not self.rms:
            self.add(name + ".bias", self.hidden)

    def add_linear(self, name, out, into, bias, rows_are_inputs=False):
        self.add(name + ".weight", *((into, out) if rows_are_inputs else (out, into)))
        if bias:
            self.add(name + ".bias", out)

    def linear(self, name, x, rows_are_inputs=False):
        weight = self.parameters[name + ".weight"]
        return F.linear(x, weight.T if rows_are_inputs else weight, self.parameters.get(name + ".bias"))

    def norm(self, name, x):
        weight = self.parameters[name + ".weight"]
        if self.rms:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * weight
        return F.layer_norm(x, (self.hidden,), weight, self.parameters[name + ".bias"], self.epsilon)

    def attention(self, layer, x):
        width = self.hidden // self.heads
        q, k, v = (t.reshape(SEQUENCES, LENGTH, -1, width).transpose(1, 2)
                   for t in self.linear(f"{layer}.attention.input", x).split(
                       [self.hidden, self.key_value_width, self.key_value_width], dim=-1))
        if self.rotary:
            q, k = rotated(q, self.rotary), rotated(k, self.rotary)
        k, v = (t.repeat_interleave(self.heads // self.key_value_heads, dim=1) for t in (k, v))
        scores = q @ k.transpose(2, 3)
        if self.scale:
            scores = scores / math.sqrt(width)
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        if self.window and layer % 2 == 0:  # the second block is local, as GPT-Neo's odd layers
            seen = seen ^ torch.ones_like(seen).tril(-self.window)
        attended = scores.masked_fill(~seen, -math.inf).softmax(dim=-1) @ v
        return self.linear(f"{layer}.attention.output", attended.transpose(1, 2).reshape(SEQUENCES, LENGTH, -1),
                           rows_are_inputs=True)

    def mixture(self, layer, x):
        """Mixtral: every expert computes every token here, and those that the router did not choose count 0."""
        count, inner = self.experts["count"], self.experts["feed_forward"]
        logits = self.linear(f"{layer}.router", x)
        chosen = logits.topk(self.experts["per_token"], dim=-1)
        # DeepSeek-V3, equations 17 to 20: of each sequence.
        tokens = F.one_hot(chosen.indices, count).sum(dim=(1, 2)).double()
        share = tokens * count / (self.experts["per_token"] * LENGTH)
        self.balance = self.balance + (share * logits.softmax(-1).mean(dim=1)).sum(-1).mean()
        weights = torch.zeros(*x.shape[:-1], count, dtype=x.dtype).scatter(-1, chosen.indices, chosen.values.softmax(-1))
        into = self.parameters[f"{layer}.experts.input.weight"].reshape(count, 2 * inner, self.hidden)
        out = self.parameters[f"{layer}.experts.output.weight"].reshape(count, inner, self.hidden)
        total = self.feed_forward(layer, x, "shared_expert", self.experts["shared"]) if "shared" in self.experts else 0.0
        for expert in range(count):
            gate, up = (x @ into[expert].T).split(inner, dim=-1)
            total = total + weights[..., expert, None] * ((F.silu(gate) * up) @ out[expert])
        return total

    def feed_forward(self, layer, x, part="feed_forward", width=None):
        if part == "feed_forward" and self.has_experts(layer):
            return self.mixture(layer, x)
        inner = self.linear(f"{layer}.{part}.input", x)
        if self.activation == "relu":
            inner = F.relu(inner)
        elif self.activation == "gelu":
            inner = F.gelu(inner, approximate="tanh")
        else:
            gate, up = inner.split(width or self.feed_forward_width, dim=-1)
            inner = F.silu(gate) * up
        return self.linear(f"{layer}.{part}.output", inner, rows_are_inputs=True)

    def loss(self, tokens, targets):
        self.balance = 0.0
        x = F.embedding(tokens, self.parameters["0.token_embedding.weight"])
        if "0.projection.weight" in self.parameters:
            x = self.linear("0.projection", x)
        if not self.rotary:
            x = x + self.parameters["0.position_embedding.weight"][:LENGTH]
        for layer in range(1, BLOCKS + 1):
            if self.post:
                x = self.norm(f"{layer}.norm1", x + self.attention(layer, x))
                x = self.norm(f"{layer}.norm2", x + self.feed_forward(layer, x))
            else:
                x = x + self.attention(layer, self.norm(f"{layer}.norm1", x))
                x = x + self.feed_forward(layer, self.norm(f"{layer}.norm2", x))
        for name in self.norms:
            x = self.norm(name, x)
        if f"{self.head}.projection.weight" in self.parameters:
            x = self.linear(f"{self.head}.projection", x)
        table = self.parameters["0.token_embedding.weight" if self.tied else f"{self.head}.output.weight"]
        logits = (x @ table.T).reshape(-1, VOCABULARY)
        if logits.dtype == torch.bfloat16:  # as models do it in practice
            logits = logits.float()
        return F.cross_entropy(logits, targets.reshape(-1))


def batch():
    """Tokens and targets."""
    i = torch.arange(SEQUENCES * LENGTH)
    return tuple(((i * a + b) % VOCABULARY).reshape(SEQUENCES, LENGTH) for a, b in ((7, 3), (5, 1)))


def main():
    tokens, targets = batch()
    print(f"# Written by make_gradient_fixture.py with PyTorch {torch.__version__}, double precision.")
    print("schema_version = 1")
    for name, aux in [(name, 0.0) for name in MODELS] + list(BALANCED.items()):
        reference = Reference(**MODELS[name])
        loss = reference.loss(tokens, targets)
        (loss + aux * reference.balance).backward()
        print(f"\n[[models]]\nname = \"{name}\"\nloss = {loss.item():.12e}")
        if aux > 0.0:
            print(f"router_aux_loss = {aux}")
        for parameter, value in reference.parameters.items():
            g = value.grad.reshape(-1)
            print(f"[[models.parameters]]\nname = \"{parameter}\"\nnorm = {g.norm().item():.9e}")
            print(f"first = {g[0].item():.9e}\nmiddle = {g[len(g) // 2].item():.9e}\nlast = {g[-1].item():.9e}")


if __name__ == "__main__":
    main()
