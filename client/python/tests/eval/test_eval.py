"""The parts of seine_kv.eval, with a small, randomly initialised model; and the command's mistakes. Needs torch."""

import argparse
import json
import sys
import types
import xml.etree.ElementTree as ElementTree
from contextlib import contextmanager

import pytest
import torch
from small_model import make_model, prompt

from seine_kv.eval import __main__ as command
from seine_kv.eval import engine, kvpress_peer, methods, needle, prompts, quality, report, speed, texts
from seine_kv.messages import SeineError
from seine_kv.model import Reporter, cache_name

BUDGET = methods.Budget(top_k=10, sink=16, local=32)
CONTEXT, DECODED = 400, 12


def quiet(*_):
    """Progress for nobody."""


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def measured(model):
    return quality.Quality(model, prompt(1, CONTEXT + 1), DECODED, free=4)


def test_dense_is_what_the_model_says(model, measured):
    ids = prompt(1, CONTEXT + 1)
    with torch.inference_mode():
        loss = torch.nn.functional.cross_entropy(model(ids).logits[0, -DECODED - 1 : -1], ids[0, -DECODED:])
    assert measured.dense()["perplexity"] == pytest.approx(loss.exp().item(), rel=1e-4)
    assert len(measured.inputs) == len(measured.targets) == DECODED


def test_a_method_that_attends_everything_is_dense(server, measured):
    everything = methods.Method("all", "all", {"top_k": 4096, "zones": BUDGET.zones(), "tail": False})
    row = measured.measure(everything, server.address, quiet)
    assert row["kl"] == pytest.approx(0, abs=1e-5) and row["agreement"] == 1.0 and row["greedy_tokens"] == 4
    assert row["perplexity"] == pytest.approx(measured.dense()["perplexity"], rel=1e-4)


def test_every_method_attends_its_budget(server, measured):
    every = methods.retrieval_methods(BUDGET, None, 0.02, 300, 0.6) + methods.eviction_methods(
        BUDGET, methods.QUICK_SCORERS, None
    )
    attended, held = {}, {}
    for method in methods.choose(None, every):
        row = measured.measure(method, server.address, quiet)
        evicts = method.key in ("streaming_llm", "evict_keydiff", "evict_snapkv")
        assert row["held_tokens"] == (row["attended_tokens"] if evicts else CONTEXT - DECODED + (DECODED + 1) / 2)
        assert row["kl"] > 1e-4 and row["agreement"] <= 1.0, method.key
        attended[method.key], held[method.key] = row["attended_tokens"], row["kv_bytes"]
    tokens = 10 + 16 + 32
    assert set(attended) == {
        "seine",
        "seine_no_tail",
        "low_rank",
        "exact",
        "paper",
        "streaming_llm",
        "evict_keydiff",
        "evict_snapkv",
    }
    assert all(tokens <= count < tokens + 64 for count in attended.values()), attended
    assert held["low_rank"] < held["seine"] == held["exact"] and held["evict_snapkv"] < held["seine"], held


@pytest.mark.parametrize("scorer", ["streaming_llm", "keydiff"])
def test_what_eviction_holds_is_what_it_attends(model, measured, scorer):
    """token_counts against the positions that the index says it retains, layer by layer."""
    evicting = {"evict": BUDGET.eviction(scorer), "tail": False, "zones": BUDGET.zones()}
    with engine.through(model, methods.Method("m", "m", evicting), None) as seine:
        cache, _ = measured.prompt.begin()
        lengths = []
        for token in measured.inputs:
            with torch.inference_mode():
                model(token.reshape(1, 1), **{cache_name(model): cache}, use_cache=True)
            retained = [len(head) for layer in range(seine.num_layers) for head in seine.retained(cache, layer)]
            lengths.append(sum(retained) / len(retained))
        counts = engine.token_counts(methods.Method("m", "m", evicting), seine.stats(), 1e9)
    assert counts["held_tokens"] == counts["attended_tokens"] == pytest.approx(sum(lengths) / len(lengths), abs=1)


