// Operations per byte against operations per second, under the roofs of memory and multipliers.

function rooflineSection() {
  const points = A.roofline.filter((p) => p.intensity > 0 && p.ops_per_s > 0);
  if (!points.length) return null;
  const levels = [...new Set(points.map((p) => p.level))];
  let level = levels.includes("operation") ? "operation" : levels[0];
  let phase = "decode";
  const phases = [...new Set(points.filter((p) => p.phase).map((p) => p.phase))];
  if (!phases.includes(phase)) phase = phases[0] ?? "";
  const choose = (options, value, set) => el("select", { onchange: (event) => { set(event.target.value); draw.redraw(); } },
    options.map((option) => el("option", { selected: option === value ? "" : undefined }, option)));
  const draw = canvas("Roofline: operations per byte against operations per second", 420, (ctx, width, height) => {
    shown = paintRoofline(ctx, width, height, points.filter((p) => p.level === level && (level === "run" || p.phase === phase)));
  });
  let shown = [];
  draw.addEventListener("pointermove", (event) => {
    const near = shown.map((s) => ({ ...s, d: Math.hypot(s.x - event.offsetX, s.y - event.offsetY) })).sort((a, b) => a.d - b.d)[0];
    showTip(event, near && near.d < 16 ? roofTip(near.point) : null);
  });
  draw.addEventListener("pointerleave", hideTip);
  searched.push(() => draw.redraw());
  const without = [...new Set(A.roofline.filter((p) => p.level === "operation" && !p.ops).map((p) => p.kind || "no kind"))];
  const notes = [
    points.some(beside) && "hollow: bytes of scratchpad or shared memory, which the memory roof does not bound",
    without.length && `without operations, so without a place here: ${without.join(", ")}`,
  ].filter(Boolean);
  return section("Roofline",
    el("div", { class: "tools" }, choose(levels, level, (v) => { level = v; }), choose(phases, phase, (v) => { phase = v; }),
      el("span", { class: "quiet" }, "size of a point: its time")),
    el("div", { class: "plot" }, draw), legend(kindOrder.filter((kind) => points.some((p) => p.kind === kind))),
    notes.map((note) => el("p", { class: "quiet" }, note)), verdictTable());
}

// Whether a point's bytes are not those of the DRAM, whose roof then says nothing of it.
function beside(p) {
  return A.peaks.dram !== null && p.peak_bytes_per_s === null;
}

function roofTip(p) {
  return [p.name || p.level, `${opsRate(p.ops_per_s)}, ${rate(p.bytes_per_s)}, ${plain(p.intensity)} operations per byte${beside(p) ? " of scratchpad or shared memory" : ""}`,
    `${time(p.seconds * 1e9)}${p.share === null ? "" : `, ${share(p.share)} of the nearest peak`}: ${p.verdict}`].join("\n");
}

function paintRoofline(ctx, width, height, points) {
  const byPeak = new Map(); // formats of one peak share a roof
  for (const formats of Object.values(A.peaks.ops)) {
    for (const [format, peak] of Object.entries(formats)) byPeak.set(peak, [...(byPeak.get(peak) ?? []), format]);
  }
  const roofs = [...byPeak].map(([peak, formats]) => ({ peak, format: formats.join(", ") }));
  const memory = A.peaks.dram;
  const log = Math.log10;
  const xs = [...points.map((p) => p.intensity), ...Object.values(A.peaks.ridge)].map(log);
  const ys = [...points.map((p) => p.ops_per_s), ...roofs.map((roof) => roof.peak)].map(log);
  const box = { left: 70, right: width - 160, top: 16, bottom: height - 40 };
  const x0 = Math.floor(Math.min(...xs)) - 0.2, x1 = Math.ceil(Math.max(...xs)) + 0.3;
  const y0 = Math.floor(Math.min(...ys)) - 0.2, y1 = Math.max(...ys) + 0.3;
  const X = (v) => box.left + ((log(v) - x0) / (x1 - x0)) * (box.right - box.left);
  const Y = (v) => box.bottom - ((log(v) - y0) / (y1 - y0)) * (box.bottom - box.top);
  for (let n = Math.ceil(x0); n <= x1; n += 1) {
    ctx.fillStyle = css("--line"); ctx.fillRect(X(10 ** n), box.top, 1, box.bottom - box.top);
    ctx.fillStyle = css("--quiet"); ctx.textAlign = "center"; ctx.fillText(n < 0 ? (10 ** n).toFixed(-n) : count(10 ** n), X(10 ** n), box.bottom + 12);
  }
  for (let n = Math.ceil(y0); n <= y1; n += 1) {
    ctx.fillStyle = css("--line"); ctx.fillRect(box.left, Y(10 ** n), box.right - box.left, 1);
    ctx.fillStyle = css("--quiet"); ctx.textAlign = "right"; ctx.fillText(opsRate(10 ** n), box.left - 6, Y(10 ** n));
  }
  ctx.fillStyle = css("--quiet"); ctx.textAlign = "center";
  ctx.fillText("operations per byte", (box.left + box.right) / 2, height - 10);
  ctx.save(); ctx.beginPath(); ctx.rect(box.left, box.top, width - box.left, box.bottom - box.top); ctx.clip();
  ctx.strokeStyle = css("--text"); ctx.lineWidth = 1.25; ctx.textAlign = "left"; ctx.fillStyle = css("--quiet");
  const top = Math.max(...roofs.map((roof) => roof.peak));
  if (memory) {
    ctx.beginPath(); ctx.moveTo(X(10 ** x0), Y(10 ** x0 * memory)); ctx.lineTo(X(top / memory), Y(top)); ctx.stroke();
    ctx.fillText(`memory ${rate(memory)}`, box.left + 6, box.bottom - 8);
  }
  for (const roof of roofs) {
    const from = memory ? Math.max(X(roof.peak / memory), box.left) : box.left;
    ctx.beginPath(); ctx.moveTo(from, Y(roof.peak)); ctx.lineTo(box.right, Y(roof.peak)); ctx.stroke();
    ctx.fillText(`${roof.format} ${opsRate(roof.peak)}`, box.right + 6, Y(roof.peak));
  }
  const longest = Math.max(...points.map((p) => p.seconds), 1e-12);
  const shown = points.map((point) => {
    const x = X(point.intensity), y = Y(point.ops_per_s);
    ctx.globalAlpha = 0.75;
    ctx.fillStyle = ctx.strokeStyle = matches(point.name) ? css("--hit") : kindColour(point.kind);
    ctx.lineWidth = 2;
    ctx.beginPath(); ctx.arc(x, y, 3 + 9 * Math.sqrt(point.seconds / longest), 0, 7);
    if (beside(point)) ctx.stroke(); else ctx.fill();
    ctx.globalAlpha = 1;
    return { x, y, point };
  });
  ctx.restore();
  return shown;
}

function verdictTable() {
  if (!A.verdicts.length) return null;
  const most = Math.max(...A.verdicts.map((v) => v.time_ns));
  return el("div", {}, el("h3", {}, "What bounds each kind of command"), table([
    { title: "Phase", of: (v) => v.phase }, { title: "Kind", of: (v) => v.kind },
    { title: "Time", of: (v) => v.time_ns, show: time, number: true, bar: (v) => v.time_ns / most },
    { title: "Verdict", of: (v) => v.verdict },
    { title: "Shares", of: (v) => Object.entries(v.shares).sort((a, b) => b[1] - a[1]).map(([name, s]) => `${name} ${share(s)}`).join(", ") },
  ], A.verdicts, { sort: 2, first: 12 }));
}
