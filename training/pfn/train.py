"""Train the network on the prior: `python -m training.pfn.train --out FOLDER --steps 10000`.

Knows batches, the schedule and checkpoints. The batch of a step is a function of the seed and the
step's number, so an interrupted training resumes exactly.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as fn

from paceline.curves.pfn.encoding import BUCKETS, OTHERS
from training.pfn.export import write_onnx
from training.pfn.model import Network
from training.pfn.prior import draw_studies
from training.pfn.tokens import (
    Batch,
    compute_frame,
    encode_curves,
    encode_others,
    encode_points,
    encode_questions,
    find_buckets,
    split_into_points,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# The longest curve of a step's batch, in turn.
LENGTHS = (12, 50, 50, 100, 100, 200, 200, 400, 1000)
QUESTIONS = 8
# The learning rate's peak; it warms up, then follows a cosine.
RATE = 1e-3
TRIALS = OTHERS + 1


Rand: TypeAlias = "Callable[..., Tensor]"


class Task(NamedTuple):
    """A batch with its targets."""

    batch: Batch
    target: Tensor  # (curves, QUESTIONS): buckets
    weight: Tensor  # (curves,): 0 for a curve without numbers


def make_task(seed: int, step: int, studies: int, device: torch.device) -> Task:
    """Return the batch of one step."""
    generator = torch.Generator(device).manual_seed(seed * 1_000_003 + step)
    length = LENGTHS[step % len(LENGTHS)]
    drawn = draw_studies(studies, TRIALS, length, generator)
    curves = studies * TRIALS
    values = drawn.values.reshape(curves, length)
    epochs = drawn.epochs.reshape(curves)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=device)

    count = _draw_cuts(rand, epochs)
    span = (epochs - count).float()
    far = rand(curves, QUESTIONS)
    far = torch.where(rand(curves, QUESTIONS) < 0.5, far, (far - 1) * 3 * math.log(10))
    near = torch.where(far >= 0, far * span[:, None], span[:, None] * far.exp())
    ahead = near.ceil().long().clamp(min=1)
    ahead[:, 0] = epochs - count
    ahead[:, 1] = torch.where(rand(curves) < 0.2, 1, ahead[:, 1])
    horizons = torch.minimum(count[:, None] + ahead, epochs[:, None])

    p = split_into_points(values, count)
    frame = compute_frame(p)
    lengths, view, met = _draw_others(drawn.values, drawn.epochs, rand, studies)
    context = encode_others(view, lengths, frame, count, epochs)
    met = met & (context[:, :, 15:].abs().sum(2) + context[:, :, 14] > 0)
    context = context * met[:, :, None]
    bounds = drawn.bounds[:, None].expand(-1, TRIALS, -1).reshape(curves, 2)
    whole = encode_curves(p, frame, count, epochs, bounds, context, met)
    batch = Batch(
        encode_points(p, frame, count, epochs),
        p.sizes > 0,
        whole,
        context,
        met,
        encode_questions(horizons, count, epochs),
    )
    target = find_buckets(values.gather(1, horizons - 1), frame)
    return Task(batch, target, (p.seen > 0).any(1).float())


def _draw_cuts(rand: Rand, epochs: Tensor) -> Tensor:
    """Draw how much of each curve is seen: any share, with more weight on the first epochs."""
    curves = epochs.shape[0]
    most = (epochs - 1).float()
    even = 1 + rand(curves) * most
    few = 1 + rand(curves) * most.clamp(max=10)
    log = torch.exp(rand(curves) * (most + 1).log())
    kind = rand(curves)
    cut = torch.where(kind < 0.5, even, torch.where(kind < 0.7, few, log))
    return torch.minimum(cut.long().clamp(min=1), epochs - 1)


def _draw_others(
    values: Tensor, epochs: Tensor, rand: Rand, studies: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return lengths and values of the other trials that each trial sees, and which it sees."""
    trials, length = values.shape[1:]
    index = torch.arange(trials, device=values.device)
    # For trial k: all others, in order.
    which = (index[:, None] + 1 + torch.arange(trials - 1, device=values.device)) % trials
    # Policies leave some trials half trained and finish others: the share differs by study.
    done = rand(studies, 1) < rand(studies, trials) ** 0.5
    part = (rand(studies, trials) ** 2 * epochs).ceil().clamp(min=1).long()
    come = torch.minimum(torch.where(done, epochs, part), epochs)
    lengths = come[:, which].reshape(studies * trials, trials - 1)
    view = values[:, which].reshape(studies * trials, trials - 1, length)
    share = torch.where(rand(studies * trials) < 0.5, 0.0, rand(studies * trials) * 1.2)
    met = rand(studies * trials, trials - 1) < share[:, None]
    return lengths, view, met


