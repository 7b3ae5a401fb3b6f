"""Plots of a table of figures as SVG text: horizontal bars, lines over a few steps, or README.md's picture of both. The
standard library alone."""

from html import escape

WIDTH, ROW, LABELS, RIGHT = 760, 22, 360, 70
COLOURS = ("#0b6e99", "#c44e52", "#55a868", "#8172b2", "#ccb974", "#64b5cd", "#8c8c8c")


def text(x, y, words, anchor="start", colour="#333"):
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def document(height, parts, width=WIDTH):
    """The whole file. The white ground keeps labels readable on dark pages."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


def bars(title, rows):
    """`rows`: (label, value, value as printed), drawn in order, the longest bar as wide as the plot."""
    most = max(value for _, value, _ in rows) or 1
    parts = [text(10, 18, title)]
    for i, (label, value, printed) in enumerate(rows):
        y = 30 + ROW * i
        width = (WIDTH - LABELS - RIGHT) * value / most
        parts.append(text(LABELS - 8, y + 14, label, "end"))
        parts.append(f'<rect x="{LABELS}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}" fill="{COLOURS[0]}"/>')
        parts.append(text(LABELS + width + 6, y + 14, printed))
    return document(40 + ROW * len(rows), parts)


def lines(title, steps, rows):
    """`rows`: (label, [value of each step]). The vertical axis runs from a tenth below the least value to 1."""
    left, top, height = 60, 30, 260
    width = 400
    least = min(value for _, values in rows for value in values)
    floor = int(least * 10) / 10

    def x(i):
        return left + width * i / (len(steps) - 1)

    def y(value):
        return top + height * (1 - (value - floor) / (1 - floor))

    parts = [text(10, 18, title)]
    ticks = round((1 - floor) * 10)
    for tick in range(ticks + 1):
        value = floor + tick / 10
        parts.append(f'<path d="M{left} {y(value):.1f}H{left + width}" stroke="#ddd"/>')
        parts.append(text(left - 6, y(value) + 4, f"{value:.1f}", "end"))
    for i, step in enumerate(steps):
        parts.append(text(x(i), top + height + 18, step, "middle"))
    for row, (label, values) in enumerate(rows):
        colour = COLOURS[row % len(COLOURS)]
        points = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(text(10, top + height + 44 + 18 * row, label, colour=colour))
    return document(top + height + 50 + 18 * len(rows), parts)


def picture(curves, bars, note):
    """Curves over a length on the left, bars on the right, a note below. `curves`: (title, name of the length, lengths, [(label, values)]);
    both axes begin at 0. `bars`: (title, [(label, value, value as printed)])."""
    left, top, height, width, right = 50, 40, 220, 370, 560
    title, name, lengths, rows = curves
    most = max(value for _, values in rows for value in values)
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if most / s <= 6)

    def x(length):
        return left + width * length / lengths[-1]

    def y(value):
        return top + height * (1 - value / most)

    parts = [text(10, 18, title), text(right, 18, bars[0])]
    for tick in range(0, int(most) + 1, step):
        parts.append(f'<path d="M{left} {y(tick):.1f}H{left + width}" stroke="#ddd"/>')
        parts.append(text(left - 6, y(tick) + 4, str(tick), "end"))
    for length in lengths:
        parts.append(text(x(length), top + height + 18, f"{length:,}", "middle"))
    parts.append(text(left + width / 2, top + height + 36, name, "middle"))
    for row, (label, values) in enumerate(rows):
        colour = COLOURS[(1, 3, 0)[row % 3]]
        points = [(x(length), y(value)) for length, value in zip(lengths, values)]
        parts.append(f'<polyline points="{" ".join(f"{px:.1f},{py:.1f}" for px, py in points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points]
        parts.append(text(points[-1][0] + 8, points[-1][1] + 4, f"{values[-1]:g}", colour=colour))
        parts.append(text(left + 14, top + 14 + 18 * row, label, colour=colour))
    most = max(value for _, value, _ in bars[1])
    for row, (label, value, printed) in enumerate(bars[1]):
        at, long = top + 44 * row, 240 * value / most
        parts.append(text(right, at + 12, label))
        parts.append(f'<rect x="{right}" y="{at + 17}" width="{long:.1f}" height="14" fill="{COLOURS[0]}"/>')
        parts.append(text(right + long + 6, at + 29, printed))
    parts.append(text(10, top + height + 62, note, colour="#666"))
    return document(top + height + 74, parts, width=880)
