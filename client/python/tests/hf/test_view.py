"""The page that shows what heads attended: what it holds against the index's own answers and the model's own attention, and that a
browser draws it."""

import html.parser
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch
from small_model import ZONES, decode, make_model, prompt
from transformers import AutoModelForCausalLM

from seine_kv import hf, view
from seine_kv.client import Item
from seine_kv.model import cache_name
from seine_kv.view.__main__ import main

STEPS, TOP_K = 6, 20
SETTINGS = {"zones": ZONES, "dtype": "float32", "threads": 1, "top_k": TOP_K, "selector": {"candidate_fraction": 0.2, "rescore_k": 40}, "gate": False}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Page(html.parser.HTMLParser):
    """A page's data, and what it would load."""

    def __init__(self, path):
        super().__init__()
        self.data, self.loads, self.open, self.closed, self.reading = "", [], [], [], False
        self.feed(path.read_text(encoding="utf-8"))
        self.data = json.loads(self.data)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.loads += [given[name] for name in ("src", "href", "action") if given.get(name)]
        self.open.append(tag)
        self.reading = given.get("id") == "data"

    def handle_endtag(self, tag):
        self.closed.append(tag)
        self.reading = False

    def handle_data(self, data):
        if self.reading:
            self.data += data


def unpacked(data, step, layer, head):
    """What a page says of a head's step: found, exact best, {position: weight}."""
    looked = data["steps"][step]["heads"][data["layers"].index(layer)][head]
    tokens, (begin, end) = data["steps"][step]["tokens"], looked["zone"]
    found = np.cumsum(looked["found"], dtype=int).tolist()
    best = sorted(set(found) - set(looked["extra"]) | set(looked["missed"]))
    places = [*range(begin), *range(end, tokens), *found, *looked["missed"]]
    assert len(places) == len(looked["levels"])
    weights = {p: 2 ** ((view.LEVELS.index(level) - 63) / 4) for p, level in zip(places, looked["levels"])}
    return found, best, weights, looked


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A page, the answers that the steps got, and what the model itself attends to the same tokens."""
    model, path, asked = make_model(), tmp_path_factory.mktemp("view") / "view.html", []
    seine = hf.install(model, view=view.View(layers=(0, 2)), **SETTINGS)
    step = seine.step

    def watched(appends, items, logits):
        answer = step(appends, items, logits)
        asked.append((items[0], answer.attended[0]))
        return answer

    seine.step = watched
    ids = prompt(1, 700)
    _, tokens, cache = decode(model, ids, STEPS + 1)
    again = []
    for item, answer in asked:
        fork = seine.client.fork(item.sequence, position=answer.num_tokens)
        (one,) = seine.client.retrieve_batch([Item(fork, item.layer, item.queries)], scope="per_q_head", top_k=TOP_K,
                                             **SETTINGS["selector"])  # fmt: skip
        again.append((item, one))
        seine.client.delete_sequence(fork)
    seine.view.write(path, model="small", text="<script>&amp;")
    hf.uninstall(model)
    model.set_attn_implementation("eager")
    whole = torch.cat([ids, torch.tensor([tokens[:-1]])], dim=1)
    with torch.inference_mode():
        attentions = model(whole, output_attentions=True).attentions
    return Page(path), again, attentions, whole[0].tolist(), seine.view


def test_the_page_is_whole_and_loads_nothing(written):
    page, _, _, tokens, _ = written
    assert not page.loads
    assert set(page.open) - {"meta", "html", "input"} <= set(page.closed)
    assert page.data["layers"] == [0, 2] and page.data["text"] == "<script>&amp;"
    assert page.data["tokens"] == [str(token) for token in tokens]
    assert [step["tokens"] for step in page.data["steps"]] == [701 + i for i in range(STEPS)]


def test_it_says_what_retrieve_answers(written):
    page, again, _, _, _ = written
    told = 0
    for item, answer in again:
        if item.layer not in page.data["layers"]:
            continue
        step = answer.num_tokens - 701
        for head in range(4):
            found, _, _, looked = unpacked(page.data, step, item.layer, head)
            assert found == answer.set(head).tolist() and looked["zone"] == [answer.zone_begin, answer.zone_end]
            told += 1
    assert told == STEPS * 2 * 4


def test_the_exact_best_are_the_models_own(written):
    """Of layer 0, whose queries and keys are the tokens' alone: later layers' come from what was attended before."""
    page, _, attentions, _, seen = written
    missed = 0
    for step in range(STEPS):
        tokens = page.data["steps"][step]["tokens"]
        for head in range(4):
            exact = attentions[0][0, head, tokens - 1, :tokens].double().numpy()
            found, best, weights, looked = unpacked(page.data, step, 0, head)
            begin, end = looked["zone"]
            least = np.sort(exact[begin:end])[-TOP_K]
            assert len(best) == len(found) == TOP_K and all(exact[p] >= least * (1 - 1e-3) for p in best)
            for p, weight in weights.items():
                assert weight == pytest.approx(max(exact[p], 2**-15.75), rel=0.095)  # half a level is 9 %
            mass = [exact[:begin].sum(), exact[end:].sum(), exact[found].sum()]
            assert looked["mass"] == pytest.approx([*mass, 1 - sum(mass)], abs=1e-3)
            missed += len(looked["missed"])
    assert missed > 0, "a search of few candidates that misses nothing shows nothing"
    chosen, of = seen.found()
    assert 0.5 < chosen / of < 1 and of == STEPS * 2 * 4 * TOP_K


def test_cropped_caches_and_new_ones_begin_where_they_are(tmp_path):
    model = make_model()
    seine = hf.install(model, view=view.View(layers=(1,)), **SETTINGS)
    ids = prompt(1, 300)
    _, tokens, cache = decode(model, ids, 5)
    cache.crop(-2)
    decode(model, torch.tensor([[tokens[2]]]), 2, cache=cache)
    assert [step[1]["tokens"] for step in seine.view.steps] == [301, 302, 303, 304]
    assert len(seine.view.ids) == 304
    decode(model, prompt(1, 50, seed=4), 3)
    seine.view.write(tmp_path / "view.html")
    data = Page(tmp_path / "view.html").data
    assert [step["tokens"] for step in data["steps"]] == [51, 52] and data["steps"][0]["paths"] == ["dense"]
    assert data["steps"][0]["heads"][0][0]["zone"] == [51, 51] and len(data["steps"][0]["heads"][0][0]["levels"]) == 51
    hf.uninstall(model)


def test_a_cache_that_was_filled_unwatched_has_gaps(tmp_path):
    """A chat that is taken up behind another one, and one that was begun before install."""
    model = make_model()
    seine = hf.install(model, view=view.View(layers=(1,)), **SETTINGS)
    _, _, first = decode(model, prompt(1, 60), 2)
    decode(model, prompt(1, 40, seed=5), 2)
    decode(model, torch.tensor([[9]]), 3, cache=first)
    seine.view.write(tmp_path / "view.html")
    data = Page(tmp_path / "view.html").data
    held = [step["tokens"] for step in data["steps"]]
    assert data["tokens"][: held[0]] == ["…"] * (held[0] - 1) + ["9"] and len(data["tokens"]) == held[-1]
    hf.uninstall(model)
    _, _, second = decode(model, prompt(1, 50, seed=6), 2)
    seine = hf.install(model, view=view.View(layers=(1,)), **SETTINGS)
    decode(model, torch.tensor([[7]]), 2, cache=second)
    assert seine.view.ids[:52] == [None] * 51 + [7] and seine.view.steps[-1][1]["tokens"] == len(seine.view.ids)
    hf.uninstall(model)


def test_a_first_row_that_becomes_another_is_refused():
    model = make_model()
    seine = hf.install(model, view=view.View(layers=(1,)), **SETTINGS)
    with torch.inference_mode():
        cache = model(prompt(3, 60), use_cache=True)[cache_name(model)]
        model(torch.tensor([[5], [6], [7]]), **{cache_name(model): cache})
    cache.reorder_cache(torch.tensor([0, 2, 2]))
    with pytest.raises(RuntimeError, match="view: the first row of the batch would become another"):
        cache.reorder_cache(torch.tensor([1, 0, 2]))
    assert len(seine.view.steps) == 1
    hf.uninstall(model)


def test_words_keep_the_spaces_between_them():
    """A tokenizer as SentencePiece models have: a text's first space is dropped."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"▁the": 0, "▁sea": 1, "s": 2, "▁": 3}, unk_token="▁"))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    seen = view.View()
    for ids in ([0, 1, 2, 0], [2, 0, 0, 1, 1, 2], [1]):
        seen.ids = ids
        assert "".join(seen.words(tokenizer)) == tokenizer.decode(ids) and len(seen.words(tokenizer)) == len(ids)
    seen.ids = [None, 0, 1]
    assert seen.words(tokenizer) == ["…", "the", " sea"] and seen.words(None) == ["…", "0", "1"]


