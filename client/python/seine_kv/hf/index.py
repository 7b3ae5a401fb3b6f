"""The index that a model needs: its geometry from the model's config, and whether one that exists fits."""

import hashlib
import json
import secrets
import warnings
from pathlib import Path

from seine_kv.client import SeineError
from seine_kv.hf.attention import text_config
from seine_kv.hf.eviction import ALL_DENSE
from seine_kv.hf.models import heads_of
from seine_kv.hf.tensors import dtype_name
from seine_kv.model import layer_ropes, rope_style, stated_rope, still_layers
from seine_kv.rope import TYPES, rope_of
from seine_kv.settings import OLDER_NAMES


def geometry_of(model, served):
    """num_layers, num_q_heads, num_kv_heads, head_dim, dtype of the layers served, which have keys and values of their own, and
    rope where it can be stated: where the config says how those that attend all turn, and which do not."""
    config = text_config(model)
    q_heads, kv_heads, head_dim = heads_of(config, served[0])
    geometry = {
        "num_layers": len(served),
        "num_q_heads": q_heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "dtype": dtype_name(model.dtype),
    }
    rope, style, still = stated_rope(config), rope_style(model), still_layers(config)
    if rope and still is not None and _is_known(rope) and style != "unknown":
        base, others = layer_ropes(rope, still, served)
        geometry["rope"] = {**_statement(base, head_dim), "style": style}
        if others:
            geometry["layer_ropes"] = [
                {"layers": group["layers"], "rope": {**_statement(group["rope"], head_dim), "style": style}} for group in others
            ]
    return geometry


def _statement(rope, head_dim):
    """LongRoPE by its frequencies in long texts, for which there is an index; others as the config has them."""
    if rope.get("rope_type") != "longrope":
        return {"config_json": json.dumps(rope)}
    how = rope_of(rope, head_dim, length=2**31)
    return {"inv_freq": how.inv_freq, "rotary_dim": how.rotary_dim % head_dim}


def _turns_in_halves_of_a_part(model, geometry):
    """Whether a server undoes no RoPE of keys: pairs i and i + d/2 of a part of a head."""
    rope = stated_rope(text_config(model))
    head_dim = geometry["head_dim"]
    return geometry["rope"]["style"] == "half_split" and rope_of(rope, head_dim).rotary_dim < head_dim


def _is_known(rope):
    """Whether a server can compute the table of a config's rope_parameters, and keys turn by it and their position alone:
    not where RoPE differs between layers, or turns by places in an image."""
    return "rope_theta" in rope and not rope.get("mrope_section") and rope.get("rope_type", "default") in TYPES


def index_settings(
    model, served, profile, zones, codec, retrieval, evict, low_rank, memory_limit_bytes, dtype=None
):
    """Keyword arguments of Client.create_index, but for the name. dtype: of stored keys and values; None: the model's."""
    source = str(getattr(model.config, "_name_or_path", "") or "")
    geometry = geometry_of(model, served)
    if dtype is not None:
        geometry["dtype"] = dtype_name(dtype)
    if not zones and evict and not low_rank:  # rows become low-rank in a zone alone
        zones = {"dense_threshold": ALL_DENSE}
    settings = {
        **geometry,
        "model": Path(source).name[:128],
        "codec": dict(codec or {}),
        "retrieval": dict(retrieval or {}),
        "zones": dict(zones or {}),
        "kv_store": "keys_values",
        "eviction": evict.index_settings() if evict else None,
        "subspace": None,
        "memory_limit_bytes": memory_limit_bytes,
    }
    if low_rank:
        undone = "rope" in geometry and not _turns_in_halves_of_a_part(model, geometry)
        settings["subspace"] = low_rank.index_settings(geometry["head_dim"], profile, undone)
    if profile is not None:
        settings["codec"]["profile"] = profile
    return settings


def token_bytes(settings, dtype):
    """Bytes of a token's keys and values in one layer of a full cache of torch's `dtype`."""
    return 2 * settings["num_kv_heads"] * settings["head_dim"] * dtype.itemsize


def default_name(settings):
    """The same for the same model and settings, so that processes which agree share an index."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
    return f"hf-{digest}"


def ensure_index(client, name, settings):
    """Creates the index, or checks the one that exists; returns its specification as a dict.

    ValueError naming every setting in which the existing index differs.
    """
    try:
        return client.create_index(name, **settings)["spec"]
    except SeineError as error:
        if error.code != "ALREADY_EXISTS":
            raise
    spec = client.get_index(name)["spec"]
    try:
        asked = _filled(client, settings)
    except SeineError as error:
        if error.code != "RESOURCE_EXHAUSTED":
            raise
        _check_named(client, name, settings, error)
        return spec
    wrong = [f"{field} is {have}, not {want}" for field, have, want in differences(spec, settings, asked)]
    if wrong:
        raise ValueError(f"the index {name!r} exists and does not fit: {'; '.join(wrong)}")
    return spec


def _filled(client, settings):
    """The specification that an index of these settings would have: one is made, read and deleted, so that whoever fills
    in defaults does so here too."""
    name = f"hf-asked-{secrets.token_hex(8)}"
    try:
        return client.create_index(name, **settings)["spec"]
    finally:
        try:
            client.delete_index(name)
        except SeineError as error:
            if error.code != "NOT_FOUND":
                raise


def _check_named(client, name, settings, full):
    """Compares the settings that are named alone, where the server may make no other index, and warns of it."""
    try:
        client.create_index(name, exist_ok=True, **settings)
    except SeineError as error:
        if error.code != "ALREADY_EXISTS":
            raise
        raise ValueError(f"the index {name!r} exists and does not fit: {error}") from None
    text = f"the index {name!r} exists; only settings that are given were compared, not defaults, for which another is made: {full}"
    warnings.warn(text, RuntimeWarning, stacklevel=5)


def differences(spec, settings, asked):
    """(field, what the index has, what is asked) of every setting asked for that an existing index has otherwise.

    asked: the specification that the settings come to. Of geometry, eviction and subspace all is compared, named in the
    settings or not; of the others what the settings name.
    """
    for group in ("geometry", "eviction", "subspace"):
        yield from _unlike(group, spec[group], asked[group])
    for group in ("zones", "codec", "retrieval"):
        for given in settings[group]:
            name = OLDER_NAMES.get(given, given)
            yield from _unlike(f"{group}.{name}", (spec[group] or {}).get(name), asked[group].get(name))
    for name in ("kv_store", "model", "memory_limit_bytes"):
        if settings[name]:
            yield from _unlike(name, spec[name], asked[name])


def _unlike(field, have, want):
    """What differs between two parts of a specification, down to single settings."""
    if isinstance(have, dict) and isinstance(want, dict):
        for name in sorted({*have, *want}):
            yield from _unlike(f"{field}.{name}", have.get(name), want.get(name))
    elif have != want:
        yield field, *("set" if isinstance(value, dict) else value for value in (have, want))
