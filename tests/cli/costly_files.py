#!/usr/bin/env python3
"""Files made to cost memory or time, for tests/cli/test_budgets.sh: makes each, runs weft on it,
prints a line.

    costly_files.py WEFT [NAME]      one line a file: "ok NAME" or "not NAME: what it cost"; in the
                                     working folder
A file may be refused or read; it may not cost more than 100 MB + 4 x its size or 2 s of CPU time,
nor kill the program.
"""
import gzip, json, os, resource, struct, sys, zlib

MEMORY, TIMES, SECONDS = 100 << 20, 4, 2.0
weft, only = sys.argv[1], sys.argv[2:]
files = []


def costly(*command):
    """The function makes FILE (its argument); the command runs on it."""
    def add(make):
        files.append((make.__name__, make, command))
        return make
    return add


# --- zip and pickle -------------------------------------------------------------------------------

def zip_file(path, entries):
    """entries: (name, bytes, deflated, claimed size or None)"""
    out, directory = bytearray(), bytearray()  # bytes would be copied with every entry
    for name, data, deflated, claim in entries:
        crc, size = zlib.crc32(data), claim if claim is not None else len(data)
        packed = data
        if deflated:
            pack = zlib.compressobj(9, zlib.DEFLATED, -15)
            packed = pack.compress(data) + pack.flush()
        name = name.encode()
        directory += (
            struct.pack(
                "<IHHHHIIIIHHHHHII", 0x02014B50, 0, 0, 0, 8 if deflated else 0, 0, crc, len(packed),
                size, len(name), 0, 0, 0, 0, 0, len(out),
            )
            + name
        )
        out += (
            struct.pack(
                "<IHHHIIIIHH", 0x04034B50, 0, 0, 8 if deflated else 0, 0, 0, 0, 0, len(name), 0
            )
            + name
            + packed
        )
    end = struct.pack(
        "<IHHHHIIH", 0x06054B50, 0, 0, len(entries), len(entries), len(directory), len(out), 0
    )
    open(path, "wb").write(out + directory + end)


def text(s):
    return b"X" + struct.pack("<I", len(s)) + s


def whole(n):
    return b"\x8a\x08" + struct.pack("<q", n)


