"""What the heads of chosen layers attended while a model wrote, as one HTML page that needs nothing else.

    from seine_kv import hf
    from seine_kv.view import View

    seine = hf.install(model, view=View(layers=(4, 15, 26)))
    out = model.generate(**inputs, max_new_tokens=32)
    seine.view.write("view.html", tokenizer)

Of each token that was decoded, layer and query head the page has the tokens that the answer attended, beside them the exact
best ones, by the keys that the index holds, and the softmax weight of each. Watching reads a layer's keys back at every step:
for looking, not for timing. The first row of a batch is watched, so beams are refused. A new cache begins a new page;
tokens that it held before are "…" there. Of a long answer the latest tokens are kept, as many as `most_bytes` hold; the page says
how many it leaves out.

`python -m seine_kv.view MODEL TEXT` does all of it.
"""

import json
from pathlib import Path

import numpy as np

DEPTHS = (0.15, 0.5, 0.88)  # of the layers that are watched where none are named: shallow, middle, deep
MARK = "/*DATA*/null"  # of page.html
LEVELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"  # least weight to largest
STEPS_A_HALVING = 4  # levels by which a weight of half as much is lower
MOST_BYTES = 128 << 20  # that a view keeps


def levels(weights):
    """A letter of LEVELS for each softmax weight: the last is 1, and four less is half of it; the first is all below 2^-15."""
    with np.errstate(divide="ignore"):
        numbers = np.round(len(LEVELS) - 1 + STEPS_A_HALVING * np.log2(np.asarray(weights, np.float64)))
    return "".join(LEVELS[int(number)] for number in np.maximum(numbers, 0))


def softmax_weights(query, keys, scale, softcap):
    """Of every key [tokens, head_dim] for a query [head_dim]; float64, with what a soft cap makes of logits."""
    logits = keys.astype(np.float64) @ query.astype(np.float64) * (scale or query.shape[0] ** -0.5)
    if softcap:
        logits = softcap * np.tanh(logits / softcap)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def look(answer, i, weights):
    """What the head of set i attended, against its exact weights of all tokens, as the page reads it.

    answer: retrieve's; None: every token is attended. found: positions that it chose, ascending, each as its distance to the one
    before. missed: of as many exact best of the zone, those that it did not choose; extra: those chosen that are not among them.
    levels: of sink, local, found and missed in this order. mass: shares of attention by sink, local, found and the rest."""
    begin, end, chosen = len(weights), len(weights), np.empty(0, np.int32)
    if answer is not None and answer.path != "dense":
        begin, end, chosen = answer.zone_begin, answer.zone_end, answer.set(i)
    zone = np.arange(begin, end)
    best = zone[np.argsort(-weights[begin:end], kind="stable")[: len(chosen)]]
    missed = np.setdiff1d(best, chosen)
    mass = [weights[:begin].sum(), weights[end:].sum(), weights[chosen].sum()]
    return {
        "zone": [int(begin), int(end)],
        "found": np.diff(chosen, prepend=0).tolist(),
        "missed": missed.tolist(),
        "extra": np.setdiff1d(chosen, best).tolist(),
        "levels": levels(np.concatenate([weights[:begin], weights[end:], weights[chosen], weights[missed]])),
        "mass": [round(float(part), 4) for part in (*mass, max(0.0, 1 - sum(mass)))],
    }


def write_page(path, layers, tokens, steps, **about):
    """Writes a page of `tokens`, texts, and `steps`, in order: {"tokens": as many as were there, "paths": [one a layer], "heads":
    [a layer's [look(...) of each head], ...]}. `about` may name `model` and `text`, and `left_out`: tokens before those of `steps`."""
    data = {**about, "layers": layers, "tokens": tokens, "steps": steps}
    # "<" could end the script that the data lie in.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    page = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    Path(path).write_text(page.replace(MARK, text), encoding="utf-8")


def bytes_of(seen):
    """Memory of a layer's looks, roughly: lists of ints, letters, and what Python puts around them."""
    lists = sum(len(head[part]) for head in seen["heads"] for part in ("found", "missed", "extra"))
    return 36 * lists + sum(len(head["levels"]) + 1000 for head in seen["heads"])


