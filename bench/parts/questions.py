"""Questions that parts answer, as docs/benchmarks.md asks them."""

from parts.part import Question

W = "runwholeanswers-8000"
FOUND, STORED = "runequal-seinebalanced11window64profilerefine3005", "runlowrank-keysprerope"
QUESTIONS = (
    Question(
        "How long does an answer take?",
        f"llama.cpp reads 8,000 tokens and writes 256 in {{{W}-whole}} s by itself, in {{{W}-exact}} s by our exact attention, "
        f"and in {{{W}-seine}} s through Seine.",
        ("wholeanswers", "answers", "answerslong", "answersavx2", "gemmaanswers", "hfprompts", "gemmaprompts", "vllmfirst", "vllmfirstlong", "vllmchats"),
    ),
    Question(
        "How fast is decoding?",
        "Behind 7,900 tokens a token takes llama.cpp {runllama-7900} ms, our exact attention {runllama-7900-exact} ms and the index "
        "{runllama-7900-seine} ms. Behind 1,500 all three take {runllama-1500} to {runllama-1500-seine} ms.",
        (
            *("llama", "llamalong", "llamaquantised", "llamaquantisedlong", "quantisedavx2", "peer", "llamaone", "slots", "slotslong"),
            *("gemma", "gemmalong", "token", "gemmatoken"),
            *("vllm", "vllmmany", "vllmlong", "demotimes", "step", "widesteps"),
        ),
    ),
    Question(
        "What do sparse prompts change?",
        "Tokens behind a sparse prompt have a KL of {runsparseprompts-modules096-kl} to {runsparseprompts-pages096-kl} from those "
        "behind an exact one, in three texts.",
        ("sparseprompts", "sparsegemma", "prompt", "encoding"),
    ),
    Question(
        "How much does retrieval find?",
        f"From {{{FOUND}-candidates}} of {{{FOUND}-held}} keys the balanced code finds {{{FOUND}-recall}} of the exact top 100, and rsq, "
        "which learns nothing, {runequal-seinersqsignipwindow64refine2005-recall}.",
        ("equal", "recall", "target", "demo", "wideheads", "decode", "million", "millionrsq", "gaussian"),
    ),
    Question(
        "What memory does it take?",
        f"Low-rank keys and values take {{{STORED}rank20alltokens-bytes}} of the full fp16 cache's bytes, and "
        f"{{{STORED}rank20halfthetokensbykeydiff-bytes}} with half the tokens evicted.",
        ("codes", "lowrank", "subspace", "carried", "drift", "updates", "ojakv"),
    ),
    Question(
        "What does eviction keep?",
        "A tenth of the tokens holds {runevict-qfilters10} of attention by Q-Filters, and {runevict-streamingllm10} by StreamingLLM.",
        ("evict", "steady", "blocks"),
    ),
    Question(
        "How well does a model answer?",
        "Gemma 3 270M attends {rungemmaquality-seinebalanced002tailclimd} of {rungemmaquality-seinebalanced002tailclimd-held} tokens where its "
        "layers attend all. The next token is dense attention's in {rungemmaquality-seinebalanced002tailtopicspy-same} to "
        "{rungemmaquality-seinebalanced002tailclimd-same} of places, in three texts.",
        ("quality", "gemmaquality", "vllmquality", "needle", "tasks"),
    ),
    Question(
        "What does a server bear?",
        "A bystander's step takes {runfloods-nonetls-p99} ms at p99 over TLS, and {runfloods-resetfloodtls-p99} ms beside a flood of resets.",
        ("service", "polling", "channel", "idle", "floods", "soak"),
    ),
    Question(
        "What do many machines add?",
        "A layer striped over four servers takes {runsharded-4-p50} µs, and one of them alone {runsharded-4-one} µs.",
        ("sharded", "nodes", "plans", "fleet"),
    ),
    Question("What would a GPU take?", "Predicted from bytes, and never measured.", ("kernels",)),
)
