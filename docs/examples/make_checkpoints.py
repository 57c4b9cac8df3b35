"""Makes a folder of PyTorch checkpoints to try weft on: 300 networks, trained independently to tell
three noisy arcs apart, checkpoints/net000.pt ..., and mine.csv with examples they have not seen.
Needs PyTorch.

    python3 make_checkpoints.py

All networks are trained at once, as one batch of matrices, each from its own initial weights and on
its own order of examples; the files are ordinary state_dicts of `Net`."""
import math
import pathlib

import torch
from torch import nn

COUNT, WIDTH, CLASSES, EPOCHS, BATCH = 300, 16, 3, 30, 64


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(2, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


def make_examples(n):
    label = torch.arange(n) % CLASSES
    angle = torch.rand(n) * 2.6 + label * (2 * math.pi / CLASSES)
    radius = 0.4 + 0.55 * (angle - label * (2 * math.pi / CLASSES)) / 1.3
    x = torch.stack([radius * angle.cos(), radius * angle.sin()], 1) + 0.22 * torch.randn(n, 2)
    return x, label


def train(x, y):
    nets = [Net() for _ in range(COUNT)]
    parts = [torch.stack([net.state_dict()[name] for net in nets]).requires_grad_()
             for name in ("0.weight", "0.bias", "2.weight", "2.bias")]
    optimiser = torch.optim.Adam(parts, lr=0.01)
    for _ in range(EPOCHS):
        order = torch.stack([torch.randperm(len(x)) for _ in range(COUNT)])
        for start in range(0, len(x) - BATCH + 1, BATCH):
            rows = order[:, start:start + BATCH]
            h = torch.relu(x[rows] @ parts[0].transpose(1, 2) + parts[1][:, None])
            logits = h @ parts[2].transpose(1, 2) + parts[3][:, None]
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), y[rows].flatten()) * COUNT
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return [dict(zip(("0.weight", "0.bias", "2.weight", "2.bias"),
                     (part.detach()[k].clone() for part in parts))) for k in range(COUNT)]


def main():
    torch.manual_seed(0)
    x, y = make_examples(1500)
    with open("mine.csv", "w") as table:
        table.write("x,y,class\n")
        for (a, b), label in zip(x.tolist(), y.tolist()):
            table.write(f"{a:.6f},{b:.6f},arc{label}\n")
    folder = pathlib.Path("checkpoints")
    folder.mkdir(exist_ok=True)
    for k, state in enumerate(train(*make_examples(900))):
        torch.save(state, folder / f"net{k:03}.pt")
    print(f"mine.csv, and {COUNT} networks in checkpoints/")


if __name__ == "__main__":
    main()
