"""The tasks of seine_kv.eval: documents, questions, scores, tables; with a small, random model. Needs torch."""

import argparse
import json
import re
from contextlib import contextmanager

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from seine_kv import hf
from seine_kv.eval import __main__ as command
from seine_kv.eval import asking, engine, methods, report, serving, tasks, tasks_part, trials
from seine_kv.eval.costs import about
from seine_kv.messages import SeineError

BUDGET = methods.Budget(top_k=10, sink=16, local=32)
HAY = "The cow stood in the green field. Nobody came by, and it rained all day. So it went home! "
LENGTH = 1200


class Words:
    """A tokenizer of one id a word, with the blank before it, and one a digit, as SmolLM2's is."""

    def __init__(self):
        self.ids, self.pieces = {}, []

    def __call__(self, text, add_special_tokens=False, **_):
        pieces = self.split(text)
        assert "".join(pieces) == text
        for piece in pieces:
            if piece not in self.ids:
                self.ids[piece] = len(self.pieces)
                self.pieces.append(piece)
        return argparse.Namespace(input_ids=[self.ids[piece] for piece in pieces])

    def split(self, text):
        return re.findall(r" ?[A-Za-z]+|\d|[^\w]", text)

    def decode(self, ids):
        return "".join(self.pieces[i] for i in ids)


@pytest.fixture(scope="module")
def loaded():
    """As much of a CausalModel as trials want."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=96, max_position_embeddings=4096,
                         num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, head_dim=64, initializer_range=0.3,
                         bos_token_id=1, eos_token_id=None, pad_token_id=0)  # fmt: skip
    return argparse.Namespace(model=LlamaForCausalLM(config).eval(), tokenizer=Words(), name="m")


@pytest.fixture(scope="module")
def hay(loaded):
    return loaded.tokenizer(HAY * 60).input_ids


def document(loaded, hay, chosen=tuple(tasks.TASKS), length=LENGTH, seed=0):
    return tasks.Document(loaded.tokenizer, hay, length, chosen, seed)


def sentences(question):
    """What the text must say for the question's answers, from its slots alone."""
    for slot in question.slots:
        for answer in slot.right:
            yield f"{slot.lead.lstrip('.')}{answer}."


@pytest.mark.parametrize("task", tasks.TASKS)
@pytest.mark.parametrize("seed", range(4))
def test_answers_are_in_the_text(loaded, hay, task, seed):
    made = document(loaded, hay, [task], LENGTH, seed)
    text = loaded.tokenizer.decode(made.ids)
    assert len(made.ids) == LENGTH and {question.task for question in made.questions} == {task}
    for question in made.questions:
        if task == "tracking":
            copied, value = question.slots
            name, number = copied.right[0], value.right[0]
            value_at, copy_at = text.index(f"{name} ={number}."), text.index(f"{copied.lead}{name}.")
            assert value_at < copy_at, "a value stands before its copy"
        for sentence in sentences(question) if task != "tracking" else ():
            assert sentence in text
            if task != "common":
                assert text.count(sentence) == 1
        for slot in question.slots:
            assert set(slot.right) <= set(slot.among) and len(set(slot.among)) == len(slot.among) > len(slot.right)
            assert all(answer.startswith(" ") for answer in slot.among)
            if task != "single":
                assert all(answer in text for answer in slot.among), "a choice among what is in the text"


def test_common_words_are_the_common_ones(loaded, hay):
    (question,) = document(loaded, hay, ["common"]).questions
    text = loaded.tokenizer.decode(document(loaded, hay, ["common"]).ids)
    counts = {word: text.count(f"Word of the day:{word}.") for word in question.slots[0].among}
    assert sorted(counts.values()) == [2] * 10 + [8] * 3
    assert set(question.slots[0].right) == {word for word, count in counts.items() if count == 8}
    assert [(len(slot.right), len(slot.among)) for slot in question.slots] == [(3, 13), (2, 12), (1, 11)]


def test_seeds_reproduce_and_differ(loaded, hay):
    first, again, other = (document(loaded, hay, seed=seed) for seed in (5, 5, 6))
    assert first.ids == again.ids and first.questions == again.questions
    assert first.ids != other.ids and first.questions != other.questions
    assert document(loaded, hay, length=LENGTH + 1, seed=5).questions != first.questions, "each length has its own draw"


