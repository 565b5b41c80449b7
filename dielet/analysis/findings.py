"""Findings: rules that speak, most costly first."""

from __future__ import annotations

from collections import Counter

from dielet.analysis.measures import MEASURES, Measure
from dielet.analysis.rules import Rule, Rules
from dielet.analysis.schema import Analysis, Finding

FEWEST, MOST = 2, 6
PER_RULE = 2


def find_findings(found: Analysis, rules: Rules) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Two to six of them, unless fewer measures say anything, of one rule at most two; the rest.

    Both are most costly first.
    """
    spoken: list[Finding] = []
    reserve: list[Finding] = []
    begin, end = found.coverage.window_ns
    least = rules.limits.finding_cost * (end - begin)
    for rule in rules.rule:
        for measure in MEASURES[rule.measure](found):
            if rule.phases and measure.phase not in rule.phases:
                continue
            if measure.value > rule.above and (rule.always or measure.cost >= least):
                (reserve if rule.always else spoken).append(_finding(rule, measure))
    spoken.sort(key=lambda finding: -finding.cost_ns)
    reserve.sort(key=lambda finding: -finding.cost_ns)
    count: Counter[str] = Counter()
    chosen: list[Finding] = []
    for finding in spoken:
        count[finding.rule] += 1
        if count[finding.rule] <= PER_RULE and len(chosen) < MOST:
            chosen.append(finding)
    chosen += reserve[: max(FEWEST - len(chosen), 0)]
    rest = [finding for finding in spoken + reserve if finding not in chosen]
    return _ranked(chosen), _ranked(rest)


def _ranked(findings: list[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: -finding.cost_ns))


def _finding(rule: Rule, measure: Measure) -> Finding:
    words = {"phase": measure.phase, "value": measure.value, "gain": measure.gain, **measure.words}
    return Finding(
        rule=rule.name,
        title=rule.title.format(**words),
        phase=measure.phase,
        cost_ns=round(measure.cost),
        gain=measure.gain,
        evidence=measure.evidence,
        cause=rule.cause.format(**words),
        action=rule.action.format(**words),
    )
