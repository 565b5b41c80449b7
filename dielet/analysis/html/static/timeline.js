// The whole run: engines by chiplet. Far away how busy they were, near by the commands themselves.

const MOST_CHOICES = 5000; // steps that the chooser lists
const MOST_DRAWN = 40000; // commands drawn one by one; more of them are drawn as bins

function timelineSection() {
  if (!A.timeline.rows.length && !D.lanes.length) return null;
  const rows = timelineRows();
  const range = [A.timeline.start_ns, A.timeline.start_ns + A.timeline.bins * A.timeline.bin_ns];
  const says = el("span", { class: "quiet" });
  const kinds = legend(kindOrder.filter(Boolean));
  const lanes = lanesView({
    label: "Timeline of engines by chiplet", rows, from: range[0], to: range[1], rowHeight: 20,
    paint: (ctx, view) => paintTimeline(ctx, view, says),
    at: (row, t, slack) => timelineTip(rows[row], t, slack, lanes.state),
  });
  theTimeline = lanes;
  searched.push(() => lanes.canvas.redraw());
  const left = D.commands - D.drawn;
  return section("Timeline",
    el("div", { class: "tools" },
      el("button", { type: "button", onclick: () => lanes.zoom(0.5) }, "Zoom in"),
      el("button", { type: "button", onclick: () => lanes.zoom(2) }, "Zoom out"),
      el("button", { type: "button", onclick: lanes.fit }, "All"),
      stepChooser(lanes), says),
    lanes.node, kinds,
    left ? el("p", { class: "note" }, `${count(D.drawn)} of ${count(D.commands)} commands are in this file one by one, in whole steps at even distances; the other ${count(left)} are in the bins and in every figure.`) : null);
}

let theTimeline = null;

function timelineRows() {
  const rows = [];
  if (D.host.length) rows.push({ group: "", name: "Host", host: true, lanes: [] });
  const order = D.lanes.map((lane, n) => ({ lane, n })).sort((a, b) =>
    a.lane[0].localeCompare(b.lane[0]) || (a.lane[1] ?? -1) - (b.lane[1] ?? -1) || byEngine(a.lane[2], b.lane[2]));
  const many = new Set(D.lanes.map((lane) => lane[0])).size > 1;
  const used = new Set(D.kinds.flatMap((kind) => kind.lane));
  for (const { lane: [device, chiplet, name], n } of order) {
    if (!used.has(n)) continue;
    const bins = A.timeline.rows.find((row) => row.device === device && row.chiplet === chiplet && name.startsWith(row.engine));
    const group = [many ? device : "", chiplet === null ? "" : `Chiplet ${chiplet}`].filter(Boolean).join(" ");
    rows.push({ group, name, lanes: [n], bins });
  }
  return rows;
}

function stepChooser(lanes) {
  const options = A.steps.slice(0, MOST_CHOICES).map((step) =>
    el("option", { value: step.number }, `${step.number}: ${step.phase} ${step.program} ${time(step.duration_ns)}`));
  const rest = A.steps.length - options.length;
  if (rest) options.push(el("option", { disabled: "" }, `… and ${count(rest)} more: zoom in to them`));
  return el("select", { "aria-label": "Go to a step", onchange: (event) => {
    const step = A.steps[event.target.value];
    if (step) lanes.go(step.start_ns - step.duration_ns * 0.05, step.start_ns + step.duration_ns * 1.05);
  } }, el("option", { value: "" }, "Go to a step …"), options);
}

function paintTimeline(ctx, view, says) {
  const put = painter(ctx, view);
  const rowOf = new Map();
  view.rows.forEach((row, n) => row.lanes.forEach((lane) => rowOf.set(lane, n)));
  view.rows.forEach((row, n) => {
    if (row.host) for (const [start, duration, what] of D.host) put(n, start, start + duration, css("--quiet"), what, matches(what));
  });
  const inView = runsBetween(view.from, view.to);
  const total = inView.reduce((sum, run) => sum + lengthOf(run), 0);
  const single = total > 0 && total <= MOST_DRAWN && D.drawn === D.commands;
  const sparse = D.drawn < D.commands && total > 0 && total <= MOST_DRAWN && view.to - view.from < 40 * A.timeline.bin_ns;
  if (single || sparse) {
    paintCommands(inView, rowOf, put);
    says.textContent = counted(total, "command");
    return;
  }
  paintBins(ctx, view);
  if (wanted && starts.length) paintCommands(runs.length > 400 ? [] : inView, rowOf, put, true);
  says.textContent = wanted ? `busy, in bins; ${counted(matchCount(), "command matches", "commands match")}, n and p go there` : "busy, in bins; zoom in for commands";
}

function paintCommands(chosen, rowOf, put, onlyHits = false) {
  const hits = D.operations.map(matches);
  const colours = D.command_kinds.map(kindColour);
  for (const run of chosen) {
    const { lane, operation, kind } = piecesOf(run);
    for (let n = 0; n < lane.length; n += 1) {
      const hit = hits[operation[n]];
      if (onlyHits && !hit) continue;
      const start = run.start + starts[run.at + n];
      put(rowOf.get(lane[n]), start, start + durations[run.at + n], colours[kind[n]], D.operations[operation[n]], hit);
    }
  }
}

function paintBins(ctx, view) {
  const { start_ns: begin, bin_ns: width } = A.timeline;
  const colour = css("--accent");
  const low = Math.max(Math.floor((view.from - begin) / width), 0);
  const high = Math.ceil((view.to - begin) / width);
  view.rows.forEach((row, n) => {
    if (!row.bins) return;
    const tall = view.rowHeight - 4;
    ctx.fillStyle = colour;
    for (let bin = low; bin < high && bin < row.bins.busy.length; bin += 1) {
      const high = (row.bins.busy[bin] / 1000) * tall;
      const x = view.x(begin + bin * width);
      if (high > 0) ctx.fillRect(x, view.top(n) + 2 + tall - high, Math.max(view.x(begin + (bin + 1) * width) - x, 1), high);
    }
  });
}

function timelineTip(row, t, slack, state) {
  if (row.host) {
    const found = D.host.find(([start, duration]) => t >= start - slack && t <= start + duration + slack);
    return found ? `${found[2]}\n${time(found[1])} at ${time(found[0])}` : null;
  }
  for (const run of runsBetween(t - slack, t + slack)) {
    const { lane, operation, kind } = piecesOf(run);
    for (let n = 0; n < lane.length; n += 1) {
      const start = run.start + starts[run.at + n];
      const duration = durations[run.at + n];
      if (row.lanes.includes(lane[n]) && t >= start - slack / 4 && t <= start + duration + slack / 4) {
        const step = A.steps[run.step];
        return `${D.operations[operation[n]]}\n${D.command_kinds[kind[n]]}, ${time(duration)} at ${time(start)}\nstep ${run.step}, ${step.program}`;
      }
    }
  }
  if (!row.bins || state.to - state.from < A.timeline.bin_ns * 4) return null;
  const bin = Math.floor((t - A.timeline.start_ns) / A.timeline.bin_ns);
  return bin in row.bins.busy ? `${row.name}: ${(row.bins.busy[bin] / 10).toFixed(0)} % busy\n${time(A.timeline.bin_ns)} at ${time(t)}` : null;
}

function goTo(start, end) {
  if (!theTimeline) return;
  const wide = Math.max((end - start) * 6, 2000);
  theTimeline.go(start - wide / 3, start + wide);
  document.getElementById("timeline").scrollIntoView({ behavior: "smooth", block: "start" });
}