def compute_loss(network: torch.nn.Module, task: Task) -> Tensor:
    """Return the mean cross entropy; the last epoch counts twice."""
    logits = network(task.batch).float()
    entropy = fn.cross_entropy(
        logits.reshape(-1, BUCKETS + 1), task.target.reshape(-1), reduction="none"
    ).view(task.target.shape)
    weight = torch.ones_like(entropy)
    weight[:, 0] = 2
    weight = weight * task.weight[:, None]
    return (entropy * weight).sum() / weight.sum()


class Average:
    """A moving average of the weights, which forecasts better than the last weights."""

    def __init__(self, network: Network) -> None:
        self.weights = {name: x.detach().clone() for name, x in network.state_dict().items()}

    @torch.no_grad()
    def update(self, network: Network, step: int) -> None:
        """Move towards the network's weights."""
        keep = min(0.999, step / (step + 100))
        mine = list(network.state_dict().values())
        torch._foreach_lerp_(list(self.weights.values()), mine, 1 - keep)


def train(
    out: Path,
    steps: int,
    studies: int,
    seed: int = 0,
    sizes: dict[str, int] | None = None,
    pause: int | None = None,
) -> Network:
    """Train to a number of steps, from the last checkpoint in `out` if there is one.

    With `pause` it ends after that step, as if it had been interrupted.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    network = Network(**(sizes or {})).to(device)
    average = Average(network)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01
    )
    checkpoint = out / "checkpoint.pt"
    start = 0
    if checkpoint.exists():
        kept = torch.load(checkpoint, map_location=device, weights_only=True)
        network.load_state_dict(kept["network"])
        optimizer.load_state_dict(kept["optimizer"])
        average.weights, start = kept["average"], kept["step"]
    on_gpu = device.type == "cuda"
    run = torch.compile(network) if on_gpu else network
    began, total, since = time.monotonic(), torch.zeros((), device=device), 0
    last = steps if pause is None else pause
    for step in range(start, last):
        task = make_task(seed, step, studies, device)
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(step, steps)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            loss = compute_loss(run, task)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        average.update(network, step)
        total, since = total + loss.detach(), since + 1
        if (step + 1) % 250 == 0:
            seconds = time.monotonic() - began
            print(f"step {step + 1}/{steps}: loss {total / since:.4f}, {seconds:.0f} s", flush=True)
            total, since = torch.zeros_like(total), 0
        if (step + 1) % 1000 == 0 or step + 1 == last:
            state = {
                "network": network.state_dict(),
                "optimizer": optimizer.state_dict(),
                "average": average.weights,
                "step": step + 1,
            }
            torch.save(state, out / "checkpoint.new")
            (out / "checkpoint.new").replace(checkpoint)
    final = _make_averaged(network, average.weights)
    write_onnx(final, out / "pfn.onnx")
    return final


def _make_averaged(network: Network, average: dict[str, Tensor]) -> Network:
    first = network.layers[0]
    sizes = {
        "width": network.head.in_features,
        "layers": len(network.layers),
        "heads": first.heads,
        "inner": first.up.out_features,
    }
    final = Network(**sizes)
    final.load_state_dict({name: value.cpu() for name, value in average.items()})
    return final.eval()


def _learning_rate(step: int, steps: int) -> float:
    warm = min(1.0, (step + 1) / min(500, max(1, steps // 10)))
    return RATE * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train the pre-trained curve model.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8_559)
    parser.add_argument("--studies", type=int, default=256, help="studies a step, 17 trials each")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    train(given.out, given.steps, given.studies, given.seed)


if __name__ == "__main__":
    main()
