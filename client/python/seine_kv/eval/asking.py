"""What a model answers to a document's questions, densely and by every method, from one reading of it.

A prompt is the document with a question in place of its last tokens. It is attended densely, as any prompt. What
follows is a method's own, one token at a time for all questions of the document as a batch. These are the words that
lead to an answer, then the answer itself: the right one, so that all methods are asked the same at every token.
`decoded`: the question, too, is given that way, as in a second turn. Nothing is evicted with a view to it.
"""

import copy
from dataclasses import dataclass

import torch
from transformers.cache_utils import DynamicLayer

from seine_kv.eval.engine import LAST, prefill, reads_prompts, through, token_counts
from seine_kv.eval.tasks import common_lead, encode
from seine_kv.hf.cache import SeineCache
from seine_kv.model import cache_name

OPENING = 8  # tokens with which a method that searches takes the document in, once for all questions
ROW_TOKENS = 65536  # of the prompts that are answered at once, which bounds memory


@dataclass
class Mark:
    """Where a slot's answer begins among the tokens that are given. firsts: the first token of each answer to choose
    from; right: of the right ones; given: all tokens of the one that is given."""

    at: int
    firsts: list
    right: list
    given: list


class Row:
    """A question as tokens: `ask`, then `steps` with the answers at `marks`."""

    def __init__(self, tokenizer, question):
        self.question, self.ask = question, encode(tokenizer, question.ask)
        self.steps, self.marks = [], []
        for slot in question.slots:
            whole = [encode(tokenizer, slot.lead + answer) for answer in slot.among]
            lead = common_lead(whole)  # what all answers begin with belongs to it
            firsts = [ids[lead] for ids in whole]
            if len(set(firsts)) < len(firsts):
                raise ValueError(f"--model: its tokenizer lets two answers of the task {question.task} begin alike")
            self.steps += whole[0][:lead]
            right = [firsts[slot.among.index(answer)] for answer in slot.right]
            given = whole[slot.among.index(slot.right[0])][lead:]
            self.marks.append(Mark(len(self.steps), firsts, right, given))
            self.steps += given
        self.steps.pop()  # nothing is asked after it

    def decode_question(self):
        """Moves the question to what is given one at a time."""
        self.steps = self.ask + self.steps
        for mark in self.marks:
            mark.at += len(self.ask)
        self.ask = []

    @property
    def wanted(self):
        """The steps after which the model is asked for the next token."""
        return {mark.at - 1 + i for mark in self.marks for i in range(len(mark.given))}

    def score(self, seen):
        """seen: step -> log probabilities [vocabulary] after it. right: share of slots whose likeliest answer is right;
        greedy: the same with every token of the vocabulary to choose from, and all of a given answer's tokens the
        likeliest; log_probability: of an answer that is right, nats, mean of the slots."""
        right, greedy, logs = [], [], []
        for mark in self.marks:
            first = seen[mark.at - 1]
            right.append(max(mark.firsts, key=lambda token: first[token].item()) in mark.right)
            said = [seen[mark.at - 1 + i].argmax().item() for i in range(len(mark.given))]
            greedy.append(said == mark.given or (said[0] in mark.right and said[0] != mark.given[0]))
            logs.append(first[mark.right].logsumexp(0).item())
        mean = lambda values: sum(values) / len(values)  # noqa: E731
        return {"right": mean(right), "greedy": mean(greedy), "log_probability": mean(logs)}


