"""wf_dataset_open through ctypes: the structures of include/weft/data.h and arrays as numpy."""
import ctypes as C
import os

import numpy as np

build = os.environ.get("BUILD", "build")
lib = C.CDLL(os.path.join(build, "libweft.so"))


class Desc(C.Structure):
    _fields_ = [
        ("name", C.c_char_p),
        ("path", C.c_char_p),
        ("labels", C.c_char_p),
        ("test_path", C.c_char_p),
        ("test_labels", C.c_char_p),
        ("root", C.c_char_p),
        ("format", C.c_char_p),
        ("target", C.c_char_p),
        ("classes", C.c_char_p),
        ("categorical", C.c_char_p),
        ("drop", C.c_char_p),
        ("merge", C.c_char_p),
        ("joint", C.c_char_p),
        ("scale", C.c_int),
        ("test_fraction", C.c_double),
        ("seed", C.c_uint64),
        ("rows", C.c_size_t),
        ("noise", C.c_double),
        ("bng", C.c_char_p),
        ("bng_seed", C.c_uint64),
    ]


class Dataset(C.Structure):
    _fields_ = [
        ("name", C.c_char * 64),
        ("n_train", C.c_size_t),
        ("n_test", C.c_size_t),
        ("inputs", C.c_int),
        ("classes", C.c_int),
        ("x_train", C.POINTER(C.c_float)),
        ("x_test", C.POINTER(C.c_float)),
        ("y_train", C.POINTER(C.c_int32)),
        ("y_test", C.POINTER(C.c_int32)),
        ("class_names", C.POINTER(C.c_char_p)),
        ("input_names", C.POINTER(C.c_char_p)),
        ("preparation", C.c_char_p),
        ("fingerprint", C.c_char * 65),
        ("note", C.c_char * 256),
        ("channels", C.c_int),
        ("height", C.c_int),
        ("width", C.c_int),
    ]


lib.wf_data_desc_default.restype = Desc
lib.wf_last_error.restype = C.c_char_p
lib.wf_last_error.argtypes = [C.c_void_p]
lib.wf_dataset_open.argtypes = [C.c_void_p, C.POINTER(Desc), C.POINTER(C.POINTER(Dataset))]
lib.wf_dataset_free.argtypes = [C.POINTER(Dataset)]
ctx = C.c_void_p()
assert lib.wf_ctx_create(None, C.byref(ctx)) == 0


class Data:
    """Copies of everything in a wf_dataset."""

    def __init__(self, **options):
        desc = lib.wf_data_desc_default()
        for key, value in options.items():
            setattr(desc, key, value.encode() if isinstance(value, str) else value)
        out = C.POINTER(Dataset)()
        if lib.wf_dataset_open(ctx, C.byref(desc), C.byref(out)) != 0:
            raise ValueError(lib.wf_last_error(ctx).decode())
        d = out.contents
        self.inputs, self.classes = d.inputs, d.classes
        self.x_train = np.ctypeslib.as_array(d.x_train, (d.n_train, d.inputs)).copy()
        self.x_test = np.ctypeslib.as_array(d.x_test, (d.n_test, d.inputs)).copy()
        self.y_train = np.ctypeslib.as_array(d.y_train, (d.n_train,)).copy()
        self.y_test = np.ctypeslib.as_array(d.y_test, (d.n_test,)).copy()
        self.class_names = [d.class_names[k].decode() for k in range(d.classes)]
        self.input_names = [d.input_names[i].decode() for i in range(d.inputs)]
        self.preparation = d.preparation.decode()
        self.fingerprint = d.fingerprint.decode()
        lib.wf_dataset_free(out)
