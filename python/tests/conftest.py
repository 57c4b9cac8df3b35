"""What many tests need: a small data set, a collection trained on it, a flow fitted to that."""

from __future__ import annotations

import pytest

SMALL = {"node": 16, "edge": 16, "time": 16, "blocks": 2, "batch": 8}


@pytest.fixture(scope="session")
def data():
    import weft

    return weft.Data.open("spirals", rows=300)


@pytest.fixture(scope="session")
def zoo(data):
    import weft

    return weft.train_zoo("2-8-3", data, 30, epochs=10)


@pytest.fixture(scope="session")
def flow(zoo):
    import weft

    return weft.fit(zoo, updates=100, log_every=10, **SMALL)