def test_the_papers_shares_follow_the_zone():
    told = {0: (0.5, 0.5), 4_999: (0.5, 0.5), 5_000: (0.25, 0.3), 9_999: (0.25, 0.3), 10_000: (0.2, 0.25),
            29_999: (0.2, 0.25), 30_000: (0.1, 0.2), 10**6: (0.1, 0.2)}  # fmt: skip
    every = methods.retrieval_methods(BUDGET, None, 0.02, 300, schedule="paper")
    (paper,) = methods.choose(["paper"], every)
    assert paper.label == "the paper's pipeline, its authors' β and ρ"
    for zone, (beta, rho) in told.items():
        assert methods.paper_shares(zone) == (beta, rho) and rho >= beta
        settings = paper.of(zone + BUDGET.sink + BUDGET.local).settings
        assert settings["selector"]["candidate_fraction"] == beta and settings["retrieval"]["collision_fraction"] == rho
        assert settings["retrieval"]["coarse"] == "collision"
    assert paper.settings["selector"]["candidate_fraction"] == 0.05 and "collision_fraction" not in paper.settings["retrieval"]
    (fixed,) = methods.choose(["paper"], methods.retrieval_methods(BUDGET, None, 0.02, 300))
    assert fixed.of(100_000) is fixed and fixed.settings["selector"]["candidate_fraction"] == 0.05


def test_the_papers_schedule_is_attended(server, measured):
    every = methods.retrieval_methods(BUDGET, None, 0.02, 300, schedule="paper")
    row = measured.measure(methods.choose(["paper"], every)[0], server.address, quiet)
    assert 58 <= row["attended_tokens"] < 58 + 64 and row["held_tokens"] > CONTEXT - DECODED


def test_methods_are_chosen_by_key():
    every = methods.eviction_methods(BUDGET, methods.SCORERS, "p")
    assert [m.key for m in methods.choose(["evict_tova", "streaming_llm"], every)] == ["streaming_llm", "evict_tova"]
    with pytest.raises(KeyError, match="unknown method evict_cows"):
        methods.choose(["evict_cows"], every)


def test_shares_of_a_prompt_attended_densely_and_in_blocks(model, measured):
    """Every row attends its share of the prompt's tokens; blocks attend no more of it, which dense prompts do."""
    every, tokens = methods.kept_methods(BUDGET, [0.25, 0.5], ["keydiff", "tova"], None, 32), CONTEXT - DECODED
    keys = [f"{prompt}_{scorer}_{share}" for share in (25, 50) for scorer in ("streaming_llm", "keydiff", "tova")
            for prompt in ("evict", "blocks")]  # fmt: skip
    assert [method.key for method in every] == keys
    rows = {method.key: measured.measure(method, None, quiet) for method in every}
    for method in every:
        kept = int(method.share * tokens)
        assert kept <= rows[method.key]["attended_tokens"] <= kept + 32, method.key
        assert method.of(tokens).settings["evict"].budget == {"tokens": kept} and method.of(tokens).share is None
        assert method.prompt == ("blocks of 32" if method.key.startswith("blocks") else "dense")
    for share in (25, 50):
        for scorer in ("streaming_llm", "keydiff", "tova"):
            dense, blocks = (rows[f"{prompt}_{scorer}_{share}"]["kl"] for prompt in ("evict", "blocks"))
            assert min(dense, blocks) > 1e-4 and abs(dense - blocks) > 1e-4
    with pytest.raises(ValueError, match="evict_keydiff_25: its budget is a share of a prompt"):
        with engine.through(model, every[2], None):
            pass
    plain = methods.eviction_methods(BUDGET, ["tova"], None)[1]
    assert plain.of(tokens) is plain


