"""`generate` of transformers over our programs, beside `generate` over transformers' own model."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
    TextIteratorStreamer,
    TextStreamer,
    pipeline,
    set_seed,
)

from dielet.compat.rows import Rows
from dielet.compat.transformers import DieletForCausalLM
from dielet.errors import CapacityError, DamagedFile, MissingFile, Unsupported, UsageError
from tests.compat.tiny import PAD, VOCAB, Pair, bytewise, prompts, words
from tests.numbers import measure, oracle
from tests.tiny import CLASSES

GREEDY: dict[str, Any] = {"do_sample": False, "pad_token_id": PAD, "eos_token_id": None}


def both(pair: Pair, inputs: dict[str, torch.Tensor], **options: Any) -> tuple[Any, Any]:
    """What theirs and ours generate; `inputs` is not changed."""
    return (
        pair.theirs.generate(**inputs, **options),
        pair.ours.generate(**inputs, **options),
    )


def same_but_for_ties(pair: Pair, inputs: dict[str, torch.Tensor], ours: torch.Tensor) -> bool:
    """Whether every token of ours is what theirs, reading along, would say.

    Where not, the two candidates must be too close to call: within the error that is measured.
    """
    same = True
    text = np.random.default_rng(1).integers(2, VOCAB, 400).astype(np.int32)
    theirs = oracle.all_logits(pair.theirs, text)
    errors = measure.compare(text, theirs, measure.forced(pair.ours.runtime, text))
    allowed = errors.measured_error
    # Of a mixture, two experts may score too close to call in one step of ten: then others answer.
    share = 0.9 if pair.ours.runtime.spec.experts else 0.999
    bound = 0.02 * float(np.ptp(theirs, axis=1).mean())
    assert np.quantile(errors.gap_error, share) < bound and allowed < 2 * bound
    width = inputs["input_ids"].shape[1]
    for row, mask, answer in zip(inputs["input_ids"], inputs["attention_mask"], ours, strict=True):
        prompt = row[mask.bool()].numpy().astype(np.int32)
        found = measure.judged(pair.theirs, prompt, answer[width:].numpy().astype(np.int32))
        assert all(difference.gap < allowed for difference in found), found
        same &= not found
    return same


@pytest.mark.parametrize("model_type", CLASSES)
def test_greedy_is_token_for_token_the_same(pairs, model_type: str) -> None:
    pair = pairs(model_type)
    same = 0
    for seed in range(5):
        inputs = prompts(1, 50, seed)
        theirs, ours = both(pair, inputs, max_new_tokens=40, **GREEDY)
        if same_but_for_ties(pair, inputs, ours):
            assert theirs.tolist() == ours.tolist()
            same += 1
    assert same >= 3, "most answers have no tie at all"


@pytest.mark.parametrize("batch_sizes", [(1,), (1, 2), (1, 4)])
def test_rows_with_left_padding(pairs, batch_sizes: tuple[int, ...]) -> None:
    """However many rows are decoded together, each says what it says alone."""
    pair = pairs(batch_sizes=batch_sizes)
    inputs = prompts(3, 40)
    theirs, ours = both(pair, inputs, max_new_tokens=30, **GREEDY)
    if same_but_for_ties(pair, inputs, ours):
        assert theirs.tolist() == ours.tolist()
    for row in range(3):
        alone = inputs["input_ids"][row][inputs["attention_mask"][row].bool()][None]
        single = pair.ours.generate(alone, max_new_tokens=30, **GREEDY)
        assert single[0, -30:].tolist() == ours[row, -30:].tolist()


def test_rows_are_decoded_together_when_compiled_for_it(pairs, monkeypatch) -> None:
    ours = pairs(batch_sizes=(1, 2)).ours
    sizes: list[int] = []
    forward = ours.runtime.forward_batch
    monkeypatch.setattr(
        ours.runtime, "forward_batch", lambda s, t: sizes.append(len(s)) or forward(s, t)
    )
    ours.generate(**prompts(5, 20), max_new_tokens=3, **GREEDY)
    assert sizes == [2, 2, 1] * 2


def test_padding_takes_no_place_in_the_cache(pairs) -> None:
    found = pairs().ours.generate(
        **prompts(3, 40), max_new_tokens=3, return_dict_in_generate=True, **GREEDY
    )
    rows = found["cache"] if "cache" in found else found["past_key_values"]
    assert isinstance(rows, Rows)
    assert [state.past for state in rows.states] == [42, 32, 22]


def test_scores_of_every_step(pairs) -> None:
    pair = pairs()
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    theirs, ours = both(pair, prompts(2, 30), max_new_tokens=6, **options, **GREEDY)
    assert theirs.sequences.tolist() == ours.sequences.tolist()
    assert len(ours.scores) == len(ours.logits) == 6
    for a, b in zip((*theirs.scores, *theirs.logits), (*ours.scores, *ours.logits), strict=True):
        assert a.shape == b.shape == (2, VOCAB)
        for row in range(2):
            assert measure.relative_error(a[row].numpy(), b[row].numpy()) < 0.02
    transitions = pair.ours.compute_transition_scores(
        ours.sequences, ours.scores, normalize_logits=True
    )
    assert transitions.shape == (2, 6) and (transitions < 0).all()


def test_sampling_is_the_hosts(pairs) -> None:
    """The same seed chooses the same tokens, since the scores are nearly the same."""
    pair = pairs()
    options = {"do_sample": True, "temperature": 0.05, "top_k": 20, "top_p": 0.9,
               "repetition_penalty": 1.1, "max_new_tokens": 20, "pad_token_id": PAD}  # fmt: skip
    set_seed(3)
    theirs = pair.theirs.generate(**prompts(1, 30), **options)
    set_seed(3)
    ours = pair.ours.generate(**prompts(1, 30), **options)
    assert theirs.tolist() == ours.tolist()
    set_seed(4)
    hot = {**options, "temperature": 5.0, "top_k": 0, "top_p": 1.0}
    assert pair.ours.generate(**prompts(1, 30), **hot).tolist() != ours.tolist()


def test_several_answers_to_each_prompt(pairs) -> None:
    ours = pairs(batch_sizes=(1, 4)).ours
    set_seed(1)
    found = ours.generate(
        **prompts(2, 20), do_sample=True, num_return_sequences=3, max_new_tokens=8,
        pad_token_id=PAD, temperature=3.0,
    )  # fmt: skip
    assert found.shape == (6, 28)
    assert len({tuple(row) for row in found.tolist()}) == 6
    assert found[0, :20].tolist() == found[2, :20].tolist() != found[3, :20].tolist()


def test_logits_processors(pairs) -> None:
    seen: list[torch.Size] = []

    def never_even(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(scores.shape)
        scores[:, ::2] = -torch.inf
        return scores

    theirs, ours = both(
        pairs(), prompts(2, 20), max_new_tokens=10,
        logits_processor=LogitsProcessorList([never_even]), **GREEDY,
    )  # fmt: skip
    assert (ours[:, 20:] % 2 == 1).all()
    assert theirs.tolist() == ours.tolist()
    assert seen == [(2, VOCAB)] * 20


def test_bad_words_and_lengths_of_the_generation_config(pairs) -> None:
    pair = pairs()
    free = pair.ours.generate(**prompts(1, 20), max_new_tokens=10, **GREEDY)
    banned = [[int(free[0, 20])]]
    config = GenerationConfig(bad_words_ids=banned, max_length=26, **GREEDY)
    theirs, ours = both(pair, prompts(1, 20), generation_config=config)
    assert ours.shape == (1, 26) and ours[0, 20] != free[0, 20]
    assert theirs.tolist() == ours.tolist()


def test_stopping_criteria_and_end_of_text(pairs) -> None:
    pair = pairs()
    inputs = prompts(3, 20)
    free = pair.ours.generate(**inputs, max_new_tokens=12, **GREEDY)
    stop = StoppingCriteriaList([lambda ids, scores: torch.tensor([ids.shape[1] >= 25] * len(ids))])
    theirs, ours = both(pair, inputs, max_new_tokens=12, stopping_criteria=stop, **GREEDY)
    assert ours.tolist() == free[:, :25].tolist() == theirs.tolist()
    end = int(free[1, 23])
    ending = {**GREEDY, "eos_token_id": end}
    theirs, ours = both(pair, inputs, max_new_tokens=12, **ending)
    assert theirs.tolist() == ours.tolist()
    after = ours[1].tolist().index(end, 20) + 1
    assert set(ours[1, after:].tolist()) == {PAD}


def test_stop_strings(pairs) -> None:
    """The tokenizer that `generate` needs for them is no business of the model's."""
    pair = pairs()
    inputs = prompts(1, 30)
    whole = pair.theirs.generate(**inputs, max_new_tokens=20, **GREEDY)
    tokenizer = bytewise()
    stop = tokenizer.decode(whole[0, 37])
    theirs, ours = both(
        pair, inputs, max_new_tokens=20, stop_strings=[stop], tokenizer=tokenizer, **GREEDY
    )
    assert theirs.tolist() == ours.tolist()
    assert theirs.shape[1] < 50, "it stopped"


