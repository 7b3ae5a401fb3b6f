"""The results as tables for people and as a plot (SVG); JSON is the dict itself."""

import math
from html import escape

COUNTS = ["tokens held", "attended"]  # a head, on average


def table(header, rows):
    """Lines of a table with aligned columns; the first column is text, the others numbers."""
    cells = [header] + [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for n, row in enumerate(cells):
        yield "  ".join(
            [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        ).rstrip()
        if n == 0:
            yield "-" * (sum(widths) + 2 * (len(widths) - 1))


def show(results):
    """Every table of the results, as one text."""
    lines = []
    for quality in results["quality"]:
        lines += ["", f"{quality['text']}, {quality['context']:,} tokens, the last {quality['decoded']} decoded"]
        rows = []
        for method in quality["methods"]:
            rows.append([
                method["label"], method.get("prompt", "dense"), *counts(method),
                f"{method['perplexity']:.3f}", f"{method['kl']:.4f}",
                f"{method['agreement']:.3f}", f"{method['greedy_tokens']} of {quality['greedy']}",
                f"{method['kv_bytes']:.0%}",
            ])  # fmt: skip
        header = ["method", "prompt", *COUNTS, "perplexity", "KL to dense", "same token", "greedy alike", "KV bytes"]
        lines += table(header, rows)
    if results["needle"]:
        lines += ["", "needle in a haystack, share of right answers"]
        shares = results["needle"]["accuracy"]
        lines += table(["method", *COUNTS, "one needle", "of four"],
                       [[m, *counts(s), f"{s['single']:.2f}", f"{s['multi']:.2f}"] for m, s in shares.items()])  # fmt: skip
    if results["speed"]:
        lines += ["", "milliseconds a decoded token, batch 1 (tokens a second)"]
        rows = [
            [f"{r['context']:,} tokens", f"{r['dense_ms']:.1f} ({r['dense_tokens_per_s']:.1f})",
             f"{r['seine_ms']:.1f} ({r['seine_tokens_per_s']:.1f})"]
            + [f"{r[part]:.1f}" for part in ("engine_ms", "rpc_ms", "index_ms")]
            + [f"{r['dense_mib']:,.0f}", f"{r['seine_mib']:,.0f}"]
            for r in results["speed"]
        ]  # fmt: skip
        lines += table(["context", "dense", "Seine", "engine", "RPC", "index", "dense MiB", "Seine MiB"], rows)
    for read in results.get("prompts") or ():
        lines += ["", f"{read['text']}: {read['prompts'][0]['tokens']:,} tokens read, then {read['decoded']} attended whole"]
        rows = [
            [r["prompt"], f"{r['first_token_s']:.2f}", "-" if r["attention_s"] is None else f"{r['attention_s']:.2f}",
             f"{r['taken']:.0%}", f"{r['perplexity']:.3f}", f"{r['kl']:.4f}"]
            for r in read["prompts"]
        ]  # fmt: skip
        header = ["prompt", "first token, s", "of it Seine's attention", "keys taken", "perplexity", "KL to exact"]
        lines += table(header, rows)
    if results.get("tasks"):
        lines += show_tasks(results["tasks"])
    lines += [f"left out of {f['part']}: {f['label']}: {f['error']}" for f in results["failed"]]
    return "\n".join(lines[1:])


def show_tasks(results):
    """Tables of seine_kv.eval.trials and serving."""
    asked, lines = "in the prompt" if results["ask"] == "prompt" else "after the prompt", []
    for there in results["lengths"]:
        tasks = there["tasks"]
        header = ["method", *COUNTS, *tasks, "mean"]
        of = f"{there['documents']} documents of {there['length']:,} tokens of {results['text']}, questions {asked}"
        lines += ["", f"{of}: share of answers chosen rightly"]
        first = [["answers a cell", "", "", *(str(task["answers"]) for task in tasks.values()), ""]]
        first.append(["guessing", "", "", *shares({name: task["chance"] for name, task in tasks.items()})])
        lines += table(header, first + accuracies(results, there, "right"))
        weak = ", ".join(name for name, task in tasks.items() if not task["dense_tells"])
        if weak:
            lines += [f"dense attention is not much better than guessing in {weak}: the other rows say nothing there"]
        lines += ["", "the same: share of answers that greedy decoding gives"]
        lines += table(header, accuracies(results, there, "greedy"))
        lines += ["", "the same: log probability of a right answer's first token, nats"]
        lines += table(header, accuracies(results, there, "log_probability"))
    if results["serving"]:
        lines += ["", "seconds to the first and from there to the second token; tokens a second of all sequences"]
        rows = [
            [f"{r['length']:,} tokens, batch {r['batch']}", f"{r['dense_first_s']:.2f}", f"{r['seine_first_s']:.2f}",
             f"{r['dense_second_s']:.2f}", f"{r['seine_second_s']:.2f}",
             f"{r['dense_tokens_per_s']:.1f}", f"{r['seine_tokens_per_s']:.1f}"]
            for r in results["serving"]
        ]  # fmt: skip
        header = ["", "first: dense", "Seine", "second: dense", "Seine", "tokens/s: dense", "Seine"]
        lines += table(header, rows)
    return lines


def accuracies(results, there, name):
    """A row for each method of what `name` says of it, tasks and their mean."""
    labels = results["labels"]
    return [[labels[m["method"]], *counts(m), *shares(m[name])] for m in there["methods"]]


def counts(row):
    """Under COUNTS."""
    return [f"{row['held_tokens']:.0f}", f"{row['attended_tokens']:.0f}"]


def shares(values):
    return [f"{value:.2f}" for value in (*values.values(), sum(values.values()) / len(values))]


def plot(results):
    """KL to dense of every method over every text, as horizontal bars on a logarithmic axis. An SVG document."""
    bars = [(f"{m['label']}", m["kl"]) for q in results["quality"] for m in q["methods"] if m["kl"] > 0]
    if not bars:
        raise ValueError("--plot: nothing to plot; it shows the KL of --parts quality")
    low = math.floor(math.log10(min(kl for _, kl in bars)))
    high = max(math.ceil(math.log10(max(kl for _, kl in bars))), low + 1)
    left, width, step = 260, 460, 24
    height = 60 + step * len(bars)
    x = lambda kl: left + width * (math.log10(kl) - low) / (high - low)  # noqa: E731
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{height}" '
           'font-family="sans-serif" font-size="13">',
           f'<text x="10" y="20" font-size="15">KL to dense attention ({escape(results["model"])})</text>']  # fmt: skip
    for decade in range(low, high + 1):
        at = x(10.0**decade)
        out.append(f'<line x1="{at:.1f}" y1="32" x2="{at:.1f}" y2="{height - 22}" stroke="#ddd"/>')
        out.append(f'<text x="{at:.1f}" y="{height - 6}" text-anchor="middle">{10.0**decade:g}</text>')
    for n, (label, kl) in enumerate(bars):
        y = 36 + step * n
        colour = "#1b6ca8" if label.startswith("Seine") else "#9aa5ad"
        out.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>')
        out.append(f'<rect x="{left}" y="{y}" width="{x(kl) - left:.1f}" height="{step - 6}" fill="{colour}"/>')
        out.append(f'<text x="{x(kl) + 6:.1f}" y="{y + 14}">{kl:.4f}</text>')
    return "\n".join([*out, "</svg>\n"])
