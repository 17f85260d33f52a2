#!/usr/bin/python3
"""Writes gradients_pytorch.toml: losses and gradients of the test models (tests/unit/runtime_models.hpp), computed by
PyTorch in double precision. Needs python3-torch:  /usr/bin/python3 make_gradient_fixture.py > gradients_pytorch.toml"""

import math

import torch
import torch.nn.functional as F

BLOCKS, HIDDEN, HEADS, FEED_FORWARD, VOCABULARY, POSITIONS = 2, 16, 4, 32, 23, 12
SEQUENCES, LENGTH = 2, 9

MODELS = {
    "gpt": {},
    "opt": dict(width=8, post=True, final_norm=False, relu=True),
    "neo": dict(scale=False, window=3, input_bias=False),
    "untied": dict(tied=False, bias=False, input_bias=False),
}


def formula(number, shape, one):
    i = torch.arange(math.prod(shape), dtype=torch.float64)
    wave = 0.15 * torch.sin(1.0 + number + 0.73 * i + 0.0011 * i * i)
    # The runtime's weights are floats: the same rounding here.
    return (wave + (1.0 if one else 0.0)).float().double().reshape(shape).requires_grad_()


class Reference:
    def __init__(self, width=HIDDEN, post=False, final_norm=True, relu=False, scale=True, window=0, input_bias=True,
                 tied=True, bias=True):
        self.post, self.relu, self.scale, self.window, self.tied = post, relu, scale, window, tied
        self.parameters = {}
        self.add("0.token_embedding.weight", VOCABULARY, width)
        self.add("0.position_embedding.weight", POSITIONS, HIDDEN)
        if width != HIDDEN:
            self.add("0.projection.weight", HIDDEN, width)
        for layer in range(1, BLOCKS + 1):
            self.add_norm(f"{layer}.norm1")
            self.add_linear(f"{layer}.attention.input", 3 * HIDDEN, HIDDEN, input_bias)
            self.add_linear(f"{layer}.attention.output", HIDDEN, HIDDEN, bias)
            self.add_norm(f"{layer}.norm2")
            self.add_linear(f"{layer}.feed_forward.input", FEED_FORWARD, HIDDEN, bias)
            self.add_linear(f"{layer}.feed_forward.output", HIDDEN, FEED_FORWARD, bias)
        head = BLOCKS + 1
        if final_norm:
            self.add_norm(f"{head}.final_norm")
        if width != HIDDEN:
            self.add(f"{head}.projection.weight", width, HIDDEN)
        if not tied:
            self.add(f"{head}.output.weight", VOCABULARY, width)

    def add(self, name, *shape, one=False):
        self.parameters[name] = formula(len(self.parameters), shape, one)

    def add_norm(self, name):
        self.add(name + ".weight", HIDDEN, one=True)
        self.add(name + ".bias", HIDDEN)

    def add_linear(self, name, out, into, bias):
        self.add(name + ".weight", out, into)
        if bias:
            self.add(name + ".bias", out)

    def linear(self, name, x):
        return F.linear(x, self.parameters[name + ".weight"], self.parameters.get(name + ".bias"))

    def norm(self, name, x):
        return F.layer_norm(x, (HIDDEN,), self.parameters[name + ".weight"], self.parameters[name + ".bias"], 1e-5)

    def attention(self, layer, x):
        q, k, v = (t.reshape(SEQUENCES, LENGTH, HEADS, -1).transpose(1, 2)
                   for t in self.linear(f"{layer}.attention.input", x).split(HIDDEN, dim=-1))
        scores = q @ k.transpose(2, 3)
        if self.scale:
            scores = scores / math.sqrt(HIDDEN // HEADS)
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        if self.window and layer % 2 == 0:  # the second block is local, as GPT-Neo's odd layers
            seen = seen ^ torch.ones_like(seen).tril(-self.window)
        attended = scores.masked_fill(~seen, -math.inf).softmax(dim=-1) @ v
        return self.linear(f"{layer}.attention.output", attended.transpose(1, 2).reshape(SEQUENCES, LENGTH, HIDDEN))

    def feed_forward(self, layer, x):
        inner = self.linear(f"{layer}.feed_forward.input", x)
        inner = F.relu(inner) if self.relu else F.gelu(inner, approximate="tanh")
        return self.linear(f"{layer}.feed_forward.output", inner)

    def loss(self, tokens, targets):
        x = F.embedding(tokens, self.parameters["0.token_embedding.weight"])
        if "0.projection.weight" in self.parameters:
            x = self.linear("0.projection", x)
        x = x + self.parameters["0.position_embedding.weight"][:LENGTH]
        for layer in range(1, BLOCKS + 1):
            if self.post:
                x = self.norm(f"{layer}.norm1", x + self.attention(layer, x))
                x = self.norm(f"{layer}.norm2", x + self.feed_forward(layer, x))
            else:
                x = x + self.attention(layer, self.norm(f"{layer}.norm1", x))
                x = x + self.feed_forward(layer, self.norm(f"{layer}.norm2", x))
        head = BLOCKS + 1
        if f"{head}.final_norm.weight" in self.parameters:
            x = self.norm(f"{head}.final_norm", x)
        if f"{head}.projection.weight" in self.parameters:
            x = self.linear(f"{head}.projection", x)
        table = self.parameters["0.token_embedding.weight" if self.tied else f"{head}.output.weight"]
        return F.cross_entropy((x @ table.T).reshape(-1, VOCABULARY), targets.reshape(-1))


def main():
    i = torch.arange(SEQUENCES * LENGTH)
    tokens = ((i * 7 + 3) % VOCABULARY).reshape(SEQUENCES, LENGTH)
    targets = ((i * 5 + 1) % VOCABULARY).reshape(SEQUENCES, LENGTH)
    print(f"# Written by make_gradient_fixture.py with PyTorch {torch.__version__}, double precision.")
    print("schema_version = 1")
    for name, options in MODELS.items():
        reference = Reference(**options)
        loss = reference.loss(tokens, targets)
        loss.backward()
        print(f"\n[[models]]\nname = \"{name}\"\nloss = {loss.item():.12e}")
        for parameter, value in reference.parameters.items():
            g = value.grad.reshape(-1)
            print(f"[[models.parameters]]\nname = \"{parameter}\"\nnorm = {g.norm().item():.9e}")
            print(f"first = {g[0].item():.9e}\nmiddle = {g[len(g) // 2].item():.9e}\nlast = {g[-1].item():.9e}")


main()
