// Layer by layer: operations against layers as a map of heat, and the layers' own figures.

function layersSection() {
  if (!A.heat.length) return null;
  let shown = A.heat.find((heat) => heat.phase === "decode") ?? A.heat[0];
  const CELL = 17;
  const TOP = 8;
  const draw = canvas("Time by operation and layer", () => TOP + shown.operations.length * CELL + 26, (ctx, width) => {
    const left = 300;
    const wide = Math.min((width - left - 10) / shown.layers.length, 40);
    const most = Math.max(...shown.values.flat(), 1);
    draw.place = { left, wide };
    ctx.textAlign = "right";
    shown.operations.forEach((operation, column) => {
      ctx.fillStyle = matches(operation) ? css("--hit") : css("--text");
      ctx.fillText(shortened(ctx, operation, left - 16), left - 8, TOP + (column + 0.5) * CELL);
    });
    shown.values.forEach((values, row) => values.forEach((value, column) => {
      ctx.fillStyle = css("--line"); ctx.globalAlpha = 0.35;
      ctx.fillRect(left + row * wide, TOP + column * CELL, wide - 1, CELL - 1);
      ctx.fillStyle = css("--accent"); ctx.globalAlpha = Math.sqrt(value / most);
      ctx.fillRect(left + row * wide, TOP + column * CELL, wide - 1, CELL - 1);
    }));
    ctx.globalAlpha = 1; ctx.textAlign = "center"; ctx.fillStyle = css("--quiet");
    shown.layers.forEach((layer, row) => {
      if (row % Math.ceil(22 / wide) === 0) ctx.fillText(String(layer), left + (row + 0.5) * wide, TOP + shown.operations.length * CELL + 12);
    });
  });
  draw.addEventListener("pointermove", (event) => {
    const row = Math.floor((event.offsetX - draw.place.left) / draw.place.wide);
    const column = Math.floor((event.offsetY - TOP) / CELL);
    const value = shown.values[row]?.[column];
    showTip(event, value === undefined ? null : `layer ${shown.layers[row]}, ${shown.operations[column]}\n${time(value)} per step`);
  });
  draw.addEventListener("pointerleave", hideTip);
  searched.push(() => draw.redraw());
  const choose = el("select", { "aria-label": "Phase", onchange: (event) => { shown = A.heat[event.target.value]; draw.redraw(); } },
    A.heat.map((heat, n) => el("option", { value: n, selected: heat === shown ? "" : undefined }, heat.phase)));
  const most = Math.max(...A.layers.map((layer) => layer.wall_ns), 1);
  return section("Layers",
    el("div", { class: "tools" }, choose, el("span", { class: "quiet" }, "mean time per step, all chiplets together; the stronger the colour, the longer")),
    el("div", { class: "plot" }, draw),
    el("h3", {}, "Per layer and step"),
    table([
      { title: "Phase", of: (l) => l.phase },
      { title: "Layer", of: (l) => l.layer, show: (n) => (n < 0 ? "none" : n), number: true },
      { title: "Wall time", of: (l) => l.wall_ns, show: time, number: true, bar: (l) => l.wall_ns / most },
      { title: "Sum of commands", of: (l) => l.time_ns, show: time, number: true },
      { title: "On the critical path", of: (l) => l.path_ns, show: time, number: true },
      { title: "Bytes", of: (l) => l.bytes, show: bytes, number: true },
      { title: "Imbalance", of: (l) => l.imbalance, show: share, number: true },
    ], A.layers, { first: 12 }));
}
