"""Documents that hide facts, and questions about them, after RULER (arXiv:2404.06654).

A document is a running text with short facts between its sentences. All that is drawn follows from the seed. It hides
the facts of every task, so that it is read once for all questions. An answer is chosen among those of its kind that
stand in the document (of `single`, among made-up ones). So a small model that follows no instruction can be compared.

  single      a number, alone of its kind                                         (RULER: niah_single)
  multikey    one of six cities' numbers                                          (niah_multikey)
  multiquery  three of six cities' numbers, one after the other                   (niah_multiquery)
  multivalue  three numbers of one person, among three persons' nine              (niah_multivalue)
  tracking    a variable that is a copy of another: which, and its value          (vt, one hop)
  common      the three words that stand eight times, among ten that stand twice  (cwe)
"""

import random
from bisect import bisect
from dataclasses import dataclass
from functools import cached_property

CITIES = ("Paris", "Cairo", "Lima", "Oslo", "Delhi", "Rome", "Quito", "Perth", "Tokyo", "Berlin", "Madrid", "Dublin",
          "Vienna", "Athens", "Boston", "Chicago")  # fmt: skip
PEOPLE = ("Emma", "Peter", "Alice", "Thomas", "Laura", "Martin", "Helen", "Oscar", "Julia", "Robert", "Nancy", "Victor",
          "Diana", "George", "Sarah", "Henry", "Maria", "Frank", "Anna", "Louis")  # fmt: skip
THINGS = ("apple", "river", "window", "garden", "candle", "hammer", "bottle", "pencil", "mirror", "basket", "guitar",
          "lemon", "ladder", "blanket", "needle", "button", "carpet", "rocket", "saddle", "pepper", "orange", "copper",
          "silver", "violin", "tiger", "eagle", "rabbit", "dragon", "castle", "bridge")  # fmt: skip
NEAR = 64  # tokens by which a fact may be off its depth, so that it stands between sentences
EDGES = 32, 256  # tokens at both ends of a text among which nothing is hidden, for every method may attend them


@dataclass(frozen=True)
class Fact:
    """A sentence hidden at `depth`, a share of the text between the edges."""

    depth: float
    text: str


@dataclass(frozen=True)
class Slot:
    """One answer: `lead` is given, then one of `among` is to be chosen, and it should be one of `right`. The first of
    these is given next. Answers begin with a blank."""

    lead: str
    right: tuple
    among: tuple

    @property
    def chance(self):
        return len(self.right) / len(self.among)


@dataclass(frozen=True)
class Question:
    """`ask` ends the prompt; the slots follow. depths: of the facts that answer it."""

    task: str
    ask: str
    slots: tuple
    depths: tuple

    @property
    def chance(self):
        """Share of right answers that guessing gives."""
        return sum(slot.chance for slot in self.slots) / len(self.slots)


class Deck:
    """Names, words and numbers of one document, each dealt once. Those that are dealt together begin with different
    tokens, for it is these that are compared."""

    def __init__(self, tokenizer, dice):
        self.dice, self._pools = dice, {}
        for kind, words in (("city", CITIES), ("person", PEOPLE), ("thing", THINGS)):
            whole = [encode(tokenizer, f" {word}") for word in words]
            lead = common_lead(whole)
            first = {ids[lead]: word for ids, word in zip(whole, words)}
            self._pools[kind] = dice.sample(list(first.values()), len(first))

    def deal(self, kind, count):
        pool = self._pools[kind]
        if len(pool) < count:
            raise ValueError(f"--model: its tokenizer does not tell enough words of the kind {kind} apart")
        return [pool.pop() for _ in range(count)]

    def numbers(self, count):
        """Numbers of five digits, each with a first digit of its own."""
        return [f"{digit}{self.dice.randrange(10000):04d}" for digit in self.dice.sample(range(1, 10), count)]

    @cached_property
    def cities(self):
        """(city, number, depth) of six, which two tasks ask for."""
        return list(zip(self.deal("city", 6), self.numbers(6), self.depths(6)))

    def depths(self, count):
        """Depths, one in each of `count` equal parts of the document, in random order."""
        depths = [(part + self.dice.random()) / count for part in range(count)]
        self.dice.shuffle(depths)
        return depths


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False).input_ids


def common_lead(whole):
    """The number of tokens with which all of several lists begin: a blank may be a token of its own."""
    lead = 0
    while len({tuple(ids[: lead + 1]) for ids in whole}) == 1:
        lead += 1
    return lead


def answers(words):
    return tuple(f" {word}" for word in words)


def single(deck):
    number, *others = deck.numbers(8)
    fact = Fact(*deck.depths(1), f" The secret number is {number}.")
    slot = Slot(" The secret number is", answers([number]), answers([number, *others]))
    ask = "\n\nQuestion: What is the secret number?\nAnswer:"
    return [fact], [Question("single", ask, (slot,), (fact.depth,))]


def multikey(deck):
    facts, dealt, slots = cities(deck)
    questions = []
    for (city, _, depth), slot in zip(dealt[:3], slots):
        ask = f"\n\nQuestion: What is the special magic number for {city}?\nAnswer:"
        questions.append(Question("multikey", ask, (slot,), (depth,)))
    return facts, questions


def multiquery(deck):
    facts, dealt, slots = cities(deck)
    names = "{}, {} and {}".format(*(city for city, _, _ in dealt[3:]))
    ask = f"\n\nQuestion: What are the special magic numbers for {names}?\nAnswer:"
    return facts, [Question("multiquery", ask, follow(slots[3:]), tuple(depth for _, _, depth in dealt[3:]))]


