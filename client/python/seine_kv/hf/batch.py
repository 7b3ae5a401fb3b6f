"""The sequences of one cache: each row of a batch is a sequence of the index, without the row's padding.

Where torch keeps the cache too, nothing here assumes that the server holds what it was sent. Each row knows how many tokens
of each layer it has sent; what is missing is appended before a step, from the keys and values that transformers keeps: a
prompt, or after a failure whatever it takes. So a new sequence, one that the server lost and a cache made before install
are one case. Where torch keeps nothing, whatever fails is raised: there is no other copy to fall back on.
"""

import weakref
from contextlib import nullcontext

import numpy as np
import torch

from seine_kv.client import Append, Item, RetainedSets, SeineError
from seine_kv.hf.blocks import block_mask
from seine_kv.hf.eviction import QueryWindow
from seine_kv.hf.rows import DOWN, LOST, Row
from seine_kv.hf.tensors import from_numpy, to_numpy


class Batch:
    """Made with a cache's first forward, copied and re-ordered with it."""

    def __init__(self, owner, num_rows):
        self.owner = owner
        owner.follow(self)
        self.rows = [Row(owner, [0] * owner.num_layers) for _ in range(num_rows)]
        self.layers = weakref.WeakValueDictionary()  # number -> of the cache, where it leaves its rows to the index
        self._queries = {}  # layer -> QueryWindow, for evictions by call
        self.reads_prompt = False  # whether the forward that is running has more than a token a row
        self.shows_all = False  # whether its answer is to hold the keys and values of all tokens

    def __del__(self):
        self.leave()

    def leave(self):
        """Gives the sequences up."""
        for row in self.rows:
            row.forget()

    def restore(self):
        """Gives the cache back what lies in the index alone."""
        for layer in list(self.layers.values()):
            layer.restore()

    def tokens(self, layer, key):
        """That a layer holds: `key` has all, or in a step the last, [rows, KV heads, columns, head_dim]."""
        held = self.layers.get(layer)
        return key.shape[2] if held is None else held.length

    def read(self, layer, tokens, dtype, device):
        """A layer's keys and values as the index holds them: two of [rows, KV heads, tokens, head_dim], 0 at padding."""
        both = [torch.zeros(self.owner.shape(len(self.rows), tokens), dtype=dtype, device=device) for _ in range(2)]
        for r, row in enumerate(self.rows):
            count = tokens - row.padding
            if count <= 0:
                continue
            if row.sent[layer] < count:
                raise RuntimeError(f"layer {layer} of row {r} holds {row.sent[layer]} tokens of {count}: a step has failed")
            for head in range(both[0].shape[1]):
                held = self.owner.client.gather(row.sequence, layer, head, np.arange(count), keys=True, values=True)
                for rows, part in zip(both, held):
                    rows[r, head, row.padding :] = from_numpy(part, self.owner.dtype)
        return both

    def __deepcopy__(self, memo):
        copy = Batch(self.owner, 0)
        copy.rows = [row.fork() for row in self.rows]
        copy._queries = {layer: window.select(slice(None)) for layer, window in self._queries.items()}
        return copy

    def set_padding(self, mask):
        """mask: [rows, cached + new], 0 for padding, which must stand before the first token; None: as before."""
        if mask is None:
            return
        if mask.dim() != 2:
            raise ValueError("attention_mask: Seine needs [batch, tokens], 0 for padding")
        kept = mask != 0
        padding = kept.shape[1] - kept.sum(dim=1)
        if not torch.equal(kept, torch.arange(kept.shape[1], device=mask.device) >= padding[:, None]):
            raise ValueError("attention_mask: padding must be on the left; set tokenizer.padding_side = 'left'")
        for row, columns in zip(self.rows, padding.tolist()):
            if row.padding != columns:
                if row.sequence is not None and not self.owner.keeps_cache:
                    raise ValueError("attention_mask: the padding of a row has changed, and its tokens lie in the index alone")
                row.forget()
                row.padding = columns

    def select(self, rows):
        """Row i becomes what rows[i] was: the first to ask keeps the sequence, others fork it, what is left goes."""
        if rows == list(range(len(self.rows))):
            return
        if self.owner.view is not None:
            self.owner.view.selected(self, rows)
        taken, old = set(), self.rows
        self.rows = []
        for i in rows:
            self.rows.append(old[i].fork() if i in taken else old[i])
            taken.add(i)
        for i in set(range(len(old))) - taken:
            self.owner.bury(old[i].sequence)
        self._queries = {layer: window.select(rows) for layer, window in self._queries.items()}

    def cut(self, columns):
        """Forgets all tokens from column `columns` on: the cache has been cropped, reset or rewritten there."""
        for row in self.rows:
            row.cut(columns)

    def prefill(self, layer, query, key, value, scale=None):
        """Sends a prompt's keys and values, or a later block's, with all before them. [rows, heads, tokens, head_dim]"""
        self._watch(layer, query, key.shape[2])
        if not self.owner.available():
            return
        for r, row in enumerate(self.rows):
            try:
                self._send(r, layer, key, value, key.shape[2], query=query)
                self._evict(r, layer, key.shape[2] - row.padding, scale)
            except SeineError as error:
                if error.code not in DOWN or not self.owner.keeps_cache:
                    raise
                self.owner.failed(error)
                return

    def block(self, layer, query, key, value, scale, attend):
        """Attention of a prompt's block over what the index retains of each row, and causally over itself; then the
        block is appended, and the layer cut back to its budget. [rows, new, query heads, head_dim]

        key and value: of the block, and before it of what the index has not been sent. attend(query, keys, values,
        mask): torch's own attention.
        """
        tokens, new = self.tokens(layer, key), query.shape[2]
        past, begin = tokens - new, tokens - key.shape[2]
        for r in range(len(self.rows)):
            self._advance(r, layer, key, value, past, begin, scale)
        self._watch(layer, query, tokens)
        own_keys, own_values = key[:, :, -new:], value[:, :, -new:]
        keys, values, counts = self.retained(layer, key.dtype, key.device)
        padding, group = [row.padding for row in self.rows], query.shape[1] // key.shape[1]
        mask = block_mask(counts, padding, past, new, group, query.device)
        both = torch.cat([keys, own_keys], dim=2), torch.cat([values, own_values], dim=2)
        output = attend(query, *both, mask)
        for r in range(len(self.rows)):
            self._advance(r, layer, key, value, tokens, begin, scale)
        self.owner.counts.count_block(counts, new)
        return output

    def retained(self, layer, dtype, device):
        """What the index holds of a layer: keys and values [rows, KV heads, most tokens, head_dim], with 0 behind a
        head's last, and how many each head has, of [rows][KV heads]."""
        client, heads = self.owner.client, self.owner.shape(1, 0)[1]
        sets = [[()] * heads for _ in self.rows]
        for r, row in enumerate(self.rows):
            if row.sent[layer]:
                sets[r] = self.positions(row, layer)
        counts = [[len(positions) for positions in row] for row in sets]
        shape = self.owner.shape(len(self.rows), max(map(max, counts)))
        both = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)]
        for r, row in enumerate(self.rows):
            for head, positions in enumerate(sets[r]):
                if len(positions):
                    held = client.gather(row.sequence, layer, head, positions, keys=True, values=True)
                    for rows, part in zip(both, held):
                        rows[r, head, : len(positions)] = from_numpy(part, self.owner.dtype)
        return *both, counts

    def step(self, asking, query, key, value, logits, dense, sinks=None):
        """Attention's output for the last token of each row, Seine's or dense(rows)'s. [rows, 1, query heads, head_dim]

        asking: the model's layer; one that shares another's keys and values appends nothing. key and value: of all tokens, or
        of the last where the others lie in the index. logits: their scale, or 0, and soft cap, or 0. sinks: a logit a query
        head that counts in the softmax's sum alone (gpt-oss).
        """
        if asking in self.owner.sources:
            layer = self.owner.layers[asking]
            self._watch(layer, query, self.tokens(layer, key))
        failures = dict.fromkeys(range(len(self.rows)), "UNAVAILABLE")
        outputs = {}
        if self.owner.available():
            try:
                outputs, failures = self._attend(asking, query, key, value, logits, sinks)
            except SeineError as error:
                if error.code not in DOWN or not self.owner.keeps_cache:
                    raise
                self.owner.failed(error)
                failures = dict.fromkeys(failures, error.code)
        if not failures:
            self.owner.succeeded()
            stacked = torch.stack([_tensor(outputs[r], query.device) for r in range(len(self.rows))])
            return stacked.to(query.dtype).unsqueeze(1)
        return self._mend(query, outputs, failures, dense)

    # ----------------------------------------------------------------------------------------------------------------

    def _attend(self, asking, query, key, value, logits, sinks):
        """Sends one step for the rows that could be brought up to date. Returns (row -> output, row -> error code)."""
        layer, writes = self.owner.layers[asking], asking in self.owner.sources
        tokens, dtype = self.tokens(layer, key), self.owner.dtype
        lender = self.owner.lender_of(query)
        hand, heads = to_numpy if lender is None else lender.lend, query.shape[1]
        keys, values = hand(key[:, :, -1].to(dtype)), hand(value[:, :, -1].to(dtype))
        room = None  # for the answers, where queries stay on their device
        if lender is not None and self.owner.asks_on_device:
            room = lender.room(len(self.rows), heads, query.shape[3]), lender.room(len(self.rows), heads)
        queries = to_numpy(query[:, :, 0]) if room is None else lender.lend(query[:, :, 0].float())
        failures, ready, outputs = {}, [], {}
        for r in range(len(self.rows)):
            if self.rows[r].padding >= tokens:
                outputs[r] = np.zeros((heads, query.shape[3]), np.float32)  # padding, which sees nothing
                continue
            try:
                self._send(r, layer, key, value, tokens - writes, tokens - key.shape[2])
                ready.append(r)
            except SeineError as error:
                if error.code in DOWN or not self.owner.keeps_cache:
                    raise
                failures[r] = self._failed_row(r, error)
        appends, items = [], []
        for r in ready:
            row = self.rows[r]
            position, sets = tokens - 1 - row.padding, self._sets(row, layer)
            if writes:
                token = slice(r, r + 1)
                appends.append(Append(row.sequence, layer, position, keys[token], values[token], retained=sets))
            item = Item(row.sequence, layer, queries[r])
            if room is not None:
                item.output, item.log_sum_exp = room[0][r], room[1][r]
            items.append(item)
        if not ready:
            return outputs, failures
        with nullcontext() if lender is None else lender.here():
            step = self.owner.step(appends, items, logits)
        there = room if room is None else tuple(map(lender.read, room))
        errors = step.append_errors if writes else [None] * len(ready)
        for r, error, answer in zip(ready, errors, step.attended):
            if writes and error is None:
                self.rows[r].sent[layer] = tokens - self.rows[r].padding
                self._count_dropped(self.rows[r], layer)
            if error is not None or answer.error is not None:
                failures[r] = self._failed_row(r, error or answer.error)
                continue
            output, behind = (answer.output, answer.log_sum_exp) if there is None else (there[0][r], there[1][r])
            outputs[r] = output if sinks is None else _with_sinks(output, behind, sinks)
            self._count(asking, answer, heads)
            if r == 0 and self.owner.view is not None:
                self.owner.view.attended(asking, self.owner, items[0], answer, logits)
            if writes:
                self._evict(r, layer, tokens - self.rows[r].padding, logits[0] or None)
        return outputs, failures

    def _send(self, r, layer, key, value, upto, begin=0, query=None):
        """Brings the sequence of row r to the columns before `upto`; what it has beyond them is cut off. key and value hold
        the columns from `begin` on, query, where it is given, the last ones before `upto`."""
        row = self.rows[r]
        for attempt in range(2):
            try:
                row.truncate(layer, upto - row.padding)
                first = row.padding + row.sent[layer]
                if row.sequence is None:
                    row.sequence = self.owner.create_sequence()
                if first < upto:
                    if first < begin:
                        raise RuntimeError(f"layer {layer} of row {r} lacks tokens {first} to {begin}: a step has failed")
                    part = (r, slice(None), slice(first - begin, upto - begin))
                    lender = self.owner.lender_of(key)
                    hand, here = (to_numpy, nullcontext) if lender is None else (lender.lend, lender.here)
                    k, v = (hand(rows[part].to(self.owner.dtype).transpose(0, 1)) for rows in (key, value))
                    retained = self._sets(row, layer)
                    with self.owner.appending(upto - first), here():
                        asked = self._asked(r, query, upto - first)
                        self.owner.client.append(row.sequence, layer, row.sent[layer], k, v, asked, retained=retained)
                    self._count_dropped(row, layer)
                    row.sent[layer] = upto - row.padding
                return
            except SeineError as error:
                if error.code not in LOST or attempt or not self.owner.keeps_cache:
                    raise
                row.forget()
                self.owner.counts.rebuilt_sequences += 1

    def _asked(self, r, query, tokens):
        """A prompt's last queries, where the index chooses full-rank tokens by them. [positions, query heads, head_dim]"""
        most = min(self.owner.choosing_queries, tokens)
        if query is None or most == 0:
            return None
        return to_numpy(query[r, :, -most:].to(self.owner.dtype).transpose(0, 1))

    def _failed_row(self, r, error):
        """Notes one row's failure; returns its code."""
        if not self.owner.keeps_cache:
            raise error
        if error.code in LOST:
            self.rows[r].forget()
            self.owner.counts.rebuilt_sequences += 1
        self.owner.warn(error)
        return error.code

    def _mend(self, query, outputs, failures, dense):
        """Seine's outputs where there are any, torch's in the other rows."""
        counts, missing = self.owner.counts, sorted(failures)
        counts.dense_rows += len(missing)
        counts.dense_reasons.update(failures.values())
        if len(missing) == len(self.rows):
            return dense()
        mended = query.new_empty((query.shape[0], 1, query.shape[1], query.shape[3]))
        mended[missing] = dense(missing)
        for r, output in outputs.items():
            mended[r, 0] = _tensor(output, query.device)
        return mended

    def _count(self, layer, answer, heads):
        counts = self.owner.counts
        counts.rows += 1
        counts.paths[answer.path] += 1
        if answer.path == "gate":
            self.owner.stepped_back(layer)
        counts.attended_tokens += answer.attended_tokens / heads
        counts.tail_rows += answer.tail

    # What is retained -----------------------------------------------------------------------------------------------

    def positions(self, row, layer):
        """That each KV head of a row's layer retains, as the answers so far tell; asked for where they do not."""
        sets = row.retained.get(layer)
        if sets is None or not sets.in_step or sets.num_tokens != row.sent[layer]:
            sets = self.owner.client.retained(row.sequence, layer)
        return sets.heads

    def _sets(self, row, layer):
        """The RetainedSets of a row's layer, which its answers keep up to date; None where nothing is evicted."""
        if self.owner.evict is None:
            return None
        return row.retained.setdefault(layer, RetainedSets(self.owner.shape(1, 0)[1]))

    def _count_dropped(self, row, layer):
        """Counts what the last answer about a row's layer says is gone."""
        if self.owner.evict is not None:
            self.owner.counts.evicted_tokens += sum(map(len, row.retained[layer].dropped))

    # Eviction by call -----------------------------------------------------------------------------------------------

    def _by_call(self):
        return self.owner.evict is not None and self.owner.evict.by_call

    def _watch(self, layer, query, tokens):
        """Keeps the queries that scorers will want, of the columns before `tokens`. [rows, query heads, new, head_dim]"""
        if self._by_call():
            self._queries.setdefault(layer, QueryWindow(self.owner.evict.queries)).add(query, tokens)

    def _evict(self, r, layer, tokens, scale):
        """Cuts a layer of row r back, if `interval` tokens have come since it was cut last. scale: of the model's logits."""
        row, evict = self.rows[r], self.owner.evict
        if self._by_call() and tokens - row.evicted_at.get(layer, -evict.interval) >= evict.interval:
            self._cut(r, layer, tokens, scale)

    def _cut(self, r, layer, tokens, scale):
        """Cuts a layer of row r back to its budget."""
        row, evict, given = self.rows[r], self.owner.evict, {}
        if evict.by_call:
            window = self._queries.get(layer)
            given["queries"] = () if window is None else to_numpy(window.row(r, tokens))
            if len(given["queries"]) < min(evict.query_window, tokens):
                return  # a cache filled before install: the next tokens bring them
        client, settings = self.owner.client, (evict.budget, evict.scorer, evict.keep)
        client.evict(row.sequence, layer, *settings, retained=self._sets(row, layer), softmax_scale=scale, **given)
        row.evicted_at[layer] = tokens
        self._count_dropped(row, layer)

    def _advance(self, r, layer, key, value, upto, begin, scale):
        """Brings row r to the columns before `upto`, as _send does, and cuts it back where tokens have come since."""
        tokens = upto - self.rows[r].padding
        if tokens <= 0:
            return
        self._send(r, layer, key, value, upto, begin)
        if self.rows[r].evicted_at.get(layer) != tokens:
            self._cut(r, layer, tokens, scale)


def _tensor(output, device):
    """An answer's output, numpy's or torch's, on a device."""
    return (output if torch.is_tensor(output) else torch.from_numpy(output.copy())).to(device)


def _with_sinks(output, log_sum_exp, sinks):
    """An answer's output where each query head's softmax has one logit more, of no value: o e^l / (e^l + e^sink)."""
    if torch.is_tensor(output):
        return output * torch.sigmoid(log_sum_exp - sinks.detach().float().to(output.device))[:, None]
    behind = log_sum_exp - sinks.detach().float().cpu().numpy()
    return output * (1 / (1 + np.exp(-behind, dtype=np.float32)))[:, None]
