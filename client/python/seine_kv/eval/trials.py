"""Documents of every length, answered densely and by every method; accuracies, and how long it all takes."""

import math
import time

import torch

from seine_kv.eval.asking import Reading
from seine_kv.eval.engine import FAILURES, LAST
from seine_kv.eval.tasks import Document
from seine_kv.model import cache_name

PROBE_TOKENS, PROBE_STEPS = 256, 4  # of the measurement that an estimate rests on
APPENDED = 0.1  # what a token costs an index, in tokens that the model reads; measured with a small model on two cores


class Trials:
    """What is asked of whom. loaded: a CausalModel; text_ids: a list of ids; tasks: names of seine_kv.eval.tasks."""

    def __init__(self, loaded, text_ids, tasks, lengths, samples, methods, decoded=False, seed=0):
        self.loaded, self.text_ids, self.tasks = loaded, text_ids, tasks
        self.lengths, self.samples, self.methods = sorted(lengths), samples, list(methods)
        self.decoded, self.seed = decoded, seed
        self.document(self.lengths[0], 0)  # a length that is too short is an error before anything is read

    def document(self, length, sample):
        return Document(self.loaded.tokenizer, self.text_ids, length, self.tasks, self.seed + sample)

    def run(self, endpoint, say, failed):
        """One dict a question and method: method, task, length, document, depths, slots, chance, attended_tokens and
        what Row.score says. The method "dense" is torch's own attention. A method that fails is told to failed(method,
        error) and has no answers. say(line): what is to be expected, and how far it is."""
        records, documents = [], [(length, sample) for length in self.lengths for sample in range(self.samples)]
        expected = self.estimate()
        whole = sum(expected.values()) * self.samples
        say(f"tasks: {len(documents)} documents, {1 + len(self.methods)} methods: {minutes(whole)}")
        begun, share = time.monotonic(), 0.0
        for n, (length, sample) in enumerate(documents):
            records = self._ask(records, length, sample, endpoint, failed)
            share += expected[length] / whole
            spent = time.monotonic() - begun
            left = f", {minutes(spent / share - spent)} left" if n + 1 < len(documents) else ""
            say(f"tasks: document {n + 1} of {len(documents)}, {length:,} tokens: {spent:.0f} s{left}")
        return records

    def _ask(self, records, length, sample, endpoint, failed):
        document = self.document(length, sample)
        reading = Reading(self.loaded, document, self.decoded)

        def keep(name, scores, **more):
            for question, score in zip(document.questions, scores):
                about = {"method": name, "task": question.task, "length": length, "document": sample}
                about.update(depths=question.depths, slots=len(question.slots), chance=question.chance)
                records.append({**about, **score, **more})

        keep("dense", reading.dense(), attended_tokens=length)
        for method in list(self.methods):
            try:
                scores, attended = reading.measure(method, endpoint)
            except FAILURES as error:
                failed(method, error)
                self.methods.remove(method)
                records = [record for record in records if record["method"] != method.key]
            else:
                keep(method.key, scores, attended_tokens=attended)
        return records

    def estimate(self):
        """length -> seconds that one document takes, from a few tokens read and decoded now, and what is known of how
        cost grows with the context. Right to a factor of two or so; run() corrects it as it goes."""
        model, name = self.loaded.model, cache_name(self.loaded.model)
        document = self.document(self.lengths[0], 0)
        questions = len(document.questions)
        ids = torch.tensor([document.ids[:PROBE_TOKENS]], device=model.device)
        with torch.inference_mode():
            begun = time.perf_counter()
            out = model(ids, use_cache=True, logits_to_keep=1)
            token = (time.perf_counter() - begun) / PROBE_TOKENS
            cache, step = out[name], ids[:, -1:].expand(questions, 1)
            cache.batch_repeat_interleave(questions)
            begun = time.perf_counter()
            for _ in range(PROBE_STEPS):
                model(step, **{name: cache}, use_cache=True, logits_to_keep=1)
            step_seconds = (time.perf_counter() - begun) / PROBE_STEPS
        # Attention over x tokens costs what the weights do where x is their number over twice the queries' elements.
        config = model.config.get_text_config()
        even = sum(p.numel() for p in model.parameters()) / (2 * config.num_hidden_layers * config.hidden_size)
        steps = 16 + 32 * self.decoded
        seconds = {}
        for length in self.lengths:
            read = token * questions * LAST * (1 + length / even)
            alone = token * length * (1 + length / (2 * even)) + read
            one = read + APPENDED * token * length + 1.5 * steps * step_seconds
            seconds[length] = alone + len(self.methods) * one
        return seconds


def minutes(seconds):
    return f"about {seconds:.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} minutes"


def summary(records):
    """One dict a length: the tasks, with what guessing gives and whether dense attention is better than that by two
    standard deviations; and of every method its means over the questions.

    [{length, documents, tasks: {task: {answers, chance, dense_tells}}, methods: [{method, attended_tokens,
    right: {task: share}, greedy: {task: share}, log_probability: {task: nats}}]}]"""
    summaries = []
    for length in dict.fromkeys(record["length"] for record in records):
        here = [record for record in records if record["length"] == length]
        tasks, methods = {}, []
        for task in dict.fromkeys(record["task"] for record in here):
            dense = [r for r in here if r["task"] == task and r["method"] == "dense"]
            answers, chance = sum(r["slots"] for r in dense), mean(dense, "chance")
            tells = mean(dense, "right") > chance + 2 * math.sqrt(chance * (1 - chance) / answers)
            tasks[task] = {"answers": answers, "chance": chance, "dense_tells": tells}
        for method in dict.fromkeys(record["method"] for record in here):
            mine = [record for record in here if record["method"] == method]
            row = {"method": method, "attended_tokens": mean(mine, "attended_tokens")}
            for name in ("right", "greedy", "log_probability"):
                row[name] = {task: mean([r for r in mine if r["task"] == task], name) for task in tasks}
            methods.append(row)
        documents = len({record["document"] for record in here})
        summaries.append({"length": length, "documents": documents, "tasks": tasks, "methods": methods})
    return summaries


def mean(records, name):
    return sum(record[name] for record in records) / len(records)
