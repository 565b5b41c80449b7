// One step in full: every command of every engine, the critical path marked.

function ganttSection() {
  if (!A.gantts.length) return null;
  const first = A.gantts.findIndex((gantt) => gantt.phase === "decode");
  const place = el("div");
  let critical = true;
  let shown = A.gantts[Math.max(first, 0)];
  const choose = el("select", { "aria-label": "Which step", onchange: (event) => { shown = A.gantts[event.target.value]; show(); } },
    A.gantts.map((gantt, n) => el("option", { value: n, selected: gantt === shown ? "" : undefined },
      `${gantt.phase}, ${gantt.why}: step ${gantt.step}, ${gantt.program}, ${time(gantt.duration_ns)}`)));
  const mark = el("label", {}, el("input", { type: "checkbox", checked: "", onchange: (event) => { critical = event.target.checked; view.canvas.redraw(); } }), " only the critical path in colour");
  let view = null;

  function show() {
    if (view) redraws.splice(redraws.indexOf(view.canvas.redraw), 1);
    view = ganttView(shown, () => critical);
    place.replaceChildren(view.node);
    view.canvas.redraw();
  }
  show();
  searched.push(() => view.canvas.redraw());
  const used = [...new Set(A.gantts.flatMap((gantt) => gantt.kinds))];
  return section("Step", el("div", { class: "tools" }, choose, mark), place, legend(used));
}

function ganttView(gantt, onlyCritical) {
  const order = gantt.rows.map((row, n) => n).sort((a, b) =>
    (gantt.rows[a][0] ?? -1) - (gantt.rows[b][0] ?? -1) || byEngine(gantt.rows[a][1], gantt.rows[b][1]));
  const rank = order.map((_, n) => order.indexOf(n));
  const rows = order.map((n) => ({ group: gantt.rows[n][0] === null ? "" : `Chiplet ${gantt.rows[n][0]}`, name: gantt.rows[n][1] }));
  const end = (n) => gantt.start_ns[n] + gantt.slice_ns[n];

  function paint(ctx, view) {
    const faint = css("--line");
    const hits = gantt.operations.map(matches);
    const colours = gantt.kinds.map(kindColour);
    for (const path of [0, 1]) { // the critical path over the others
      const put = painter(ctx, view);
      for (let n = 0; n < gantt.row.length; n += 1) {
        if (gantt.critical[n] !== path) continue;
        const colour = onlyCritical() && !path ? faint : colours[gantt.kind[n]];
        put(rank[gantt.row[n]], gantt.start_ns[n], end(n), colour, gantt.operations[gantt.operation[n]], hits[gantt.operation[n]]);
      }
    }
  }

  function at(row, t, slack) {
    let best = -1;
    for (let n = 0; n < gantt.row.length; n += 1) {
      const inside = rank[gantt.row[n]] === row && t >= gantt.start_ns[n] - slack && t <= end(n) + slack;
      if (inside && (best < 0 || gantt.slice_ns[n] >= gantt.slice_ns[best])) best = n;
    }
    if (best < 0) return null;
    const bound = gantt.bounds[gantt.bound[best]];
    return [gantt.operations[gantt.operation[best]],
      `${gantt.kinds[gantt.kind[best]]}, ${time(gantt.slice_ns[best])} at ${time(gantt.start_ns[best])}`,
      `${bytes(gantt.bytes[best])}${bound ? `, bound by ${bound}` : ""}${gantt.critical[best] ? ", on the critical path" : ""}`].join("\n");
  }

  return lanesView({ label: `Every command of step ${gantt.step}`, rows, from: 0, to: gantt.duration_ns, paint, at });
}
