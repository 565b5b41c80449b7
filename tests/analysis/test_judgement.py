"""Findings, differences and budgets."""

from __future__ import annotations

from pathlib import Path

import pytest

from dielet.analysis import analyze
from dielet.analysis.budget import KEYS, check_budget
from dielet.analysis.measures import MEASURES
from dielet.analysis.rules import read_rules
from dielet.cli.main import main
from dielet.errors import DamagedFile, MissingFile
from tests.analysis.make import DEVICE, NEURAL, TASK, Maker, answers, engine, toy


def test_every_rule_has_its_measure() -> None:
    rules = read_rules().rule
    assert {rule.measure for rule in rules} == set(MEASURES)
    assert len({rule.name for rule in rules}) == len(rules)
    assert sum(rule.always for rule in rules) >= 2


def test_findings_are_ranked_and_have_all_parts(tmp_path: Path) -> None:
    found = analyze(toy().write(tmp_path / "toy.pb"))
    findings = found.findings
    assert 2 <= len(findings) <= 6
    assert [f.cost_ns for f in findings] == sorted((f.cost_ns for f in findings), reverse=True)
    for f in findings:
        assert f.title and f.cause and f.action and f.evidence
        assert "{" not in f.title + f.cause + f.action and 0 <= f.gain <= 1
    by_rule = {(f.rule, f.phase): f for f in findings}
    memory = by_rule["memory-bound", "decode"]
    # 260 of 400 ns of the path wait for the DRAM; with weights in half the time 130 ns are gained.
    assert memory.cost_ns == 260 and memory.gain == pytest.approx(130 / 400)
    assert by_rule["host-between", "host"].cost_ns == 220
    assert by_rule["compute-bound", "prefill"].cost_ns == 300


def test_there_are_two_findings_even_where_nothing_is_wrong(tmp_path: Path) -> None:
    t = Maker(device_clock="modelled")
    arrow = t.flow()
    t.slice(engine(0, NEURAL), "i0_0_W0_a_0", 0, 1000, (arrow,), kind="linear")
    t.slice(engine(0, "General Compute Engine"), "i0_0_W0_b_0", 1000, 2000, (arrow,), kind="norm")
    found = analyze(t.write(tmp_path / "a.pb"))
    assert [f.rule for f in found.findings] == ["largest-lever", "longest-wait"]
    assert found.findings[1].cause.startswith("1 gap, ")
    other = Maker(device_clock="modelled")
    other.slice(engine(0, NEURAL), "i0_0_W0_b_0", 1000, 2000, (arrow,), kind="norm")
    other.slice(engine(0, TASK), "i0_0_W0_a_0", 0, 1000, (arrow,), kind="linear")
    wait = analyze(other.write(tmp_path / "b.pb")).findings[1]
    assert f"{NEURAL} wait longest for linear" in wait.title


def test_slow_runs_are_a_finding(tmp_path: Path) -> None:
    found = analyze(answers([100] * 8 + [400]).write(tmp_path / "a.pb"))
    slow = next(f for f in found.findings if f.rule == "outliers")
    assert slow.cost_ns == 300 and slow.gain == pytest.approx(300 / 1200)
    assert "1 slow run of decode costs" in slow.title and "step 9" in slow.cause


def test_padding_is_a_finding_where_it_is_computed(tmp_path: Path) -> None:
    found = analyze(answers([10]).write(tmp_path / "a.pb"))
    padding = next(f for f in found.findings if f.rule == "padding")
    assert padding.gain == pytest.approx(3 / 8) and padding.cost_ns == round(100 * 3 / 8)


def test_diff_by_name(tmp_path: Path) -> None:
    after, before = toy(end_of_1=884), toy()
    after.slice(engine(1, NEURAL), "i1_0_W0_new_0", 884, 890, kind="norm", bytes=5)
    before.slice(engine(1, NEURAL), "i1_0_W0_old_0", 880, 890, kind="norm", bytes=7)
    new, old = after.write(tmp_path / "new.pb"), before.write(tmp_path / "old.pb")
    diff = analyze(new, diff=old).diff
    assert diff is not None
    changes = {c.operation: c for c in diff.changes if c.phase == "decode"}
    assert changes["new"].change == "added" and changes["new"].after_ns == 6
    assert changes["old"].change == "removed" and changes["old"].delta_ns == -10
    up = changes["model.model.layers.0.mlp.up_proj"]
    # 210 and 214 ns: less than 5 %.
    assert (up.change, up.before_ns, up.after_ns, up.delta_ns) == ("same", 210, 214, 4)
    assert diff.counts == {"added": 1, "removed": 1, "same": 7 - 1}
    decode = next(t for t in diff.totals if t.phase == "decode")
    assert (decode.before_ns, decode.after_ns, decode.change) == (400, 400, 0)
    assert (decode.before_commands, decode.after_commands) == (7, 7)
    assert decode.before_bytes == 7471 and decode.after_bytes == 7469


