// What everything else stands on: the data, elements, figures as text, colours, the tip.

const { analysis: A, drawn: D } = JSON.parse(document.getElementById("data").textContent);

function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// -- figures ------------------------------------------------------------------------------------

function scaled(value, step, units) {
  let n = 0;
  let v = Math.abs(value);
  while (v >= step && n < units.length - 1) { v /= step; n += 1; }
  const digits = v >= 100 || v === 0 ? 0 : v >= 10 ? 1 : 2;
  return `${value < 0 ? "-" : ""}${v.toFixed(digits)} ${units[n]}`;
}
const known = (format) => (value) => (value === null || value === undefined ? "–" : format(value));
const time = known((ns) => scaled(ns, 1000, ["ns", "µs", "ms", "s"]));
const bytes = known((n) => scaled(n, 1000, ["B", "kB", "MB", "GB", "TB"]));
const rate = known((n) => scaled(n, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]));
const opsRate = known((n) => scaled(n, 1000, ["op/s", "kop/s", "Mop/s", "Gop/s", "Top/s", "Pop/s"]));
const count = known((n) => Math.round(n).toLocaleString("en-US"));
const share = known((v) => `${(100 * v).toFixed(v !== 0 && Math.abs(v) < 0.1 ? 1 : 0)} %`);
const counted = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;
const plain = known((v) => (Number.isInteger(v) || Math.abs(v) >= 1000 ? count(v) : v.toFixed(Math.abs(v) < 10 ? 2 : 1)));
const unit = { share, ns: time, bytes, "bytes/s": rate, count, "": plain };
const figure = (value, name) => (unit[name] ? unit[name](value) : `${plain(value)} ${name}`);

// -- colours ------------------------------------------------------------------------------------

const LIGHT = ["#3366cc", "#dc7f1e", "#2b9a66", "#b5487a", "#7a5bd0", "#1f9bb0", "#a58b1f", "#c2493d", "#5d7290", "#7fae2e"];
const DARK = ["#6f9bf5", "#f0a04b", "#4cc38a", "#e07bab", "#a48bf0", "#4fc3d6", "#d3ba4e", "#ec7d70", "#94a6c0", "#a7d25a"];
const root = document.documentElement;
const kindTime = new Map();
for (const o of A.operations) kindTime.set(o.kind, (kindTime.get(o.kind) ?? 0) + o.time_ns);
const kindOrder = [...kindTime.keys()].sort((a, b) => kindTime.get(b) - kindTime.get(a));
for (const kind of D.command_kinds) if (!kindOrder.includes(kind)) kindOrder.push(kind);

const palette = () => (root.classList.contains("dark") ? DARK : LIGHT);
const kindColour = (kind) => palette()[Math.max(kindOrder.indexOf(kind), 0) % LIGHT.length];
const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

const redraws = []; // called when the theme or the width changes
function redrawAll() { for (const draw of redraws) draw(); }
function setTheme(dark) {
  root.classList.toggle("dark", dark);
  redrawAll();
}

function legend(kinds) {
  const box = el("div", { class: "legend" });
  redraws.push(() => box.replaceChildren(...kinds.map((kind) =>
    el("span", {}, el("i", { style: `background:${kindColour(kind)}` }), kind || "host"))));
  return box;
}

// -- the tip ------------------------------------------------------------------------------------

const tip = document.getElementById("tip");
function showTip(event, text) {
  if (!text) { tip.style.display = "none"; return; }
  tip.textContent = text;
  tip.style.display = "block";
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
  tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
}
const hideTip = () => { tip.style.display = "none"; };

// -- sections -----------------------------------------------------------------------------------

const sections = [];
function section(title, ...children) {
  const id = title.toLowerCase();
  const node = el("section", { id, "aria-label": title }, el("h2", {}, title), ...children);
  sections.push({ id, title, node });
  return node;
}

const search = document.getElementById("search");
const searched = []; // called with the words that are looked for
let wanted = "";
const matches = (name) => wanted !== "" && name.toLowerCase().includes(wanted);

// Engines in the order of a trace's tracks; what is none of them follows, by name.
const ENGINES = ["Neural Engine Clusters", "Neural DMA", "Task DMA", "External HDMA", "Device HDMA", "Device Sync", "General Compute Engine"];
function byEngine(a, b) {
  const parts = (name) => { // what is before the engine (a device), and its place
    const place = ENGINES.findIndex((engine) => name.includes(engine));
    return place < 0 ? [name, ENGINES.length] : [name.slice(0, name.indexOf(ENGINES[place])), place];
  };
  const [[before, place], [otherBefore, otherPlace]] = [parts(a), parts(b)];
  return before.localeCompare(otherBefore) || place - otherPlace || a.localeCompare(b);
}
