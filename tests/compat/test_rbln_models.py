"""optimum-rbln's entry points, artefacts and errors, on tiny models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, GenerationConfig

from dielet.compat import rbln_models, said
from dielet.compat.rbln_models import (
    CLASSES,
    RBLNAutoModelForCausalLM,
    RBLNDecoderOnlyModelForCausalLM,
    RBLNLlamaForCausalLM,
    RBLNQwen3ForCausalLM,
    RBLNQwen3ForCausalLMConfig,
)
from dielet.errors import (
    CapacityError,
    DamagedFile,
    DieletError,
    MissingFile,
    Unsupported,
    UsageError,
)
from dielet.image import read_manifest
from tests.compat.test_transformers import GREEDY
from tests.compat.tiny import PAD, prompts, words
from tests.tiny import make

SIZES = {"num_attention_heads": 8, "num_key_value_heads": 4, "eos_token_id": None}
OPTIONS: dict[str, Any] = {
    "rbln_max_seq_len": 256, "rbln_prefill_chunk_size": 64, "rbln_batch_size": 2,
    "rbln_decoder_batch_sizes": [1, 2],
}  # fmt: skip
FILES = {"prefill.rbln", "decoder_batch_1.rbln", "decoder_batch_2.rbln", "rbln_config.json"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    found = {}
    for kind in ("qwen3", "llama"):
        path = tmp_path_factory.mktemp("source") / kind
        found[kind] = path, make(path, kind, spread=4.0, **SIZES)
        words().save_pretrained(path)
    return found


@pytest.fixture(scope="module")
def source(sources) -> Path:
    return sources["qwen3"][0]


@pytest.fixture(scope="module")
def saved(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled model in the directory that the script named."""
    path = tmp_path_factory.mktemp("saved") / "m"
    RBLNQwen3ForCausalLM.from_pretrained(
        source, export=True, model_save_dir=path, rbln_create_runtimes=False, **OPTIONS
    )
    return path