class Reading:
    """A document, read densely but for its last tokens. Not for two threads at a time."""

    def __init__(self, loaded, document, decoded=False):
        self.model = loaded.model
        self.rows = [Row(loaded.tokenizer, question) for question in document.questions]
        asked = max(LAST, *(len(row.ask) for row in self.rows))
        begin = len(document.ids) - asked
        self.reads = [document.ids[begin : len(document.ids) - len(row.ask)] + row.ask for row in self.rows]
        if decoded:
            self.reads = [document.ids[begin:]] * len(self.rows)
            for row in self.rows:
                row.decode_question()
        self.opening = document.ids[begin - OPENING : begin]
        self.before, self.tokens = document.ids[: begin - OPENING], len(document.ids)
        self._cache = prefill(self.model, self._tensor([self.before]))
        count = max(1, ROW_TOKENS // len(document.ids))
        self._groups = [range(i, min(i + count, len(self.rows))) for i in range(0, len(self.rows), count)]

    def dense(self):
        """Row.score of every question, by torch's own attention."""
        scores = []
        for row, read in zip(self.rows, self.reads):
            ids = self.opening + read + row.steps
            logits = self._forward(share(self._cache), [ids], keep=len(row.steps)).logits[0]
            scores.append(row.score({step: logits[step].float().log_softmax(-1) for step in row.wanted}))
        return scores

    def measure(self, method, endpoint):
        """(Row.score of every question, engine.token_counts)."""
        with through(self.model, method.of(self.tokens), endpoint) as seine:
            whole = reads_prompts(seine)
            scores = self._evict(whole) if "evict" in method.settings else self._search(whole)
            return scores, token_counts(method, seine.stats(), self.tokens)

    def _search(self, whole):
        """The index takes the document once; each question goes on from a fork. whole: the method reads prompts itself."""
        opened = prefill(self.model, self._tensor([self.before])) if whole else share(self._cache)
        self._forward(opened, [self.opening])
        scores = []
        for group in self._groups:
            scores += self._answer(copy.deepcopy(opened), group, [self.reads[r] for r in group])
        return scores

    def _evict(self, whole):
        """Each question has a sequence of its own from the start, for what is evicted may depend on it. whole: the method
        reads prompts itself."""
        scores = []
        for group in self._groups:
            cache = None if whole else share(self._cache)
            before = self.before + self.opening if whole else self.opening
            scores += self._answer(cache, group, [before + self.reads[r] for r in group])
        return scores

    def _answer(self, cache, group, reads):
        if cache is not None:
            cache.batch_repeat_interleave(len(group))
        cache = self._forward(cache, reads)[cache_name(self.model)]
        leave_room(cache, max(len(self.rows[r].steps) for r in group))
        rows, seen = [self.rows[r] for r in group], [{} for _ in group]
        for step in range(max(len(row.steps) for row in rows)):
            # A row that has ended repeats its last token, and nobody looks at the answer.
            tokens = [[row.steps[min(step, len(row.steps) - 1)]] for row in rows]
            logits = self._forward(cache, tokens).logits
            for row, logit, found in zip(rows, logits, seen):
                if step in row.wanted:
                    found[step] = logit[-1].float().log_softmax(-1)
        return [row.score(found) for row, found in zip(rows, seen)]

    def _forward(self, cache, rows, keep=1):
        """The model's output; its logits [rows, keep, vocabulary] are of the last tokens of `rows`, lists of equal
        length."""
        with torch.inference_mode():
            kwargs = {cache_name(self.model): cache, "use_cache": True, "logits_to_keep": keep}
            return self.model(self._tensor(rows), **kwargs)

    def _tensor(self, rows):
        return torch.tensor(rows, device=self.model.device)


def share(cache):
    """A cache that begins with the same tensors: transformers' layers replace theirs when they grow."""
    twin = copy.copy(cache)
    twin.layers = [copy.copy(layer) for layer in cache.layers]
    return twin


class RoomyLayer(DynamicLayer):
    """A DynamicLayer with room for the tokens to come, so that it copies none of those before with each. Where a method
    leaves a batch's whole cache in torch, that copy would take longer than all else."""

    def update(self, key_states, value_states, *args, **kwargs):
        begin, end = self.get_seq_length(), self.get_seq_length() + key_states.shape[-2]
        for room, states in zip(self.room, (key_states, value_states)):
            room[:, :, begin:end] = states
        self.keys, self.values = (room[:, :, :end] for room in self.room)
        return self.keys, self.values


def leave_room(cache, tokens):
    """Makes the layers that hold their keys in torch RoomyLayers, in place. The cache must not be shared after it."""
    is_seines = isinstance(cache, SeineCache)
    if is_seines:
        cache.settle()
    for layer in cache.layers:
        if type(layer) is DynamicLayer:
            held = layer.keys, layer.values
            layer.__class__ = RoomyLayer
            layer.room = [
                states.new_empty((*states.shape[:2], states.shape[2] + tokens, states.shape[3])) for states in held
            ]
            for room, states in zip(layer.room, held):
                room[:, :, : states.shape[2]] = states
            layer.keys, layer.values = (room[:, :, : held[0].shape[2]] for room in layer.room)
    if is_seines:
        cache.note()  # the same keys and values elsewhere
