#!/usr/bin/python3
"""Writes bfloat16_pytorch.toml: how far PyTorch's bfloat16 is off for the models of make_gradient_fixture.py, in the loss
and in all gradients together (norm of the difference over norm), against double precision with the same weights, rounded
to bfloat16. Needs python3-torch:  /usr/bin/python3 make_bfloat16_fixture.py > bfloat16_pytorch.toml"""

import torch

from make_gradient_fixture import MODELS, Reference, batch


def trained(options, dtype):
    """Loss, and all gradients one after the other, in double precision."""
    model = Reference(**options)
    model.parameters = {name: value.detach().bfloat16().to(dtype).requires_grad_()
                        for name, value in model.parameters.items()}
    loss = model.loss(*batch())
    loss.backward()
    return loss.item(), torch.cat([value.grad.double().reshape(-1) for value in model.parameters.values()])


def main():
    print(f"# Written by make_bfloat16_fixture.py with PyTorch {torch.__version__}.")
    print("schema_version = 1")
    for name, options in MODELS.items():
        loss, gradients = trained(options, torch.float64)
        narrow_loss, narrow_gradients = trained(options, torch.bfloat16)
        error = (narrow_gradients - gradients).norm() / gradients.norm()
        print(f"\n[[models]]\nname = \"{name}\"\nloss = {loss:.9e}")
        print(f"loss_error = {abs(narrow_loss - loss):.3e}\ngradient_error = {error.item():.3e}")


if __name__ == "__main__":
    main()
