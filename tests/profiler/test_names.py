"""The grammar of names: what is written is read back, and nothing else is taken for a name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dielet.profiler.names import Name, parse

NUMBERS = st.integers(0, 10**9)
LAYERS = st.text(min_size=1).filter(lambda text: parse(f"0_{text}_0") is not None)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "i0_2_W0_model.model.layers.0.self_attn.q_proj.weight_3",
            Name(2, 0, 0, "model.model.layers.0.self_attn.q_proj.weight", 3),
        ),
        ("5_W1_fused(a.b+c_d)_12", Name(5, None, 1, "fused(a.b+c_d)", 12)),
        ("i1_12_Device Workload_0", Name(12, 1, 0)),
        ("12_Device Workload_1", Name(12, None, 1)),
        ("i0_0_tokenize_0", Name(0, 0, None, "tokenize", 0)),
        ("12_linear_196_0", Name(12, None, None, "linear_196", 0)),
    ],
)
def test_names_are_read_and_written(text: str, name: Name) -> None:
    assert parse(text) == name
    assert str(name) == text


@pytest.mark.parametrize("text", ["", "x", "i1_W0_a_0", "W0_a_0", "1_2", "1_a", "1_a_b", "a_1_b_2"])
def test_other_texts_are_no_names(text: str) -> None:
    assert parse(text) is None


def test_operations_of_a_fusion() -> None:
    assert Name(0, 0, 0, "fused(a.x+b)", 0).operations == ("a.x", "b")
    assert Name(0, 0, 0, "a.x", 0).operations == ("a.x",)


@given(NUMBERS, st.none() | NUMBERS, NUMBERS, LAYERS, NUMBERS)
def test_round_trip(
    sequence: int, instance: int | None, workload: int, layer: str, command: int
) -> None:
    name = Name(sequence, instance, workload, layer, command)
    assert parse(str(name)) == name
