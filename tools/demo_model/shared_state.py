"""Weights, gradients and optimizer state in shared memory, and the optimizer that updates them.

Processes train together, one thread each: every one computes the gradients of its share of a
batch into a row of `gradients`, then updates its share of the parameters for all of them. One
thread a process loses nothing to waiting within products, also on a machine that is busy.

Matrices are updated by the orthogonalised momentum of their gradients (Muon), which learns in far
fewer tokens than Adam; embeddings, output, routers, norms and the like by Adam.
"""

import math
from dataclasses import dataclass

import torch

_BLOCK = 256              # matrices are updated in blocks of at most this many rows
_MUON_RATE, _MUON_MOMENTUM, _MUON_DECAY = 0.02, 0.95, 0.05
_ADAM_BETAS, _ADAM_EPSILON = (0.9, 0.95), 1e-10
_ADAM_RATES = {"embed_tokens": 0.05, "lm_head": 0.004, "mlp.gate.": 0.004}
_ADAM_RATE = 0.004        # of the others


@dataclass
class Parameter:
    name: str
    first: int            # its values are [first, first + count) of the flat vectors
    shape: torch.Size

    @property
    def count(self) -> int:
        return self.shape.numel()

    @property
    def by_muon(self) -> bool:
        return (self.shape[-1] == _BLOCK and self.shape[-2] >= 64
                and "embed_tokens" not in self.name and "lm_head" not in self.name
                if len(self.shape) > 1 else False)

    @property
    def adam_rate(self) -> float:
        return next((rate for part, rate in _ADAM_RATES.items() if part in self.name), _ADAM_RATE)


class SharedState:
    """Flat float32 vectors that all processes of a training see."""

    def __init__(self, model: torch.nn.Module, processes: int) -> None:
        self.parameters: list[Parameter] = []
        size = 0
        for name, tensor in model.named_parameters():
            self.parameters.append(Parameter(name, size, tensor.shape))
            size += tensor.numel()
        self.weights, self.momentum, self.squares = (torch.zeros(size) for _ in range(3))
        self.gradients = torch.zeros(processes, size)
        for vector in (self.weights, self.momentum, self.squares, self.gradients):
            vector.share_memory_()
        for (_, tensor), parameter in zip(model.named_parameters(), self.parameters):
            view = self._view(self.weights, parameter)
            view.copy_(tensor.detach())
            tensor.data = view

    def attach(self, model: torch.nn.Module, process: int) -> None:
        """From now on backward() adds to this process's gradients."""
        for (_, tensor), parameter in zip(model.named_parameters(), self.parameters):
            tensor.grad = self._view(self.gradients[process], parameter)

    def shares(self) -> list[list[Parameter]]:
        """The parameters that each process updates: about equal work."""
        count = self.gradients.shape[0]
        shares, work = [[] for _ in range(count)], [0] * count
        for parameter in sorted(self.parameters, key=lambda p: -p.count * (20 if p.by_muon else 1)):
            index = work.index(min(work))
            shares[index].append(parameter)
            work[index] += parameter.count * (20 if parameter.by_muon else 1)
        return shares

    @torch.no_grad()
    def update(self, parameter: Parameter, step: int, factor: float) -> None:
        """One step, counted from 1, at `factor` of the full learning rate."""
        begin, end = parameter.first, parameter.first + parameter.count
        gradient = self.gradients[:, begin:end].mean(0)
        weights, momentum = self.weights[begin:end], self.momentum[begin:end]
        if parameter.by_muon:
            momentum.mul_(_MUON_MOMENTUM).add_(gradient)
            direction = gradient.add_(momentum, alpha=_MUON_MOMENTUM)
            rows = min(_BLOCK, parameter.shape[-2])
            update = _orthogonal(direction.view(-1, rows, _BLOCK)).reshape(-1)
            weights.mul_(1 - factor * _MUON_RATE * _MUON_DECAY)
            weights.add_(update, alpha=-factor * _MUON_RATE)
            return
        squares, (keep, keep_squares) = self.squares[begin:end], _ADAM_BETAS
        momentum.lerp_(gradient, 1 - keep)
        squares.lerp_(gradient.square(), 1 - keep_squares)
        scale = math.sqrt(1 - keep_squares**step) / (1 - keep**step)
        weights.addcdiv_(momentum, squares.sqrt().add_(_ADAM_EPSILON),
                         value=-factor * parameter.adam_rate * scale)

    def state(self) -> dict[str, torch.Tensor]:
        return {"weights": self.weights, "momentum": self.momentum, "squares": self.squares}

    def restore(self, state: dict[str, torch.Tensor]) -> None:
        for name, vector in self.state().items():
            vector.copy_(state[name])

    def _view(self, vector: torch.Tensor, parameter: Parameter) -> torch.Tensor:
        return vector[parameter.first:parameter.first + parameter.count].view(parameter.shape)


def _orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """About U V^T of each matrix's singular value decomposition, by five Newton-Schulz steps."""
    result = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = result @ result.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        result = torch.baddbmm(result, polynomial, result, beta=3.4445)
    return result