@pytest.mark.parametrize("task", ["single", "multikey", "multiquery", "multivalue", "tracking"])
def test_facts_stand_at_their_depths(loaded, hay, task):
    for seed in range(5):
        made = document(loaded, hay, [task], 2000, seed)
        text = loaded.tokenizer.decode(made.ids)
        for question in made.questions:
            slots = question.slots
            said = [f"{slots[0].lead}{slots[0].right[0]}."] if task == "tracking" else list(sentences(question))
            depths = question.depths[1:] if task == "tracking" else question.depths
            between = hay_tokens(loaded, text) - sum(tasks.EDGES)
            for sentence, depth in zip(dict.fromkeys(said), depths):
                before = hay_tokens(loaded, text[: text.index(sentence)])
                assert before == pytest.approx(tasks.EDGES[0] + depth * between, abs=tasks.NEAR)
                assert tasks.EDGES[0] <= before <= tasks.EDGES[0] + between, (
                    "nothing is hidden where every method looks"
                )


def hay_tokens(loaded, text):
    """Of a text without its facts."""
    said = (
        r" (The secret number|The special magic number for \w+|One of the lucky numbers of \w+) is \d{5}\.| \w+ = \w+\."
    )
    return len(loaded.tokenizer(re.sub(said, "", text)).input_ids)


def test_facts_stand_between_sentences(loaded, hay):
    text = loaded.tokenizer.decode(document(loaded, hay).ids)
    for found in re.finditer(r" (The secret number|The special magic|One of the lucky|Word of the day)", text):
        assert text[: found.start()].rstrip()[-1] in ".!", text[found.start() - 20 : found.end()]


def test_a_text_without_sentences_has_its_facts_at_their_depths(loaded):
    words = loaded.tokenizer(" cow" * 500).input_ids
    made = tasks.Document(loaded.tokenizer, words, 1000, ["single"], 1)
    (question,) = made.questions
    before = loaded.tokenizer.decode(made.ids).index(" The secret number is") // len(" cow")
    between = 1000 - sum(tasks.EDGES)
    assert before == pytest.approx(tasks.EDGES[0] + question.depths[0] * between, abs=25)


def test_what_does_not_fit_is_an_error(loaded, hay):
    with pytest.raises(ValueError, match="--lengths 512: facts take .* tokens and the edges 288; a quarter"):
        document(loaded, hay, length=512)

    class Parity(Words):
        def __call__(self, text, add_special_tokens=False, **_):
            return argparse.Namespace(input_ids=[ord(letter) % 2 for letter in text])

    with pytest.raises(ValueError, match="--model: its tokenizer does not tell enough words of the kind"):
        tasks.Document(Parity(), hay, LENGTH, ["multikey"], 0)


def test_a_blank_may_be_a_token_of_its_own():
    class Blanks(Words):
        def split(self, text):
            return re.findall(r"[A-Za-z]+|\d|[^\w]", text)

    split = argparse.Namespace(tokenizer=Blanks())
    for question in document(split, split.tokenizer(HAY * 60).input_ids, length=2400).questions:
        row = asking.Row(split.tokenizer, question)
        assert all(len(mark.firsts) == len(slot.among) for mark, slot in zip(row.marks, question.slots))
        assert not any(split.tokenizer.decode(mark.firsts[:1]).isspace() for mark in row.marks)


# Scores ---------------------------------------------------------------------------------------------------------------


class Knowing:
    """What comes next in every row, and in the rows of the tasks `lies` another answer of the kind."""

    def __init__(self, loaded, made, lies=()):
        self.next = {}
        for question in made.questions:
            row = asking.Row(loaded.tokenizer, question)
            whole = row.steps + row.marks[-1].given[-1:]
            self.next.update({(question.ask, n): token for n, token in enumerate(whole)})
            for mark in row.marks if question.task in lies else ():
                self.next[question.ask, mark.at] = next(token for token in mark.firsts if token not in mark.right)


def seen_by(row, knowing):
    """What Row.score wants, from a model that knows."""
    found = {}
    for step in row.wanted:
        logits = torch.full((512,), -9.0)
        logits[knowing.next[row.question.ask, step + 1]] = 9.0
        found[step] = logits.log_softmax(-1)
    return found


