"""Writes what follows from the generated code: exports.py SOURCES VERSION

`_version.py`, and `proto.py` with the name of every message and enum of the contract.
"""

import re
import sys
from pathlib import Path

sources, version = Path(sys.argv[1]) / "mcp_sidecar", sys.argv[2]
HEAD = "# Written by proto/generate.sh.\n"

(sources / "_version.py").write_text(f'{HEAD}"""The version of this package and of the contract."""\n\nVERSION = "{version}"\n')
(sources / "_generated/__init__.py").write_text(HEAD + '"""Code that protoc makes from the contract."""\n')
lines, names = [], []
for stub in sorted((sources / "_generated").glob("*_pb2.pyi")):
    if stub.stem == "rpc_status_pb2":
        continue
    # Messages are classes, enums are classes with a twin that starts with an underscore, values of enums are constants.
    found = set(re.findall(r"^class ([A-Z]\w*)\(", stub.read_text(), re.M))
    found |= set(re.findall(r"^([A-Z][A-Z0-9_]*): ", stub.read_text(), re.M)) - {"DESCRIPTOR"}
    lines.append(f"from ._generated.{stub.stem} import (")
    lines += [f"    {name} as {name}," for name in sorted(found)]
    lines.append(")")
    names += found
assert len(names) == len(set(names)), "a name is there twice"
doc = '"""The messages and enums of the contract. Their comments are the reference."""\n\n'
(sources / "proto.py").write_text(HEAD + doc + "\n".join(lines) + "\n")
