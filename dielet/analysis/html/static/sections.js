// The sections that are figures and tables: summary, operations, engines, gaps, path, bytes, memory, diff.

function summarySection() {
  const s = A.speed;
  const card = (title, value, more) => el("div", { class: "card" }, el("span", {}, title), el("b", {}, value), more ? el("span", {}, more) : null);
  const c = A.coverage;
  const cards = [
    card("First token", time(s.ttft_ns)),
    card("Per token, median", time(s.token_median_ns), `${time(s.token_min_ns)} to ${time(s.token_max_ns)}`),
    card("Tokens per second", s.tokens_per_s === null ? "–" : plain(s.tokens_per_s)),
    card("Prompt tokens per second", s.prefill_tokens_per_s === null ? "–" : plain(s.prefill_tokens_per_s)),
    card("DRAM bytes per token", bytes(s.dram_bytes_per_token)),
    card("Commands", count(c.commands), `${counted(c.steps, "step")}, ${counted(c.dependencies, "dependency", "dependencies")}`),
  ];
  const said = c.notes.length ? c.notes.map((note) => el("p", { class: `note ${note.severity}` }, note.text))
    : [el("p", { class: "note" }, "The trace is complete: nothing was dropped, every command has its arguments.")];
  const most = Math.max(...A.phases.map((p) => p.total_ns), 1);
  return section("Summary",
    el("p", { class: "quiet" }, [A.source.path, `${A.source.clock} times`, A.source.host, `dielet ${A.source.version}`].filter(Boolean).join(" · ")),
    said, el("div", { class: "cards" }, cards),
    el("h3", {}, "Phases"), table([
      { title: "Phase", of: (p) => p.name }, { title: "Runs", of: (p) => p.runs, show: count, number: true },
      { title: "Total", of: (p) => p.total_ns, show: time, number: true, bar: (p) => p.total_ns / most },
      { title: "Share", of: (p) => p.share, show: share, number: true },
      { title: "Least", of: (p) => p.min_ns, show: time, number: true }, { title: "Median", of: (p) => p.median_ns, show: time, number: true },
      { title: "Most", of: (p) => p.max_ns, show: time, number: true }, { title: "Outliers", of: (p) => p.outliers, show: count, number: true },
    ], A.phases),
    budgetPart(), el("h3", {}, "Findings"), findings());
}

function findings() {
  if (!A.findings.length) return el("p", {}, "No rule found anything worth saying.");
  return el("div", {}, A.findings.map((f) => el("article", { class: "finding" },
    el("h3", {}, f.title),
    el("p", { class: "quiet" }, `costs ${time(f.cost_ns)} of this window; could save up to ${share(f.gain)} of ${f.phase || "the run"}`),
    el("dl", {}, el("dt", {}, "Evidence"), el("dd", {}, f.evidence.map((e) => `${e.what}: ${figure(e.value, e.unit)}`).join("; ")),
      el("dt", {}, "Cause"), el("dd", {}, f.cause), el("dt", {}, "Do"), el("dd", {}, f.action)))));
}

function budgetPart() {
  if (!A.budget) return null;
  return el("div", {}, el("h3", {}, `Budget ${A.budget.path}: `, el("span", { class: A.budget.passed ? "pass" : "fail" }, A.budget.passed ? "kept" : "not kept")),
    A.budget.lines.map((line) => el("p", { class: `note ${line.passed ? "" : "warning"}` }, `${line.passed ? "✓" : "✗"} ${line.text}`)));
}

