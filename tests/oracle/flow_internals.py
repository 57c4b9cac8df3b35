"""Builds flow_internals.c against $BUILD/libweft.a and gives its functions to the oracles."""
import ctypes as C
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
# What the library needs: `make test-oracle` says it, with CUDA and MPI where they are.
LIBS = os.environ.get("LIBS", "-ljansson -lz -lxxhash -lm -pthread").split()


def library():
    source = os.path.join(ROOT, "tests/oracle/flow_internals.c")
    target = os.path.join(BUILD, "tests/oracle/flow_internals.so")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    made = f"{target}.{os.getpid()}"  # programs that run side by side both make it
    subprocess.run(
        [
            *os.environ.get("CC", "cc").split(), "-std=gnu11", "-O2", "-fPIC", "-shared",
            "-D_GNU_SOURCE", "-I" + ROOT + "/include", "-I" + ROOT + "/src", source,
            BUILD + "/libweft.a", *LIBS, "-o", made,
        ],
        check=True,
    )
    os.replace(made, target)
    return C.CDLL(target)


def report(name, good, detail=""):
    print(("ok " if good else "not ok ") + name + (" " + detail if detail else ""))
    return good