def test_a_prompt_is_read_in_blocks_by_what_reads_in_blocks(model):
    ids = prompt(1, 300)
    read = engine.Prompt(model, ids)
    dense = read.begin()[1]
    method = methods.kept_methods(BUDGET, [0.25], ["keydiff"], None, 32)[3].of(300)
    with engine.through(model, method, None) as seine:
        cache, logits = read.begin()
        with torch.inference_mode():
            expected = model(ids, use_cache=True).logits[0, -1]
        assert cache.get_seq_length() == 300 and seine.stats().block_tokens == 75 + 32
        del cache
    torch.testing.assert_close(logits, expected)
    assert (logits - dense).abs().max() > 0.01
    torch.testing.assert_close(read.begin()[1], dense)


def test_a_sparse_prompt_is_read_over_what_its_blocks_choose_and_decoded_over_all(model):
    ids = prompt(1, 3_000)
    read, method = engine.Prompt(model, ids), methods.sparse_prompt()
    method.settings["prompt_mass"] = 0.3  # random weights look everywhere alike: more would be all
    dense = read.begin()[1]
    with engine.through(model, method, None) as seine:
        cache, logits = read.begin()
        counts = seine.stats().prompts
        assert counts.tokens == 3_000 * model.config.num_hidden_layers and counts.torch_tokens == 0
        assert counts.exact_blocks < counts.blocks and counts.runs_taken < counts.runs_seen
        with torch.inference_mode():
            expected = model(ids, use_cache=True).logits[0, -1]
            model(ids[:, :1], **{cache_name(model): cache}, use_cache=True)
        assert seine.stats().mean_attended_tokens == 3_001
        del cache
    torch.testing.assert_close(logits, expected)
    assert (logits - dense).abs().max() > 0.01


def test_common():
    assert quality.common([1, 2, 3], [1, 2, 4]) == 2
    assert quality.common([1, 2], [1, 2, 4]) == 2 and quality.common([], []) == 0


class Letters:
    """A tokenizer of one id a character."""

    def __call__(self, text, add_special_tokens):
        return argparse.Namespace(input_ids=[ord(c) for c in text])

    def decode(self, ids):
        return "".join(map(chr, ids))


@pytest.mark.parametrize("needles", [1, 4])
def test_haystacks(needles):
    hay = needle.Haystack(Letters(), torch.full((1, 2000), ord("x")), 1500, 0.5, needles, seed=3)
    text = Letters().decode(hay.ids[0].tolist())
    assert len(text) == 1500 and text.count("The secret number of") == needles + 1
    asked = text[text.index("Question: What is the secret number of ") + 39 : text.index("?")]
    fact = f"The secret number of {asked} is {hay.number}."
    assert text.count(fact) == 1 and 650 < text.index(fact) < 850
    assert text.endswith(f"The secret number of {asked} is")


def test_needles_are_counted():
    cells = [
        {"method": "a", "needles": n, "context": 9, "depth": 0.5, "right": right, "held_tokens": 9, "attended_tokens": n}
        for n, right in ((1, True), (4, False), (4, True))
    ]
    assert needle.accuracy(cells) == {"a": {"single": 1.0, "multi": 0.5, "held_tokens": 9, "attended_tokens": 3}}


class Model:
    """As much of a CausalModel as a grid wants: every answer is `text`."""

    def __init__(self, text):
        self.model, self.tokenizer, self.name = None, Letters(), "m"
        self.text = [ord(c) for c in text]

    def tokenize(self, name, text, tokens):
        return torch.full((1, tokens), ord("x"))


class Served:
    """As much of an Installation as a grid wants: every step attended 5 tokens."""

    def stats(self):
        return types.SimpleNamespace(mean_attended_tokens=5.0)


@contextmanager
def served_but_for(bad, model, method, endpoint):
    yield Served()
    if method.key == bad:
        raise engine.NotServed("7 rows were attended by torch: {'UNAVAILABLE': 7}")


