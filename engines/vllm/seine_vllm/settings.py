"""What the environment says. Names and defaults are those of the plug-in for llama.cpp (docs/engines.md)."""

import functools
import os
from dataclasses import dataclass

MODES = ("codes", "exact")
PROMPTS = ("exact", "sparse")


@dataclass(frozen=True)
class Settings:
    mode: str = "codes"  # SEINE_MODE=exact: decoding attends exactly too
    min_kv: int = 2048  # SEINE_MIN_KV: shorter texts are attended exactly
    top_k: int = 100  # SEINE_TOP_K
    beta: float = 0.0  # SEINE_BETA; 0: the codec's usual share
    refine: int = 100  # SEINE_REFINE
    sink: int = 64  # SEINE_SINK: a text's first tokens, always attended
    local: int = 256  # SEINE_LOCAL: its last ones
    tail: int = 1  # SEINE_TAIL=0: tokens that are not chosen do not count at all
    profile: str = ""  # SEINE_PROFILE: file; empty: the rsq code, which needs none
    prompt: str = "exact"  # SEINE_PROMPT=exact or sparse
    prompt_min: int = 2048  # SEINE_PROMPT_MIN: tokens from which on sparse ones are
    prompt_mass: float = 0.96  # SEINE_PROMPT_MASS: of a block's attention that sparse ones keep
    gate: float = 0.05  # SEINE_GATE: share of attention that a layer may lose before it attends exactly; 0: any
    codes_gib: float = 0.0  # SEINE_CODES_GIB: most that codes take, of all layers; blocks beyond are attended row by row; 0: as many as there are
    log_every: float = 10.0  # SEINE_LOG_EVERY: seconds from line to line of counts; 0: at an orderly end alone

    @classmethod
    def of(cls, environment):
        """ValueError names the variable that is wrong."""
        given = {}
        for name, (least, most) in _RANGES.items():
            text = environment.get(f"SEINE_{name.upper()}")
            if text is None:
                continue
            kind = type(getattr(cls, name))
            try:
                value = kind(text)
            except ValueError:
                raise ValueError(f"SEINE_{name.upper()}={text} is no number") from None
            if not least <= value <= most:
                raise ValueError(f"SEINE_{name.upper()}={text} is not in [{least}, {most}]")
            given[name] = value
        for name, words in (("mode", MODES), ("prompt", PROMPTS)):
            text = environment.get(f"SEINE_{name.upper()}", getattr(cls, name))
            if text not in words:
                raise ValueError(f"SEINE_{name.upper()}={text} is none of {', '.join(words)}")
            given[name] = text
        given["profile"] = environment.get("SEINE_PROFILE", "")
        return cls(**given)


_RANGES = {
    "min_kv": (256, 1 << 30), "top_k": (1, 1 << 16), "beta": (0, 1), "refine": (0, 1 << 16), "sink": (0, 1 << 20),
    "local": (0, 1 << 20), "tail": (0, 1), "prompt_min": (0, 1 << 30), "prompt_mass": (0.01, 1), "gate": (0, 1),
    "codes_gib": (0, 1 << 20),
    "log_every": (0, 1e9),
}  # fmt: skip


@functools.cache
def of_process():
    return Settings.of(os.environ)
