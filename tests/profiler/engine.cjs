// Perfetto's trace processor on standard input and output: its RPC stream in, its replies out.
// node engine.cjs FOLDER, which holds engine_bundle.node.js and trace_processor.wasm
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");

const read = (name) => fs.readFileSync(path.join(process.argv[2], name));

// The bundle is written for a worker of a browser: this is as much of one as it asks for.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = Object;
globalThis.location = new URL("file:///");
globalThis.XMLHttpRequest = class {
  open(method, url) {
    this.response = read(path.basename(url));
  }
  send() {}
};
console.log = console.warn = console.error; // standard output is for replies

vm.runInThisContext(read("engine_bundle.node.js").toString());
const port = {
  postMessage(data) {
    for (let at = 0; at < data.length; ) at += fs.writeSync(1, data, at);
  },
};
self.onmessage({ data: port });
setImmediate(() => {
  const chunk = Buffer.alloc(1 << 20);
  for (let size; (size = fs.readSync(0, chunk)) > 0; ) {
    port.onmessage({ data: new Uint8Array(chunk.subarray(0, size)) });
  }
  process.exit(0);
});