def test_a_long_answer_keeps_the_latest_tokens(tmp_path):
    """Memory is bounded, however long the answer is; what is kept is what an unbounded view has there."""
    import tracemalloc

    model, ids = make_model(), prompt(1, 300)

    def watched(steps, **bound):
        seine = hf.install(model, view=view.View(layers=(0, 1), **bound), **SETTINGS)
        decode(model, ids, steps)
        hf.uninstall(model)
        return seine.view

    whole = watched(61)
    assert whole.left_out == 0 and len(whole.steps) == 60
    most = sum(view.bytes_of(seen) for step in whole.steps[:10] for seen in step.values())
    tracemalloc.start()
    short = watched(41, most_bytes=most)
    held = tracemalloc.get_traced_memory()[0]
    long = watched(161, most_bytes=most)
    grown = tracemalloc.get_traced_memory()[0] - held
    tracemalloc.stop()
    assert 4 <= len(short.steps) <= 11 and 4 <= len(long.steps) <= 11
    assert short.left_out + len(short.steps) == 40 and long.left_out + len(long.steps) == 160
    assert grown < 2 * most + 2**20, f"{grown} bytes for what takes {most}"
    for kept, every in zip(short.steps, whole.steps[short.left_out : 40], strict=True):
        assert kept == every
    long.write(tmp_path / "view.html")
    data = Page(tmp_path / "view.html").data
    assert data["left_out"] == long.left_out and len(data["steps"]) == len(long.steps)
    assert data["steps"][-1]["tokens"] == 460 and len(data["tokens"]) == 460, "the text is whole"
    tiny = watched(11, most_bytes=1)
    assert len(tiny.steps) == 1 and tiny.left_out == 9, "the latest is always kept"
    with pytest.raises(ValueError, match="most_bytes must be at least 1"):
        view.View(most_bytes=0)


