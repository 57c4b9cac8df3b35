"""libweft.so through ctypes: found, checked and declared once, at the first use.

A prototype is a word: the result, then the arguments, a letter each.
  v nothing   i int (also a status)   z size_t   q int64   Q uint64   d double   b bool
  p pointer   s text, UTF-8, NULL for None
No struct goes by value: their layouts may grow.
ctypes lets go of the interpreter's lock during every call."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Callable

from .errors import LibraryError, UsageError

#: The binary interface that this package was written for: WF_ABI of weft/base.h.
ABI = 2


_TYPES: dict[str, Any] = {
    "v": None,
    "i": ctypes.c_int,
    "z": ctypes.c_size_t,
    "q": ctypes.c_int64,
    "Q": ctypes.c_uint64,
    "d": ctypes.c_double,
    "b": ctypes.c_bool,
    "p": ctypes.c_void_p,
    "s": ctypes.c_char_p,
}

_PROTOTYPES = {
    # base.h
    "wf_abi_version": "i",
    "wf_version": "s",
    "wf_build_info": "s",
    "wf_free": "vp",
    "wf_ctx_create": "ipp",
    "wf_ctx_free": "vp",
    "wf_ctx_configure": "ips",
    "wf_ctx_on_progress": "vppp",
    "wf_ctx_on_warning": "vppp",
    "wf_ctx_on_log": "vppp",
    "wf_ctx_threads": "ip",
    "wf_ctx_devices": "sp",
    "wf_last_error": "sp",
    "wf_interrupt": "vp",
    "wf_interrupt_clear": "vp",
    # graph.h
    "wf_graph_parse": "ipssip",
    "wf_graph_json": "ippp",
    "wf_graph_clone": "ippp",
    "wf_graph_fold": "ippip",
    "wf_graph_fold_norms": "ippp",
    "wf_graph_unfold_norms": "ippp",
    "wf_graph_convert_norms": "vpppp",
    "wf_graph_free": "vp",
    "wf_graph_equal": "bpp",
    "wf_graph_params": "zp",
    "wf_graph_inputs": "ip",
    "wf_graph_outputs": "ip",
    "wf_graph_text": "sp",
    "wf_graph_activation": "sp",
    "wf_graph_tensors": "ip",
    "wf_graph_tensor": "spippppp",
    "wf_graph_scale_width": "ippdp",
    "wf_graph_forward": "ippppzp",
    # zoo.h, import.h
    "wf_zoo_open": "ipsp",
    "wf_zoo_free": "vp",
    "wf_zoo_from_tensors": "ipspppzp",
    "wf_zoo_set_meta": "ippss",
    "wf_zoo_save": "ipps",
    "wf_zoo_graph": "pp",
    "wf_zoo_count": "zp",
    "wf_zoo_path": "sp",
    "wf_zoo_in_memory": "bp",
    "wf_zoo_tensor": "ppip",
    "wf_zoo_load": "ippzzp",
    "wf_zoo_test": "spi",
    "wf_zoo_meta_count": "zp",
    "wf_zoo_meta_at": "vpzpp",
    "wf_zoo_scores": "pps",
    "wf_zoo_import_json": "ippisp",
    "wf_zoo_import_tensors": "ipppppisp",
    "wf_zoo_info_json": "ippp",
    "wf_zoo_train": "ippppsp",
    "wf_zoo_settings": "p",
    "wf_zoo_scale": "bpp",
    # data.h
    "wf_data_settings": "p",
    "wf_dataset_open": "ippp",
    "wf_dataset_free": "vp",
    "wf_dataset_from_memory": "ipsiippzppzp",
    "wf_dataset_split": "ipsiippzdQp",
    "wf_dataset_x": "ppbp",
    "wf_dataset_y": "ppbp",
    "wf_dataset_json": "ippp",
    "wf_dataset_fits": "ippp",
    # settings.h
    "wf_settings_create": "ippsp",
    "wf_settings_describe": "ippp",
    "wf_settings_json": "ppp",
    "wf_nearest_name": "ssp",
    # flow.h, field.h, generator.h
    "wf_fit_settings": "p",
    "wf_field_settings": "p",
    "wf_sample_settings": "p",
    "wf_generator_count": "i",
    "wf_generator_at": "pi",
    "wf_generator_json": "ipip",
    "wf_generator_settings": "ps",
    "wf_generator_fit_json": "ipsppiss",
    "wf_generator_open_json": "ipsspsp",
    "wf_generator_sample_json": "ipppzsppp",
    "wf_generator_free": "vp",
    "wf_generator_kind_of": "pp",
    "wf_generator_graph": "pp",
    "wf_generator_flow": "pp",
    "wf_flow_json": "ippp",
    "wf_flow_position": "zp",
    "wf_flow_sampling": "vpp",
    "wf_flow_keep_sampling": "ipsp",
    "wf_flow_velocity": "ipppppzpdbp",
    "wf_flow_source_graph": "ppi",
    "wf_flow_find_task": "ippsp",
    "wf_flow_nearest": "ipp",
    "wf_plan_json": "ippdp",
    "wf_run_json": "ipsssppp",
    # align.h, eval.h
    "wf_match_settings": "p",
    "wf_wcs_max": "ipppzpzpppp",
    "wf_align_zoo": "ippzps",
    "wf_eval_settings": "p",
    "wf_reference_open": "ippppp",
    "wf_reference_free": "vp",
    "wf_reference_notes": "sp",
    "wf_report_evaluation": "ipsppppipp",
    "wf_score_networks": "ipppzpipp",
    "wf_zoo_suits_json": "ippppp",
}


class Progress(ctypes.Structure):
    """wf_progress; later versions add members at its end alone."""

    _fields_ = [
        ("stage", ctypes.c_char_p),
        ("unit", ctypes.c_char_p),
        ("detail", ctypes.c_char_p),
        ("done", ctypes.c_double),
        ("total", ctypes.c_double),
        ("seconds", ctypes.c_double),
        ("last", ctypes.c_bool),
    ]


ON_PROGRESS = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Progress))
ON_WARNING = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
ON_LOG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)


def _candidates() -> list[Path]:
    given = os.environ.get("WEFT_LIBRARY")
    if given:
        return [Path(given)]
    here = Path(__file__).resolve().parent
    return [here / "libweft.so", here.parent.parent / "build" / "libweft.so"]


def _load() -> ctypes.CDLL:
    places = _candidates()
    path = next((place for place in places if place.exists()), None)
    if path is None:
        raise LibraryError(
            f"libweft.so is missing; looked for {', '.join(map(str, places))}. Install the package "
            f"again (pip install . in the repository), run make there, or set WEFT_LIBRARY to the "
            f"library."
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(
            f"{path} cannot be loaded: {error}. Install what it needs (Debian: libjansson4, "
            f"zlib1g, libxxhash0), or make it again on this machine: pip install . in the "
            f"repository."
        ) from None
    abi = library.wf_abi_version() if hasattr(library, "wf_abi_version") else 0
    if abi != ABI:
        raise LibraryError(
            f"{path} has binary interface {abi}, this package needs {ABI}: they are of different "
            "versions. Install the package again, or let WEFT_LIBRARY name a library of this "
            "version."
        )
    return library


class _Library:
    """The functions of the library as attributes, declared when first used."""

    def __init__(self) -> None:
        self._loaded: ctypes.CDLL | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        prototype = _PROTOTYPES.get(name)
        if prototype is None:
            raise AttributeError(name)
        if self._loaded is None:
            self._loaded = _load()
        function = getattr(self._loaded, name)
        function.restype = _TYPES[prototype[0]]
        function.argtypes = [_TYPES[letter] for letter in prototype[1:]]
        setattr(self, name, function)
        return function  # type: ignore[no-any-return]


lib = _Library()


def text(value: str | os.PathLike[str]) -> bytes:
    """A text or path as the library takes it."""
    try:
        found = os.fsencode(value)
    except TypeError:
        raise UsageError(
            f"a name or path is a text or a pathlib.Path, not {type(value).__name__}"
        ) from None
    if b"\0" in found:  # where C would end it
        raise UsageError(f"{value!r} has a character of value 0, which no name has")
    return found


def text_or_none(value: str | os.PathLike[str] | None) -> bytes | None:
    return None if value is None else text(value)


def from_text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


def owned_text(pointer: ctypes.c_void_p) -> str:
    """The text that a call handed over, which is freed."""
    if not pointer:
        return ""
    try:
        return from_text(ctypes.cast(pointer, ctypes.c_char_p).value)
    finally:
        lib.wf_free(pointer)
