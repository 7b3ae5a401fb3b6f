"""Needle in a haystack: a fact in a long text, asked for at its end. Grids of context length and depth.

The fact is "The secret number of <city> is <digits>.", the question repeats its words, and an answer is right that
begins with the digits. With several needles each is of another city, and one is asked for.
"""

import random

import torch

from seine_kv.eval.engine import FAILURES, Prompt, greedy, through, token_counts

CITIES = ("Paris", "Cairo", "Lima", "Oslo", "Delhi", "Rome", "Quito", "Perth")
ANSWER_TOKENS = 8


def fact(city, number):
    return f" The secret number of {city} is {number}."


class Haystack:
    """One cell of the grid: `needles` facts at even distances, the one that is asked for at `depth` in [0, 1]."""

    def __init__(self, tokenizer, text_ids, context, depth, needles, seed):
        dice = random.Random(seed)
        cities = dice.sample(CITIES, needles)
        self.number = str(dice.randrange(10000, 100000))
        question = (
            f"\n\nQuestion: What is the secret number of {cities[0]}?\nAnswer: The secret number of {cities[0]} is"
        )
        depths = [(depth + i / needles) % 1.0 if i else depth for i in range(needles)]
        facts = [fact(cities[0], self.number)]
        facts += [fact(city, dice.randrange(10000, 100000)) for city in cities[1:]]
        encode = lambda words: tokenizer(words, add_special_tokens=False).input_ids  # noqa: E731
        tail, pieces = encode(question), [encode(words) for words in facts]
        room = context - len(tail) - sum(map(len, pieces))
        hay, parts, at = text_ids[0, :room].tolist(), [], 0
        for place, piece in sorted(zip((int(d * room) for d in depths), pieces)):
            parts += hay[at:place] + piece
            at = place
        self.ids = torch.tensor([parts + hay[at:] + tail])


def grid(loaded, text_ids, contexts, depths, methods, endpoint, progress, failed, seed=0):
    """[{method, needles, context, depth, right, held_tokens, attended_tokens}] of every cell; the method "dense" is torch's own attention. A method that
    fails is told to failed(method, error) and is in no cell.

    loaded: a CausalModel; text_ids: [1, at least the longest context]."""
    model, tokenizer = loaded.model, loaded.tokenizer
    cells = [(needles, context, depth) for needles in (1, 4) for context in contexts for depth in depths]
    results, methods = [], list(methods)
    for n, (needles, context, depth) in enumerate(cells):
        hay = Haystack(tokenizer, text_ids, context, depth, needles, seed + n)
        prompt = Prompt(model, hay.ids)

        def ask(method, counts, cell=(needles, context, depth), hay=hay, prompt=prompt):
            answer = tokenizer.decode(greedy(model, prompt, ANSWER_TOKENS)).strip()
            names = ("method", "needles", "context", "depth", "right")
            results.append({**dict(zip(names, (method, *cell, answer.startswith(hay.number)))), **counts()})

        ask("dense", lambda context=context: {"held_tokens": context, "attended_tokens": context})
        for method in list(methods):
            try:
                stated = method.of(context)
                with through(model, stated, endpoint) as seine:
                    ask(method.key, lambda: token_counts(stated, seine.stats(), context))  # noqa: B023: called at once
            except FAILURES as error:
                failed(method, error)
                methods.remove(method)
                results = [cell for cell in results if cell["method"] != method.key]
        progress(n + 1, len(cells))
    return results


def accuracy(results):
    """method -> {"single": share right, "multi": share right, "held_tokens", "attended_tokens": means of its cells}"""
    shares = {}
    for method in dict.fromkeys(cell["method"] for cell in results):
        mine = [cell for cell in results if cell["method"] == method]
        shares[method] = {
            name: sum(c["right"] for c in some) / len(some)
            for name, some in (
                ("single", [c for c in mine if c["needles"] == 1]),
                ("multi", [c for c in mine if c["needles"] > 1]),
            )
        }
        for name in ("held_tokens", "attended_tokens"):
            shares[method][name] = sum(c[name] for c in mine) / len(mine)
    return shares