function operationsSection() {
  const most = Math.max(...A.operations.map((o) => o.time_ns), 1);
  const rows = table([
    { title: "Operation", of: (o) => o.operation, name: true }, { title: "Phase", of: (o) => o.phase },
    { title: "Kind", of: (o) => o.kind }, { title: "Engine", of: (o) => o.engine },
    { title: "Commands", of: (o) => o.commands, show: count, number: true },
    { title: "Time", of: (o) => o.time_ns, show: time, number: true, bar: (o) => o.time_ns / most },
    { title: "Share", of: (o) => o.time_share, show: share, number: true },
    { title: "Wasted", of: (o) => o.wasted_ns, show: time, number: true },
    { title: "Of peak", of: (o) => o.share, show: share, number: true },
    { title: "Bytes", of: (o) => o.bytes, show: bytes, number: true }, { title: "Rate", of: (o) => o.bytes_per_s, show: rate, number: true },
    { title: "Operations", of: (o) => o.ops_per_s || null, show: opsRate, number: true },
    { title: "Shape", of: (o) => o.shape }, { title: "Format", of: (o) => o.format },
    { title: "Imbalance", of: (o) => o.imbalance, show: share, number: true },
  ], A.operations, { sort: 5, filter: (o) => wanted === "" || matches(o.operation) });
  searched.push(rows.refill);
  return section("Operations", el("p", { class: "quiet" }, "Wasted: time times the unused share of the nearest peak."), rows);
}

function enginesSection() {
  const scopes = [...new Set(A.engines.map((e) => e.scope))];
  let scope = scopes[0];
  const rows = table([
    { title: "Device", of: (e) => e.device }, { title: "Chiplet", of: (e) => e.chiplet, number: true }, { title: "Engine", of: (e) => e.engine },
    { title: "Commands", of: (e) => e.commands, show: count, number: true },
    { title: "Busy", of: (e) => e.busy, show: share, number: true, bar: (e) => e.busy },
    { title: "Waiting", of: (e) => e.waiting, show: share, number: true, bar: (e) => e.waiting },
    { title: "Idle", of: (e) => e.idle, show: share, number: true, bar: (e) => e.idle },
  ], A.engines, { first: 40, filter: (e) => e.scope === scope });
  const choose = el("select", { "aria-label": "Scope", onchange: (event) => { scope = event.target.value; rows.refill(); } }, scopes.map((s) => el("option", {}, s)));
  return section("Engines", el("div", { class: "tools" }, choose), rows, el("h3", {}, "Overlap"), table([
    { title: "Scope", of: (o) => o.scope }, { title: "While this is busy", of: (o) => o.first }, { title: "this is too", of: (o) => o.second },
    { title: "Share", of: (o) => o.share, show: share, number: true, bar: (o) => o.share }, { title: "Both", of: (o) => o.both_ns, show: time, number: true },
  ], A.overlap.filter((o) => o.first !== o.second)));
}

function gapsSection() {
  if (!A.gap_causes.length) return null;
  const most = Math.max(...A.gap_causes.map((g) => g.lost_ns));
  return section("Gaps", el("h3", {}, "What was waited for"), table([
    { title: "Cause", of: (g) => g.cause }, { title: "Phase", of: (g) => g.phase }, { title: "Idle", of: (g) => g.engine },
    { title: "Waited for", of: (g) => [g.waited_engine, g.waited_kind].filter(Boolean).join(": ") },
    { title: "Gaps", of: (g) => g.gaps, show: count, number: true },
    { title: "Lost", of: (g) => g.lost_ns, show: time, number: true, bar: (g) => g.lost_ns / most }, { title: "Share", of: (g) => g.share, show: share, number: true },
  ], A.gap_causes, { sort: 5, first: 12, pick: (g) => { const gap = A.gaps[g.longest]; if (gap) goTo(gap.start_ns, gap.start_ns + gap.duration_ns); } }),
  el("h3", {}, "The longest (click: show in the timeline)"), table([
    { title: "Length", of: (g) => g.duration_ns, show: time, number: true }, { title: "Step", of: (g) => g.step, show: (n) => (n < 0 ? "between" : n), number: true },
    { title: "Chiplet", of: (g) => g.chiplet, number: true }, { title: "Engine", of: (g) => g.engine }, { title: "Cause", of: (g) => g.cause },
    { title: "Before", of: (g) => g.before, name: true }, { title: "Waited for", of: (g) => g.waited, name: true },
  ], A.gaps, { sort: 0, first: 12, pick: (g) => goTo(g.start_ns, g.start_ns + g.duration_ns) }));
}