class View:
    """Watches the layers of a model that Seine is installed in: hf.install(model, view=View()). most_bytes: of memory for what is
    kept, about; the latest token is always kept."""

    def __init__(self, layers=None, most_bytes=MOST_BYTES):
        if most_bytes < 1:
            raise ValueError(f"view: most_bytes must be at least 1, not {most_bytes}")
        self.layers = layers if layers is None else tuple(sorted(set(layers)))  # of the model; None: three, spread
        self.most_bytes = most_bytes
        self._begin(None)

    def _begin(self, batch):
        self._batch = batch  # whose first row is watched
        self.ids, self.steps = [], []  # of the tokens that were read, None: unseen; {layer: its path, tokens held, heads' looks}
        self._bytes, self.left_out = [], 0  # of each step, beside steps; steps that most_bytes had no room for

    def choose(self, served):
        """Called at install: fixes the layers. ValueError: one is named that the index does not serve."""
        served = sorted(served)
        if self.layers is None:
            self.layers = tuple(sorted({served[int(depth * len(served))] for depth in DEPTHS}))
        for layer in self.layers:
            if layer not in served:
                raise ValueError(f"view: layer {layer} is none that the index serves; they are {', '.join(map(str, served))}")

    def reads(self, batch, ids, columns):
        """Before a forward: tokens of the first row, behind `columns` that its cache holds. ids: [rows, new]."""
        if batch is not self._batch:
            self._begin(batch)
        padding, new = batch.rows[0].padding, ids[0].tolist()
        held = max(0, columns - padding)
        self.ids = (self.ids + [None] * held)[:held] + new[max(0, padding - columns) :]  # a cache may have been cropped
        kept = [i for i, step in enumerate(self.steps) if all(seen["tokens"] <= held for seen in step.values())]
        self.steps, self._bytes = [self.steps[i] for i in kept], [self._bytes[i] for i in kept]
        if len(new) == 1:
            self._make_room()
            self.steps.append({})
            self._bytes.append(0)

    def _make_room(self):
        """Where the steps take more than most_bytes, drops the oldest until the others take half as much: so it is done seldom."""
        if sum(self._bytes) <= self.most_bytes:
            return
        first, kept = len(self.steps), 0
        while first > 0 and kept + self._bytes[first - 1] <= self.most_bytes // 2:
            first -= 1
            kept += self._bytes[first]
        self.left_out += first
        del self.steps[:first], self._bytes[:first]

    def selected(self, batch, rows):
        """Before row i of a batch becomes what rows[i] was. RuntimeError: the watched row would be another's."""
        if batch is self._batch and rows[:1] != [0]:
            raise RuntimeError("view: the first row of the batch would become another; generate without beams, or install without a view")

    def words(self, tokenizer):
        """A text for each token that was read: with the one before it, for SentencePiece drops a first token's space."""
        if tokenizer is None:
            return ["…" if token is None else str(token) for token in self.ids]
        words, before = [], []
        for token in self.ids:
            both = [] if token is None else [*before, token]
            words.append(tokenizer.decode(both)[len(tokenizer.decode(before)) if before else 0 :] if both else "…")
            before = both[-1:]
        return words

    def attended(self, layer, owner, item, answer, logits):
        """An answer for the first row. owner: the Installation. logits: their scale and soft cap, or 0."""
        if layer not in self.layers or not self.steps:
            return
        from seine_kv.hf.tensors import from_numpy  # with torch, which a reader of this module's constants can do without

        q_heads, kv_heads = (owner.geometry[name] for name in ("num_q_heads", "num_kv_heads"))
        positions, heads = np.arange(answer.num_tokens), []
        selected = None if answer.path == "gate" else answer.selected
        for kv_head in range(kv_heads):
            keys = from_numpy(owner.client.gather(item.sequence, item.layer, kv_head, positions)[0], owner.dtype).float().numpy()
            for head in range(kv_head * q_heads // kv_heads, (kv_head + 1) * q_heads // kv_heads):
                which = 0 if selected is None else head * len(selected.counts) // q_heads
                heads.append(look(selected, which, softmax_weights(item.queries[head], keys, *logits)))
        self.steps[-1][layer] = {"path": answer.path, "tokens": answer.num_tokens, "heads": heads}
        self._bytes[-1] += bytes_of(self.steps[-1][layer])

    def found(self):
        """(tokens found that are among the exact best, exact best tokens), over all steps that are kept, layers and heads."""
        heads = [head for step in self.steps for layer in step.values() for head in layer["heads"]]
        chosen = sum(len(head["found"]) for head in heads)
        return chosen - sum(len(head["extra"]) for head in heads), chosen

    def write(self, path, tokenizer=None, **about):
        """Writes the page; tokenizer: of the model, without which tokens are their numbers. ValueError: nothing was decoded."""
        seen = [step for step in self.steps if set(step) == set(self.layers)]
        if not seen:
            raise ValueError("view: no token was decoded through Seine yet")
        steps = [
            {
                "tokens": step[self.layers[0]]["tokens"],
                "paths": [step[layer]["path"] for layer in self.layers],
                "heads": [step[layer]["heads"] for layer in self.layers],
            }
            for step in seen
        ]
        write_page(path, list(self.layers), self.words(tokenizer), steps, left_out=self.left_out, **about)
