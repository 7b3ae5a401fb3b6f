"""What seine_kv.hf needs, said in one line where it is missing or too old."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

HOW = 'try: pip install torch "transformers>=5" ml_dtypes'

for _name in ("torch", "transformers"):
    if find_spec(_name) is None:
        raise ImportError(f"seine_kv.hf needs {_name}, which is not installed; {HOW}", name=_name)
try:
    _version = version("transformers")
except PackageNotFoundError:  # a source tree on the path: its own business
    _version = ""
if _version.partition(".")[0].isdecimal() and int(_version.partition(".")[0]) < 5:
    raise ImportError(f"seine_kv.hf needs transformers 5 or later, and this is {_version}; {HOW}", name="transformers")