function pathSection() {
  if (!A.paths.length) return null;
  const by = (what) => A.path_parts.filter((part) => part.by === what);
  const parts = (title, rows) => (rows.length ? [el("h3", {}, title), table([
    { title: "Phase", of: (p) => p.phase }, { title: "Name", of: (p) => p.name, name: true },
    { title: "Per step", of: (p) => p.per_step_ns, show: time, number: true }, { title: "Share", of: (p) => p.share, show: share, number: true, bar: (p) => p.share },
  ], rows, { sort: 2, first: 8 })] : []);
  return section("Path", el("p", { class: "quiet" }, A.paths.map((p) => `${p.phase}: ${time(p.per_step_ns)} per step along ${plain(p.commands_per_step)} commands, ${time(p.waiting_ns)} of it waiting`).join(" · ")),
    el("h3", {}, "What if"), table([
      { title: "Phase", of: (w) => w.phase }, { title: "By", of: (w) => w.by }, { title: "Takes less", of: (w) => w.name }, { title: "Factor", of: (w) => w.factor, number: true },
      { title: "Step before", of: (w) => w.before_ns, show: time, number: true }, { title: "after", of: (w) => w.after_ns, show: time, number: true },
      { title: "Gain", of: (w) => w.gain, show: share, number: true, bar: (w) => w.gain },
    ], A.what_if, { sort: 6, first: 10 }),
    parts("By engine", by("engine")), parts("By kind", by("kind")), parts("By what bounds it", by("bound")));
}

function bytesSection() {
  const t = A.traffic;
  return section("Bytes", el("h3", {}, "By memory and link"), table([
    { title: "Phase", of: (m) => m.phase }, { title: "Place", of: (m) => m.place }, { title: "Bytes", of: (m) => m.bytes, show: bytes, number: true },
    { title: "Per step", of: (m) => m.per_step, show: bytes, number: true }, { title: "Rate", of: (m) => m.bytes_per_s, show: rate, number: true },
    { title: "Peak", of: (m) => m.peak_bytes_per_s, show: rate, number: true }, { title: "Share", of: (m) => m.share, show: share, number: true, bar: (m) => m.share },
  ], t.moved, { sort: 2, first: 15 }), el("h3", {}, "By route"), table([
    { title: "Phase", of: (r) => r.phase }, { title: "Route", of: (r) => r.route }, { title: "Kind", of: (r) => r.kind },
    { title: "Commands", of: (r) => r.commands, show: count, number: true }, { title: "Bytes", of: (r) => r.bytes, show: bytes, number: true },
    { title: "Rate", of: (r) => r.bytes_per_s, show: rate, number: true }, { title: `Below ${bytes(t.small_bytes)}`, of: (r) => r.small, show: count, number: true },
    { title: "their time", of: (r) => r.small_ns, show: time, number: true },
  ], t.routes, { sort: 4, first: 12 }), t.rereads.length ? [el("h3", {}, "Read more than once in a step"), table([
    { title: "Phase", of: (r) => r.phase }, { title: "What", of: (r) => r.what, name: true }, { title: "Times", of: (r) => r.times, show: plain, number: true },
    { title: "Bytes more", of: (r) => r.extra_bytes, show: bytes, number: true },
  ], t.rereads, { sort: 3, first: 10 })] : null);
}

function memorySection() {
  const most = Math.max(...A.memory.owners.map((o) => o.bytes), 1);
  const names = [...new Set(A.counters.map((series) => series.name))];
  if (!names.length && !A.memory.owners.length) return null;
  return section("Memory", el("div", { class: "cards" }, Object.entries(A.memory.peaks).map(([name, value]) =>
    el("div", { class: "card" }, el("span", {}, `${name}, at most`), el("b", {}, bytes(value)), el("span", {}, `at ${time(A.memory.peak_ns[name])}`)))),
  names.map((name) => [el("h3", {}, name), seriesPlot(name, A.counters.filter((series) => series.name === name))]),
  el("h3", {}, "Owners at the peak"), table([
    { title: "Device", of: (o) => o.device }, { title: "Chiplet", of: (o) => o.chiplet, number: true }, { title: "Memory", of: (o) => o.memory },
    { title: "Owner", of: (o) => o.owner }, { title: "Bytes", of: (o) => o.bytes, show: bytes, number: true, bar: (o) => o.bytes / most },
  ], A.memory.owners, { sort: 4, first: 16 }));
}

