"""Small operations of decoder layers as one kernel each: norms, and what an MLP does between its products.

On a GPU a norm is half a dozen kernels, each of which reads and writes all rows. `torch.compile` makes one of them.
"""

import copy

import torch
from torch import nn


def fused(layer: nn.Module, backend: str = "inductor") -> nn.Module:
    """A copy of `layer` that shares its weights, with norms and MLP compiled anew for every shape that they are given.

    Attention, and MLPs with anything but plain linear layers in them, such as experts or packed weights, stay as they
    are. Compiling happens when the copy is called, and takes seconds; `RuntimeError` is raised there.
    """
    copied = copy.copy(layer)
    copied._modules = dict(layer._modules)
    for name, child in layer.named_children():
        if _is_norm(child) or (name == "mlp" and _is_plain(child)):
            setattr(copied, name, torch.compile(child, dynamic=False, backend=backend))
    return copied


def _is_norm(module: nn.Module) -> bool:
    """Whether `module` normalises rows: families name theirs so."""
    return type(module).__name__.endswith(("RMSNorm", "LayerNorm"))


def _is_plain(module: nn.Module) -> bool:
    leaves = [inner for inner in module.modules() if not list(inner.children())]
    return all(type(leaf) is nn.Linear or not list(leaf.parameters()) for leaf in leaves)
