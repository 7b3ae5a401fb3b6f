"""seine_kv: the Python side of Seine, a KV-cache retrieval index.

    import seine_kv as seine

    index = seine.Index(num_layers=32, num_q_heads=32, num_kv_heads=8, head_dim=128)   # in this process
    index = seine.connect("unix:///run/seine.sock").index("llama")                     # or a server's: the same class
    chat = index.create_sequence()
    chat.append(layer, keys, values)                     # [tokens, num_kv_heads, head_dim], after RoPE
    found = chat.retrieve(layer, queries, top_k=100)     # found.set(i): the tokens that matter to KV head i
    output, log_sum_exp = chat.attend(layer, queries)    # attention over them; numpy, or torch's where torch's came in

help(seine_kv.Index), help(seine_kv.Sequence) and help(seine_kv.calibrate) have the rest; help(seine_kv.client) every
call of Seine with its shapes. seine_kv.grpc has the same client over grpcio, where there is no native module.
seine_kv.fleet calls many servers as one. seine_kv.llama runs llama.cpp's programs, and llama-cpp-python, with the plug-in.
seine_kv.hf decodes Hugging Face models, seine_kv.eval measures how well. `python -m seine_kv.trace` records the
queries, keys and values of a real model; `python -m seine_kv.profile` measures their moments, the model's profile.

Importing the package costs nothing beyond the standard library; each module says what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seine_kv.address import Security as Security
    from seine_kv.calibration import calibrate as calibrate
    from seine_kv.client import Client as Client
    from seine_kv.index import Index as Index, connect as connect
    from seine_kv.messages import SeineError as SeineError, StepError as StepError
    from seine_kv.sequence import Sequence as Sequence
    from seine_kv.sharded import ShardedSequence as ShardedSequence
    from seine_kv.tensor_file import read_filters as read_filters

__version__ = "0.1.0"

# Each is imported when it is first asked for.
_MODULES = {
    "Client": "client",
    "Index": "index",
    "Security": "address",
    "SeineError": "messages",
    "Sequence": "sequence",
    "ShardedSequence": "sharded",
    "StepError": "messages",
    "calibrate": "calibration",
    "connect": "index",
    "read_filters": "tensor_file",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
