"""The methods that are compared, each as settings of hf.install: they all run through the same server and client."""

from dataclasses import dataclass, replace
from typing import Optional

from seine_kv import hf
from seine_kv.hf.eviction import ALL_DENSE
from seine_kv.hf.prompts import MASS

QUICK_SCORERS = ("keydiff", "snapkv")
# All of seined's but those of the caller (client); streaming_llm is always there.
SCORERS = ("keydiff", "normalized", "hybrid", "knorm", "manifoldkv", "windowed_manifoldkv", "qfilters", "snapkv", "tova", "h2o",
           "expected_attention")  # fmt: skip
# Scorers of --kept, where nobody chooses; streaming_llm is always there.
KEPT_SCORERS = ("keydiff", "snapkv", "tova", "manifoldkv", "windowed_manifoldkv")
PAPER_SHARES = {"fixed": "β 0.05", "paper": "its authors' β and ρ"}  # by --schedule
WINDOW = 512  # of windowed_manifoldkv: a text of 4,096 tokens is one window of the default, which is manifoldkv


@dataclass
class Method:
    """`key` names it in the JSON, `label` in the table."""

    key: str
    label: str
    settings: dict
    share: Optional[float] = None  # of a prompt's tokens, that eviction leaves, in place of the budget of `settings`
    prompt: str = "dense"  # how it attends a prompt's tokens
    scheduled: bool = False  # its shares of candidates follow from the length of the zone, as paper_shares has them

    def of(self, tokens):
        """The Method for a prompt of so many tokens."""
        if self.scheduled:
            zones = self.settings["zones"]
            beta, rho = paper_shares(tokens - zones["sink"] - zones["local"])
            selector, retrieval = ({**self.settings[name]} for name in ("selector", "retrieval"))
            selector["candidate_fraction"], retrieval["collision_fraction"] = beta, rho
            settings = {**self.settings, "selector": selector, "retrieval": retrieval}
            return replace(self, settings=settings, scheduled=False)
        if self.share is None:
            return self
        evict = replace(self.settings["evict"], budget=max(1, int(self.share * tokens)))
        return replace(self, settings={**self.settings, "evict": evict}, share=None)


@dataclass
class Budget:
    """Tokens that a head attends, the same for every method: sink, selected, local and the local zone's buffer."""

    top_k: int = 100
    sink: int = 16
    local: int = 64
    buffer: int = 64  # until it is full, tokens stay local; eviction's interval, so that both go up and down alike

    @property
    def kept(self):
        """Tokens that eviction leaves."""
        return self.sink + self.top_k + self.local

    def zones(self):
        return {"sink": self.sink, "local": self.local, "update_buffer": self.buffer, "dense_threshold": 256}

    def eviction(self, scorer):
        keep = {"sinks": self.sink, "recent": self.local}
        return hf.Eviction(self.kept, scorer, keep, interval=self.buffer)


def paper_shares(zone):
    """(beta, rho) of ParisKV as its authors' released code sets them: shares of a zone of so many keys that are candidates,
    and that a subvector's tiers cover."""
    for below, shares in ((5_000, (0.5, 0.5)), (10_000, (0.25, 0.3)), (30_000, (0.2, 0.25))):
        if zone < below:
            return shares
    return 0.1, 0.2


def retrieval_methods(budget, profile, beta, refine, rank=0.6, schedule="fixed"):
    """Seine with and without the tail and with low-rank keys and values, exact top-k, and the paper's pipeline.

    schedule: of the paper's candidates: "fixed", beta 0.05 and rho 0.2, or "paper", paper_shares of each prompt."""
    seine = {
        "top_k": budget.top_k,
        "zones": budget.zones(),
        "profile": profile,
        "codec": {"horizon": 8192} if profile else None,
        "selector": {"candidate_fraction": beta, "rescore_k": refine},
    }
    share = f"β {beta:g}"
    code = "balanced" if profile else "sign_ip"
    paper = {
        "top_k": budget.top_k,
        "zones": budget.zones(),
        "codec": {"name": "rsq", "centre": "none"},
        "retrieval": {"coarse": "collision"},
        "selector": {"candidate_fraction": 0.05, "rescore_k": 0},
        "tail": False,
    }
    return [
        Method("seine", f"Seine: {code}, {share}, tail", {**seine, "tail": True}),
        Method("seine_no_tail", f"Seine: {code}, {share}, no tail", {**seine, "tail": False}),
        Method(
            "low_rank",
            f"Seine: {code}, {share}, tail, rank {rank:g}",
            {**seine, "tail": True, "low_rank": hf.LowRank(rank, rank)},
        ),
        Method("exact", "exact top-k", {**seine, "tail": False, "selector": {"exact": True}}),
        Method("paper", f"the paper's pipeline, {PAPER_SHARES[schedule]}", paper, scheduled=schedule == "paper"),
    ]


def sparse_prompt():
    """A prompt read over the keys that matter, and all tokens attended behind it: what differs comes from the prompt."""
    settings = {"prompt": "sparse", "prompt_mass": MASS, "zones": {"dense_threshold": ALL_DENSE}, "tail": False}
    return Method("sparse_prompt", "all tokens", settings, prompt=f"sparse, {MASS:g}")


def eviction_methods(budget, scorers, profile):
    """StreamingLLM (sink and recent tokens alone), then each scorer, of one budget."""
    streaming = {"name": "streaming_llm", "sink": budget.sink}
    named = [("streaming_llm", "StreamingLLM", streaming)]
    for scorer in scorers:
        windowed = scorer == "windowed_manifoldkv"
        label = f"evicted by {scorer} ({WINDOW})" if windowed else f"evicted by {scorer}"
        named.append((f"evict_{scorer}", label, {"name": scorer, "window": WINDOW} if windowed else scorer))
    methods = []
    for key, label, scorer in named:
        # All that is retained is attended, so nothing is left for a tail.
        settings = {"evict": budget.eviction(scorer), "tail": False}
        if scorer == "qfilters":
            settings["profile"] = profile
        methods.append(Method(key, label, settings))
    return methods


def kept_methods(budget, shares, scorers, profile, block):
    """The same at shares of a prompt's tokens: attending it densely, then in blocks of so many tokens. Both evict every
    `block` tokens."""
    methods = []
    for share in shares:
        for method in eviction_methods(replace(budget, buffer=block), scorers, profile):
            name, label = f"{method.key.removeprefix('evict_')}_{100 * share:g}", f"{method.label}, {share:g} kept"
            in_blocks = {**method.settings, "prefill": "blocks"}
            methods.append(Method(f"evict_{name}", label, method.settings, share))
            methods.append(Method(f"blocks_{name}", label, in_blocks, share, f"blocks of {block}"))
    return methods


def choose(names, methods):
    """The methods whose keys are among `names` (all if None), in their own order. KeyError names an unknown one."""
    known = {method.key for method in methods}
    for name in names or ():
        if name not in known:
            raise KeyError(f"--methods: unknown method {name}; there are {', '.join(sorted(known))}")
    return [method for method in methods if names is None or method.key in names]
