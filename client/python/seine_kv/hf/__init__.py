"""A Hugging Face causal language model that decodes through Seine.

    from seine_kv import hf

    seine = hf.install(model, profile="my-model.profile.safetensors")     # in this process; or endpoint="unix:///run/seine.sock"
    out = model.generate(**inputs, max_new_tokens=100)       # greedy, sampling, beams, batches padded on the left
    print(seine.stats())                                     # what was attended, and every step that was not
    print(seine.memory())                                    # what the index holds, against the full cache
    hf.uninstall(model)

Prompts in the host's memory are attended by Seine's kernel, others by torch, whole or in blocks, while their keys and
values go to the index, layer by layer. Each token after them is one step a layer, for the whole batch: the new key and
value are appended, and attention over sink, selected and local tokens (and the tail of the others) comes back. A cache
that is copied forks its sequences, one that is cropped truncates them, beams fork them.

In this process the index is the cache: torch keeps no keys and values. What needs them all, such as a prompt's second
block, reads them back. With a server, transformers' own cache stays as it is: it is what a step falls back on when the server
fails, which is warned of and counted, and what the server is filled from again when it is back. `keep_cache` chooses.

Needs the extra `hf`: torch, transformers >= 5, ml_dtypes for bfloat16.
"""

from __future__ import annotations

import weakref
from typing import Any, Optional

from seine_kv.hf import requirements  # noqa: F401, first: it says what is missing
from seine_kv.hf.attention import NAME, register
from seine_kv.hf.cache import SeineCache  # noqa: F401
from seine_kv.hf.eviction import Eviction  # noqa: F401
from seine_kv.hf.gate import GateWarning  # noqa: F401
from seine_kv.hf.installation import DenseFallbackWarning, Installation  # noqa: F401
from seine_kv.hf.low_rank import LowRank, Memory  # noqa: F401
from seine_kv.hf.models import check_calls
from seine_kv.hf.stats import Stats  # noqa: F401

_installed: weakref.WeakKeyDictionary[Any, Installation] = weakref.WeakKeyDictionary()  # model -> Installation


def install(model: Any, endpoint: Optional[str] = None, **settings: Any) -> Installation:
    """Lets `model`, a causal language model of transformers, decode through an index of this process, or through the server
    at `endpoint` (unix:///path, /path or host:port); returns the Installation.

    The index is made if it does not exist, and must fit the model and the settings if it does:
      index       its name (default: one that follows from the model and the settings)
      profile     a file of seine_kv.profile (as of seine_kv.Index), or of a server the name (GetServerInfo lists them): the
                  balanced code. None: the one by the model's name if there is one, else rsq with
                  sign_ip
      dtype       of stored keys and values, "float32", "float16" or "bfloat16". None: the model's; but float16 where a
                  float32 model decodes in this process, which halves what they take
      zones       dict of sink, local, update_buffer, dense_threshold, in tokens
      codec, retrieval, memory_limit_bytes     as of Client.create_index
    What a step attends:
      top_k       tokens selected for each head (100)
      tail        whether stand-ins for what is not selected take part; None: the server's choice, which is on where the
                  index selects for each query head
      selector    dict of candidate_fraction, rescore_k, recall_target, scope, exact, ...: as of Client.retrieve_batch. a scope
                  that is not given means "per_q_head"
      evict       an Eviction: attention over what it retains
      low_rank    a LowRank: keys and values of the zone kept low-rank, attended as they read; with evict, those retained
    How prompts are read:
      prompt      "exact": by Seine's kernel, as torch to rounding. "sparse": each block of tokens over the keys that hold
                  prompt_mass of what some of its tokens see; exact below 2,048 keys. "torch": by torch. What the kernel
                  cannot attend torch does, and Stats counts why
      prompt_mass share of attention, above 0 and below 1 (0.96)
      prefill     "dense": attended whole, whatever is evicted. "blocks", which needs evict: each block attends
                  what is retained and itself, and the layer is cut back before the next. No layer ever holds more than
                  budget + block tokens a head, in the index or in torch; torch keeps no cache
      block       tokens of a block, 2 to evict.interval (the default)
    How far an answer may be from exact attention:
      gate        of each layer one answer in 256, more at first and fewer over long contexts, is compared with what exact
                  scores would have chosen, on an idle thread, and Stats have what is lost. A layer that loses more than
                  gate_bound attends exactly from then on, which a GateWarning says once, and is tried again later. False: nothing is watched. With evict
                  or low_rank, which approximate on purpose, nothing is either, nor on a CUDA device unless this or
                  gate_bound asks for it
      gate_bound  share of a layer's attention on the exact top k that its answers may miss, the mean of its last checks
                  (0.05)
    And:
      keep_cache  whether torch keeps keys and values too. None: where a server may fail, or rows are evicted or low-rank
                  (prompts attend all). False, and always with blocks: an error of the index is raised, for there is
                  nothing to fall back on
      view        a seine_kv.view.View, which keeps what chosen layers attend, and writes it as a page to look at
      threads     of an index in this process, and of prompts (0: one a core)
      backend     of an index in this process, as of Client.in_process. None: the model's own CUDA device, or for a model
                  in the host's memory "auto". On the model's device queries and outputs stay there, and keys and values
                  are copied once, to the page-locked memory that keeps them; gate, evict, low_rank and view bring
                  queries to the host
      timeout     seconds that a call or a step may take (10)
      retry       seconds from a failure of the server to the next attempt (5)

    Layers that attend all positions are served: all of most models. Layers with a window, in chunks or without attention keep
    their own attention and cache; Installation.layers and .left say which are which. Sinks are honoured. A layer that shares an
    earlier one's keys and values (Gemma 3n and 4) asks that one's sequence; then without prefill="blocks".

    ValueError: the model is none that can be served (its layer and the reason), or the index that exists has other settings
    (each that differs). SeineError: the server's.
    """
    if model in _installed:
        raise ValueError("Seine is already installed in this model; hf.uninstall(model) first")
    installation = Installation(model, endpoint, **settings)
    try:
        register()
        installation.attach(NAME)
        check_calls(model, installation.geometry, installation.served)
    except BaseException:
        installation.close()
        raise
    _installed[model] = installation
    return installation


def installed(model: Any) -> Optional[Installation]:
    """The Installation of `model`; None: there is none."""
    return _installed.get(model)


def uninstall(model: Any) -> None:
    """Takes Seine out of `model` again and deletes its sequences, not a server's index. Its caches go on as they are; those
    whose keys and values lay in the index alone have them in torch again."""
    if model not in _installed:
        raise ValueError("Seine is not installed in this model")
    _installed[model].close(restore=True)
    del _installed[model]
