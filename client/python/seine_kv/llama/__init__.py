"""llama.cpp that decodes through Seine: the plug-in of this wheel, for programs and for llama-cpp-python.

    from llama_cpp import Llama
    from seine_kv import llama

    llama.load()                                       # before the first model
    model = Llama("model.gguf", n_ctx=8192, flash_attn=True)

`python -m seine_kv.llama -- llama-server -m model.gguf` runs a program with it, and `--check` says what would be
answered. Nothing is compiled: the plug-in asks the ggml that loads it for its version and its layout, and refuses what
it does not know. docs/engines.md has its settings. Standard library only.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
from pathlib import Path
from typing import Any

LIBRARY = "libggml-seine.so"


def path() -> Path:
    """The plug-in. FileNotFoundError: this installation has none, as one that was built without llama.cpp's headers."""
    file = Path(__file__).resolve().parent / LIBRARY
    if not file.is_file():
        raise FileNotFoundError(f"{LIBRARY}: this installation of seine-kv has no plug-in; install a wheel of ./dev wheel")
    return file


def _plugin() -> ctypes.CDLL:
    plugin = ctypes.CDLL(str(path()))
    plugin.seine_plugin.restype = ctypes.c_char_p
    plugin.seine_unfit.restype = ctypes.c_char_p
    plugin.seine_unfit.argtypes = [ctypes.c_int] * 4
    return plugin


def about() -> dict[str, Any]:
    """What the plug-in says of itself: `version`, `interfaces` of ggml that it serves, `min_kv` (cells from which on it
    answers), and of the ggml in this process that loaded it last: `loaded_by` (its file), `ggml`, `interface`, `refusal`."""
    return json.loads(_plugin().seine_plugin())


def unfit(head_dim: int, value_head_dim: int, num_q_heads: int, num_kv_heads: int) -> str | None:
    """Why attention of such heads is left to llama.cpp; None: it is answered."""
    why = _plugin().seine_unfit(head_dim, value_head_dim, num_q_heads, num_kv_heads)
    return None if why is None else why.decode()


def load(library: ctypes.CDLL | str | os.PathLike[str] | None = None) -> None:
    """Loads the plug-in into the llama.cpp of this process, before the first model. Once is enough; twice does no harm.

    `library`: the one that holds ggml, where it is not llama-cpp-python's (`xllamacpp.xllamacpp.__file__`). RuntimeError:
    that ggml does not take the plug-in, with the reason.
    """
    if library is None:
        try:
            library = importlib.import_module("llama_cpp.llama_cpp")._lib
        except ImportError as error:
            raise RuntimeError(f"llama-cpp-python cannot be imported, and no other library was named: {error}") from None
    held = library if isinstance(library, ctypes.CDLL) else ctypes.CDLL(os.fspath(library))
    try:
        load_backend = held.ggml_backend_load
    except AttributeError:
        raise RuntimeError(f"{held._name} has no function ggml_backend_load: it is no llama.cpp, or hides it") from None
    load_backend.restype, load_backend.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    if not load_backend(str(path()).encode()):
        raise RuntimeError(about()["refusal"] or "ggml did not take the plug-in; stderr has its reason")
