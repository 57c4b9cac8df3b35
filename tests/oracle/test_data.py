"""Readers, split and preparation against csv, scikit-learn's ARFF reader, SimpleImputer,
StandardScaler and OneHotEncoder.

The split is drawn again here from Philox4x32-10 and the rule in docs/data.md."""
import csv
import gzip
import os
import sys
import tempfile

import numpy as np
from sklearn.externals import _arff
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from weft_data import Data

SPLIT = 5  # WF_RNG_SPLIT


def philox(counter, seed):
    c, k = list(counter), [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def words(seed, network, purpose, step):
    index = 0
    while True:
        yield from philox((index, step, network, purpose), seed)
        index += 1


def shuffle(stream, n):
    order = list(range(n))
    for i in range(n, 1, -1):
        while True:
            product = next(stream) * i
            if product & 0xFFFFFFFF >= (1 << 32) % i:
                break
        j = product >> 32
        order[i - 1], order[j] = order[j], order[i - 1]
    return order


def split(labels, classes, fraction, seed):
    """Rows of the test part: largest remainder, ties to the first class, never the last row of a
    class."""
    members = [np.flatnonzero(labels == k) for k in range(classes)]
    exact = [len(m) * fraction for m in members]
    take = [min(int(e), len(m) - 1) for e, m in zip(exact, members)]
    missing = int(np.floor(len(labels) * fraction + 0.5)) - sum(take)
    ranked = sorted(range(classes), key=lambda k: (-(exact[k] - int(exact[k])), k))
    for k in [k for k in ranked if take[k] + 1 < len(members[k])][:missing]:
        take[k] += 1
    test = np.zeros(len(labels), bool)
    for k in range(classes):
        order = shuffle(words(seed, k, SPLIT, 0), len(members[k]))
        test[members[k][order[:take[k]]]] = True
    return test


def open_text(path):
    return gzip.open(path, "rt", newline="") if path.endswith(".gz") else open(path, newline="")


def ordered(values):
    try:
        return sorted(values, key=lambda v: (float(v), v))
    except ValueError:
        return sorted(values)


def read_table(path, categorical):
    """Column names, cells (None is missing), and for each column its levels in order, or None for
    numbers."""
    with open_text(path) as file:
        if ".arff" in path:
            table = _arff.load(file)
            names = [name for name, _ in table["attributes"]]
            rows = [[None if v is None else v for v in row] for row in table["data"]]
            levels = []
            for c, (_, kind) in enumerate(table["attributes"]):
                seen = {row[c] for row in rows}
                levels.append([v for v in kind if v in seen] if isinstance(kind, list) else None)
        else:
            reader = csv.reader(file, delimiter="\t" if ".tsv" in path else ",")
            names = next(reader)
            rows = [[None if v in ("", "?") else v for v in row] for row in reader if row]
            chosen = set(categorical.split(",")) | {names[-1]}
            levels = [
                ordered({row[c] for row in rows if row[c] is not None}) if name in chosen else None
                for c, name in enumerate(names)
            ]
    return names, rows, levels


def prepare(names, rows, levels, test):
    """Inputs of all rows, every constant fitted where not test."""
    parts, train = [], ~test
    for c in range(len(names) - 1):
        if levels[c] is None:
            column = np.array([[np.nan if row[c] is None else float(row[c])] for row in rows])
            imputer = SimpleImputer(strategy="median").fit(column[train])
            scaler = StandardScaler().fit(imputer.transform(column[train]))
            parts.append(scaler.transform(imputer.transform(column)))
        else:
            column = np.array(
                [[np.nan if row[c] is None else levels[c].index(row[c])] for row in rows]
            )
            imputer = SimpleImputer(strategy="most_frequent").fit(column[train])
            encoder = OneHotEncoder(categories=[np.arange(len(levels[c]), dtype=float)])
            parts.append(encoder.fit_transform(imputer.transform(column)).toarray())
    return np.hstack(parts)


def compare(path, categorical, seed, fraction):
    names, rows, levels = read_table(path, categorical)
    if levels[-1] is None:
        levels[-1] = ordered({row[-1] for row in rows})
    labels = np.array([levels[-1].index(row[-1]) for row in rows])
    test = split(labels, len(levels[-1]), fraction, seed)
    x = prepare(names, rows, levels, test)
    data = Data(path=path, categorical=categorical, seed=seed, test_fraction=fraction)
    assert data.class_names == levels[-1], (data.class_names, levels[-1])
    assert data.x_train.shape == x[~test].shape, (data.x_train.shape, x[~test].shape)
    assert (data.y_train == labels[~test]).all() and (
        data.y_test == labels[test]
    ).all(), "labels differ"
    worst = max(np.abs(data.x_train - x[~test]).max(), np.abs(data.x_test - x[test]).max())
    scale = max(1, np.abs(x).max())
    assert worst <= 1e-6 * scale, f"inputs differ by {worst:.3g} (largest {scale:.3g})"
    return worst


def made_up(folder):
    """Tables with quotes, gaps, ties and lonely levels, so that the comparison also runs without
    the data sets."""
    rng = np.random.default_rng(1)
    rows = [
        [
            rng.normal(3, 2), rng.integers(4), rng.choice(["red", "blue, dark", 'the "green"', ""]),
            rng.choice(["u", "v", "w"], p=[0.6, 0.3, 0.1]),
        ]
        for _ in range(301)
    ]
    for row in rows:
        row[0] = "?" if rng.random() < 0.2 else repr(float(row[0]))
    made = []
    for name, delimiter in (("made.csv", ","), ("made.tsv", "\t")):
        made.append(os.path.join(folder, name))
        with open(made[-1], "w", newline="") as file:
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow(["n", "k", "colour", "class"])
            writer.writerows(rows)
    made.append(os.path.join(folder, "made.arff"))
    with open(made[-1], "w") as file:
        file.write(
            "@relation made\n@attribute n real\n@attribute k {3,never,1,0,2}\n@attribute colour "
            "{red,'blue, dark',"
            "'the \"green\"'}\n@attribute class {w,u,v}\n@data\n"
        )
        for n, k, colour, label in rows:
            file.write(f"{n},{k},{repr(str(colour)) if colour else '?'},{label}\n")
    return made


SOLAR = (
    "largest_spot_size,spot_distribution,Activity,Evolution,Previous_24_hour_flare_activity_code,"
    "Historically-complex,Did_region_become_historically_complex,Area,Area_of_the_largest_spot,"
    "C-class_flares_production_by_this_region,"
    "M-class_flares_production_by_this_region,X-class_flares_production_by_this_region"
)
FLARE = (
    "class code,largest spot code,spot dist code,Activity,Evolution,Previous 24 hour "
    "code,Historically-complex,"
    "become complex,Area,Area of the largest spot"
)
TABLES = [
    ("mfeat/mfeat-karhunen.arff.gz", ""), ("mfeat/mfeat-morphological.arff", ""),
    ("mfeat/mfeat-fourier.tsv.gz", ""), ("kr-vs-kp/kr-vs-kp.arff.gz", ""), ("cmc/cmc.arff", ""),
    ("breast-w/breast-w.arff", ""), ("heart-c/heart-c.arff", ""), ("heart-h/heart-h.arff", ""),
    ("ozone-level-8hr/ozone-level-8hr.csv.gz", ""), ("hayes-roth/hayes-roth.tsv.gz", ""),
    ("solar-flare/solar-flare_1.tsv.gz", SOLAR), ("flare/flare.tsv.gz", FLARE),
]


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        cases = [(path, "k,colour" if "arff" not in path else "") for path in made_up(folder)]
        root = os.environ.get("WEFT_DATA", "")
        for path, categorical in TABLES:
            if os.path.exists(os.path.join(root, path)):
                cases.append((os.path.abspath(os.path.join(root, path)), categorical))
            else:
                print(f"skip {path}: not under the folder that WEFT_DATA names")
        for path, categorical in cases:
            for seed, fraction in ((0, 0.2), ((1 << 40) + 7, 0.33)):
                name = f"data {os.path.basename(path)} seed {seed}"
                try:
                    print(
                        f"ok {name} (largest difference "
                        f"{compare(path, categorical, seed, fraction):.2g})"
                    )
                except (AssertionError, ValueError) as why:
                    failed += 1
                    print(f"not ok {name}: {why}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