def test_streamers(pairs, capsys) -> None:
    ours, tokenizer = pairs().ours, words()
    inputs = prompts(1, 20)
    whole = tokenizer.decode(ours.generate(**inputs, max_new_tokens=8, **GREEDY)[0, 20:])
    ours.generate(**inputs, max_new_tokens=8, **GREEDY,
                  streamer=TextStreamer(tokenizer, skip_prompt=True))  # fmt: skip
    assert capsys.readouterr().out.split() == whole.split()
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    thread = threading.Thread(
        target=ours.generate, kwargs={**inputs, "max_new_tokens": 8, "streamer": streamer, **GREEDY}
    )
    thread.start()
    pieces = list(streamer)
    thread.join()
    assert len(pieces) > 4 and "".join(pieces).split() == whole.split()


def test_two_threads_share_a_model(pairs) -> None:
    ours = pairs().ours
    inputs = [prompts(1, 30, seed) for seed in (1, 2)]
    alone = [ours.generate(**each, max_new_tokens=20, **GREEDY).tolist() for each in inputs]
    together: list[Any] = [None, None]

    def answer(n: int) -> None:
        together[n] = ours.generate(**inputs[n], max_new_tokens=20, **GREEDY).tolist()

    threads = [threading.Thread(target=answer, args=(n,)) for n in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_torch_keeps_to_one_thread_meanwhile(pairs) -> None:
    """Its other threads would wait busily on the cores that programs run on."""
    ours, usual = pairs().ours, torch.get_num_threads()
    seen: list[int] = []

    def note(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return scores

    torch.set_num_threads(2)
    try:
        ours.generate(**prompts(1, 5), max_new_tokens=2, **GREEDY,
                      logits_processor=LogitsProcessorList([note]))  # fmt: skip
        assert seen == [1, 1] and torch.get_num_threads() == 2
        with pytest.raises(Unsupported):
            ours.generate(**prompts(1, 5), num_beams=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(usual)


def test_a_conversation_goes_on_from_its_cache(pairs) -> None:
    ours = pairs().ours
    inputs = prompts(2, 20)
    first = ours.generate(**inputs, max_new_tokens=5, return_dict_in_generate=True, **GREEDY)
    cache = first["cache"] if "cache" in first else first["past_key_values"]
    more = torch.cat([first.sequences, prompts(2, 6, 9)["input_ids"].clamp(min=2)], dim=1)
    mask = torch.cat([inputs["attention_mask"], torch.ones(2, 11, dtype=torch.long)], dim=1)
    anew = ours.generate(more, attention_mask=mask, max_new_tokens=5, **GREEDY)
    on = ours.generate(more, attention_mask=mask, max_new_tokens=5, **GREEDY,
                       **{_cache_name(): cache})  # fmt: skip
    assert on.tolist() == anew.tolist()
    assert [state.past for state in cache.states] == [35, 29]


def _cache_name() -> str:
    from dielet.compat.transformers import CACHE

    return CACHE


def test_without_a_cache_and_by_chunks_the_same(pairs) -> None:
    ours = pairs().ours
    inputs = prompts(2, 40)
    usual = ours.generate(**inputs, max_new_tokens=4, **GREEDY).tolist()
    assert ours.generate(**inputs, max_new_tokens=4, use_cache=False, **GREEDY).tolist() == usual
    chunks = ours.generate(**inputs, max_new_tokens=4, prefill_chunk_size=16, **GREEDY)
    assert chunks.tolist() == usual


def test_logits_and_loss_of_a_whole_text(pairs) -> None:
    """As training scripts and perplexities use a model, padding on either side."""
    pair = pairs()
    inputs = prompts(2, 70)
    right = {name: value.flip(1) for name, value in inputs.items()}
    for given in (inputs, right):
        labels = given["input_ids"].masked_fill(given["attention_mask"] == 0, -100)
        with torch.no_grad():
            theirs = pair.theirs(**given, labels=labels)
        ours = pair.ours(**given, labels=labels)
        assert ours.logits.shape == (2, 70, VOCAB)
        assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=0.01)
        for row in range(2):
            here = given["attention_mask"][row].bool()
            a, b = theirs.logits[row][here].numpy(), ours.logits[row][here].numpy()
            assert max(map(measure.relative_error, a, b)) < 0.02
            assert (ours.logits[row][~here] == 0).all()
    last = pair.ours(**inputs, logits_to_keep=3).logits
    assert torch.equal(last, pair.ours(**inputs).logits[:, -3:])


def test_pipeline(pairs, caplog) -> None:
    pair = pairs()
    theirs, ours = (
        pipeline("text-generation", model=model, tokenizer=words(), device="cpu")
        for model in (pair.theirs, pair.ours)
    )
    options = {"max_new_tokens": 8, "do_sample": False, "return_full_text": False}
    assert ours("w5 w6 w7", **options) == theirs("w5 w6 w7", **options)
    texts = ["w5 w6 w7", "w9", "w20 w21"]
    assert ours(texts, batch_size=3, **options) == theirs(texts, batch_size=3, **options)
    assert "not supported" not in caplog.text


def test_save_and_load(pairs, tmp_path) -> None:
    ours = pairs().ours
    before = ours.generate(**prompts(1, 20), max_new_tokens=5, **GREEDY)
    ours.save_pretrained(tmp_path / "saved")
    words().save_pretrained(tmp_path / "saved")  # which writes files that the manifest has
    with DieletForCausalLM.from_pretrained(tmp_path / "saved") as again:
        assert again.generate(**prompts(1, 20), max_new_tokens=5, **GREEDY).equal(before)
        again.generation_config.max_new_tokens = 7
        again.save_pretrained(tmp_path / "changed")
        with pytest.raises(FileExistsError, match="already"):
            again.save_pretrained(tmp_path / "saved")
    with DieletForCausalLM.from_pretrained(str(tmp_path / "changed"), export=False) as again:
        assert again.generate(**prompts(1, 20), pad_token_id=PAD).shape == (1, 27)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "changed")
    assert tokenizer("w5 w6").input_ids == [5, 6]
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        ours.save_pretrained(tmp_path / "file")
    with pytest.raises(Unsupported, match="push_to_hub"):
        ours.save_pretrained(tmp_path / "x", push_to_hub=True)
    with pytest.raises(Unsupported, match="push_to_hub"):
        ours.push_to_hub("me/mine")


def test_a_saved_model_is_still_checked(pairs, tmp_path) -> None:
    """The tokenizer may be replaced; weights may not."""
    pairs().ours.save_pretrained(tmp_path / "saved")
    path = tmp_path / "saved" / "token_embedding_weight.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match=path.name):
        DieletForCausalLM.from_pretrained(tmp_path / "saved")


def test_from_pretrained_compiles_once_into_the_cache(pairs, tmp_path, monkeypatch) -> None:
    source = pairs().source
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = {"max_seq_len": 64, "dtype": torch.bfloat16, "device_map": "auto"}
    with DieletForCausalLM.from_pretrained(source, **options) as first:
        stamp = (first.directory / "manifest.json").stat().st_mtime_ns
    with DieletForCausalLM.from_pretrained(source, **options) as second:
        assert second.directory == first.directory
        assert (second.directory / "manifest.json").stat().st_mtime_ns == stamp
    with DieletForCausalLM.from_pretrained(source, **options, weights="int8") as third:
        assert third.directory != first.directory


def test_from_pretrained_refuses(pairs, tmp_path) -> None:
    pair = pairs()
    with pytest.raises(UsageError, match="did you mean 'max_seq_len'"):
        DieletForCausalLM.from_pretrained(pair.source, max_seq_length=64)
    with pytest.raises(UsageError, match="leave them out"):
        DieletForCausalLM.from_pretrained(pair.ours.directory, max_seq_len=64)
    with pytest.raises(MissingFile, match="leave export=False out"):
        DieletForCausalLM.from_pretrained(pair.source, export=False)
    with pytest.raises(MissingFile, match="nowhere/at-all"):
        DieletForCausalLM.from_pretrained("nowhere/at-all", local_files_only=True)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 4}, r"beam search \(num_beams=4\) is not possible"),
    "guessing": ({"prompt_lookup_num_tokens": 3}, "assisted generation is not possible"),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive search is not possible"),
    "layers": ({"dola_layers": "low"}, "dola generation is not possible"),
    "constrained": ({"num_beams": 2, "force_words_ids": [[5]]}, r"constrained beam search"),
    "groups": ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}, "group beam sear"),
    "continuous": ({"cache_implementation": "paged"}, "generate_batch"),
    "attentions": ({"output_attentions": True, "return_dict_in_generate": True}, "logits alone"),
    "states": ({"output_hidden_states": True, "return_dict_in_generate": True}, "logits alone"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_compiled_model_cannot_do_is_one_line(pairs, name: str) -> None:
    options, message = REFUSED[name]
    with pytest.raises(Unsupported, match=message) as found:
        pairs().ours.generate(**prompts(1, 10), max_new_tokens=3, **options)
    assert "\n" not in str(found.value)


def test_inputs_that_are_refused(pairs) -> None:
    ours = pairs().ours
    inputs = prompts(2, 10)
    right = {name: value.flip(1) for name, value in inputs.items()}
    with pytest.raises(UsageError, match="row 1 of the batch ends in padding"):
        ours.generate(**right, max_new_tokens=3, **GREEDY)
    with pytest.raises(UsageError, match="not all in the model's vocabulary of 331"):
        ours(torch.tensor([[5, 331]]))
    with pytest.raises(UsageError, match="a column for each"):
        ours(inputs["input_ids"], attention_mask=inputs["attention_mask"][:, 1:])
    with pytest.raises(UsageError, match=r"input_ids is torch.float32; token ids are whole"):
        ours.generate(inputs["input_ids"].float(), max_new_tokens=3, **GREEDY)
    with pytest.raises(UsageError, match=r"attention_mask is \(2, 19\) for input_ids of \(2, 10\)"):
        wide = torch.ones((2, 19), dtype=torch.long)
        ours.generate(inputs["input_ids"], attention_mask=wide, max_new_tokens=3, **GREEDY)
    with pytest.raises(UsageError, match=r"is \(1, 10\) for input_ids of \(2, 10\)"):
        ours(inputs["input_ids"], attention_mask=inputs["attention_mask"][:1])
    past = ours(**inputs).past_key_values
    with pytest.raises(UsageError, match=r"is \(2, 9\) .* after 10 columns in the cache"):
        ours(inputs["input_ids"][:, :1], torch.ones((2, 9)), past)
    with pytest.raises(UsageError, match="rows and columns"):
        ours(torch.tensor([5, 6]))
    with pytest.raises(UsageError, match="cache is a dict"):
        ours(inputs["input_ids"], cache={})
    with pytest.raises(CapacityError, match=r"600 tokens .* larger max_seq_len"):
        ours.generate(torch.full((1, 600), 5), max_new_tokens=3, **GREEDY)
    with pytest.raises(ValueError, match="temperatur"):
        ours.generate(**inputs, temperatur=1.0)


def test_an_answer_ends_with_the_context(pairs, capsys) -> None:
    found = pairs().ours.generate(**prompts(1, 500), max_new_tokens=50, **GREEDY)
    assert found.shape == (1, 513), "the last token needs no place"
    assert "context of 512" in capsys.readouterr().err


def test_padding_needs_no_context(pairs, capsys) -> None:
    pair = pairs()
    inputs = prompts(1, 5)
    padded = {name: torch.nn.functional.pad(each, (100, 0)) for name, each in inputs.items()}
    theirs, ours = both(pair, padded, max_new_tokens=450, **GREEDY)
    assert theirs.shape == ours.shape == (1, 555), "5 tokens and 450 fit 512"
    assert not capsys.readouterr().err
    cut = pair.ours.generate(**padded, max_new_tokens=600, **GREEDY)
    assert cut.shape == (1, 100 + 513) and "context of 512" in capsys.readouterr().err


def test_a_configuration_beside_the_model(pairs, tmp_path) -> None:
    source = pairs().source
    config = AutoConfig.from_pretrained(source)
    settings = GenerationConfig(max_new_tokens=3, **GREEDY)
    options = {"max_seq_len": 64, "generation_config": settings, "output_loading_info": False}
    with DieletForCausalLM.from_pretrained(source, config=config, **options) as model:
        assert model.generate(**prompts(1, 5)).shape == (1, 8)
        saved = model.directory
    config.num_hidden_layers = 1
    with DieletForCausalLM.from_pretrained(source, config=config, **options) as model:
        assert model.runtime.spec.layers == 1 and model.directory != saved
    config.rope_parameters = {**config.rope_parameters, "rope_theta": 5.0}
    with pytest.raises(UsageError, match=r"config differs .* in .*rope_parameters.* leave it out"):
        DieletForCausalLM.from_pretrained(source, config=config, **options)


def test_tensors_stay_on_the_cpu(pairs) -> None:
    ours = pairs().ours
    assert ours.to("cpu") is ours.eval() is ours.to(torch.float32)
    assert ours.cpu() is ours.float() is ours.train(False) and not ours.training
    for move in (ours.cuda, lambda: ours.to("cuda")):
        with pytest.raises(UsageError, match="cuda"):
            move()
    for change in (ours.half, ours.bfloat16, ours.train):
        with pytest.raises(Unsupported, match="is not possible"):
            change()


@pytest.mark.parametrize("model_type", ["qwen3", "llama"])
def test_what_it_is_called_and_how_large_it_is(pairs, model_type: str) -> None:
    pair = pairs(model_type)
    assert pair.ours.name_or_path == str(pair.ours.directory)
    assert pair.ours.num_parameters() == pair.theirs.num_parameters()
    assert pair.ours.num_parameters(exclude_embeddings=True) == pair.theirs.num_parameters(
        exclude_embeddings=True
    )
    assert pair.ours.num_parameters(only_trainable=True) == 0


def test_closed(pairs, tmp_path) -> None:
    pairs().ours.save_pretrained(tmp_path / "m")
    model = DieletForCausalLM.from_pretrained(tmp_path / "m", threads=1)
    model.close()
    with pytest.raises(UsageError, match="closed"):
        model.generate(**prompts(1, 5), max_new_tokens=2, **GREEDY)


def test_options_reach_the_manifest(pairs) -> None:
    directory = pairs(batch_sizes=(1, 4)).ours.directory
    assert json.loads((directory / "manifest.json").read_text())["batch_sizes"] == [1, 4]