def test_who_knows_is_right_and_who_lies_is_wrong(loaded, hay):
    made = document(loaded, hay)
    for lies in ((), ("single",), tuple(tasks.TASKS)):
        knowing = Knowing(loaded, made, lies)
        for question in made.questions:
            row = asking.Row(loaded.tokenizer, question)
            score, wrong = row.score(seen_by(row, knowing)), question.task in lies
            assert (score["right"], score["greedy"]) == ((0, 0) if wrong else (1, 1)), question
            assert score["log_probability"] < -10 if wrong else score["log_probability"] == pytest.approx(0, abs=1e-4)


def test_one_wrong_digit_is_not_greedy_and_yet_chosen(loaded, hay):
    (question,) = document(loaded, hay, ["single"]).questions
    row = asking.Row(loaded.tokenizer, question)
    knowing = Knowing(loaded, document(loaded, hay, ["single"]))
    last = max(step for _, step in knowing.next)
    knowing.next[question.ask, last] = (knowing.next[question.ask, last] + 1) % 512
    score = row.score(seen_by(row, knowing))
    assert (score["right"], score["greedy"]) == (1, 0)


def test_any_answer_of_a_list_is_right(loaded, hay):
    question = document(loaded, hay, ["multivalue"]).questions[0]
    row, knowing = asking.Row(loaded.tokenizer, question), Knowing(loaded, document(loaded, hay, ["multivalue"]))
    mark = row.marks[0]
    knowing.next[question.ask, mark.at] = mark.right[1]  # another than the one that is given
    score = row.score(seen_by(row, knowing))
    assert score["right"] == 1 and score["greedy"] == 1


# Reading and answering ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[False, True], ids=["prompt", "later"])
def reading(request, loaded, hay):
    return asking.Reading(loaded, document(loaded, hay), decoded=request.param)


def near(scores, others, **tolerance):
    for name in ("log_probability", "right", "greedy"):
        assert [s[name] for s in scores] == pytest.approx([s[name] for s in others], **tolerance), name


def test_dense_is_what_the_model_says_of_the_whole_text(loaded, hay, reading):
    made, scores = document(loaded, hay), []
    for question in made.questions:
        ask = tasks.encode(loaded.tokenizer, question.ask)
        later = bool(reading.rows[0].steps[0] == ask[0])
        prompt = made.ids + ask if later else made.ids[: LENGTH - len(ask)] + ask
        assert later or len(prompt) == LENGTH
        row = asking.Row(loaded.tokenizer, question)
        with torch.inference_mode():
            logits = loaded.model(torch.tensor([prompt + row.steps])).logits[0].log_softmax(-1)
        scores.append(row.score({step: logits[len(prompt) + step] for step in range(len(row.steps))}))
    near(reading.dense(), scores, abs=1e-4)


@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 4096, "tail": False, "dtype": "float32"},
        {"evict": hf.Eviction(4096, "keydiff"), "tail": False, "dtype": "float32"},
        {"evict": hf.Eviction(4096, "snapkv"), "tail": False, "dtype": "float32"},
        {"evict": hf.Eviction(4096, "keydiff"), "tail": False, "dtype": "float32", "prefill": "blocks"},
    ],
    ids=["searched", "evicted", "evicted by call", "in blocks"],
)
def test_a_method_that_attends_everything_is_dense(monkeypatch, reading, settings, rows):
    monkeypatch.setattr(
        reading, "_groups", [range(i, min(i + rows, len(reading.rows))) for i in range(0, len(reading.rows), rows)]
    )
    scores, tokens = reading.measure(methods.Method("all", "all", settings), None)
    near(scores, reading.dense(), abs=1e-3)
    assert LENGTH < tokens["attended_tokens"] < LENGTH + 100


def test_a_server_answers_alike(server, reading):
    (method,) = methods.choose(["exact"], methods.retrieval_methods(BUDGET, None, 0.02, 300))
    near(reading.measure(method, server.address)[0], reading.measure(method, None)[0], abs=0.02)


