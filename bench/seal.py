"""Bind the files of tensors of run folders to what they hold and to config.toml: those without a checksum (normae-1),
or those whose configuration was changed on purpose.

    python bench/seal.py RUN ...          # or --zoo, for all models that ship with the package

The tensors stay as they are, to the bit; the header gets a checksum of the file and the hash of config.toml. What a
file holds is taken on trust: this is what it is bound to from now on. A table run forgets the hash of its data, which
was of another kind: null stands for one that nobody knows.
"""

import argparse
import hashlib
import json
from pathlib import Path

from safetensors.torch import load

from normae import zoo
from normae.files import write_json
from normae.runs.folder import WEIGHTS_FORMAT, model_digest, write_tensors


def seal(path: Path) -> bool:
    """Bind a file; whether it was not."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    old = WEIGHTS_FORMAT not in metadata
    header = json.loads(metadata["normae-1" if old else WEIGHTS_FORMAT])
    write_tensors(path, load(content), header)
    written = path.read_bytes()
    assert written[8 + int.from_bytes(written[:8], "little") :] == content[8 + length :], "the tensors changed"
    facts = path.with_name("provenance.json")
    if (
        old
        and path.name == "model.safetensors"
        and facts.is_file()
        and header.get("coordinates") in ("table", "conditional")
    ):
        known = json.loads(facts.read_text(encoding="utf-8"))
        known["data_sha256"] = None
        write_json(facts, known)
    return written != content


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Bind files of tensors to their content.")
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--zoo", action="store_true", help="all models of the package")
    given = parser.parse_args()
    runs = [*given.runs, *([zoo.path(name) for name in zoo.names()] if given.zoo else [])]
    files = [path for run in runs for path in sorted(run.rglob("*.safetensors")) if "checkpoint" not in path.parts]
    before = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in files}
    print(f"{sum(seal(path) for path in files)} of {len(files)} files are bound anew")
    if given.zoo and (mixtures := zoo.FOLDER / "mixtures.json").is_file():
        content = json.loads(mixtures.read_text(encoding="utf-8"))
        for one in content.values():
            one["sha256"] = [model_digest(before[key]) if key in before else key for key in one["sha256"]]
        write_json(mixtures, content)


if __name__ == "__main__":
    main()