@pytest.fixture(scope="module")
def model(saved: Path) -> Iterator[RBLNDecoderOnlyModelForCausalLM]:
    with RBLNQwen3ForCausalLM.from_pretrained(saved) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "_said", set())


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    """Of the compiled model, to be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def change(directory: Path, **values: Any) -> None:
    path = directory / "rbln_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


# 3.1 entry points


def test_generate_is_that_of_the_checkpoint(model, sources) -> None:
    inputs = prompts(2, 30)
    expected = sources["qwen3"][1].generate(**inputs, max_new_tokens=10, **GREEDY)
    assert model.generate(**inputs, max_new_tokens=10, **GREEDY).tolist() == expected.tolist()


def test_export_is_decided_by_what_is_there(saved: Path, source: Path, model) -> None:
    """None compiles a checkpoint and loads artefacts; False never compiles."""
    with RBLNQwen3ForCausalLM.from_pretrained(source, **OPTIONS) as compiled:
        assert compiled.rbln_config.batch_size == 2 and compiled.directory != saved
    assert model.directory == saved
    with pytest.raises(MissingFile, match=r"rbln_config.json is missing; compile .* export=True"):
        RBLNQwen3ForCausalLM.from_pretrained(source, export=False)
    with pytest.raises(MissingFile, match=r"no directory"):
        RBLNQwen3ForCausalLM.from_pretrained("no/where", export=False)


def test_a_dict_is_updated_by_keywords(source: Path) -> None:
    given = {"batch_size": 1, "max_seq_len": 256, "prefill_chunk_size": 128}
    model = RBLNQwen3ForCausalLM.from_pretrained(
        source, True, given, rbln_prefill_chunk_size=64, rbln_create_runtimes=False
    )
    assert (model.rbln_config.prefill_chunk_size, model.rbln_config.max_seq_len) == (64, 256)
    assert given["prefill_chunk_size"] == 128


def test_keywords_override_an_object(source: Path) -> None:
    config = RBLNQwen3ForCausalLMConfig(max_seq_len=256, prefill_chunk_size=128)
    model = RBLNQwen3ForCausalLM.from_pretrained(
        source, True, config, rbln_batch_size=2, rbln_create_runtimes=False
    )
    assert (model.rbln_config.batch_size, model.rbln_config.prefill_chunk_size) == (2, 128)
    assert config.batch_size == 1, "the script's own object stays as it is"
    config.batch_size, config.create_runtimes, config.npu = 3, False, "RBLN-CA25"
    model = RBLNQwen3ForCausalLM.from_pretrained(source, True, config)
    assert model._runtime is None and model.rbln_config.batch_size == 3
    assert read_manifest(model.directory).device == "atom", "attributes count as keywords do"
    again = RBLNQwen3ForCausalLM.from_pretrained(source, True, model.rbln_config)
    assert again.directory == model.directory
    with pytest.raises(UsageError, match=r"give a dict or a RBLNQwen3ForCausalLMConfig"):
        RBLNQwen3ForCausalLM.from_pretrained(source, True, "config.json")


def test_from_model(sources) -> None:
    theirs = sources["llama"][1]
    with RBLNLlamaForCausalLM.from_model(
        theirs, rbln_max_seq_len=64, rbln_prefill_chunk_size=64
    ) as ours:
        inputs = prompts(1, 20)
        expected = theirs.generate(**inputs, max_new_tokens=8, **GREEDY)
        assert ours.generate(**inputs, max_new_tokens=8, **GREEDY).tolist() == expected.tolist()
    with RBLNAutoModelForCausalLM.from_model(
        theirs, rbln_max_seq_len=64, rbln_prefill_chunk_size=64, rbln_create_runtimes=False
    ) as ours:
        assert type(ours) is RBLNLlamaForCausalLM


def test_from_model_twice_leaves_one_model(sources) -> None:
    options = {"rbln_max_seq_len": 96, "rbln_prefill_chunk_size": 64, "rbln_create_runtimes": False}
    first, second = (
        RBLNLlamaForCausalLM.from_model(sources["llama"][1], **options) for _ in range(2)
    )
    assert first.directory == second.directory


def test_a_configuration_beside_the_model(source: Path) -> None:
    """`config=` of the checkpoint itself or with fewer layers, and `generation_config=`."""
    own, fewer, other = (AutoConfig.from_pretrained(source) for _ in range(3))
    fewer.num_hidden_layers, other.hidden_act = 1, "gelu"
    options = {**OPTIONS, "rbln_create_runtimes": False, "output_loading_info": False}
    settings = GenerationConfig(max_new_tokens=3)
    for config, layers in ((own, 2), (fewer, 1)):
        model = RBLNQwen3ForCausalLM.from_pretrained(
            source, True, config=config, generation_config=settings, **options
        )
        assert read_manifest(model.directory).spec.layers == layers
        assert model.generation_config is settings
    for more, message in (
        ({"config": other}, "config differs from the checkpoint's own in hidden_act"),
        ({"config": "x"}, "config is a str"),
        ({"generation_config": {}}, "generation_config is a dict"),
        ({"output_loading_info": True}, "output_loading_info: there is none"),
    ):
        with pytest.raises(DieletError, match=message):
            RBLNQwen3ForCausalLM.from_pretrained(source, True, **{**options, **more})


def test_model_save_dir_among_other_files(source: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    options = {**OPTIONS, "rbln_create_runtimes": False}
    for _ in range(2):
        model = RBLNQwen3ForCausalLM.from_pretrained(
            source, True, model_save_dir=tmp_path, **options
        )
        assert model.directory == tmp_path and (tmp_path / "notes.txt").read_text() == "mine"
        assert {path.name for path in tmp_path.iterdir()} >= FILES
    assert not list(tmp_path.parent.glob(f".{tmp_path.name}*")), "no temporary folder is left"
    with RBLNQwen3ForCausalLM.from_pretrained(tmp_path) as loaded:
        assert loaded.generate(**prompts(2, 10), max_new_tokens=1, **GREEDY).shape == (2, 11)


WINDOWED = {
    "mistral": ("RBLNMistralForCausalLM", "sliding_window", [0, 1]),
    "gemma3_text": ("RBLNGemma3ForCausalLM", "hybrid", [0]),
}


@pytest.mark.parametrize("kind", WINDOWED)
def test_windows_of_the_model_are_described(kind: str, tmp_path: Path) -> None:
    name, cache, layers = WINDOWED[kind]
    sizes = {"layer_types": ["sliding_attention", "full_attention"]} if cache == "hybrid" else {}
    theirs = make(tmp_path / kind, kind, sliding_window=64, **sizes, **SIZES)
    words().save_pretrained(tmp_path / kind)
    options = {**OPTIONS, "rbln_create_runtimes": False}
    CLASSES[name].from_pretrained(tmp_path / kind, True, model_save_dir=tmp_path / "m", **options)
    config = json.loads((tmp_path / "m" / "rbln_config.json").read_text())
    assert theirs.config.sliding_window == 64
    assert (config["cache_impl"], config["sliding_window"]) == (cache, 64)
    assert config["sliding_window_layers"] == layers
    assert [meta["layer_type"] for meta in config["cache_metas"]][::2] == [
        "sliding_attention" if layer in layers else "full_attention" for layer in range(2)
    ]
    CLASSES[name].from_pretrained(tmp_path / "m", rbln_create_runtimes=False)
    with pytest.raises(UsageError, match="sliding_window is 128, and the model was comp"):
        CLASSES[name].from_pretrained(tmp_path / "m", rbln_sliding_window=128)


def test_auto_chooses_the_class(source: Path, saved: Path) -> None:
    options = {**OPTIONS, "rbln_create_runtimes": False}
    assert type(RBLNAutoModelForCausalLM.from_pretrained(source, **options)) is (
        RBLNQwen3ForCausalLM
    )
    assert type(RBLNAutoModelForCausalLM.from_pretrained(saved, rbln_create_runtimes=False)) is (
        RBLNQwen3ForCausalLM
    )


def test_the_class_of_another_family(source: Path) -> None:
    with pytest.raises(ValueError, match=r"qwen3 model: compile it with RBLNQwen3ForCausalLM"):
        RBLNLlamaForCausalLM.from_pretrained(source, True, **OPTIONS)


def test_a_mixture_of_experts(tmp_path: Path) -> None:
    theirs = make(tmp_path / "source", "qwen3_moe", spread=4.0, **SIZES)
    words().save_pretrained(tmp_path / "source")
    inputs = prompts(1, 20)
    expected = theirs.generate(**inputs, max_new_tokens=6, **GREEDY).tolist()
    options = {**OPTIONS, "rbln_batch_size": 1, "rbln_decoder_batch_sizes": [1]}
    with rbln_models.RBLNQwen3MoeForCausalLM.from_pretrained(
        tmp_path / "source", True, **options
    ) as ours:
        assert ours.generate(**inputs, max_new_tokens=6, **GREEDY).tolist() == expected


def test_the_generic_class_takes_any_family(source: Path, tmp_path: Path) -> None:
    RBLNDecoderOnlyModelForCausalLM.from_pretrained(
        source, True, rbln_create_runtimes=False, model_save_dir=tmp_path / "m", **OPTIONS
    )
    saved_as = json.loads((tmp_path / "m" / "rbln_config.json").read_text())["cls_name"]
    assert saved_as == "RBLNDecoderOnlyModelForCausalLM"


def test_keywords_of_hugging_face(source: Path, capsys) -> None:
    model = RBLNQwen3ForCausalLM.from_pretrained(
        source, True, num_hidden_layers=1, dtype=torch.float16, device_map="auto",
        rbln_create_runtimes=False, **OPTIONS,
    )  # fmt: skip
    assert read_manifest(model.directory).spec.layers == 1
    assert "dtype has no effect" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"unexpected arguments: batch_size; options begin with"):
        RBLNQwen3ForCausalLM.from_pretrained(source, True, batch_size=2)


def test_save_pretrained_and_load(model, tmp_path: Path, capsys) -> None:
    target = tmp_path / "deep" / "copy"
    target.mkdir(parents=True)
    (target / "notes.txt").write_text("mine")
    model.save_pretrained(target)
    assert (target / "notes.txt").read_text() == "mine", "merged into what is there"
    assert not list(target.parent.glob(".*")), "no temporary folder is left"
    words().save_pretrained(target)
    inputs = prompts(2, 20)
    expected = model.generate(**inputs, max_new_tokens=5, **GREEDY)
    with RBLNQwen3ForCausalLM.from_pretrained(target, export=False) as again:
        assert again.generate(**inputs, max_new_tokens=5, **GREEDY).tolist() == expected.tolist()
    with pytest.raises(FileExistsError):
        model.save_pretrained(model.directory)
    (tmp_path / "file").write_text("")
    model.save_pretrained(tmp_path / "file")
    assert "is a file, so nothing is saved" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"push_to_hub needs repo_id"):
        model.save_pretrained(tmp_path / "x", push_to_hub=True)
    with pytest.raises(Unsupported, match=r"upload the directory"):
        model.save_pretrained(tmp_path / "x", push_to_hub=True, repo_id="me/mine")


# 3.2 what options do


def test_without_runtimes_nothing_can_be_called(saved: Path) -> None:
    model = RBLNQwen3ForCausalLM.from_pretrained(saved, rbln_create_runtimes=False)
    with pytest.raises(RuntimeError, match=r"create_runtimes is False"):
        model.generate(**prompts(2, 10), max_new_tokens=2, **GREEDY)
    model.save_pretrained(saved.parent / "copied")
    assert (saved.parent / "copied" / "prefill.rbln").is_file()


def test_quantisation_reaches_the_weights(source: Path) -> None:
    for weights in ("int8", "int4"):
        model = RBLNQwen3ForCausalLM.from_pretrained(
            source, True, rbln_quantization={"weights": weights}, rbln_create_runtimes=False,
            **OPTIONS,
        )  # fmt: skip
        assert read_manifest(model.directory).weights == weights


def test_four_devices_of_a_small_llama(sources, tmp_path: Path) -> None:
    """The Llama3-8B case: tensor parallel over four ATOM, under either name of the option."""
    path, theirs = sources["llama"]
    inputs = prompts(1, 20)
    expected = theirs.generate(**inputs, max_new_tokens=6, **GREEDY).tolist()
    for name in ("rbln_num_devices", "rbln_tensor_parallel_size"):
        with RBLNLlamaForCausalLM.from_pretrained(
            path, True, rbln_npu="RBLN-CA25", rbln_max_seq_len=256, **{name: 4},
        ) as model:  # fmt: skip
            manifest = read_manifest(model.directory)
            assert (manifest.device, manifest.devices) == ("atom-x4", 4)
            assert manifest.prefill_chunk == 128
            assert model.generate(**inputs, max_new_tokens=6, **GREEDY).tolist() == expected


def test_a_memory_budget(source: Path) -> None:
    options = {**OPTIONS, "rbln_max_seq_len": 4096, "rbln_kvcache_partition_len": 1024,
               "rbln_create_runtimes": False, "rbln_batch_size": 2}  # fmt: skip

    def blocks(**more: Any) -> int:
        found = RBLNQwen3ForCausalLM.from_pretrained(source, True, **options, **more)
        return int(found.rbln_config.kvcache_num_blocks)

    assert blocks() == blocks(rbln_memory_budget=0.8) == 8, "full: two rows of four"
    # On each chiplet a block of 1,024 tokens is 2 layers x 2 x 1 head x 32 x 2 bytes each.
    some = blocks(rbln_memory_budget="2 MB")
    assert 4 <= some < 8
    assert blocks(rbln_memory_budget=2_000_000 + 1024 * 256) == some + 1
    assert blocks(rbln_kvcache_num_blocks=5) == 5
    with pytest.raises(ValueError, match=r"4 KV blocks .*: give more, a smaller max_seq_len"):
        blocks(rbln_memory_budget=100_000)
    with pytest.raises(CapacityError):
        RBLNQwen3ForCausalLM.from_pretrained(
            source, True, rbln_max_seq_len=256, rbln_memory_budget=1000, **{
                n: v for n, v in OPTIONS.items() if n != "rbln_max_seq_len"}
        )  # fmt: skip


# 3.3 the artefact directory


def test_the_artefact_directory(saved: Path) -> None:
    names = {path.name for path in saved.iterdir()}
    assert FILES | {"config.json", "generation_config.json", "tokenizer.json"} <= names
    assert {"decoder_model_fixed.img", "norm_head_fixed.img", "token_embedding_weight.npy",
            "cos_weight.npy", "sin_weight.npy", "manifest.json"} <= names  # fmt: skip
    programs = json.loads((saved / "decoder_batch_2.rbln").read_text())["programs"]
    assert programs == ["decode_2_kv256"]
    assert json.loads((saved / "prefill.rbln").read_text())["programs"] == ["prefill_64_kv256"]


def test_rbln_config_json(saved: Path) -> None:
    config = json.loads((saved / "rbln_config.json").read_text())
    assert config["cls_name"] == "RBLNQwen3ForCausalLM"
    assert config["optimum_rbln_version"] == "0.12.0" and config["dtype"] == "bfloat16"
    assert config["decoder_batch_sizes"] == [2, 1] and config["kvcache_block_size"] == 256
    assert not {"create_runtimes", "device", "timeout", "memory_budget"} & set(config)
    metas = config["cache_metas"]
    assert [meta["name"] for meta in metas] == [f"past_key_values_{n}" for n in range(4)]
    assert [meta["layer_index"] for meta in metas] == [0, 0, 1, 1]
    assert metas[0]["shape"] == [2, 4, 256, 32], "blocks, KV heads, tokens of a block, head size"
    by_name = {entry["compiled_model_name"]: entry for entry in config["_compile_cfgs"]}
    assert list(by_name) == ["prefill", "decoder_batch_2", "decoder_batch_1"]
    prefill, decode = by_name["prefill"], by_name["decoder_batch_2"]
    assert prefill["input_info"][:4] == [
        ["input_ids", [1, 64], "int64"], ["cache_position", [1, 64], "int32"],
        ["block_tables", [1], "int16"], ["query_position", [], "int16"],
    ]  # fmt: skip
    assert decode["input_info"][:3] == [
        ["input_ids", [2, 1], "int64"], ["cache_position", [2, 1], "int32"],
        ["block_tables", [2, 1], "int16"],
    ]  # fmt: skip
    assert (prefill["npu"], prefill["num_devices"]) == ("RBLN-CR03", 1)


# 3.4 generate


def test_every_decoder_batch_size_has_programs(model) -> None:
    inputs = prompts(2, 20)
    both = model.generate(**inputs, max_new_tokens=5, **GREEDY)
    assert both.shape == (2, 25)
    alone = model.generate(inputs["input_ids"][:1], max_new_tokens=5, **GREEDY)
    assert alone.tolist() == both[:1].tolist()


def test_a_prompt_goes_in_by_whole_chunks(model, monkeypatch) -> None:
    steps: list[int] = []
    forward = model.runtime.forward
    monkeypatch.setattr(
        model.runtime, "forward", lambda s, t, **k: steps.append(len(t)) or forward(s, t, **k)
    )
    model.generate(torch.full((1, 150), 5), max_new_tokens=2, **GREEDY)
    assert steps == [64, 64, 22]


def test_a_call_gives_the_logits_of_the_last_token(model) -> None:
    inputs = prompts(2, 10)
    last = model(**inputs).logits
    assert last.shape == (2, 1, 331)
    whole = model(**inputs, logits_to_keep=0).logits
    assert whole.shape == (2, 10, 331) and torch.equal(whole[:, -1:], last)
    assert torch.isfinite(model(**inputs, labels=inputs["input_ids"]).loss)


def test_a_prompt_goes_on_at_whole_chunks_only(model) -> None:
    ids = torch.arange(2, 82)[None]
    expected = model(ids).logits
    cache = model(ids[:, :64]).cache
    assert torch.equal(model(ids[:, 64:], cache=cache).logits, expected)
    with pytest.raises(NotImplementedError, match=r"goes on from 80 .* prefill_chunk_size 64"):
        model(ids[:, :5], cache=cache)


def test_beam_search_is_not_implemented(model) -> None:
    with pytest.raises(NotImplementedError, match=r"beam search"):
        model.generate(**prompts(1, 10), num_beams=2, max_new_tokens=3)


def test_sampling_and_logits(model) -> None:
    found = model.generate(
        **prompts(1, 10), max_new_tokens=3, do_sample=True, temperature=0.7, pad_token_id=PAD,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    assert len(found.logits) == 3 and torch.isfinite(found.logits[0]).all()


# 3.6 errors


def test_another_class_is_a_name_error(saved: Path) -> None:
    with pytest.raises(NameError, match=r"compiled as RBLNQwen3ForCausalLM, not RBLNLlama"):
        RBLNLlamaForCausalLM.from_pretrained(saved)


def test_a_missing_rbln_file(copy: Path) -> None:
    (copy / "decoder_batch_1.rbln").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no decoder_batch_1.rbln"):
        RBLNQwen3ForCausalLM.from_pretrained(copy)


def test_an_extra_rbln_file_is_only_said(copy: Path, capsys) -> None:
    (copy / "decoder_batch_7.rbln").write_text("")
    RBLNQwen3ForCausalLM.from_pretrained(copy, rbln_create_runtimes=False)
    assert "decoder_batch_7.rbln besides" in capsys.readouterr().err


def test_a_config_of_an_old_version(copy: Path) -> None:
    change(copy, _meta={})
    with pytest.raises(RuntimeError, match=r"old version .*; compile the model again"):
        RBLNQwen3ForCausalLM.from_pretrained(copy)


def test_a_config_of_a_newer_version(copy: Path) -> None:
    change(copy, optimum_rbln_version="0.99.0", turbo=True)
    with pytest.raises(ValueError, match=r"unexpected arguments: .*turbo.*0\.99\.0"):
        RBLNQwen3ForCausalLM.from_pretrained(copy)
    (copy / "rbln_config.json").write_text("{")
    with pytest.raises(DamagedFile, match=r"not valid JSON"):
        RBLNQwen3ForCausalLM.from_pretrained(copy)


def test_a_runtime_that_cannot_be_created(copy: Path) -> None:
    path = copy / "token_embedding_weight.npy"
    path.write_bytes(path.read_bytes()[:-1])
    RBLNQwen3ForCausalLM.from_pretrained(copy, rbln_create_runtimes=False)
    with pytest.raises(RuntimeError, match=r"token_embedding.*; rbln_create_runtimes=False"):
        RBLNQwen3ForCausalLM.from_pretrained(copy)


def test_compile_options_stay_when_loading(saved: Path) -> None:
    RBLNQwen3ForCausalLM.from_pretrained(saved, rbln_batch_size=2, rbln_create_runtimes=False)
    with pytest.raises(ValueError, match=r"rbln_batch_size is 4, .* compiled with 2"):
        RBLNQwen3ForCausalLM.from_pretrained(saved, rbln_batch_size=4)
    with pytest.raises(ValueError, match=r"rbln_npu is 'RBLN-CA25', .* 'RBLN-CR03'"):
        RBLNQwen3ForCausalLM.from_pretrained(saved, rbln_npu="RBLN-CA25")
    for more, message in (
        ({"rbln_device": 99}, "device is 99; it is a number from 0 to 31"),
        ({"rbln_device_map": {"prefill": "a"}}, "device_map.'prefill'. is 'a'"),
        ({"rbln_memory_budget": "abc"}, "memory_budget is 'abc'"),
        ({"rbln_create_runtimes": 0}, "create_runtimes is 0; it must be True or False"),
        ({"rbln_activate_profiler": "x"}, "activate_profiler is 'x'"),
    ):
        with pytest.raises(ValueError, match=message):
            RBLNQwen3ForCausalLM.from_pretrained(saved, **more)
    with pytest.raises(ValueError, match=r"names 2 devices and num_devices is 1"):
        RBLNQwen3ForCausalLM.from_pretrained(saved, rbln_device=[0, 1])


def test_too_little_memory(source: Path) -> None:
    with pytest.raises(ValueError, match=r"fit rebel100: .*; what would fit: rbln_\w+=") as found:
        RBLNQwen3ForCausalLM.from_pretrained(
            source, True, rbln_max_seq_len=4096, rbln_batch_size=60, num_hidden_layers=2,
            rbln_npu=str(_small_device(source.parent)),
        )  # fmt: skip
    assert " --" not in str(found.value), "that is for a command line"
    assert rbln_models._as_rbln("num_devices=3 (1 MB)") == "rbln_num_devices=4 (1 MB)"
    assert rbln_models._as_rbln("weights=int8 (1 MB); max_seq_len=64; use prefill_chunk of 64") == (
        "rbln_quantization={'weights': 'int8'} (1 MB); rbln_max_seq_len=64; "
        "use rbln_prefill_chunk_size of 64"
    )


def _small_device(folder: Path) -> Path:
    from dielet.devices import device_text

    path = folder / "small.toml"
    path.write_text(device_text("rebel100").replace('size = "35 GiB"', 'size = "16 MiB"'))
    return path


def test_batches_that_were_not_compiled(model, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"3 rows, .* batch_size of 2"):
        model.generate(**prompts(3, 10), max_new_tokens=2, **GREEDY)
    options = {**OPTIONS, "rbln_batch_size": 3, "rbln_decoder_batch_sizes": [3]}
    with (
        RBLNQwen3ForCausalLM.from_pretrained(source, True, **options) as three,
        pytest.raises(ValueError, match=r"no decoder for a batch of 2; there are those of 3"),
    ):
        three.generate(**prompts(2, 10), max_new_tokens=2, **GREEDY)


def test_lengths_beyond_max_seq_len(model) -> None:
    with pytest.raises(ValueError, match=r"302 tokens .* context of 256"):
        model.generate(torch.full((1, 300), 5), max_new_tokens=2, **GREEDY)
    with pytest.raises(ValueError, match=r"300 tokens .* larger rbln_max_seq_len"):
        model(torch.full((1, 300), 5))


def test_an_answer_that_cannot_fit_is_refused_before_any_work(model, monkeypatch) -> None:
    inputs = prompts(2, 240)
    fits = model.generate(**inputs, max_new_tokens=17, **GREEDY)
    assert fits.shape == (2, 257), "the last token needs no place"
    padded = {name: torch.nn.functional.pad(each, (9, 0)) for name, each in inputs.items()}
    again = model.generate(**padded, max_new_tokens=17, **GREEDY)
    assert again[:, 9:].tolist() == fits.tolist(), "padding needs none either"
    monkeypatch.setattr(model.runtime, "forward", None)
    message = r"258 tokens \({}\) do not fit the context of 256, .* the answer shorter by 1,"
    with pytest.raises(ValueError, match=message.format("max_new_tokens 18")):
        model.generate(**inputs, max_new_tokens=18, **GREEDY)
    with pytest.raises(ValueError, match=message.format("max_length 258")):
        model.generate(**inputs, max_length=258, **GREEDY)


def test_padding_on_the_left_only(model) -> None:
    inputs = prompts(2, 10)
    right = {name: value.flip(1) for name, value in inputs.items()}
    with pytest.raises(ValueError, match=r"padding_side='left'"):
        model.generate(**right, max_new_tokens=2, **GREEDY)
    with pytest.raises(ValueError, match=r"padding on the left only"):
        model(**right, logits_to_keep=0)
    inputs["attention_mask"][1] = torch.tensor([1, 1, 0, 0, 1, 1, 1, 1, 1, 1])
    with pytest.raises(ValueError, match=r"contiguous"):
        model.generate(**inputs, max_new_tokens=2, **GREEDY)


def test_no_free_block(source: Path) -> None:
    options = {**OPTIONS, "rbln_max_seq_len": 2048, "rbln_kvcache_partition_len": 1024,
               "rbln_kvcache_num_blocks": 2}  # fmt: skip
    with RBLNQwen3ForCausalLM.from_pretrained(source, True, **options) as model:
        assert model.generate(**prompts(2, 10), max_new_tokens=2, **GREEDY).shape == (2, 12)
        with pytest.raises(RuntimeError, match=r"no free KV block: 4 are needed and 2"):
            model.generate(torch.full((2, 1030), 5), max_new_tokens=2, **GREEDY)


def test_classes() -> None:
    families = {"qwen3", "qwen3_moe", "qwen2", "llama", "mistral", "gemma3_text"}
    assert set(rbln_models.CLASS_OF) == families
    for name, each in CLASSES.items():
        assert each.__name__ == name and each.config_class.__name__ == f"{name}Config"