def test_every_method_has_its_row_and_attends_its_budget(loaded, hay):
    every = methods.retrieval_methods(BUDGET, None, 0.02, 300) + methods.eviction_methods(
        BUDGET, [scorer for scorer in methods.SCORERS if scorer != "qfilters"], None
    )
    said, failed, saved = [], [], []
    asked = trials.Trials(loaded, hay, list(tasks.TASKS), [LENGTH], 2, every)
    save = lambda records: saved.append(len(records))  # noqa: E731
    records = asked.run(None, said.append, lambda *failure: failed.append(failure), save)
    assert not failed and saved == [len(records) // 2, len(records)]
    (there,) = trials.summary(records)
    assert there["length"] == LENGTH and there["documents"] == 2 and list(there["tasks"]) == list(tasks.TASKS)
    assert {task: told["answers"] for task, told in there["tasks"].items()} == {
        "single": 2, "multikey": 6, "multiquery": 6, "multivalue": 12, "tracking": 8, "common": 6,
    }  # fmt: skip
    assert [row["method"] for row in there["methods"]] == ["dense"] + [method.key for method in every]
    for row in there["methods"][1:]:
        assert 58 <= row["attended_tokens"] < 58 + 64, row
        evicts = row["method"] == "streaming_llm" or row["method"].startswith("evict_")
        assert row["held_tokens"] == (row["attended_tokens"] if evicts else LENGTH), row
    dense, *others = ([row["log_probability"][task] for task in tasks.TASKS] for row in there["methods"])
    assert all(other != dense for other in others), "each method attends for itself"
    assert "2 documents, 17 methods: about" in said[0] and said[1].endswith(" left") and "document 2 of 2" in said[2]


def test_documents_are_read_by_what_reads_prompts_sparsely(loaded):
    hay = loaded.tokenizer(HAY * 200).input_ids
    method = methods.sparse_prompt()
    method.settings["prompt_mass"] = 0.3  # random weights look everywhere alike: more would be all
    asked = trials.Trials(loaded, hay, ["single"], [3_000], 1, [method])
    dense, sparse = asked.run(None, print, lambda *failure: pytest.fail(str(failure)))
    assert sparse["held_tokens"] == 3_000 and sparse["attended_tokens"] >= 3_000
    assert abs(sparse["log_probability"] - dense["log_probability"]) > 1e-3


def test_shares_of_a_prompt_are_kept(loaded, hay):
    every = methods.kept_methods(BUDGET, [0.25], ["keydiff", "snapkv"], None, 64)
    records = trials.Trials(loaded, hay, ["single"], [LENGTH], 1, every).run(None, print, lambda *f: pytest.fail(str(f)))
    assert [record["method"] for record in records] == ["dense", *(method.key for method in every)]
    attended = {record["method"]: record["attended_tokens"] for record in records[1:]}
    assert {key: tokens for key, tokens in attended.items() if not LENGTH / 4 <= tokens < LENGTH / 4 + 100} == {}


def test_a_method_that_fails_has_no_answers(monkeypatch, loaded, hay):
    def measure(self, method, endpoint):
        if method.key == "evict_tova" and self.failing:
            raise engine.NotServed("7 rows were attended by torch")
        return self.dense(), {"held_tokens": 9.0, "attended_tokens": 5.0}

    monkeypatch.setattr(asking.Reading, "measure", measure)
    readings = []
    make = asking.Reading.__init__

    def count(self, *args):
        make(self, *args)
        readings.append(self)
        self.failing = len(readings) == 2

    monkeypatch.setattr(asking.Reading, "__init__", count)
    failed, every = [], methods.eviction_methods(BUDGET, ["knorm", "tova"], None)
    asked = trials.Trials(loaded, hay, ["single"], [LENGTH], 3, every)
    records = asked.run(None, lambda line: None, lambda method, error: failed.append((method.key, str(error))))
    assert [r["method"] for r in records] == ["dense", "streaming_llm", "evict_knorm"] * 3
    assert failed == [("evict_tova", "7 rows were attended by torch")]


def test_a_cache_is_shared_and_not_changed(loaded, hay):
    cache = engine.prefill(loaded.model, torch.tensor([hay[:40]]))
    before = [layer.keys.clone() for layer in cache.layers]
    twin = asking.share(cache)
    loaded.model(torch.tensor([hay[40:50]]), past_key_values=twin, use_cache=True)
    twin.batch_repeat_interleave(3)
    assert twin.layers[0].keys.shape[:1] == (3,) and twin.get_seq_length() == 50 and cache.get_seq_length() == 40
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(cache.layers, before))