def test_a_method_that_fails_is_left_out_of_the_grid(monkeypatch):
    model, failed, every = Model("12345"), [], methods.eviction_methods(BUDGET, ["knorm", "tova"], None)
    monkeypatch.setattr(needle, "Prompt", lambda model, ids: ids)
    monkeypatch.setattr(needle, "greedy", lambda *_: model.text)
    monkeypatch.setattr(needle, "through", lambda *a: served_but_for("evict_knorm", *a))
    ids = model.tokenize("n", "t", 400)
    cells = needle.grid(model, ids, [400], [0.1, 0.9], every, "", quiet, lambda m, e: failed.append((m.key, str(e))))
    assert [cell["method"] for cell in cells] == ["dense", "streaming_llm", "evict_tova"] * 4
    assert all(cell["held_tokens"] == (400 if cell["method"] == "dense" else 5) for cell in cells)
    assert [key for key, _ in failed] == ["evict_knorm"] and "7 rows" in failed[0][1]


def test_a_method_that_fails_is_named_and_the_others_measured(monkeypatch, capsys):
    class Measured:
        def __init__(self, *_):
            pass

        def dense(self):
            return {"kl": 0.0}

        def measure(self, method, endpoint, progress):
            if method.key == "evict_knorm":
                raise SeineError("UNAVAILABLE", "gone")
            return {"kl": 1.0}

    monkeypatch.setattr(quality, "Quality", Measured)
    evaluation = object.__new__(command.Evaluation)
    evaluation.args = argparse.Namespace(quick=True, context=4096, decoded=256, kvpress="/no/python", top_k=100, sink=16,
                                         local=64, rope_scaling=None, device="cpu", dtype="float32")  # fmt: skip
    evaluation.model, evaluation.failed, evaluation.reporter = Model(""), [], Reporter("eval")
    evaluation.model.source = evaluation.model.gguf = "m"
    evaluation.methods = methods.eviction_methods(BUDGET, ["knorm", "tova"], None)
    rows = evaluation._quality("t", "n", "")["methods"]
    assert [row["method"] for row in rows] == ["dense", "streaming_llm", "evict_tova"]
    assert [(f["part"], f["label"]) for f in evaluation.failed] == [("quality", "evicted by knorm"), ("quality", "kvpress")]
    assert "evicted by knorm: left out of quality: gone" in capsys.readouterr().err


def test_speed_adds_up(server, model):
    method = methods.retrieval_methods(BUDGET, None, 0.02, 300, 0.6)[1]
    (row,) = speed.measure(model, prompt(1, CONTEXT), [300], method, server.address, 4, quiet)
    assert row["engine_ms"] + row["rpc_ms"] + row["index_ms"] == pytest.approx(row["seine_ms"])
    assert min(row["dense_ms"], row["rpc_ms"], row["index_ms"]) > 0
    assert all(-64 < row[name] < 64 for name in ("dense_mib", "seine_mib"))  # of a cache of some hundred kilobytes


def test_prompts_are_read_in_every_way(model):
    rows = prompts.measure(model, prompt(1, 3001), DECODED, [0.5], None, None, quiet)
    assert [row["prompt"] for row in rows] == ["torch", "exact", "sparse, 0.5"]
    assert all(row["tokens"] == 3001 - DECODED - 1 and row["first_token_s"] > 0 for row in rows)
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-4) and rows[1]["kl"] == 0.0 and rows[1]["taken"] == 1.0
    assert rows[2]["taken"] < 1 and rows[2]["kl"] > 1e-6  # it differs where less is attended
    assert 0 < rows[1]["attention_s"] < rows[1]["first_token_s"] and rows[0]["attention_s"] is None
    shown = {"quality": [], "needle": None, "speed": [], "failed": []}
    shown["prompts"] = [{"text": "a text", "decoded": DECODED, "prompts": rows}]
    assert "sparse, 0.5" in report.show(shown) and "KL to exact" in report.show(shown)


