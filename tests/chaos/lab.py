"""lab: the program, inputs for the commands, what undisturbed runs leave, how files compare."""

import functools, hashlib, http.server, itertools, json, os, random, re, shutil, struct, subprocess
import threading, time, zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def read_commands():
    """{name: (words, seconds a look)}"""
    text = open(os.path.join(HERE, "commands.txt")).read().replace("\n ", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {name: (words, int(tick)) for name, tick, *words in lines}


COMMANDS = read_commands()
HANGS = 400  # seconds
# What these name, or what lies beside them.
NAMED = {
    "table.conf": ["table.csv"],
    "tasks.conf": ["tasks"],
    "cifar.conf": ["images"],
    "arrays.conf": ["arrays.npz"],
    "planned.safetensors": [
        "planned.safetensors.recipe.conf",
        "planned.safetensors.log.jsonl",
    ],
    "cnn.safetensors": ["cnn.conf"],
    "conds.conf": ["conds"],
}
MANIFEST = "[moons]\nrecipe = moons.conf\n[spirals]\nrecipe = spirals.conf\n"
TASK = """[data]
name = %s
rows = 120
[zoo]
arch = %s
count = 12
held_out = 4
epochs = 3
batch = 32
"""
MLP = """[model]
generator = mlp
width = 8
blocks = 1
[train]
updates = 16
batch = 4
save_seconds = 8
coupling = independent
"""
PDIFF = """[model]
generator = pdiff
latent = 8
channels = 4
vae_updates = 6
diffusion_steps = 25
[train]
updates = 6
batch = 4
save_seconds = 8
"""
SANE = """[model]
generator = sane-gauss
width = 8
blocks = 1
heads = 2
latent = 4
copies = 2
relabellings = 4
[train]
updates = 12
batch = 4
save_seconds = 8
"""
FRESH = """[data]
name = spirals
rows = 120
[zoo]
arch = 2-6-3
fresh = yes
count = 32
held_out = 4
epochs = 1
batch = 32
[model]
node = 8
edge = 8
time = 8
blocks = 1
[train]
updates = 8
batch = 4
fresh_pool = 32
fresh_rate = 1
save_seconds = 0
[sample]
count = 4
solver = euler
steps = 2
refine_cycles = 0
[eval]
subsets = 2
controls = no
"""
CNN = """[data]
name = digits
rows = 60
[zoo]
arch = 1x8x8 conv2 pool linear10
count = 3
held_out = 0
epochs = 1
batch = 16
"""
CNN_FIT = """[model]
node = 8
edge = 8
time = 8
blocks = 1
[train]
updates = 6
batch = 2
save_seconds = 0
"""
NORMED = """{"input": [1, 8, 8], "layers": [
  {"op": "conv", "units": 2, "kernel": 3, "padding": 1, "activation": "relu",
   "norm": {"kind": "batch"}, "pool": {"kind": "max", "kernel": 2}},
  {"op": "linear", "units": 10}]}
"""
# As weft fit writes it; the flow has half of the updates.
PLANNED = """[zoo]
path = zoo.safetensors
[model]
node = 8
edge = 8
time = 8
blocks = 1
[train]
updates = 12
schedule_updates = 12
batch = 4
save_seconds = 0
"""
TASKS = """[zoo]
manifest = tasks/all.manifest
[model]
node = 8
edge = 8
time = 8
blocks = 1
cond = linear
[train]
updates = 8
batch = 4
[sample]
count = 3
widths = 0.5,1
solver = euler
steps = 2
refine_cycles = 1
[eval]
subsets = 2
"""
CONDS = """[zoo]
manifest = conds/all.manifest
[model]
node = 8
edge = 8
time = 8
blocks = 1
cond = mlp
[train]
updates = 6
batch = 4
[sample]
count = 3
conds = 0,0.5
solver = euler
steps = 2
[eval]
subsets = 2
"""


# --- running


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    """Clients are killed: nothing is said of them."""

    def handle_error(self, *_):
        pass


def serve(folder):
    """The address under which a folder's files can be downloaded."""
    server = Server(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return "http://127.0.0.1:%d" % server.server_address[1]


class Wrong(Exception):
    """What a case found."""


class Lab:
    """The program, the inputs, what undisturbed runs leave, and where cases run."""

    def __init__(self, build, folder, keep=False):
        # Without CUDA: its run time registers kernels before main and does not bear lack of memory.
        self.weft, self.shim = os.path.abspath(build + "/weft-cpu"), os.path.abspath(
            build + "/chaos/shim.so"
        )
        self.sanitized = None  # the program under sanitizers, where there is one
        self.folder, self.keep, self.count = folder, keep, itertools.count()
        self.inputs = os.path.join(folder, "inputs")
        self.known, self.lock = {}, threading.Lock()
        self.sound = set()  # states of folders from which the same command again ended well
        os.mkdir(self.inputs)
        self.address = serve(self.inputs)
        make_inputs(self)

    def words(self, command, threads=1):
        words = [word.replace("http:", self.address) for word in COMMANDS[command][0]]
        return [self.weft, *words, "--threads", str(threads)]

    def can_fetch(self):
        """Not every build has libcurl."""
        words = [self.weft, "version"]
        told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        return "downloads: none" not in told

    def also_ends_with(self, command):
        """1: the connection failed."""
        return {1} if fetches(command) else set()

    def environment(self, command, chaos):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "LC_", "LANG"))}
        tick = COMMANDS[command][1] if command in COMMANDS else 0
        chaos = ",".join(filter(None, [chaos, "tick=%d" % tick if tick else ""]))
        return dict(env, CHAOS=chaos, LD_PRELOAD=self.shim) if chaos else env

    def start(self, folder, command, chaos="", threads=1, more=(), limits=None):
        return subprocess.Popen(
            self.words(command, threads) + list(more),
            cwd=folder,
            # What is left among temporary files is seen, too.
            env=dict(self.environment(command, chaos), TMPDIR=os.path.abspath(folder)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=limits,
        )

    def run(self, folder, command, chaos="", **more):
        process = self.start(folder, command, chaos, **more)
        out, err = self.end(process)
        return process.returncode, out, err

    def end(self, process):
        """What it said. Commands take a second or so; a busy machine may need minutes."""
        try:
            return process.communicate(timeout=HANGS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Wrong("still at work after %d s" % HANGS)

    def takes(self, command):
        """The inputs of a command, and what they name in turn."""
        words = {part for word in COMMANDS[command][0] for part in word.split(",")}
        names = words & set(os.listdir(self.inputs))
        return sorted(names | {name for conf in names for name in NAMED.get(conf, ())})

    def fresh(self, command):
        """A folder with the command's inputs."""
        folder = os.path.join(self.folder, "%s-%d" % (command, next(self.count)))
        os.mkdir(folder)
        for name in self.takes(command):
            source, target = os.path.join(self.inputs, name), os.path.join(folder, name)
            (shutil.copytree if os.path.isdir(source) else shutil.copy)(source, target)
        return folder

    def done(self, folder):
        if not self.keep:
            shutil.rmtree(folder, ignore_errors=True)

    def know(self, command):
        """Of an undisturbed run: files, output, system calls, requests for memory, seconds."""
        with self.lock:
            if command in self.known:
                return self.known[command]
            folder, trace = self.fresh(command), os.path.join(self.folder, command + ".trace")
            first = self.run(folder, command)
            files = snapshot(folder)
            again = self.run(folder, command)
            self.done(folder)
            folder, begun = self.fresh(command), time.monotonic()
            second = self.run(folder, command, "trace=" + trace)
            seconds = time.monotonic() - begun
            for code, out, err in (first, again, second):
                if code != 0:
                    when = "undisturbed" if first[0] else "when it is given again"
                    raise SystemExit(
                        "chaos: %s ends with %d %s: %s" % (command, code, when, text(err))
                    )
            if differences(files, snapshot(folder)):
                raise SystemExit(
                    "chaos: %s: two undisturbed runs differ: %s"
                    % (command, differences(files, snapshot(folder)))
                )
            self.done(folder)
            lines = [line.split(" ")[:2] for line in open(trace, errors="replace")]
            calls = [place for place in lines if place[0] != "+"]
            requests = [place for place in lines if place[0] == "+"]
            self.known[command] = Known(files, plain(first[1]), calls, requests, seconds)
            return self.known[command]


def fetches(command):
    return command.startswith("data-fetch")


class Known:
    """places, requests: of each system call and of each request for memory its name and a digest of
    the stack that led there (shim.c)."""

    def __init__(self, files, out, places, requests, seconds):
        self.files, self.out, self.seconds = files, out, seconds
        self.places, self.requests = places, requests
        self.calls = [name for name, stack in places]


def some_of_each(places, rng):
    """The numbers of some calls, from 1 up: of each place the first, the last, and with rng one
    between. What goes wrong when a call fails depends on its place, and on whether it is the first
    there."""
    found = {}
    for n, place in enumerate(places, 1):
        found.setdefault(tuple(place), []).append(n)
    between = {rng.choice(ns) for ns in found.values()} if rng is not None else set()
    return sorted(between | {n for ns in found.values() for n in (ns[0], ns[-1])})


def text(bytes_):
    return bytes_.decode(errors="replace").strip()


# --- inputs


def write_pickle(path, shapes, rng, inside=""):
    """A state_dict as torch.save writes it; inside: under this key of a dictionary."""
    text = lambda s: b"X" + struct.pack("<I", len(s)) + s.encode()
    whole = lambda n: b"J" + struct.pack("<i", n)
    numbers = lambda v: b"(" + b"".join(map(whole, v)) + b"t"
    body, storages = b"\x80\x02}(" + (text(inside) + b"}(" if inside else b""), []
    for name, shape in shapes:
        count = 1
        for size in shape:
            count *= size
        stride = [shape[1], 1] if len(shape) == 2 else [1]
        body += (
            text(name)
            + b"ctorch._utils\n_rebuild_tensor_v2\n(("
            + text("storage")
            + b"ctorch\nFloatStorage\n"
            + text(str(len(storages)))
            + text("cpu")
            + whole(count)
            + b"tQ"
            + whole(0)
            + numbers(shape)
            + numbers(stride)
            + b"\x89}tR"
        )
        storages.append(struct.pack("<%df" % count, *(rng.gauss(0, 1) for i in range(count))))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "net/data.pkl", body + (b"u" + text("epoch") + whole(3) if inside else b"") + b"u."
        )
        for k, storage in enumerate(storages):
            archive.writestr("net/data/%d" % k, storage)


def make_inputs(lab):
    at, rng = lab.inputs, random.Random(1)
    write = lambda name, what: open(os.path.join(at, name), "w").write(what)
    weft = lambda words: subprocess.run(
        [lab.weft, *words.split(), "-q"], cwd=at, check=True, stdout=subprocess.DEVNULL
    )
    shutil.copy(os.path.join(ROOT, "tests/cli/tiny.conf"), at)
    weft("run tiny.conf -o done")
    for name in ("zoo", "flow", "nets"):
        shutil.copy(os.path.join(at, "done", name + ".safetensors"), at)
    for folder in ("dicts", "pickles", "lightning", "images", "tasks", "conds"):
        os.mkdir(os.path.join(at, folder))
    for i in range(4):
        weft("zoo export zoo.safetensors -i %d -o dicts/net%d.safetensors" % (i, i))
        write_pickle(
            os.path.join(at, "pickles/net%d.pt" % i),
            [("a.weight", (5, 3)), ("a.bias", (5,)), ("b.weight", (2, 5)), ("b.bias", (2,))],
            rng,
        )
        write_pickle(
            os.path.join(at, "lightning/run%d.ckpt" % i),
            [("model.a.weight", (5, 3)), ("model.a.bias", (5,)), ("model.b.weight", (2, 5)),
             ("model.b.bias", (2,))],
            rng,
            inside="state_dict",
        )
    weft("zoo import dicts -a relu -o imported.safetensors")
    for k, name in enumerate(["data_batch_%d" % (i + 1) for i in range(5)] + ["test_batch"]):
        with open(os.path.join(at, "images", name + ".bin"), "wb") as file:
            for i in range(2):
                file.write(bytes([(2 * k + i) % 10]) + rng.randbytes(3072))
    with zipfile.ZipFile(os.path.join(at, "arrays.npz"), "w", zipfile.ZIP_DEFLATED) as archive:
        numbers = struct.pack("<80f", *(rng.gauss(0, 1) for i in range(80)))
        labels = struct.pack("<40q", *(rng.randrange(2) for i in range(40)))
        for name, kind, shape, data in (
            ("x", "<f4", "(40, 2)", numbers),
            ("y", "<i8", "(40,)", labels),
        ):
            head = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (kind, shape)
            head += " " * (63 - (10 + len(head)) % 64) + "\n"
            magic = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head))
            archive.writestr(name + ".npy", magic + head.encode() + data)
    rows = [
        "%.3f,%s,%d" % (rng.gauss(0, 1), rng.choice("abc"), rng.randrange(2)) for i in range(60)
    ]
    write("table.csv", "x,letter,class\n" + "\n".join(rows) + "\n")
    write("table.conf", "[data]\npath = table.csv\ncategorical = letter\n")
    write("mlp.conf", MLP)
    write("pdiff.conf", PDIFF)
    write("fresh.conf", FRESH)
    write("cnn.conf", CNN)
    weft("zoo train cnn.conf -o cnn.safetensors")
    write("normed.json", NORMED)
    write("normed.conf", CNN.replace("1x8x8 conv2 pool linear10", "normed.json"))
    weft("zoo train normed.conf -o normed.safetensors")
    weft("zoo export normed.safetensors --all -o normed --format pt")
    write("cnn-fit.conf", CNN_FIT)
    weft("align zoo.safetensors -o aligned.safetensors")
    write("sane.conf", SANE)
    phases = TASK % ("spirals", "2-6-3") + SANE + "[sample]\ncount = 4\n[eval]\nsubsets = 2\n"
    write("phases.conf", phases)
    weft("train pdiff.conf --zoo zoo.safetensors -o pdiff.safetensors")
    write("cifar.conf", "[data]\npath = images\nformat = cifar10\nscale = channel\n")
    write("arrays.conf", "[data]\npath = arrays.npz\n")
    write("planned.safetensors.recipe.conf", PLANNED)
    weft("train planned.safetensors.recipe.conf --zoo zoo.safetensors -o planned.safetensors"
         " --set train.updates=6")
    write("planned.safetensors.recipe.conf", PLANNED)  # its path holds in every folder
    write("tasks.conf", TASKS)
    write("tasks/all.manifest", MANIFEST)
    write("tasks/moons.conf", TASK % ("moons", "2-4-2"))
    write("tasks/spirals.conf", TASK % ("spirals", "2-5-3"))
    write("conds.conf", CONDS)
    write("conds/all.manifest", "[a]\nrecipe = a.conf\ncond = 0\n[b]\nrecipe = b.conf\ncond = 1\n")
    write("conds/a.conf", TASK % ("moons", "2-4-2"))
    write("conds/b.conf", TASK.replace("[zoo]", "noise = 0.4\n[zoo]") % ("moons", "2-4-2"))
    if lab.can_fetch():
        make_downloads(lab, write)
        weft("data fetch %s/table.csv -o fetched" % lab.address)