def test_a_cache_with_room_holds_the_same(loaded, hay):
    caches = [engine.prefill(loaded.model, torch.tensor([hay[:40]])) for _ in range(2)]
    asking.leave_room(caches[0], 3)
    for token in hay[40:43]:
        said = [loaded.model(torch.tensor([[token]]), past_key_values=cache, use_cache=True).logits for cache in caches]
        assert torch.equal(*said)
    roomy, plain = (cache.layers[1] for cache in caches)
    assert torch.equal(roomy.keys, plain.keys) and torch.equal(roomy.values, plain.values)
    assert roomy.keys.data_ptr() == roomy.room[0].data_ptr() and roomy.get_seq_length() == 43


def test_first_tokens_and_batches_are_timed(loaded, hay):
    (method,) = methods.choose(["seine"], methods.retrieval_methods(BUDGET, None, 0.02, 300))
    rows = list(serving.measure(loaded.model, torch.tensor([hay]), [300], [1, 3], method, None, 4, lambda *_: None))
    assert [(row["length"], row["batch"]) for row in rows] == [(300, 1), (300, 3)]
    assert all(value > 0 for row in rows for value in row.values())


def test_a_batch_is_of_different_texts_and_decodes_greedily(loaded, hay):
    ids = torch.tensor([hay[:300], hay[100:400]])
    batch = serving.Batch(loaded.model, ids)
    assert batch.read() and not batch.read() and batch.read_seconds > 0
    with torch.inference_mode():
        assert torch.equal(batch.token, loaded.model(ids).logits[:, -1].argmax(-1, keepdim=True))
    batch.step()
    assert len(batch.times) == 1 and batch.cache.get_seq_length() == 301


# Tables and the command -----------------------------------------------------------------------------------------------


def record(method, task, right, **more):
    return {"method": method, "task": task, "length": 4096, "document": 0, "slots": 10, "chance": 0.25,
            "right": right, "greedy": right / 2,
            "log_probability": -1.5, "held_tokens": 4096.0, "attended_tokens": 200.0, "depths": (0.5,), **more}  # fmt: skip


def test_tables_say_where_dense_attention_fails():
    records = [record(method, task, right) for method in ("dense", "seine", "evict_h2o")
               for task, right in (("single", 0.75), ("tracking", 0.3))]  # fmt: skip
    lengths = trials.summary(json.loads(json.dumps(records)))
    assert lengths[0]["tasks"]["single"] == {"answers": 10, "chance": 0.25, "dense_tells": True}
    assert not lengths[0]["tasks"]["tracking"]["dense_tells"]
    row = {"length": 4096, "batch": 4, "dense_first_s": 11.25, "seine_first_s": 12.5, "dense_second_s": 1.0,
           "seine_second_s": 2.0, "dense_tokens_per_s": 20.5, "seine_tokens_per_s": 41.5}  # fmt: skip
    labels = {"dense": "dense", "seine": "Seine & tail", "evict_h2o": "evicted by h2o"}
    results = {"text": "a book", "ask": "prompt", "labels": labels, "lengths": lengths, "serving": [row]}
    shown = report.show({"quality": [], "needle": None, "speed": [], "failed": [], "tasks": results})
    for line in (
        "1 documents of 4,096 tokens of a book",
        "Seine & tail",
        "by h2o",
        "guessing",
        "4,096 tokens, batch 4",
    ):
        assert line in shown, shown
    assert re.search(r"^dense +4096 +200 +0\.75 +0\.30 +0\.5[23]$", shown, re.M) and re.search(
        r"11\.25 +12\.50 +1\.00 +2\.00 +20\.5 +41\.5", shown
    )
    assert "not much better than guessing in tracking:" in shown


def test_mean_over_documents():
    records = [record("dense", "single", right, document=n) for n, right in enumerate((1.0, 0.0, 0.5))]
    (there,) = trials.summary(records)
    assert there["documents"] == 3 and there["tasks"]["single"]["answers"] == 30
    assert there["methods"][0]["right"] == {"single": 0.5}


