"""Caches that are cropped, reset, copied and re-ordered at random: the index holds what transformers' own cache does.

SEINE_TEST_HISTORIES: how many (1,000); SEINE_TEST_SEED: the first one's seed (0).
"""

import copy
import os
import random

import pytest
import torch
from small_model import EVERYTHING, generate, make_gemma4, make_model, prompt
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from seine_kv import hf
from seine_kv.model import cache_name

HISTORIES, FIRST = int(os.environ.get("SEINE_TEST_HISTORIES", 1000)), int(os.environ.get("SEINE_TEST_SEED", 0))
SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
BLOCKS = {"evict": hf.Eviction(1000, interval=16), "prefill": "blocks", "block": 4}
MODES = {"kept": {"keep_cache": True}, "index alone": {"keep_cache": False}, "blocks": BLOCKS}


def make_gemma3(**settings):
    torch.manual_seed(3)
    shape = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "initializer_range": 0.3}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "query_pre_attn_scalar": 40}
    kinds = {"layer_types": ["sliding_attention", "full_attention"] * 2, "pad_token_id": 0}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma3_text", **shape, **heads, **kinds, **settings)).eval()


class Pair:
    """One history of two caches: Seine's, and a plain one of the same model without Seine."""

    def __init__(self, served, plain, seed, layers=None):
        """layers: of the model that have a cache -> of the index, where some slide; None: all."""
        self.served, self.plain, self.random, self.layers = served, plain, random.Random(seed), layers
        self.rows = self.random.choice((1, 1, 2, 3))
        self.caches = [DynamicCache(config=plain.config) if layers else DynamicCache() for _ in range(2)]
        self.mask = torch.ones(self.rows, 0, dtype=torch.long)
        self.others = []  # copies, which must stay as they are

    def forward(self, tokens):
        ids = torch.tensor([[self.random.randrange(2, 97) for _ in range(tokens)] for _ in range(self.rows)])
        new = torch.ones_like(ids)
        if self.mask.shape[1] == 0 and tokens > 2:
            for row in range(self.rows):
                new[row, : self.random.choice((0, 0, 1, tokens - 2))] = 0
        self.mask = torch.cat([self.mask, new], dim=1)
        positions = (self.mask.cumsum(1) - 1).clamp(min=0)[:, -tokens:]
        for model, cache in zip((self.served, self.plain), self.caches):
            model(ids, attention_mask=self.mask, position_ids=positions, use_cache=True, **{cache_name(model): cache})

    def crop(self, by_layers):
        held = self.mask.shape[1]
        if self.layers and held >= self.plain.config.sliding_window:
            return  # transformers crops no layer that has begun to slide
        gone = self.random.randint(0, held + 2)  # more than there are: all
        for cache in self.caches:
            for part in cache.layers if by_layers else [cache]:
                part.crop(-gone)
        self.mask = self.mask[:, : max(0, held - gone)]
        if held and not self.mask.any(dim=1).all():  # a row of padding alone attends nothing: not a history of its own
            self.reset()

    def reset(self):
        for cache in self.caches:
            cache.reset()
        self.mask = self.mask[:, :0]

    def select(self, name, argument, rows):
        for cache in self.caches:
            getattr(cache, name)(argument)
        self.mask, self.rows = self.mask[rows], len(rows)

    def copy(self):
        copies = copy.deepcopy(self.caches)
        if self.random.random() < 0.5:
            copies, self.caches = self.caches, copies
        self.others.append((copies, self.mask.clone()))

    def act(self):
        held, draw = self.mask.shape[1], self.random.random()
        if not held or draw < 0.3:
            self.forward(self.random.randint(1, 9))
        elif draw < 0.45:
            self.forward(1)
        elif draw < 0.7:
            self.crop(by_layers=self.random.random() < 0.3)
        elif draw < 0.76:
            self.reset()
        elif draw < 0.84:
            self.copy()
        elif draw < 0.92:
            order = [self.random.randrange(self.rows) for _ in range(self.rows)]
            self.select("reorder_cache", torch.tensor(order), order)
        elif draw < 0.96 and self.rows < 4:
            self.select("batch_repeat_interleave", 2, [row for row in range(self.rows) for _ in range(2)])
        else:
            kept = sorted(self.random.sample(range(self.rows), self.random.randint(1, self.rows)))
            self.select("batch_select_indices", torch.tensor(kept), kept)

    def check(self, client):
        for (ours, plain), mask in [(self.caches, self.mask), *self.others]:
            served = self.layers or {number: number for number in range(len(plain.layers))}
            for layer, number in ((plain.layers[layer], number) for layer, number in served.items() if mask.shape[1]):
                for row, columns in enumerate(mask.bool()):
                    sequence, tokens = ours.batch.rows[row].sequence, int(columns.sum())
                    assert client.get_sequence(sequence).layer_tokens[number] == tokens
                    held = client.gather(sequence, number, 0, range(tokens), keys=True, values=True)
                    for got, expected in zip(held, (layer.keys, layer.values)):
                        expected = expected[row, 0, columns]
                        torch.testing.assert_close(torch.from_numpy(got), expected, rtol=0, atol=2e-4)


