"""Relabelling of hidden units: alignment of collections, matched cosines."""

from __future__ import annotations

import operator
import os

import numpy as np

from ._lib import lib, text
from ._memory import Array
from ._options import Options
from .context import current
from .errors import UsageError
from .zoo import Zoo, must_be_zoos, opened, output, same_arch


def align(
    zoo: Zoo,
    reference: int = 0,
    *,
    sweeps: int = 100,
    restarts: int = 0,
    seed: int = 0,
    path: str | os.PathLike[str] | None = None,
) -> Zoo:
    """The collection with every network's hidden units relabelled to match network `reference`:
    the same functions, weights as near to each other as Git Re-Basin brings them. path: the file
    to write, too.

    >>> import weft
    >>> zoo = weft.generator("random").sample(4, arch=weft.Arch("2-8-3", activation="relu"))
    >>> aligned = weft.align(zoo)
    >>> bool(abs(aligned.forward([[1.0, 2.0]]) - zoo.forward([[1.0, 2.0]])).max() < 1e-5)
    True
    """
    must_be_zoos(zoo)
    reference = operator.index(reference)
    if not 0 <= reference < len(zoo):
        raise UsageError(f"reference is {reference}; the collection has {len(zoo)} networks")
    settings = {"sweeps": sweeps, "restarts": restarts, "seed": seed}
    with Options("wf_match_settings", settings) as desc, output(path) as out:
        current()._run(lib.wf_align_zoo, zoo._c, reference, desc.pointer, text(out))
        return opened(out, path)


def matched_cosine(
    networks: Zoo, others: Zoo | None = None, *, sweeps: int = 5, seed: int = 0
) -> tuple[Array, Array]:
    """For each network the largest cosine with one of `others` after relabelling hidden units, and
    its index. Without `others`: with the rest of its own collection.

    >>> import weft
    >>> zoo = weft.generator("random").sample(4, arch=weft.Arch("2-8-3", activation="relu"))
    >>> cosine, which = weft.matched_cosine(zoo[:2], zoo)
    >>> cosine.round(4).tolist(), which.tolist()
    ([1.0, 1.0], [0, 1])
    """
    must_be_zoos(networks, *([] if others is None else [others]))
    skip = np.arange(len(networks), dtype=np.int64) if others is None else None
    if others is None:
        others = networks
        if len(networks) < 2:
            raise UsageError("one network has no other to compare with: give others=")
    same_arch([networks, others], "matched_cosine")
    queries = np.ascontiguousarray(networks.weights)
    references = np.ascontiguousarray(others.weights)
    best = np.empty(len(queries), np.float32)
    which = np.empty(len(queries), np.uint32)
    with Options("wf_match_settings", {"sweeps": sweeps, "seed": seed}) as desc:
        current()._run(
            lib.wf_wcs_max,
            networks.arch._handle,
            queries.ctypes.data,
            len(queries),
            references.ctypes.data,
            len(references),
            None if skip is None else skip.ctypes.data,
            desc.pointer,
            best.ctypes.data,
            which.ctypes.data,
        )
    return best, which
