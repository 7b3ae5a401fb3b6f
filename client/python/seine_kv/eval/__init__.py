"""How good a model's decoding is through Seine, beside dense attention and other ways to attend few tokens.

`python -m seine_kv.eval --help` says what is measured and how.
"""