def test_diff_of_slower_and_faster(tmp_path: Path) -> None:
    slow = answers([200, 300]).write(tmp_path / "slow.pb")
    fast = answers([100, 100], model="other").write(tmp_path / "fast.pb")
    diff = analyze(slow, diff=fast).diff
    assert diff is not None
    (change,) = [c for c in diff.changes if c.phase == "decode"]
    assert (change.change, change.before_ns, change.after_ns) == ("slower", 100, 250)
    assert diff.notes == ("another model: other before, not known now",)
    back = analyze(fast, diff=slow).diff
    assert back is not None
    assert [c.change for c in back.changes if c.phase == "decode"] == ["faster"]
    total = next(t for t in back.totals if t.phase == "decode")
    assert total.change == pytest.approx(100 / 250 - 1)


def test_changes_are_ranked_by_their_cost_over_all_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def trace(name: str, prefill: int, decode: int) -> Path:
        t = Maker(device_clock="modelled")
        for n, (phase, took) in enumerate([("prefill", prefill), *[("decode", decode)] * 50]):
            at = 10_000 * n
            t.slice((DEVICE, "Device Workload"), f"i0_{n}_Device Workload_0", at, at + took,
                    phase=phase, program=phase)  # fmt: skip
            t.slice(engine(0, NEURAL), f"i0_{n}_W0_{phase}_op_0", at, at + took, kind="linear")
        return t.write(tmp_path / name)

    before, after = trace("before.pb", 1000, 100), trace("after.pb", 1500, 150)
    diff = analyze(after, diff=before).diff
    assert diff is not None
    ranked = [(c.operation, c.delta_ns, c.runs) for c in diff.changes]
    assert ranked == [("decode_op", 50, 50), ("prefill_op", 500, 1)]
    assert main(["analyze", str(after), "--diff", str(before)]) == 0
    table = capsys.readouterr().out.split("ranked by their cost over all runs")[1]
    assert 0 < table.index("decode_op") < table.index("prefill_op")


def test_diff_counts_chiplets_of_workers_too(tmp_path: Path) -> None:
    def measured(chiplets: int) -> Path:
        t = Maker(device_clock="measured", dielet_version="0", model="m", device="d", host="h")
        for n in range(chiplets):
            t.slice((DEVICE, f"Chiplet {n}", "Cores"), "i0_0_W0_a_0", 10 * n, 10 * n + 5)
        return t.write(tmp_path / f"{chiplets}.pb")

    diff = analyze(measured(4), diff=measured(2)).diff
    assert diff is not None
    assert "another number of chiplets: 2 before, 4 now" in diff.notes


