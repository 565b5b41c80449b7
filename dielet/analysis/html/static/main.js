// The page built, and its keys.

const KEYS = [
  ["1 … 9, 0", "go to a section"], ["/", "search operations; Escape leaves the search"],
  ["n, p", "next and previous command that matches, in the timeline"],
  ["w, s", "zoom in and out"], ["a, d", "move left and right"], ["f", "all of it"],
  ["Ctrl + wheel, double click", "zoom where the pointer is"], ["drag", "move"],
  ["t", "light or dark"], ["?", "these keys"],
];

function build() {
  document.querySelector("h1").textContent = document.title;
  for (const make of [summarySection, timelineSection, ganttSection, rooflineSection, operationsSection, layersSection,
    enginesSection, gapsSection, pathSection, bytesSection, memorySection, diffSection]) {
    const node = make();
    if (node) document.querySelector("main").append(node);
  }
  document.querySelector("nav").append(...sections.map(({ id, title }) => el("a", { href: `#${id}` }, title)));
  const dialog = document.getElementById("keys");
  dialog.append(el("h2", {}, "Keys"), el("dl", {}, KEYS.flatMap(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)])),
    el("form", { method: "dialog" }, el("button", {}, "Close")));
  document.getElementById("help").addEventListener("click", () => dialog.showModal());
  document.getElementById("theme").addEventListener("click", () => setTheme(!root.classList.contains("dark")));
  search.addEventListener("input", () => { wanted = search.value.trim().toLowerCase(); for (const draw of searched) draw(); });
  const watch = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) {
      document.querySelector(`nav a[href="#${target.id}"]`).classList.toggle("here", isIntersecting);
    }
  }, { rootMargin: "-30% 0px -60%" });
  for (const { node } of sections) watch.observe(node);
}

function step(forwards) {
  if (!theTimeline || !wanted) return;
  const { from, to } = theTimeline.state;
  const found = nextMatch((from + to) / 2, forwards);
  if (!found) return;
  const half = Math.max((found.end - found.start) * 3, 1000);
  theTimeline.go(found.start - half, found.start + half);
}

function onKey(event) {
  if (event.key === "Escape" && document.activeElement === search) { search.blur(); return; }
  if (event.target.matches("input, select, dialog *") || event.ctrlKey || event.metaKey || event.altKey) return;
  const digit = "1234567890".indexOf(event.key);
  const keys = {
    "/": () => search.focus(), t: () => setTheme(!root.classList.contains("dark")), "?": () => document.getElementById("keys").showModal(),
    n: () => step(true), p: () => step(false), f: () => theTimeline?.fit(),
    w: () => theTimeline?.zoom(0.6), s: () => theTimeline?.zoom(1 / 0.6), a: () => theTimeline?.move(-0.2), d: () => theTimeline?.move(0.2),
  };
  const act = digit >= 0 ? () => sections[digit]?.node.scrollIntoView({ behavior: "smooth" }) : keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

build();
setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
addEventListener("resize", redrawAll);
addEventListener("keydown", onKey);
unpackSlices().then(() => { redrawAll(); root.dataset.ready = "yes"; });
