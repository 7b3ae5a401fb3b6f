"""The part `tasks` of python -m seine_kv.eval: its options, and all that it measures. Loads torch when it runs."""

from seine_kv.eval.tasks import TASKS
from seine_kv.messages import SeineError
from seine_kv.model import InputError

SERVING = "first tokens and batches"


def add_arguments(parser):
    group = parser.add_argument_group("tasks")
    group.add_argument("--tasks", metavar="LIST", help="of these alone (default: all)")
    group.add_argument("--lengths", metavar="LIST", help="tokens of a document (default: 4096; quick: 2048)")
    group.add_argument("--samples", type=int, metavar="N", help="documents a length (default: 4; quick: 2)")
    group.add_argument(
        "--batches", metavar="LIST", help="sequences at once, for speed; 0: none (default: 1,4; quick: 1)"
    )
    group.add_argument(
        "--ask",
        choices=("prompt", "later"),
        default="prompt",
        help="where questions stand: they end the prompt, or come after it, through the method (default: %(default)s)",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the documents (default: %(default)s)")


def check(args):
    args.tasks = list(dict.fromkeys(args.tasks.split(","))) if args.tasks else list(TASKS)
    for task in args.tasks:
        if task not in TASKS:
            raise InputError(f"--tasks: unknown task {task}; there are {', '.join(TASKS)}")
    args.lengths = numbers(args.lengths, "--lengths", "tokens, as 4096,8192") or [2048 if args.quick else 4096]
    args.batches = numbers(args.batches, "--batches", "numbers of sequences, as 1,4") or ([1] if args.quick else [1, 4])
    args.samples = (2 if args.quick else 4) if args.samples is None else args.samples
    for option, least, values in (("--lengths", 512, args.lengths), ("--samples", 1, [args.samples])):
        if min(values) < least:
            raise InputError(f"{option}: must be at least {least}, not {min(values)}")
    if min(args.batches) < 0 or (0 in args.batches and args.batches != [0]):
        raise InputError("--batches: must be numbers of sequences above 0, or 0 alone for none")


def numbers(text, option, what):
    """The whole numbers of a list, each once; None without one."""
    try:
        return list(dict.fromkeys(int(n) for n in text.split(","))) if text else None
    except ValueError:
        raise InputError(f"{option} {text}: must be {what}") from None


class Part:
    """One run. args: of the command, checked; loaded: a CausalModel; text: a whole one, and its name."""

    def __init__(self, args, loaded, text, name, methods, reporter):
        self.args, self.loaded, self.name, self.methods, self.reporter = args, loaded, name, methods, reporter
        ids = loaded.tokenizer(text, add_special_tokens=False, verbose=False, return_tensors="pt").input_ids
        self.ids = ids.to(loaded.device)

    def run(self, address, failed, save, progress):
        """{text, ask, seed, labels, lengths: of trials.summary, answers: of Trials.run, serving: of serving.measure}.

        Tells failed(label, error) what is left out, and gives save() the same after each document, as far as it is
        there. progress() is called when the last of these begins."""
        from seine_kv.eval import methods, trials

        args = self.args
        # Nothing is hidden where a method looks anyway: what it may hold of both ends, and a sentence more.
        edges = args.sink + 16, args.top_k + args.local + methods.Budget.buffer + 28
        chosen = (args.tasks, args.lengths, args.samples, self.methods, args.ask == "later", args.seed, edges)
        asked = trials.Trials(self.loaded, self.ids[0].tolist(), *chosen)
        left_out = lambda method, error: failed(method.label, error)  # noqa: E731
        so_far = lambda records: save(self._results(records))  # noqa: E731
        results = self._results(asked.run(address, self.reporter.say, left_out, so_far))
        if args.batches != [0]:
            try:
                for row in self._serving(asked.costs(), address, progress()):
                    results["serving"].append(row)
            except (SeineError, RuntimeError) as error:  # torch's for want of memory, too: what is measured is not lost
                failed(f"batches of {self.methods[0].label}", error)
        return results

    def _results(self, records):
        from seine_kv.eval import trials

        labels = {"dense": "dense", **{method.key: method.label for method in self.methods}}
        about = {"text": self.name, "ask": self.args.ask, "seed": self.args.seed, "labels": labels}
        return {**about, "lengths": trials.summary(records), "answers": records, "serving": []}

    def _serving(self, costs, address, progress):
        from seine_kv.eval import serving
        from seine_kv.eval.costs import about

        args, tokens = self.args, 8 if self.args.quick else 32
        expected = sum(costs.batches(length, args.batches, tokens) for length in args.lengths)
        self.reporter.say(f"{SERVING}: {about(expected)}")
        chosen = (args.lengths, args.batches, self.methods[0], address, tokens, progress)
        return serving.measure(self.loaded.model, self.ids, *chosen)