def test_a_budget_sees_the_findings_that_are_not_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one rule two are told, most costly first; it holds in three phases."""
    t = Maker(device_clock="modelled")
    for n, phase in enumerate(("prefill", "decode", "other")):
        at = 1000 * n
        t.slice((DEVICE, "Device Workload"), f"i{n}_0_Device Workload_0", at, at + 1000 - 100 * n,
                phase=phase, program=phase)  # fmt: skip
        t.slice(engine(0, TASK), f"i{n}_0_W0_{phase}_0", at, at + 1000 - 100 * n, kind="copy",
                bytes=4, bound_by="setup")  # fmt: skip
    path = t.write(tmp_path / "a.pb")
    found = analyze(path)
    told = [f.phase for f in found.findings if f.rule == "setup-bound"]
    (further,) = [f for f in found.further_findings if f.rule == "setup-bound"]
    assert (told, further.phase, further.cost_ns) == (["prefill", "decode"], "other", 800)
    # What fills up holds too, whether it was needed or not.
    assert "largest-lever" in {f.rule for f in found.further_findings}
    budget = tmp_path / "budget.toml"
    budget.write_text('forbidden_findings = ["setup-bound", "largest-lever", "padding"]\n')
    lines = {line.key: line for line in check_budget(found, budget).lines}
    assert lines["forbidden_findings.setup-bound"].value == 3
    assert lines["forbidden_findings.largest-lever"].value == 3
    assert lines["forbidden_findings.padding"].passed
    assert main(["analyze", str(path)]) == 0
    told_page = capsys.readouterr().out.split("Findings")[1].split("Engines")[0]
    assert f"and {len(found.further_findings)} more" in told_page
    assert "copy on the critical path: 100%" in told_page


def test_budget(tmp_path: Path) -> None:
    trace = toy()
    trace.counter((DEVICE, "Chiplet 0", "DRAM bytes in use"), "bytes", {0: 1.0})
    found = analyze(trace.write(tmp_path / "toy.pb"))
    budget = tmp_path / "budget.toml"
    budget.write_text(
        "ttft_ms_max = 0.0004\ntpot_ms_max = 0.0005\ntokens_per_s_min = 1e6\n"
        "dram_bytes_per_token_max = 4000\nhost_share_max = 0.2\ncomplete = true\n"
        'forbidden_findings = ["imbalance", "memory-bound"]\n'
        '[busy_min]\n"Neural DMA" = 0.27\nNothing = 0.1\n[phase_ms_max]\ndecode = 0.0004\n'
    )
    checked = check_budget(found, budget)
    assert not checked.passed
    lines = {line.key: line for line in checked.lines}
    assert [key for key, line in lines.items() if not line.passed] == [
        "tpot_ms_max", "host_share_max", "forbidden_findings.memory-bound", "busy_min.Nothing",
    ]  # fmt: skip
    assert lines["busy_min.Neural DMA"].value == pytest.approx((0.28 + 0.26) / 2)
    assert lines["busy_min.Nothing"].value is None
    assert "does not tell" in lines["busy_min.Nothing"].text
    assert lines["tpot_ms_max"].text == "tpot_ms_max: 0.0006, at most 0.0005 is asked"


def test_what_lacks_half_of_itself_is_not_complete(tmp_path: Path) -> None:
    t = Maker()
    t.slice(engine(0, NEURAL), "i0_0_W0_a_0", 0, 10)
    found = analyze(t.write(tmp_path / "a.pb"))
    assert not found.coverage.complete
    assert all(note.severity == "note" for note in found.coverage.notes)
    budget = tmp_path / "budget.toml"
    budget.write_text("complete = true\n")
    (line,) = check_budget(found, budget).lines
    assert not line.passed
    for words in ("whether commands were dropped", "their bytes", "no dependencies",
                  "no counters", "peaks are not known"):  # fmt: skip
        assert words.replace("their", "its") in line.text, line.text
    assert all(text in {n.text for n in found.coverage.notes} for text in found.coverage.lacks)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bogus = 1", ["unknown key 'bogus'", *KEYS]),
        ('ttft_ms_max = "1"', ["ttft_ms_max is '1'", "number"]),
        ("busy_min = 1", ["busy_min is 1", "table"]),
        ("complete = 1", ["complete is 1", "true or false"]),
        ('forbidden_findings = ["nonsense"]', ["nonsense", "memory-bound"]),
        ("ttft_ms_max = nan", ["ttft_ms_max is nan", "finite"]),
        ("tokens_per_s_min = inf", ["tokens_per_s_min is inf", "finite"]),
        ("[busy_min]\nworker = inf", ["busy_min is", "finite"]),
        ("ttft_ms_max = =", ["no TOML", "line 1"]),
    ],
)
def test_budgets_that_are_refused(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "budget.toml"
    path.write_text(text)
    with pytest.raises(DamagedFile) as raised:  # not a wrong command line
        analyze(tmp_path / "not looked at.pb", budget=path)
    assert all(word in str(raised.value) for word in words) and "\n" not in str(raised.value)


def test_a_budget_must_exist(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"no\.toml does not exist"):
        analyze(toy().write(tmp_path / "a.pb"), budget=tmp_path / "no.toml")


def test_devices_without_chiplets_are_told_apart(tmp_path: Path) -> None:
    """Two engines of one name for 100 ns each, of which one has nothing to do for 50."""
    t = Maker()
    for device, end in ((0, 100), (1, 50)):
        t.slice((f"Device {device} (toy, modelled)", NEURAL), f"i0_0_W0_a{device}_0", 0, end)
    (measure,) = MEASURES["imbalance"](analyze(t.write(tmp_path / "a.pb")))
    assert (measure.value, measure.cost) == (50 / 200, 50 / 2)