def test_what_cannot_be_watched_is_refused():
    model = make_model()
    for settings, said in (
        ({"view": view.View(layers=(7,))}, "view: layer 7 is none that the index serves; they are 0, 1, 2"),
        ({"view": view.View(), "evict": hf.Eviction(64)}, "view: exact attention is over all keys"),
        ({"view": view.View(), "low_rank": hf.LowRank()}, "view: exact attention is over all keys"),
    ):
        with pytest.raises(ValueError, match=said):
            hf.install(model, **settings)
    seine = hf.install(model, view=view.View(), **SETTINGS)
    assert seine.view.layers == (0, 1, 2)
    with pytest.raises(ValueError, match="no token was decoded"):
        seine.view.write("/nowhere/view.html")
    hf.uninstall(model)


def test_levels_are_a_scale_of_halvings():
    assert view.levels([1, 0.5, 0.25, 2**-15.75, 2**-16, 0]) == "_" + view.LEVELS[59] + view.LEVELS[55] + "AAA"
    assert view.levels([]) == "" and len(set(view.LEVELS)) == 64


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model's folder with a tokenizer, as the command takes it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(folder)
    words = {"<unk>": 0, **{f"w{i}": i for i in range(1, 97)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    assert AutoModelForCausalLM.from_pretrained(folder).config.num_hidden_layers == 3
    return folder


def run_command(saved, tmp_path, *more):
    text, out = tmp_path / "text.txt", tmp_path / "out.html"
    text.write_text(" ".join(f"w{i * 7919 % 96 + 1}" for i in range(900)))
    return main([str(saved), str(text), "--out", str(out), "--generate", "4", *more]), out


def test_the_command(saved, tmp_path, capsys):
    status, out = run_command(saved, tmp_path, "--tokens", "600", "--layers", "0,2")
    errors = capsys.readouterr().err
    assert status == 0, errors
    data = Page(out).data
    assert data["layers"] == [0, 2] and [step["tokens"] for step in data["steps"]] == [601, 602, 603]
    assert len(data["tokens"]) == 604 and data["tokens"][0] == "w1" and data["text"] == "text.txt"
    for said in ("text.txt has 900 tokens: the first 600 are read", "3 of 3 layers have read", "4 of 4 tokens written",
                 f"wrote {out}: layers 0,2, 3 tokens", "of the exact best tokens; open"):  # fmt: skip
        assert said in errors, errors
    for wrong, said in ((("--layers", "0,x"), "--layers 0,x"), (("--layers", "9"), "layer 9 is none"), (("--generate", "1"), "--generate")):
        assert run_command(saved, tmp_path, *wrong)[0] == 1
        assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here (Debian's package chromium)")
def test_a_browser_draws_it(written, saved, tmp_path):
    status, out = run_command(saved, tmp_path, "--top-k", "30")
    assert status == 0
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=4000"]
    where = f"file://{out}#step=2&layer=2&head=1"
    done = subprocess.run([*command, "--dump-dom", where], capture_output=True, text=True, timeout=120)
    data = Page(out).data
    looked = data["steps"][1]["heads"][2][1]
    said = re.search(r'<p id="says" role="status">(.*?)</p>', done.stdout)[1]
    assert f"the 30 found {100 * looked['mass'][2]:.1f} %" in said, said
    assert f"Found: {30 - len(looked['missed'])} of the exact best 30." in said
    marked = re.findall(r'<span[^>]*class="[^"]*missed[^"]*"', done.stdout.partition('id="text"')[2].partition('id="lists"')[0])
    assert len(marked) == len(looked["missed"])
    coloured = re.findall(r'title="position \d+, weight [^"]+"', done.stdout)
    assert len(coloured) == len(looked["levels"])
