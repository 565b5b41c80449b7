// The commands of the timeline: unpacked, and found by time.

const runs = D.runs.map(([kind, step, start, duration, at]) => ({ kind, step, start, end: start + duration, at }));
let starts = new Uint32Array(0);
let durations = new Uint32Array(0);

async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint32Array(await new Response(stream).arrayBuffer());
}

async function unpackSlices() {
  const packed = await Promise.all([inflate(D.starts), inflate(D.durations)]);
  [starts, durations] = packed.map((column) => (D.unit_ns === 1 ? column : Float64Array.from(column, (n) => n * D.unit_ns)));
}

const piecesOf = (run) => D.kinds[run.kind];
const lengthOf = (run) => D.kinds[run.kind].lane.length;

// Runs are in order of start, and hardly overlap: from the first that may reach into the view.
function runsBetween(from, to) {
  let low = 0;
  let high = runs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (runs[middle].end < from) low = middle + 1;
    else high = middle;
  }
  const found = [];
  for (let n = Math.max(low - 2, 0); n < runs.length && runs[n].start <= to; n += 1) {
    if (runs[n].end >= from) found.push(runs[n]);
  }
  return found;
}

// Where the next command with the searched words begins, after (or before) a time.
function nextMatch(after, forwards) {
  const hit = D.operations.map(matches);
  if (!hit.some(Boolean)) return null;
  let best = null;
  const ordered = forwards ? runs : [...runs].reverse();
  for (const run of ordered) {
    if (forwards ? run.end < after : run.start > after) continue;
    const { operation } = piecesOf(run);
    for (let n = 0; n < operation.length; n += 1) {
      if (!hit[operation[n]]) continue;
      const start = run.start + starts[run.at + n];
      const better = forwards ? start > after && (best === null || start < best.start)
        : start < after && (best === null || start > best.start);
      if (better) best = { start, end: start + durations[run.at + n] };
    }
    if (best !== null) return best;
  }
  return best;
}

function matchCount() {
  const hit = D.operations.map(matches);
  const per = D.kinds.map((kind) => kind.operation.filter((o) => hit[o]).length);
  return runs.reduce((sum, run) => sum + per[run.kind], 0);
}
