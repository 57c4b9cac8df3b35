#!/usr/bin/env python3
"""A flow's file with other weights to sample from: FLOW ema|final|validation OUT.

A checkpoint of `weights = validation` holds the last weights, their average and those of the lowest
validation loss, so one run tells all three apart. The digest no longer fits and is left out."""
import json
import struct
import sys

flow, weights, out = sys.argv[1:]
content = open(flow, "rb").read()
(length,) = struct.unpack("<Q", content[:8])
header = json.loads(content[8 : 8 + length])
meta = header["__metadata__"]
if meta["fit.kept"] != "validation":
    sys.exit(f"{flow}: was fitted with weights = {meta['fit.kept']}; give one of validation")
meta["fit.kept"] = weights
del meta["weft.digest"]
# tensors stay where they are
text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(length)
if len(text) != length:
    sys.exit(f"{flow}: the new header is longer than the old one")
open(out, "wb").write(content[:8] + text + content[8 + length :])