function seriesPlot(name, series) {
  const end = A.timeline.start_ns + A.timeline.bins * A.timeline.bin_ns;
  const show = series[0].unit === "bytes" ? bytes : (v) => `${plain(v)} ${series[0].unit}`;
  const most = series.reduce((top, one) => one.values.reduce((a, b) => Math.max(a, b), top), 0) || 1;
  const node = canvas(`${name} over time`, 110, (ctx, width, height) => {
    const left = 80;
    const x = (t) => left + ((t - A.timeline.start_ns) / (end - A.timeline.start_ns)) * (width - left - 10);
    const y = (v) => height - 12 - (v / most) * (height - 28);
    ctx.textAlign = "right"; ctx.fillStyle = css("--quiet");
    ctx.fillText(show(most), left - 8, y(most)); ctx.fillText("0", left - 8, y(0));
    series.forEach((one, n) => {
      ctx.strokeStyle = palette()[n % LIGHT.length]; ctx.lineWidth = 1.2; ctx.beginPath();
      one.times_ns.forEach((t, k) => {
        if (k === 0) ctx.moveTo(x(t), y(one.values[k]));
        else { ctx.lineTo(x(t), y(one.values[k - 1])); ctx.lineTo(x(t), y(one.values[k])); }
      });
      if (one.values.length) ctx.lineTo(x(end), y(one.values.at(-1)));
      ctx.stroke();
    });
  });
  const key = el("div", { class: "legend" });
  redraws.push(() => key.replaceChildren(...series.map((one, n) => el("span", {}, el("i", { style: `background:${palette()[n % LIGHT.length]}` }), one.chiplet === null ? one.device : `Chiplet ${one.chiplet}`))));
  return el("div", {}, el("div", { class: "plot" }, node), key);
}

function diffSection() {
  if (!A.diff) return null;
  const d = A.diff;
  const most = Math.max(...d.changes.map((c) => Math.abs(c.delta_ns)), 1);
  const signed = (ns) => `${ns > 0 ? "+" : ""}${time(ns)}`;
  return section("Diff", el("p", { class: "quiet" }, `Before: ${d.other}. ${Object.entries(d.counts).map(([what, n]) => `${n} ${what}`).join(", ")}.`),
    d.notes.map((text) => el("p", { class: "note warning" }, text)),
    table([
      { title: "Phase", of: (t) => t.phase }, { title: "Before", of: (t) => t.before_ns, show: time, number: true }, { title: "After", of: (t) => t.after_ns, show: time, number: true },
      { title: "Change", of: (t) => t.change, show: share, number: true }, { title: "Bytes before", of: (t) => t.before_bytes, show: bytes, number: true }, { title: "after", of: (t) => t.after_bytes, show: bytes, number: true },
    ], d.totals), el("h3", {}, "Operations, per run, ranked by their cost over all runs"), table([
      { title: "Operation", of: (c) => c.operation, name: true }, { title: "Phase", of: (c) => c.phase }, { title: "Kind", of: (c) => c.kind },
      { title: "", of: (c) => c.change }, { title: "Before", of: (c) => c.before_ns, show: time, number: true }, { title: "After", of: (c) => c.after_ns, show: time, number: true },
      { title: "Difference", of: (c) => c.delta_ns, show: signed, number: true, bar: (c) => Math.abs(c.delta_ns) / most },
      { title: "Runs", of: (c) => c.runs, number: true },
    ], d.changes, { filter: (c) => wanted === "" || matches(c.operation) }));
}
