"""Columns of the tables of bench/parts: each has a key, a title, the JSON's key, and the digits behind the point."""

RECALL = [
    ("bytes", "bytes a key", "bytes_per_key", 1),
    ("recall", "recall@k", "recall_at_k", 4),
    ("worst", "worst head", "recall_at_k_worst_head", 4),
    ("mass", "attention mass", "attention_mass", 4),
    ("candidates", "candidates", "candidates", 0),
    ("time", "µs a query", "us_per_query", 1),
    ("scan", "ns a key scanned", "scan_ns_per_key", 3),
]
EVICT = [
    ("kept", "attention kept", "retained_attention_mass", 4),
    ("overlap", "overlap with attention's top", "overlap_with_attention_top", 4),
    ("cost", "µs a token", "us_per_token", 4),
    ("bandwidth", "share of the read bandwidth", "read_bandwidth_share", 3),
]
SUBSPACE = [
    ("rank", "rank", "rank", 0),
    ("error", "reconstruction error", "rer", 4),
    ("overlap", "overlap", "overlap", 4),
    ("updates", "updates", "updates", 0),
    ("cost", "µs an update", "us_per_update", 1),
    ("attention", "error of attention", "attention_error", 4),
]
DRIFT = [
    ("bytes", "bytes a key", "bytes_per_key", 1),
    ("first", "recall@k at the prefill's end", "recall_first", 4),
    ("last", "at the decode's end", "recall_last", 4),
    ("worst", "worst head there", "worst_head_last", 4),
    ("kept", "kept", "kept", 4),
]
STEP = [
    ("p50", "p50, µs", "p50_us", 0),
    ("p99", "p99, µs", "p99_us", 0),
    ("index", "p50 in the index, µs", "in_process_p50_us", 0),
    ("rpc", "p50 of the RPC, µs", "rpc_overhead_p50_us", 0),
    ("append", "appended keys a second and core", "append_keys_per_s_core", 0),
]
SHARDED = [
    ("p50", "p50, µs", "p50_us", 0),
    ("p99", "p99, µs", "p99_us", 0),
    ("one", "one node's p50, µs", "one_node_p50_us", 0),
    ("onelong", "one node's p99, µs", "one_node_p99_us", 0),
    ("exact", "exact, µs", "exact_p50_us", 0),
    ("attended", "tokens attended a head", "attended_tokens_a_head", 0),
    ("error", "error", "error", 4),
    ("asmany", "one node's at as many tokens", "one_node_error_as_many", 4),
    ("merge", "largest difference of exact answers", "exact_merge_error", 7),
]
NODES = [
    ("node", "in a node's index, µs", "node_us", 1),
    ("step", "as the engine sees it, µs", "step_us", 1),
    ("all", "all nodes at once, µs", "all_us", 1),
    ("engine", "the engine's processor time a node, µs", "engine_us", 1),
    ("merge", "merging a node, µs", "merge_us", 1),
    ("there", "bytes there", "bytes_there", 0),
    ("back", "bytes back", "bytes_back", 0),
    ("token", "bytes a token", "token_bytes", 0),
]
IDLE = [
    ("bytes", "bytes of all sequences", "bytes", 0),
    ("limit", "bytes of memory", "memory_limit_bytes", 0),
    ("checked", "answers checked", "checked", 0),
    ("wrong", "wrong", "wrong", 0),
    ("refused", "refused", "refused", 0),
    ("restores", "restores", "restores", 0),
    ("spills", "spills", "spills", 0),
    ("first50", "first step after a restore, p50, ms", "first_step_ms_p50", 2),
    ("first99", "and p99, ms", "first_step_ms_p99", 2),
    ("p50", "step in memory, p50, ms", "step_ms_p50", 2),
    ("p99", "step in memory, p99, ms", "step_ms_p99", 2),
]
ENGINE = [
    ("plain", "llama.cpp, ms a token", "plain_ms", 1),
    ("exact", "exact attention of ours in its place", "exact_ms", 1),
    ("seine", "through Seine", "seine_ms", 1),
    ("attention", "of which attention", "attention_ms", 1),
    ("prompt", "prompt, of llama.cpp's time", "prompt_ratio", 2),
]
PEER = [
    *ENGINE[:3],
    ("peer", "ik_llama.cpp", "peer_ms", 1),
    ("promptplain", "prompt, llama.cpp, ms", "prompt_plain_ms", 0),
    ("promptseine", "through Seine", "prompt_seine_ms", 0),
    ("promptpeer", "ik_llama.cpp", "peer_prompt_ms", 0),
]
SLOTS = [
    ("read", "all chats read, s", "read_s", 1),
    ("step", "a step of all chats, ms", "step_ms", 1),
    ("alone", "a token of one chat alone, ms", "alone_ms", 1),
    ("engine", "memory of llama-server, MiB", "engine_mib", 0),
    ("held", "of seined, MiB", "held_mib", 0),
    ("save", "states saved, s", "save_s", 1),
    ("back", "killed, started and answering again, s", "back_s", 1),
]
ANSWER = [
    ("first", "first token, llama.cpp, s", "first_plain", 1),
    ("firstseine", "through Seine, s", "first_both", 1),
    ("whole", "whole answer, llama.cpp, s", "whole_plain", 1),
    ("decode", "with decoding through Seine", "whole_decode", 1),
    ("both", "with the prompt, too", "whole_both", 1),
    ("ratio", "times as fast", "whole_ratio", 2),
    ("attention", "the prompt's attention, times as fast", "compared_ratio", 2),
    ("taken", "of the keys", "taken", 2),
]
ANSWERS = [
    ("first", "first token, llama.cpp, s", "first_plain", 1),
    ("firstexact", "exact attention of ours in its place", "first_exact", 1),
    ("firstseine", "through Seine", "first_both", 1),
    ("whole", "whole answer, llama.cpp, s", "whole_plain", 1),
    ("exact", "exact attention of ours in its place", "whole_exact", 1),
    ("seine", "through Seine", "whole_both", 1),
    ("ratio", "llama.cpp's time over Seine's", "whole_ratio", 2),
    ("taken", "of a prompt's keys", "taken", 2),
]
SPARSE = [
    ("taken", "of the keys", "taken", 2),
    ("kl", "KL", "kl", 4),
    ("worst", "largest of a token", "worst_kl", 3),
    ("agreed", "same likeliest token", "agreement", 3),
    ("ppl", "perplexity behind exact prompts", "ppl_exact", 3),
    ("pplsparse", "behind sparse ones", "ppl_sparse", 3),
]
HF_PROMPT = [
    ("first", "first token, s", "first_token_s", 1),
    ("ratio", "times as fast as torch", "ratio", 2),
    ("taken", "of the keys", "taken", 2),
    ("kl", "KL", "kl", 4),
    ("ppl", "perplexity", "perplexity", 3),
]
QUALITY = [
    ("kl", "KL", "kl", 4),
    ("klexact", "KL of our exact attention", "kl_exact", 4),
    ("klbetween", "KL between these two", "kl_to_exact", 4),
    ("ppl", "perplexity", "ppl_plain", 3),
    ("pplexact", "of our exact attention", "ppl_exact", 3),
    ("pplseine", "through Seine", "ppl_seine", 3),
]
VLLM_STEP = [
    ("vllm", "a step, vLLM, ms", "vllm_step_ms", 1),
    ("seine", "through Seine, ms", "seine_step_ms", 1),
    ("none", "no attention at all, ms", "none_step_ms", 1),
    ("ratio", "times as fast", "seine_ratio", 2),
    ("bound", "with no attention at all", "none_ratio", 2),
    ("encode", "the first, which encodes, ms", "encode_step_ms", 0),
]
VLLM_FIRST = [
    ("vllm", "first token, vLLM, s", "vllm_first_s", 2),
    ("exact", "through Seine, s", "exact_first_s", 2),
    ("sparse", "over the keys that matter, s", "sparse_first_s", 2),
    ("none", "no attention at all, s", "none_first_s", 2),
    ("ratio", "times as fast", "exact_ratio", 2),
    ("sparseratio", "over the keys that matter", "sparse_ratio", 2),
    ("bound", "with no attention at all", "none_ratio", 2),
]
VLLM_CHATS = [
    ("vllm", "all chats, vLLM, s", "vllm_s", 1),
    ("seine", "through Seine, s", "seine_s", 1),
    ("ratio", "times as fast", "ratio", 2),
    ("first", "the slowest first answer, vLLM, s", "vllm_first_s", 1),
    ("firstseine", "through Seine, s", "seine_first_s", 1),
    ("later", "a later answer, vLLM, s", "vllm_later_s", 2),
    ("laterseine", "through Seine, s", "seine_later_s", 2),
    ("same", "answers that are the same", "same_answers", 0),
    ("answers", "of", "answers", 0),
]
VLLM_QUALITY = [
    ("kl", "KL", "kl", 4),
    ("worst", "largest of a token", "kl_largest", 3),
    ("same", "same likeliest token", "same_best", 3),
    ("ppl", "perplexity, vLLM", "perplexity_vllm", 3),
    ("pplseine", "through Seine", "perplexity_seine", 3),
    ("lost", "attention lost, by the gate", "gate_lost", 4),
]
ONE_STEP = [
    ("retrieve", "Retrieve, µs", "us_retrieve", 0),
    ("attend", "Attend, µs", "us_attend", 0),
    ("exact", "exact attention, µs", "us_exact", 0),
    ("recall", "recall@100", "recall_at_k", 4),
]
WIDE_HEADS = [
    ("dim", "head_dim", "head_dim", 0),
    ("group", "query heads a KV head", "group", 0),
    ("bytes", "bytes a key", "bytes_per_key", 1),
    ("recall", "recall@100", "recall_at_k", 4),
    ("worst", "worst head", "recall_at_k_worst_head", 4),
    ("mass", "attention mass", "attention_mass", 4),
    ("candidates", "candidates", "candidates", 0),
]
WIDE_STEPS = [
    ("bytes", "bytes of code a key", "code_bytes_a_key", 1),
    *ONE_STEP,
]
FOUND = [column for column in RECALL if column[0] not in ("time", "scan")]  # what no machine changes
KEPT = [column for column in EVICT if column[0] in ("kept", "overlap")]
BASES = [column for column in SUBSPACE if column[0] != "cost"]
BYTES = [("bytes", "bytes of code a key", "bytes_per_key", 1), ("scanned", "of these read by every scan", "scan_bytes_per_key", 1)]
TARGET = [
    ("wanted", "target", "recall_target", 2),
    ("kept", "share of the keys kept", "beta", 3),
    ("recall", "recall@k", "recall_at_k", 4),
]
PROMPT = [
    ("tokens", "tokens", "num_tokens", 0),
    ("recall", "recall@k, one append", "recall_at_k", 4),
    ("small", "in small steps", "small_steps", 4),
    ("large", "in large steps", "large_steps", 4),
]
ENCODING = [
    ("times", "times that a key is encoded", "times_encoded", 2),
    ("cpu", "CPU time a key, ns", "cpu_ns_per_key", 0),
    ("first", "first answer, µs", "first_answer_us", 0),
]
STORED = [
    ("tokens", "share of the tokens held", "tokens", 2),
    ("bytes", "bytes of the full fp16 cache's", "bytes", 3),
    ("low", "of them low-rank", "low_rank_bytes", 3),
    ("error", "error of attention", "attention_error", 4),
]
OJAKV = [
    ("bytes", "bytes of the full fp16 cache's", "bytes", 3),
    ("error", "error of attention", "attention_error", 3),
    ("mass", "mass kept full-rank", "mass", 3),
    ("updates", "updates", "updates", 0),
]
DEMO = [
    ("recall", "recall@100", "recall_at_k", 4),
    ("worst", "worst head", "recall_at_k_worst_head", 4),
    ("mass", "mass of the exact top 100's", "attention_mass", 4),
    ("covered", "of all attention", "attention_covered", 4),
    ("dense", "by sink and local alone", "attention_covered_sink_local", 4),
    ("visible", "tokens attended a head", "tokens_read", 0),
    ("bytes", "bytes of code a key", "bytes_per_key", 1),
    ("stored", "with the key kept", "bytes_per_key_with_store", 1),
    ("codes", "codes, of the full fp16 cache", "code_share", 3),
    ("memory", "codes and keys, of it", "held_share", 3),
]
DEMO_TIMES = [
    ("exact", "exact attention of ours, p50, µs", "dense_p50_us", 0),
    ("seine", "Seine, p50, µs", "seine_p50_us", 0),
    ("long", "Seine, p99, µs", "seine_p99_us", 0),
    ("all", "tokens attended: exact", "dense_tokens", 0),
    ("attended", "Seine", "seine_tokens", 0),
]
MODEL = [
    ("attended", "tokens attended a head", "attended_tokens", 0),
    ("held", "held", "held_tokens", 0),
    ("bytes", "share of the full cache's bytes", "kv_bytes", 2),
    ("same", "same next token", "agreement", 3),
    ("kl", "KL to dense", "kl", 4),
    ("ppl", "perplexity", "perplexity", 3),
]
NEEDLES = [
    ("attended", "tokens attended a head", "attended_tokens", 0),
    ("held", "held", "held_tokens", 0),
    ("single", "one needle", "single", 2),
    ("multi", "of four", "multi", 2),
]
TASKS = [
    ("attended", "tokens attended a head", "attended_tokens", 0),
    ("held", "held", "held_tokens", 0),
    *((name, f"`{name}`", name, 2) for name in ("single", "multikey", "multiquery", "multivalue", "tracking", "common")),
    ("mean", "mean", "mean", 2),
]
TOKEN = [
    ("dense", "dense, ms a token", "dense_ms", 1),
    ("seine", "Seine", "seine_ms", 1),
    ("engine", "of it the engine", "engine_ms", 1),
    ("index", "the index", "index_ms", 1),
    ("densemib", "cache, dense, MiB", "dense_mib", 0),
    ("seinemib", "Seine, MiB", "seine_mib", 0),
]
PLANS = [
    ("rate", "tokens a second", "tokens_per_s", 1),
    ("node", "ms of a token in the nodes", "node_ms_a_token", 1),
    ("engine", "in the engine", "engine_ms_a_token", 1),
    ("wire", "between them", "wire_ms_a_token", 1),
    ("one", "on one node", "one_node_ms_a_token", 1),
    ("memory", "GiB of the fullest node", "memory_gib_node", 1),
    ("share", "share of its memory", "memory_share", 3),
    ("breaks", "breaks first", "breaks_first", None),
]
KERNELS = [
    ("layer", "a layer, µs", "layer_us", 1),
    ("step", "a step of 32 layers, ms", "step_ms", 2),
    ("scan", "of a layer the scan, µs", "scan_us", 1),
    ("link", "exact scores over the link, µs", "dots_us", 1),
]
SOAK = [
    ("ops", "operations", "ops", 0),
    ("faults", "of them faults", "faults", 0),
    ("p99", "step p99, ms", "step_p99_ms", 1),
    ("max", "longest step, ms", "step_max_ms", 0),
    ("health", "GetServerInfo p99, ms", "health_p99_ms", 1),
    ("livez", "/livez p99, ms", "livez_p99_ms", 1),
    ("grown", "memory grown by, MiB", "rss_grown_mib", 0),
    ("end", "ended in, s", "end_s", 1),
]
FLEET = [
    ("kills", "kills", "kills", 0),
    ("first", "s to the first answer of what it held", "first_answer_s", 2),
    ("last", "to the last answer of that", "last_answer_s", 2),
    ("new", "of a new family", "new_family_s", 2),
    ("others", "longest wait of other families, s", "others_stall_s", 2),
]
# What `./dev bench --only equal` compares: every method at one number of candidates.
EQUAL = [
    ("candidates", "candidates", "candidates", 0),
    ("recall", "recall@k", "recall_at_k", 4),
    ("exact", "with all of them scored exactly", "recall_exact", 4),
    ("mass", "attention mass", "attention_mass", 4),
    ("held", "tokens held", "tokens_held", 0),
    ("attended", "attended", "tokens_attended", 0),
    ("dim", "head_dim", "head_dim", 0),
    ("bytes", "bytes of code a key", "bytes_per_key", 1),
    ("read", "bytes read a query", "bytes_read", 0),
]
