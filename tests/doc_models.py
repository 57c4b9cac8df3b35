"""What readers of the Python pages have already: models of their own (60 trained networks of class
Net) and the data (X, y) they are for."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "docs", "examples"))
from make_checkpoints import Net, make_examples, train  # noqa: E402

X, y = make_examples(600)
models = []
for state in train(X, y)[:60]:
    models.append(Net())
    models[-1].load_state_dict(state)
X, y = X.numpy(), y.numpy()