def cities(deck):
    """(facts, (city, number, depth) of each, a slot for each) of six cities."""
    said = "The special magic number for {} is"
    dealt = deck.cities
    every = answers(number for _, number, _ in dealt)
    facts = [Fact(depth, f" {said.format(city)} {number}.") for city, number, depth in dealt]
    return facts, dealt, [Slot(f" {said.format(city)}", (f" {number}",), every) for city, number, _ in dealt]


def multivalue(deck):
    said = "One of the lucky numbers of {} is"
    owners, numbers, depths = deck.deal("person", 3), deck.numbers(9), deck.depths(9)
    dealt = enumerate(zip(numbers, depths))
    facts = [Fact(depth, f" {said.format(owners[i % 3])} {number}.") for i, (number, depth) in dealt]
    questions = []
    for i, owner in enumerate(owners[:2]):
        ask = f"\n\nQuestion: What are the lucky numbers of {owner}?\nAnswer:"
        slots = listing(f" {said.format(owner)}", answers(numbers[i::3]), answers(numbers))
        questions.append(Question("multivalue", ask, slots, tuple(depths[i::3])))
    return facts, questions


def tracking(deck):
    people, numbers, places = deck.deal("person", 8), deck.numbers(4), deck.depths(8)
    facts, questions = [], []
    for i, (name, copy) in enumerate(zip(people[::2], people[1::2])):
        depths = tuple(sorted(places[2 * i : 2 * i + 2]))  # a value stands before its copy
        facts += [Fact(depths[0], f" {name} = {numbers[i]}."), Fact(depths[1], f" {copy} = {name}.")]
        slots = (
            Slot(f" {copy} =", (f" {name}",), answers(person for person in people if person != copy)),
            Slot(" =", (f" {numbers[i]}",), answers(numbers)),
        )
        ask = f"\n\nQuestion: What is the value of {copy}?\nAnswer:"
        questions.append(Question("tracking", ask, slots, depths))
    return facts, questions[:2]


def common(deck):
    words = deck.deal("thing", 13)
    lines = [word for word in words[:3] for _ in range(8)] + [word for word in words[3:] for _ in range(2)]
    depths = deck.depths(len(lines))
    facts = [Fact(depth, f" Word of the day: {word}.") for word, depth in zip(lines, depths)]
    ask = "\n\nQuestion: Which three words of the day are the most common?\nAnswer:"
    slots = listing(" Word of the day:", answers(words[:3]), answers(words))
    return facts, [Question("common", ask, slots, tuple(depths[:24]))]


def follow(slots):
    """The slots; each but the first begins with the full stop of the one before."""
    return (slots[0], *(Slot(f".{slot.lead}", slot.right, slot.among) for slot in slots[1:]))


def listing(lead, right, among):
    """Slots that ask for all of `right`: what has been given is no answer any more."""
    slots = []
    for given in range(len(right)):
        gone = right[:given]
        slots.append(Slot(lead, right[given:], tuple(answer for answer in among if answer not in gone)))
    return follow(slots)


TASKS = {make.__name__: make for make in (single, multikey, multiquery, multivalue, tracking, common)}


class Document:
    """`ids`, `tokens` of them, of running text with the facts of `tasks`; and `questions` about them.

    text_ids: a list without special tokens. The text is a piece of it from the beginning of some sentence on; it goes
    on at the beginning of the list where that ends. edges: as EDGES. ValueError: facts and edges leave no quarter."""

    def __init__(self, tokenizer, text_ids, tokens, tasks, seed, edges=EDGES):
        dice = random.Random(f"{seed} {tokens}")
        deck = Deck(tokenizer, dice)
        facts, self.questions = [], []
        for task in tasks:
            hidden, questions = TASKS[task](deck)
            facts += [fact for fact in hidden if fact not in facts]
            self.questions += questions
        pieces = [encode(tokenizer, fact.text) for fact in facts]
        special = tokenizer("").input_ids  # what the model wants first
        room = tokens - len(special) - sum(map(len, pieces))
        between = room - sum(edges)
        if between < tokens // 4:
            taken = f"facts take {tokens - room} tokens and the edges {sum(edges)}"
            raise ValueError(f"--lengths {tokens}: {taken}; a quarter must be left for what lies between")
        begin = dice.choice(sentence_ends(tokenizer, text_ids))
        hay = [text_ids[(begin + i) % len(text_ids)] for i in range(room)]
        ends = [end for end in sentence_ends(tokenizer, hay) if edges[0] <= end <= room - edges[1]]
        order = sorted(range(len(facts)), key=lambda i: facts[i].depth)
        self.ids, at = special, 0
        for i in order:
            place = max(at, nearest(ends, edges[0] + int(facts[i].depth * between)))
            self.ids = self.ids + hay[at:place] + pieces[i]
            at = place
        self.ids += hay[at:]


def sentence_ends(tokenizer, ids):
    """Positions after which a sentence has ended, the beginning among them."""
    ending = {token for token in set(ids) if tokenizer.decode([token]).rstrip().endswith((".", "!", "?"))}
    return [0] + [i + 1 for i, token in enumerate(ids) if token in ending]


def nearest(ends, wanted):
    """The end of a sentence that is nearest to the position `wanted`; it itself where none is within NEAR tokens."""
    after = bisect(ends, wanted)
    place = min(ends[max(after - 1, 0) : after + 1], key=lambda end: abs(end - wanted), default=wanted)
    return place if abs(place - wanted) <= NEAR else wanted
