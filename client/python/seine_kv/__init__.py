"""seine_kv: the Python side of Seine, a KV-cache retrieval index service.

Importing the package costs nothing beyond the standard library; each module says what it needs. Start at seine_kv.client.
`python -m seine_kv.trace` records the queries, keys and values of a real model; `python -m seine_kv.profile` measures
their moments, the model's profile.
"""

__version__ = "0.1.0"