def test_needles_take_their_share_of_each_context(monkeypatch):
    model, budgets = Model("12345"), []

    @contextmanager
    def noted(model, method, endpoint):
        budgets.append(method.settings["evict"].budget["tokens"])
        yield Served()

    monkeypatch.setattr(needle, "Prompt", lambda model, ids: ids)
    monkeypatch.setattr(needle, "greedy", lambda *_: model.text)
    monkeypatch.setattr(needle, "through", noted)
    every = methods.choose(["blocks_keydiff_10"], methods.kept_methods(BUDGET, [0.1], ["keydiff"], None, 64))
    cells = needle.grid(model, model.tokenize("n", "t", 800), [400, 800], [0.5], every, None, quiet, None)
    assert budgets == [40, 80] * 2 and {cell["method"] for cell in cells} == {"dense", "blocks_keydiff_10"}


class LastTokens:
    """A press as kvpress's, that leaves a prompt's last tokens."""

    def __init__(self, compression_ratio=0.0):
        self.ratio = compression_ratio

    @contextmanager
    def __call__(self, model):
        def cut(_module, _args, out):
            cache = out[cache_name(_module)]
            tokens = cache.get_seq_length()
            if not self.done:
                for layer in cache.layers:
                    begin = tokens - int(tokens * (1 - self.ratio))
                    layer.keys, layer.values = layer.keys[:, :, begin:], layer.values[:, :, begin:]
            self.done = True

        self.done = False
        hook = model.register_forward_hook(cut)
        try:
            yield
        finally:
            hook.remove()


@pytest.fixture
def fake_kvpress(monkeypatch):
    module = types.ModuleType("kvpress")
    module.KeyDiffPress = module.SnapKVPress = LastTokens
    module.DecodingPress = lambda press, compression_interval, target_size: (compression_interval, target_size)
    module.PrefillDecodingPress = lambda press, again: press
    monkeypatch.setitem(sys.modules, "kvpress", module)


@pytest.mark.parametrize("budget", [1, 57, 58, 386, CONTEXT - DECODED])
def test_kvpress_keeps_its_budget_at_true_positions(fake_kvpress, model, measured, budget):
    request = {"ids": prompt(1, CONTEXT + 1)[0].tolist(), "decoded": DECODED, "free": 4}
    request.update({"budget": budget, "interval": 64, "presses": kvpress_peer.PRESSES})
    rows = list(kvpress_peer.Run(model, request).rows(quiet))
    assert [row["method"] for row in rows] == ["kvpress_keydiff", "kvpress_snapkv"]
    for row in rows:
        assert row["attended_tokens"] == budget + (DECODED + 1) / 2
        assert row["kv_bytes"] == (budget + DECODED) / CONTEXT
        if budget == CONTEXT - DECODED:  # nothing is cut
            assert row["kl"] == pytest.approx(0, abs=1e-5) and row["greedy_tokens"] == 4
            assert row["perplexity"] == pytest.approx(measured.dense()["perplexity"], rel=1e-4)
        else:
            assert row["kl"] > 1e-6
    assert set(rows[0]) == {"method", "label"} | set(measured.dense())


def test_a_python_without_kvpress_is_one_line(capfd):
    with pytest.raises(RuntimeError, match="--kvpress /no/python: No such file"):
        kvpress_peer.measure("/no/python", {})
    with pytest.raises(RuntimeError, match="it ended with exit code 1"):
        kvpress_peer.measure(sys.executable, {})
    assert "pip install kvpress" in capfd.readouterr().err


