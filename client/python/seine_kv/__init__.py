"""seine_kv: the Python side of Seine, a KV-cache retrieval index service.

Importing the package costs nothing beyond the standard library; each module says what it needs.
`python -m seine_kv.trace` records the queries, keys and values of a real model; `python -m seine_kv.profile` measures
their moments, the model's profile.
"""
