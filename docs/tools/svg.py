"""Plots of a table of figures as SVG text: horizontal bars, or lines over a few steps. The standard library alone."""

from html import escape

WIDTH, ROW, LABELS, RIGHT = 760, 22, 360, 70
COLOURS = ("#0b6e99", "#c44e52", "#55a868", "#8172b2", "#ccb974", "#64b5cd", "#8c8c8c")


def text(x, y, words, anchor="start", colour="#333"):
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def document(height, parts):
    """The whole file. The white ground keeps labels readable on dark pages."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">'
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