def test_an_estimate_grows_with_what_is_asked(loaded, hay):
    costs = trials.Trials(loaded, hay, ["single"], [900], 2, []).costs()
    assert 0 < 4 * costs.reading(900) < costs.reading(3600) < costs.document(3600, 0, 20) < costs.document(3600, 9, 20)
    assert costs.document(3600, 9, 20) < costs.document(3600, 9, 40)
    assert 10 * costs.reading(900) < costs.batches(900, [1, 4], 8) < costs.batches(900, [1, 4], 80)
    assert about(89.6) == "about 90 s" and about(90) == "about 2 minutes"


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--tasks", "single,juggling"], "--tasks: unknown task juggling; there are single, multikey"),
        (["--lengths", "4k"], "--lengths 4k: must be tokens, as 4096,8192"),
        (["--lengths", "64"], "--lengths: must be at least 512, not 64"),
        (["--samples", "0"], "--samples: must be at least 1, not 0"),
        (["--batches", "-1"], "--batches: must be numbers of sequences above 0"),
        (["--batches", "0,4"], "--batches: must be numbers of sequences above 0"),
        (["--json", "/nowhere/x.json"], "--json /nowhere/x.json"),
    ],
)
def test_mistakes_are_one_line(capsys, flags, message):
    assert command.main(["--parts", "tasks", *flags]) == 1
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1


class TensorWords(Words):
    """As transformers gives them, if they are asked for."""

    def __call__(self, text, return_tensors=None, **more):
        found = super().__call__(text, **more)
        return argparse.Namespace(input_ids=torch.tensor([found.input_ids])) if return_tensors else found


@contextmanager
def no_server(args):
    yield None


def test_a_run_that_is_stopped_has_its_documents(monkeypatch, loaded, hay):
    class Stopped(trials.Trials):
        def _ask(self, records, length, sample, endpoint, failed):
            if sample == 1:
                raise KeyboardInterrupt
            return super()._ask(records, length, sample, endpoint, failed)

    monkeypatch.setattr(trials, "Trials", Stopped)
    args = command.parse_args(["--tasks", "single", "--lengths", str(LENGTH), "--samples", "2", "--batches", "0"])
    tasks_part.check(args)
    tokenizer = TensorWords()
    model = argparse.Namespace(model=loaded.model, tokenizer=tokenizer, device="cpu")
    part = tasks_part.Part(args, model, HAY * 60, "t", [], argparse.Namespace(say=lambda line: None))
    saved = []
    with pytest.raises(KeyboardInterrupt):
        part.run(None, None, saved.append, None)
    assert [len(results["answers"]) for results in saved] == [1] and saved[0]["lengths"][0]["documents"] == 1


def test_the_command_prints_and_writes_everything(monkeypatch, capsys, tmp_path, loaded):
    class Loaded:
        model, tokenizer, name, device = loaded.model, TensorWords(), "m", "cpu"

        def __init__(self, args, tokens):
            assert tokens == LENGTH

        def load(self, observed):
            """Nothing: the model is there."""

        def tokenize(self, name, text, tokens):
            return torch.tensor([self.tokenizer(text).input_ids[:tokens]])

    monkeypatch.setattr(command, "CausalModel", Loaded)
    monkeypatch.setattr(command, "find_model", lambda *_: None)
    monkeypatch.setattr(command, "server_of", no_server)
    (tmp_path / "book.txt").write_text(HAY * 60, encoding="utf-8")
    flags = ["--parts", "tasks", "--text", str(tmp_path / "book.txt"), "--lengths", str(LENGTH), "--samples", "1",
             "--tasks", "single,common", "--batches", "2", "--methods", "exact,evict_keydiff", "--top-k", "10",
             "--json", str(tmp_path / "all.json")]  # fmt: skip
    assert command.main(flags) == 0
    (shown, said), written = capsys.readouterr(), json.loads((tmp_path / "all.json").read_text())
    assert "exact top-k" in shown and "evicted by keydiff" in shown and f"{LENGTH:,} tokens, batch 2" in shown
    assert "first tokens and batches: about" in said
    answers = written["tasks"]["answers"]
    assert len(answers) == 3 * 2 and {answer["method"] for answer in answers} == {"dense", "exact", "evict_keydiff"}
    assert "unfinished" not in written
    assert [row["batch"] for row in written["tasks"]["serving"]] == [2] and written["quality"] == []

    def gone(*_):
        assert json.loads((tmp_path / "all.json").read_text())["unfinished"], "each document is written"
        yield {**written["tasks"]["serving"][0], "batch": 7}
        raise SeineError("UNAVAILABLE", "the server is gone")

    monkeypatch.setattr(serving, "measure", gone)
    assert command.main(flags) == 1, "something is left out"
    shown, said = capsys.readouterr()
    assert "evicted by keydiff" in shown and "batch 7" in shown, "what was measured is not lost"
    assert "left out of tasks: batches of exact top-k: the server is gone" in shown and "the server is gone" in said
