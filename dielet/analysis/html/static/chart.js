// Canvases that follow the width, axes, and rows over time that one can zoom and move.

const FONT = "11px system-ui, sans-serif";

function canvas(label, height, draw, { focus = false } = {}) {
  const node = el("canvas", { role: "img", "aria-label": label });
  if (focus) node.tabIndex = 0;
  function redraw() {
    const width = node.clientWidth;
    if (!width) return;
    const tall = typeof height === "function" ? height() : height;
    const dots = devicePixelRatio || 1;
    node.width = Math.round(width * dots);
    node.height = Math.round(tall * dots);
    node.style.height = `${tall}px`;
    const ctx = node.getContext("2d");
    ctx.setTransform(dots, 0, 0, dots, 0, 0);
    ctx.clearRect(0, 0, width, tall);
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    draw(ctx, width, tall);
  }
  redraws.push(redraw);
  node.redraw = redraw;
  return node;
}

// Round steps between ticks: 1, 2 or 5 times a power of ten.
function ticks(from, to, most) {
  const rough = (to - from) / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let n = Math.ceil(from / step); n * step <= to; n += 1) found.push(n * step);
  return found;
}

function timeAxis(ctx, view, top, bottom) {
  ctx.textAlign = "center";
  for (const t of ticks(view.from, view.to, (view.width - view.left) / 110)) {
    const x = view.x(t);
    ctx.fillStyle = css("--line");
    ctx.fillRect(x, top, 1, bottom - top);
    ctx.fillStyle = css("--quiet");
    ctx.fillText(time(t), Math.max(x, view.left + 20), top - 10);
  }
}

// rows: {group, name}.  paint(ctx, view) draws; at(row, t, slack) says what is there.
function lanesView({ label, rows, from, to, paint, at, rowHeight = 22, changed }) {
  const LEFT = innerWidth < 640 ? 120 : 220;
  const TOP = 24;
  const full = { from, to };
  const state = { from, to };
  const height = TOP + rows.length * rowHeight + 6;
  const view = {
    rows, rowHeight, left: LEFT, width: 0,
    get from() { return state.from; },
    get to() { return state.to; },
    x: (t) => LEFT + ((t - state.from) / (state.to - state.from)) * (view.width - LEFT),
    t: (x) => state.from + ((x - LEFT) / (view.width - LEFT)) * (state.to - state.from),
    top: (row) => TOP + row * rowHeight,
  };
  const node = canvas(label, height, (ctx, width) => {
    view.width = width;
    timeAxis(ctx, view, TOP, height);
    ctx.save();
    ctx.beginPath();
    ctx.rect(LEFT, TOP, width - LEFT, height);
    ctx.clip();
    paint(ctx, view);
    ctx.restore();
    ctx.textAlign = "left";
    rows.forEach((row, n) => {
      ctx.fillStyle = css("--line");
      ctx.fillRect(0, view.top(n), width, n && rows[n - 1].group !== row.group ? 2 : 0.5);
      ctx.fillStyle = css("--text");
      ctx.fillText(shortened(ctx, [row.group, row.name].filter(Boolean).join(" · "), LEFT - 14), 8, view.top(n) + rowHeight / 2);
    });
    if (changed) changed(state);
  }, { focus: true });

  function go(a, b) {
    const least = Math.max((full.to - full.from) * 1e-7, 20);
    const span = Math.min(Math.max(b - a, least), full.to - full.from);
    state.from = Math.min(Math.max(a, full.from), full.to - span);
    state.to = state.from + span;
    node.redraw();
  }
  function zoom(factor, centre = (state.from + state.to) / 2) {
    go(centre - (centre - state.from) * factor, centre + (state.to - centre) * factor);
  }
  const move = (part) => { const by = (state.to - state.from) * part; go(state.from + by, state.to + by); };

  node.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) zoom(Math.exp(event.deltaY / 300), view.t(event.offsetX));
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / view.width);
    else return;
    event.preventDefault();
  }, { passive: false });
  node.addEventListener("dblclick", (event) => zoom(0.25, view.t(event.offsetX)));
  let held = null;
  node.addEventListener("pointerdown", (event) => { held = { x: event.offsetX, from: state.from, to: state.to }; node.setPointerCapture(event.pointerId); });
  node.addEventListener("pointerup", () => { held = null; });
  node.addEventListener("pointermove", (event) => {
    if (held) {
      const by = ((held.x - event.offsetX) / (view.width - LEFT)) * (held.to - held.from);
      go(held.from + by, held.to + by);
      return;
    }
    const row = Math.floor((event.offsetY - TOP) / rowHeight);
    const slack = (2 * (state.to - state.from)) / (view.width - LEFT);
    showTip(event, event.offsetX > LEFT && rows[row] ? at(row, view.t(event.offsetX), slack) : null);
  });
  node.addEventListener("pointerleave", hideTip);
  node.addEventListener("keydown", (event) => {
    const act = {
      w: () => zoom(0.6), s: () => zoom(1 / 0.6), a: () => move(-0.2), d: () => move(0.2),
      ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), "+": () => zoom(0.6), "-": () => zoom(1 / 0.6),
      f: () => go(full.from, full.to), Home: () => go(full.from, full.to),
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    act();
    event.preventDefault();
    event.stopPropagation();
  });
  const box = el("div", { class: "plot" }, node);
  return { node: box, canvas: node, go, zoom, move, fit: () => go(full.from, full.to), state };
}

function shortened(ctx, text, width) {
  if (ctx.measureText(text).width <= width) return text;
  let n = text.length;
  while (n > 1 && ctx.measureText(`…${text.slice(-n)}`).width > width) n -= 1;
  return `…${text.slice(-n)}`;
}

// One rectangle of a row, with its name where there is room.  Less than a pixel after the last: left out.
function painter(ctx, view) {
  const last = view.rows.map(() => -1);
  return (row, start, end, colour, name, hit) => {
    const x = view.x(start);
    const right = view.x(end);
    if (right < view.left || x > view.width || (right < last[row] && !hit)) return;
    const width = Math.max(right - x, 1);
    last[row] = x + width;
    ctx.fillStyle = hit ? css("--hit") : colour;
    ctx.fillRect(x, view.top(row) + 2, width > 3 ? width - 0.5 : width, view.rowHeight - 4);
    if (width > 40 && name) {
      ctx.fillStyle = root.classList.contains("dark") ? "#10141a" : "#ffffff";
      ctx.textAlign = "left";
      ctx.fillText(shortened(ctx, name, width - 8), Math.max(x, view.left) + 4, view.top(row) + view.rowHeight / 2);
    }
  };
}