def tensor(elements, shape, stride, key=b"0"):
    numbers = lambda v: b"(" + b"".join(map(whole, v)) + b"t"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(("
        + text(b"storage")
        + b"ctorch\nFloatStorage\n"
        + text(key)
        + text(b"cpu")
        + whole(elements)
        + b"tQ"
        + whole(0)
        + numbers(shape)
        + numbers(stride)
        + b"\x89}tR"
    )


def torch_file(path, pickle, storage=b"\0" * 24, deflated=True, claim=None):
    zip_file(path, [("n/data.pkl", pickle, deflated, None), ("n/data/0", storage, deflated, claim)])


importing = ("zoo", "import", "FILE", "-a", "relu", "-o", "out.safetensors")


@costly(*importing)
def memoised_name(path):
    name = text(b"n" * 700000) + b"q\x01"
    torch_file(
        path + ".pt", b"}(" + name + tensor(6, [6], [1]) + b"q\x02" + b"h\x01h\x02" * 6000 + b"u."
    )


@costly(*importing)
def deflated_zeros(path):
    much = 3 << 28
    torch_file(
        path + ".pt", b"}" + text(b"w") + tensor(much // 4, [much // 4], [1]) + b"s.", bytes(much)
    )


@costly(*importing)
def claimed_gigabytes(path):
    claim = 4100000000
    zeros = bytes(claim // 1032 + 1)  # no more than deflate could hold
    zip_file(
        path + ".pt",
        [
            (
                "n/data.pkl",
                b"}" + text(b"w") + tensor(claim // 4, [claim // 4], [1]) + b"s.",
                False,
                None,
            ),
            ("n/data/0", os.urandom(len(zeros)), True, claim),
        ],
    )


@costly(*importing)
def one_opcode_over_and_over(path):
    torch_file(path + ".pt", b"(" + b"N" * (30 << 20) + b"t.")


@costly(*importing)
def lists_of_one(path):
    torch_file(path + ".pt", b"]" + b"N\x85" * (8 << 20) + b".", deflated=False)


@costly(*importing)
def high_memo_index(path):
    torch_file(
        path + ".pt", b"Nr" + struct.pack("<I", 30000000) + b"0" * 30000000 + b".", deflated=False
    )


@costly(*importing)
def dictionaries_in_dictionaries(path):
    n = 60000
    torch_file(path + ".pt", b"}(" + b"K\1K\2" * n + b"uq\0010}(" + b"K\1h\1" * n + b"u.")


@costly(*importing)
def transposed_over_and_over(path):
    n = 1000
    views = b"".join(text(b"w%d" % i) + tensor(n * n, [n, n], [1, n]) for i in range(300))
    torch_file(path + ".pt", b"}(" + views + b"u.", os.urandom(4) * n * n, deflated=False)


@costly(*importing)
def wrappers_over_and_over(path):
    torch_file(
        path + ".pt",
        b"}" + text(b"module." * 1000000) + tensor(6, [2, 3], [3, 1]) + b"s.",
        deflated=False,
    )


@costly(*importing)
def many_tensors(path):
    t = tensor(6, [2, 3], [3, 1]) + b"r\1\0\0\0"
    torch_file(
        path + ".pt",
        b"}(" + text(b"w") + t + b"".join(text(b"w%d" % i) + b"h\1" for i in range(60000)) + b"u.",
    )


@costly(*importing)
def many_entries(path):
    zip_file(
        path + ".pt",
        [("n/data.pkl", b"}.", False, None)]
        + [("n/%d" % i, b"", False, None) for i in range(60000)],
    )


# --- safetensors ----------------------------------------------------------------------------------

def st_file(path, tensors, meta, data=b"", raw=None):
    header = (
        raw
        if raw is not None
        else json.dumps({"__metadata__": meta, **tensors}, separators=(",", ":")).encode()
    )
    open(path, "wb").write(struct.pack("<Q", len(header)) + header + data)


def f32(begin, *shape):
    count = 1
    for n in shape:
        count *= n
    return {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, begin + 4 * count]}


@costly("zoo", "info", "FILE")
def tensors_without_end(path):
    raw = (
        b"{"
        + b",".join(
            b'"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(1000000)
        )
        + b"}"
    )
    st_file(path, {}, {}, b"", raw)


@costly("zoo", "info", "FILE")
def metadata_without_end(path):
    raw = b'{"__metadata__":{' + b",".join(b'"%x":""' % i for i in range(4000000)) + b"}}"
    st_file(path, {}, {}, b"", raw)


@costly("zoo", "import", "FILE", "-a", "relu", "-o", "out.safetensors")
def tensors_to_import(path):
    n = 300000
    st_file(path + ".safetensors", {"l%d.weight" % i: f32(0, 0, 0) for i in range(n)}, {})


@costly("zoo", "import", "FILE", "-a", "relu", "-o", "out.safetensors")
def matrices_to_order(path):
    n = 32
    st_file(
        path + ".safetensors", {("w%05d" % i) * 3000: f32(i * 16, 2, 2) for i in range(n)}, {},
        b"\0" * 16 * n,
    )


@costly("zoo", "info", "FILE")
def deep_header(path):
    st_file(path, {}, {}, b"", b'{"a":' * 10000000)


@costly("zoo", "info", "FILE")
def tests_without_end(path):
    n = 20000
    tensors = {"layers.0.weight": f32(0, 2, 3, 2), "layers.0.bias": f32(48, 2, 3)}
    for i in range(n):
        tensors["weft.score.t%d" % i] = f32(72 + 8 * i, 2)
    st_file(
        path, tensors,
        {"weft.arch": "2-3", "weft.activation": "relu", "weft.format": "collection 1"},
        b"\0" * (72 + 8 * n),
    )


# --- flows ----------------------------------------------------------------------------------------

def flow(path, make):
    """A small flow, trained once, with its metadata and tensors changed by make(meta, tensors)."""
    if not os.path.exists("flow.safetensors"):
        open("flow.conf", "w").write(
            "[data]\nname = spirals\nrows = 300\n[zoo]\narch = 2-4-3\ncount = 4\nepochs = "
            "1\n[model]\n"
            "node = 8\nedge = 8\ntime = 8\nblocks = 1\n[train]\nupdates = 2\nbatch = 2\n"
        )
        quiet = " -q >/dev/null 2>flow.err"
        if os.system(
            f"'{weft}' zoo train flow.conf -o small.safetensors{quiet} && "
            f"'{weft}' train flow.conf --zoo small.safetensors -o flow.safetensors{quiet}"
        ):
            sys.exit(open("flow.err").read())
    bytes_ = open("flow.safetensors", "rb").read()
    size = struct.unpack("<Q", bytes_[:8])[0]
    header = json.loads(bytes_[8:8 + size])
    meta = header.pop("__metadata__")
    data = make(meta, header, bytes_[8 + size:])
    # Other writers' digests would be wrong: a hostile writer leaves them out.
    st_file(path, header, {k: v for k, v in meta.items() if "digest" not in k}, data)


def forty_thousand(meta, tensors, data):
    kept = {k[len("source.0."):]: v for k, v in meta.items() if k.startswith("source.0.")}
    for i in range(1, 40000):
        for key, value in kept.items():
            meta["source.%d.%s" % (i, key)] = value
    meta["sources"] = "40000"
    return data


@costly("flow", "info", "FILE")
def flow_of_many_sources(path):
    flow(path, forty_thousand)


@costly("sample", "FILE", "--task", "absent", "-o", "out.safetensors")
def flow_without_the_task(path):
    flow(path, forty_thousand)


@costly("sample", "FILE", "-n", "1", "-o", "out.safetensors")
def flow_to_sample(path):
    flow(path, forty_thousand)


@costly("flow", "info", "FILE")
def flow_of_many_architectures(path):
    def make(meta, tensors, data):
        data = bytearray(data)
        arch = {k[len("arch.0"):]: v for k, v in meta.items() if k.startswith("arch.0")}
        for i in range(1, 40000):
            meta.update({"arch.%d%s" % (i, key): value for key, value in arch.items()})
            for what in ("mean", "std"):
                old = tensors["norm.0.%s" % what]
                begin, end = old["data_offsets"]
                tensors["norm.%d.%s" % (i, what)] = {
                    **old,
                    "data_offsets": [len(data), len(data) + end - begin],
                }
                data += data[begin:end]
        meta["stocks"] = "40000"
        return data
    flow(path, make)


@costly("flow", "info", "FILE")
def flow_of_absurd_width(path):
    def make(meta, tensors, data):
        for key in meta:
            if key.startswith("field.") and meta[key].isdigit() and int(meta[key]) > 0:
                meta[key] = "1000000"
        return data
    flow(path, make)


# --- tables ---------------------------------------------------------------------------------------

def table(name):
    open("table.conf", "w").write(f"[data]\npath = {name}\n")


reading = ("data", "info", "table.conf")


@costly(*reading)
def csv_gzip_bomb(path):
    with gzip.open(path + ".csv.gz", "wb", 9) as f:
        for _ in range(64):
            f.write(bytes(16 << 20))
    table(path + ".csv.gz")


@costly(*reading)
def csv_many_columns(path):
    n = 400000
    open(path + ".csv", "w").write(
        ",".join("c%d" % i for i in range(n)) + "\n" + ",".join(["1"] * n) + "\n"
    )
    table(path + ".csv")


@costly(*reading)
def csv_same_column_names(path):
    n = 100000
    open(path + ".csv", "w").write(",".join(["c"] * n) + "\n" + ",".join(["1"] * n) + "\n")
    table(path + ".csv")


@costly(*reading)
def csv_empty_cells(path):
    open(path + ".csv", "w").write("a,b\n" + ",\n" * 4000000)
    table(path + ".csv")


@costly(*reading)
def csv_many_categories(path):
    open(path + ".csv", "w").write(
        "a,b,y\n" + "".join("x%d,z%d,%d\n" % (i, -i, i % 2) for i in range(200000))
    )
    table(path + ".csv")


@costly(*reading)
def csv_unclosed_quote(path):
    open(path + ".csv", "w").write('a,b\n1,"' + "x\n" * 3000000)
    table(path + ".csv")


@costly(*reading)
def csv_quotes(path):
    open(path + ".csv", "w").write('a,b\n1,"' + '""' * 5000000 + '"\n')
    table(path + ".csv")


@costly(*reading)
def arff_many_attributes(path):
    open(path + ".arff", "w").write(
        "@relation r\n"
        + "".join("@attribute a%d numeric\n" % i for i in range(300000))
        + "@data\n1\n"
    )
    table(path + ".arff")


@costly(*reading)
def arff_many_levels(path):
    levels = ",".join("l%d" % i for i in range(500000))
    open(path + ".arff", "w").write(
        "@relation r\n@attribute a {"
        + levels
        + "}\n@attribute y {p,q}\n@data\n"
        + "l5,p\nl6,q\n" * 20000
    )
    table(path + ".arff")


@costly(*reading)
def arff_sparse(path):
    n = 20000
    attributes = "".join("@attribute a%d numeric\n" % i for i in range(n))
    open(path + ".arff", "w").write(
        "@relation r\n" + attributes + "@attribute y {p,q}\n@data\n" + "{0 1}\n{}\n" * 200000
    )
    table(path + ".arff")


@costly(*reading)
def idx_of_nothing(path):
    open(path + "-ubyte", "wb").write(struct.pack(">HBBIII", 0, 8, 3, 100000000, 28, 28))
    open(path + "-labels-ubyte", "wb").write(struct.pack(">HBBI", 0, 8, 1, 100000000))
    open("table.conf", "w").write(f"[data]\npath = {path}-ubyte\nlabels = {path}-labels-ubyte\n")


@costly(*reading)
def idx_gzip_bomb(path):
    with gzip.open(path + "-ubyte.gz", "wb", 9) as f:
        f.write(struct.pack(">HBBIII", 0, 8, 3, 1 << 20, 28, 28))
        for _ in range(64):
            f.write(bytes(16 << 20))
    with gzip.open(path + "-labels-ubyte.gz", "wb", 9) as f:
        f.write(struct.pack(">HBBI", 0, 8, 1, 1 << 20) + bytes(1 << 19))
    open("table.conf", "w").write(
        f"[data]\npath = {path}-ubyte.gz\nlabels = {path}-labels-ubyte.gz\n"
    )


# --- recipes, manifests, JSON ---------------------------------------------------------------------

@costly("model", "info", "FILE")
def recipe_of_many_keys(path):
    open(path, "w").write("[zoo]\n" + "".join("k%d = 1\n" % i for i in range(100000)))


@costly("model", "info", "FILE")
def recipe_of_many_sections(path):
    open(path, "w").write("".join("[s%d]\n" % i for i in range(150000)))


@costly("train", "manifest.conf", "-o", "out.safetensors")
def manifest_of_many_lines(path):
    open(path + ".manifest", "w").write(
        "".join("absent%d.safetensors\n" % i for i in range(300000))
    )
    open("manifest.conf", "w").write(f"[zoo]\nmanifest = {path}.manifest\n")


@costly("report", "deep")
def deep_json(path):
    os.makedirs("deep", exist_ok=True)
    for name in ("stage.json", "eval.json", "points.json"):
        open("deep/" + name, "w").write("[" * 20000000)
    open("deep/recipe.conf", "w").write("[data]\nname = spirals\n[zoo]\narch = 2-4-3\n")


@costly("report", "wide")
def wide_json(path):
    os.makedirs("wide", exist_ok=True)
    for name in ("stage.json", "eval.json", "points.json"):
        open("wide/" + name, "w").write("[" + "{}," * 2000000 + "{}]")
    open("wide/recipe.conf", "w").write("[data]\nname = spirals\n[zoo]\narch = 2-4-3\n")


# --- running --------------------------------------------------------------------------------------

def cost(command):
    """Exit status, peak of memory in bytes, CPU seconds."""
    child = os.fork()
    if child == 0:
        quiet = os.open("costly.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        os.execv(command[0], command)
    _, status, used = os.wait4(child, 0)
    return status, used.ru_maxrss * 1024, used.ru_utime + used.ru_stime


def size_of(before):
    return (
        sum(
            os.path.getsize(os.path.join(folder, name))
            for folder, _, names in os.walk(".")
            for name in names
        )
        - before
    )


def in_child(make, name):
    """A child begins with the peak of memory of its parent, so this process stays small."""
    child = os.fork()
    if child == 0:
        make(name)
        os._exit(0)
    if os.wait4(child, 0)[1] != 0:
        sys.exit(f"{name} could not be made")


for name, make, command in files:
    if only and name not in only:
        continue
    if not os.path.exists("flow.safetensors") and "flow" in name:
        in_child(lambda path: flow(path, lambda meta, tensors, data: data), "first")
    before = size_of(0)
    in_child(make, name)
    size = size_of(before)
    made = [f for f in os.listdir(".") if f == name or f.startswith(name + ".")]
    path = made[0] if made else name
    status, memory, seconds = cost([weft, *(path if word == "FILE" else word for word in command)])
    allowed = MEMORY + TIMES * size
    said = open("costly.out", errors="replace").read().strip().splitlines()[-1:]
    first = (said or [''])[0][:160]
    what = f"{size:,} bytes took {memory >> 20} MB and {seconds:.2f} s, status {status:#x}: {first}"
    good = memory <= allowed and seconds <= SECONDS and not os.WIFSIGNALED(status)
    good = good and not (os.WIFEXITED(status) and os.WEXITSTATUS(status) == 4)
    print(
        (
            f"ok {name}" + (f" ({what})" if only or os.environ.get("COSTS") else "")
            if good
            else f"not {name}: {what}"
        ),
        flush=True,
    )
    for entry in made:
        os.remove(entry)
