#!/usr/bin/env python3
"""Makes what docs/import.md imports as described networks, in the working folder: cnns/, small
convolutional networks, resnets/, others/ and net.json, the description in docs/formats.md. Needs
PyTorch."""
import json
import pathlib
import re
import sys

import torch
from torch import nn

torch.manual_seed(0)
pathlib.Path("cnns").mkdir()
for k in range(3):
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10),
    )
    torch.save(net.state_dict(), f"cnns/{k}.pt")



class Block(nn.Module):
    """A basic block, with the names of torchvision."""

    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(
            width
        )
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        if stride > 1 or before != width:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False),
                                            nn.BatchNorm2d(width))


pathlib.Path("resnets").mkdir()
for k in range(3):
    net = nn.Module()
    net.conv1, net.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
    net.layer1 = nn.Sequential(Block(16, 16, 1), Block(16, 16, 1))
    net.layer2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1))
    net.fc = nn.Linear(32, 10)
    torch.save(net.state_dict(), f"resnets/{k}.pt")

page = pathlib.Path(sys.argv[1]).read_text()
text = re.search(r"^```json\n(.*?)^```$", page, re.S | re.M)[1]
assert json.loads(text)["input"] == [3, 32, 32]
pathlib.Path("net.json").write_text(text)
pathlib.Path("others").mkdir()
for k in range(3):
    net = nn.ModuleDict(
        {
            "conv1": nn.Conv2d(3, 16, 3, padding=1, bias=False), "bn1": nn.BatchNorm2d(16),
            "conv2": nn.Conv2d(16, 16, 3, padding=1), "fc": nn.Linear(16, 10),
        }
    )
    torch.save(net.state_dict(), f"others/{k}.pt")
