// A table that sorts by any column; large ones show their first rows until asked for all.

const FIRST_ROWS = 25;

// columns: {title, of(row), show(value), number, bar(row) in 0..1, name}
function table(columns, rows, { pick, sort = -1, first = FIRST_ROWS, filter } = {}) {
  let by = sort;
  let down = true;
  let all = false;
  const body = el("tbody");
  const more = el("button", { type: "button", onclick: () => { all = !all; fill(); } });
  const heads = columns.map((column, n) => {
    const button = el("button", { type: "button", onclick: () => {
      down = by === n ? !down : column.number === true;
      by = n;
      fill();
    } }, column.title);
    return el("th", { class: column.number ? "num" : "", scope: "col" }, button);
  });

  function cell(column, row) {
    const value = column.of(row);
    const text = column.show ? column.show(value) : value ?? "–";
    const node = el("td", { class: column.number ? "num" : column.name ? "name" : "" }, text);
    if (column.bar) {
      const width = Math.max(0, Math.min(1, column.bar(row) || 0));
      node.append(el("span", { class: "bar", style: `width:${(100 * width).toFixed(1)}%` }));
    }
    return node;
  }

  function ordered() {
    const shown = filter ? rows.filter(filter) : [...rows];
    if (by < 0) return shown;
    const of = columns[by].of;
    const sign = down ? -1 : 1;
    const order = (a, b) => (typeof a === "number" || typeof b === "number"
      ? (a ?? -Infinity) - (b ?? -Infinity) : String(a ?? "").localeCompare(String(b ?? "")));
    return shown.sort((a, b) => sign * order(of(a), of(b)));
  }

  function fill() {
    heads.forEach((head, n) => {
      if (n === by) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const shown = ordered();
    const visible = all ? shown : shown.slice(0, first);
    body.replaceChildren(...visible.map((row) => {
      const node = el("tr", {}, columns.map((column) => cell(column, row)));
      if (pick) {
        node.className = "pick";
        node.tabIndex = 0;
        node.addEventListener("click", () => pick(row));
        node.addEventListener("keydown", (event) => { if (event.key === "Enter") pick(row); });
      }
      return node;
    }));
    more.hidden = shown.length <= first;
    more.textContent = all ? `Show the first ${first}` : `Show all ${shown.length}`;
  }

  fill();
  const node = el("div", {}, el("div", { class: "scroll" },
    el("table", {}, el("thead", {}, el("tr", {}, heads)), body)), more);
  node.refill = fill;
  return node;
}
