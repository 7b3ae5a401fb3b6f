"""Documents of every length, answered densely and by every method; accuracies, and how long it all takes."""

import math
import time

from seine_kv.eval.asking import Reading, Row
from seine_kv.eval.costs import Costs, about
from seine_kv.eval.engine import FAILURES
from seine_kv.eval.tasks import EDGES, Document


class Trials:
    """What is asked of whom. loaded: a CausalModel; text_ids: a list of ids; tasks: names of seine_kv.eval.tasks."""

    def __init__(self, loaded, text_ids, tasks, lengths, samples, methods, decoded=False, seed=0, edges=EDGES):
        self.loaded, self.text_ids, self.tasks = loaded, text_ids, tasks
        self.lengths, self.samples, self.methods = sorted(lengths), samples, list(methods)
        self.decoded, self.seed, self.edges = decoded, seed, edges
        self._first = self.document(self.lengths[0], 0)  # one that is too short is an error before anything is read

    def document(self, length, sample):
        seed = self.seed + sample
        return Document(self.loaded.tokenizer, self.text_ids, length, self.tasks, seed, self.edges)

    def run(self, endpoint, say, failed, save=lambda records: None):
        """One dict a question and method: method, task, length, document, depths, slots, chance, held_tokens,
        attended_tokens and what Row.score says. The method "dense" is torch's own attention. A method that fails is told to failed(method,
        error) and has no answers. say(line): what is to be expected, and how far it is. save(those so far), after each
        document: a run may take hours."""
        records, documents = [], [(length, sample) for length in self.lengths for sample in range(self.samples)]
        expected = self._estimate()
        whole = sum(expected.values()) * self.samples
        say(f"tasks: {len(documents)} documents, {1 + len(self.methods)} methods: {about(whole)}")
        begun, share = time.monotonic(), 0.0
        for n, (length, sample) in enumerate(documents):
            records = self._ask(records, length, sample, endpoint, failed)
            save(records)
            share += expected[length] / whole
            spent = time.monotonic() - begun
            left = f", {about(spent / share - spent)} left" if n + 1 < len(documents) else ""
            say(f"tasks: document {n + 1} of {len(documents)}, {length:,} tokens: {spent:.0f} s{left}")
        return records

    def costs(self):
        return Costs(self.loaded.model, self._first.ids, len(self._first.questions))

    def _estimate(self):
        """length -> seconds that one document takes."""
        rows, costs = [Row(self.loaded.tokenizer, question) for question in self._first.questions], self.costs()
        steps = max(len(row.steps) + self.decoded * len(row.ask) for row in rows)
        return {length: costs.document(length, len(self.methods), steps) for length in self.lengths}

    def _ask(self, records, length, sample, endpoint, failed):
        document = self.document(length, sample)
        reading = Reading(self.loaded, document, self.decoded)

        def keep(name, scores, **more):
            for question, score in zip(document.questions, scores):
                asked = {"method": name, "task": question.task, "length": length, "document": sample}
                asked.update(depths=question.depths, slots=len(question.slots), chance=question.chance)
                records.append({**asked, **score, **more})

        keep("dense", reading.dense(), held_tokens=length, attended_tokens=length)
        for method in list(self.methods):
            try:
                scores, counts = reading.measure(method, endpoint)
            except FAILURES as error:
                failed(method, error)
                self.methods.remove(method)
                records = [record for record in records if record["method"] != method.key]
            else:
                keep(method.key, scores, **counts)
        return records


def summary(records):
    """One dict a length: the tasks, with what guessing gives and whether dense attention is better than that by two
    standard deviations; and of every method its means over the questions.

    [{length, documents, tasks: {task: {answers, chance, dense_tells}}, methods: [{method, held_tokens, attended_tokens,
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
            row = {"method": method, **{name: mean(mine, name) for name in ("held_tokens", "attended_tokens")}}
            for name in ("right", "greedy", "log_probability"):
                row[name] = {task: mean([r for r in mine if r["task"] == task], name) for task in tasks}
            methods.append(row)
        documents = len({record["document"] for record in here})
        summaries.append({"length": length, "documents": documents, "tasks": tasks, "methods": methods})
    return summaries


def mean(records, name):
    return sum(record[name] for record in records) / len(records)
