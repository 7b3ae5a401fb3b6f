"""The parts of `./dev bench`: what each runs, and which figures of its JSON become a table. bench/run.py runs them.

A command is seine-bench's, or begins with ./dev or PYTHON. The rows of all of a part's commands make one table; its id is "run" and
the part's name. In a command BIN stands for the folder of the programs, PYTHON for a Python with torch (SEINE_PYTHON), PEERS for
the option that adds PyPI's FAISS, and LEDGER for a file that the command writes and that is read in place of its output. The files of
RECORDS are written once, before the first command that names them; REFERENCE, MODULE and DECIMAL are texts that every Python brings, and
GEMMA is Gemma 3 270M's GGUF, which `./dev llama --gemma` fetches.
"""

from parts import llama, memory, pytorch, retrieval, servers, vllm
from parts.questions import QUESTIONS

RECORDS = {
    "TRACE": "PYTHON -m seine_kv.trace --text REFERENCE --tokens 8192 --queries-last 8192 --out TRACE",
    "GEMMATRACE": "PYTHON -m seine_kv.trace --model GEMMA --text REFERENCE --tokens 8192 --out GEMMATRACE",
    "GEMMAPROFILE": "PYTHON -m seine_kv.profile --model GEMMA --text MODULE docs/engines.md --tokens 4096 --out GEMMAPROFILE",
}
PARTS = retrieval.PARTS | memory.PARTS | servers.PARTS | pytorch.PARTS | llama.PARTS | vllm.PARTS
__all__ = ["PARTS", "QUESTIONS", "RECORDS"]