@pytest.fixture(scope="module", params=MODES)
def models(request):
    """(served, plain, Installation)."""
    served, plain = make_model(3, **SHAPE), make_model(3, **SHAPE)
    seine = hf.install(served, dtype="float32", threads=1, **{**EVERYTHING, **MODES[request.param]})
    yield served, plain, seine
    hf.uninstall(served)


def test_after_every_history_the_index_holds_what_a_plain_cache_does(models):
    served, plain, seine = models
    for seed in range(FIRST, FIRST + (HISTORIES + 2) // 3):
        pair = Pair(served, plain, seed)
        try:
            with torch.inference_mode(seed % 2 == 0), torch.no_grad():
                for _ in range(pair.random.randint(2, 7)):
                    pair.act()
                pair.forward(pair.random.choice((1, 1, 4)))
                pair.check(seine.client)
        except Exception as error:
            raise AssertionError(f"SEINE_TEST_SEED={seed} SEINE_TEST_HISTORIES=1: {error}") from error


@pytest.mark.parametrize("make", [make_gemma3, make_gemma4])
@pytest.mark.parametrize("keep_cache", [False, True], ids=["index alone", "kept"])
def test_so_it_does_of_the_layers_that_do_not_slide(keep_cache, make):
    served, plain = make(sliding_window=20), make(sliding_window=20)
    seine = hf.install(served, dtype="float32", threads=1, keep_cache=keep_cache, **EVERYTHING)
    assert seine.sources == {1: 0, 3: 1}
    for seed in range(FIRST, FIRST + (HISTORIES + 9) // 10):
        pair = Pair(served, plain, seed, seine.sources)
        with torch.inference_mode(seed % 2 == 0), torch.no_grad():
            for _ in range(pair.random.randint(2, 7)):
                pair.act()
            pair.forward(pair.random.choice((1, 1, 4)))
            pair.check(seine.client)
    hf.uninstall(served)


@pytest.mark.parametrize("way", ["prompt_lookup", "assistant", "chat"])
def test_what_crops_answers_as_transformers_does(models, way):
    served, plain, _ = models
    ids = prompt(1, 12).repeat(1, 3)
    if way != "chat":
        options = {"prompt_lookup_num_tokens": 4} if way == "prompt_lookup" else {"assistant_model": make_model(4, **SHAPE)}
        got, expected = (generate(model, ids, max_new_tokens=30, **options) for model in (served, plain))
        assert got.tolist() == expected.tolist()
        return
    answers = []
    for model in (served, plain):
        cache, said = DynamicCache(), []
        for turn, (kept, tokens) in enumerate([(0, 9), (4, 3), (4, 12), (6, 20), (2, 1)]):
            if cache.get_seq_length() > kept:
                cache.crop(kept - cache.get_seq_length())
            question = torch.cat([ids[:, :kept], prompt(1, tokens, seed=turn)], dim=1)
            out = generate(model, question, max_new_tokens=5, **{cache_name(model): cache})
            said.append(out[0, question.shape[1] :].tolist())
        answers.append(said)
    assert answers[0] == answers[1]


def test_a_tensor_put_into_a_layer_is_sent():
    served, plain = make_model(3, **SHAPE), make_model(3, **SHAPE)
    seine = hf.install(served, dtype="float32", threads=1, keep_cache=True, **EVERYTHING)
    pair = Pair(served, plain, 5)
    pair.rows, pair.mask = 1, pair.mask[:1]
    with torch.no_grad():
        pair.forward(8)
        for cache in pair.caches:
            cache.layers[1].keys = cache.layers[1].keys.flip(2)
            cache.layers[0].values[:, :, 3] = 0.5
        pair.forward(1)
        pair.check(seine.client)
    hf.uninstall(served)