def make_downloads(lab, write):
    """What OpenML and the Census Bureau would send; paths are those of their servers."""
    data = "@relation small\n@attribute x numeric\n@attribute y {a,b}\n@data\n1,a\n2,b\n"
    write("small.arff", data)
    about = {"id": 7, "name": "small", "version": "1", "format": "ARFF",
             "url": lab.address + "/small.arff", "default_target_attribute": "y",
             "md5_checksum": hashlib.md5(data.encode()).hexdigest()}
    for folder in ("api/v1/json/data", "programs-surveys/acs/data/pums/2018/1-Year"):
        os.makedirs(os.path.join(lab.inputs, folder))
    write("api/v1/json/data/7", json.dumps({"data_set_description": about}))
    rows = ["PWGTP,AGEP,COW,SCHL,MAR,OCCP,POBP,RELP,WKHP,SEX,RAC1P,PINCP"]
    rows += ["9,%d,1,12,5,4720,6,2,%d,2,1,%d" % (17 + i, i, 101 + 2000 * i) for i in range(1, 40)]
    survey = os.path.join(lab.inputs, "programs-surveys/acs/data/pums/2018/1-Year/csv_pca.zip")
    with zipfile.ZipFile(survey, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("psam_p06.csv", "\r\n".join(rows) + "\r\n")


# --- comparing

CACHE = re.compile(r"\.cloud\.safetensors$")  # may be missing: it only saves time
DURATION = re.compile(rb"\b[0-9.]+ (ms|s|min|h)\b( [0-9.]+ (s|min)\b)?|\d+ threads?")


def without_seconds(value, whole=True):
    """stage.json has its digest and those of files with times in them: weft verify checks it."""
    if isinstance(value, dict):
        timed = ("seconds", "outputs", "digest") if whole else ("seconds", "outputs")
        return {k: without_seconds(v, False) for k, v in value.items() if k not in timed}
    return [without_seconds(v, False) for v in value] if isinstance(value, list) else value


def plain(data):
    return DURATION.sub(b"TIME", data)


def essence(path):
    """The bytes of a file, without how long something took."""
    data = open(path, "rb").read()
    try:
        if path.endswith((".jsonl", ".json")):
            lines = data.splitlines() if path.endswith("l") else [data]
            return b"\n".join(
                json.dumps(without_seconds(json.loads(line)), sort_keys=True).encode()
                for line in lines
            )
        if path.endswith(".safetensors"):
            size = struct.unpack("<Q", data[:8])[0]
            header = json.loads(data[8 : 8 + size])
            for key in ("seconds", "phase.seconds", "weft.digest"):
                header.get("__metadata__", {}).pop(key, None)
            return json.dumps(header, sort_keys=True).encode() + data[8 + size :]
    except (ValueError, struct.error):
        return data
    return plain(data) if path.endswith(".html") else data


def snapshot(folder):
    """Names and what they hold; the folder's own path, which recipes name, counts as any other."""
    out, own = {}, os.path.realpath(folder).encode()
    for at, folders, names in os.walk(folder):
        for name in folders:
            out[os.path.relpath(os.path.join(at, name), folder) + "/"] = b""
        for name in names:
            path = os.path.join(at, name)
            out[os.path.relpath(path, folder)] = essence(path).replace(own, b"FOLDER")
    return out


def state_of(command, folder):
    """A digest of a command's folder. Names of temporary files and the text of locks tell the
    process, which does not count."""
    digest = hashlib.sha256(command.encode())
    for name, data in sorted(snapshot(folder).items()):
        name = re.sub(r"\.tmp\.\d+$", ".tmp", name)
        digest.update(b"%s\0%d\0" % (name.encode(), len(data)))
        digest.update(b"" if name.endswith("lock") else data)
    return digest.digest()


def differences(wanted, found):
    out = ["%s is missing" % name for name in sorted(wanted.keys() - found.keys())]
    out += ["%s is left over" % name for name in sorted(found.keys() - wanted.keys())]
    out += [
        "%s differs" % name
        for name in sorted(wanted.keys() & found.keys())
        if wanted[name] != found[name]
    ]
    return "; ".join(out)


def leftovers(folder):
    return sorted(
        name
        for name in snapshot(folder)
        if re.search(r"(^|/)\.[^/]*(\.tmp\.\d+|lock)$|\.safetensors\.parts/|\.part(\.tag)?$", name)
    )