def test_report_shows_every_method():
    row = {"perplexity": 31.3, "kl": 0.0086, "agreement": 0.95, "greedy_tokens": 9, "held_tokens": 3968.0,
           "attended_tokens": 212.0, "kv_bytes": 0.68}  # fmt: skip
    rows = [
        {"method": "dense", "label": "dense", **row, "kl": 0.0},
        {"method": "seine", "label": "Seine & tail", "prompt": "blocks of 128", **row},
    ]
    results = {
        "model": "m<1>",
        "quality": [{"text": "t", "context": 4096, "decoded": 512, "greedy": 64, "methods": rows}],
        "needle": {"accuracy": {"dense": {"single": 1.0, "multi": 0.5, "held_tokens": 2049, "attended_tokens": 179}}},
        "failed": [{"part": "needle", "label": "evicted by tova", "error": "no answer"}],
        "speed": [{"context": 1024, "dense_ms": 40.0, "dense_tokens_per_s": 25.0, "seine_ms": 50.0, "seine_tokens_per_s": 20.0,
                   "engine_ms": 35.0, "rpc_ms": 10.0, "index_ms": 5.0, "dense_mib": 700.0, "seine_mib": 400.0}],
    }  # fmt: skip
    shown = report.show(json.loads(json.dumps(results)))
    assert all(text in shown for text in ("Seine & tail", "blocks of 128", "0.0086", "9 of 64", "tokens held", " 3968 ", " 212 ", " 2049 ", " 179 ", "68%", "40.0 (25.0)", "left out of needle: evicted by tova: no answer"))
    svg = ElementTree.fromstring(report.plot(results))
    assert sum(element.tag.endswith("rect") for element in svg) == 1
    with pytest.raises(ValueError, match="nothing to plot"):
        report.plot({**results, "quality": []})


def test_the_default_text_is_long():
    text, name = texts.load_text(None)
    assert len(text) > 100_000 and "Python" in name


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--shares", "0.9,1"], "--shares: a share must be above 0 and below 1, not 1.0"),
        (["--shares", "much"], "--shares much: must be shares, as 0.1,0.25"),
        (["--parts", "beauty"], "--parts: unknown part beauty"),
        (["--context", "512"], "--context: must be at least"),
        (["--rank", "1.5"], "--rank: must be above 0 and at most 1"),
        (["--plot", "/nowhere/x.svg"], "--plot /nowhere/x.svg"),
        (["--model", "/nowhere/model.gguf"], "no such file"),
        (["--server", "/nowhere/seine.sock"], "no server at unix:///nowhere/seine.sock (there is no such socket)"),
        (["--server", "nowhere"], "--server: expected unix:///"),
        (["--profile", "smollm2-135m"], "--profile smollm2-135m: no such file"),
        (["--speeds", "4k"], "--speeds 4k: must be context lengths"),
        (["--speeds", "64"], "--speeds: a context must have 128"),
        (["--kept", "10%"], "--kept 10%: must be shares, as 0.1,0.25"),
        (["--kept", "0.1,25"], "--kept: a share must be above 0 and below 1, not 25"),
        (["--kept", "nan"], "--kept: a share must be above 0 and below 1, not nan"),
        (["--kept", "0.1", "--block", "1"], "--block: must be 2 tokens or more, not 1"),
        (["--kept", "0.1", "--methods", "evict_keydiff"], "--methods: unknown method evict_keydiff; there are blocks_"),
        (["--spawn", "/nowhere/seined"], "--spawn /nowhere/seined: no such program"),
    ],
)
def test_mistakes_are_one_line(capsys, flags, message):
    assert command.main(flags) == 1
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1


def test_progress_says_how_long_it_will_take(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    reporter = Reporter("it")
    for done in range(1, 6):
        reporter.count(done, 5, "loops")
        now[0] += 1.5
    lines = capsys.readouterr().err.splitlines()  # one in two seconds, and the last
    assert lines == ["it: 1 of 5 loops", "it: 3 of 5 loops, 3 s left", "it: 5 of 5 loops"]
    reporter.count(1, 5, "others")
    assert capsys.readouterr().err == "it: 1 of 5 others\n"
    progress = command.Progress(reporter, "needles")
    for done in range(1, 5):
        now[0] += 8
        progress(done, 4)
    assert capsys.readouterr().err.splitlines() == ["it: needles: 2 of 4, 16 s, 16 s left", "it: needles: 4 of 4, 32 s"]
