// Makes what the page draws with out of what package-lock.json pins: `make page-library`.
// vega.min.js and vega-lite.min.js are the packages' own files; the interpreter has no such file and is bundled.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { buildSync } from "esbuild";

const modules = "node_modules";
const read = (path) => readFileSync(path);
writeFileSync("vega.min.js", read(`${modules}/vega/build/vega.min.js`));
writeFileSync("vega-lite.min.js", read(`${modules}/vega-lite/build/vega-lite.min.js`));
buildSync({
  stdin: { contents: 'export { expressionInterpreter } from "vega-interpreter";', resolveDir: "." },
  bundle: true,
  minify: true,
  charset: "ascii",
  format: "iife",
  globalName: "vegaInterpreter",
  legalComments: "none",
  target: "es2022",
  outfile: "vega-interpreter.min.js",
});

const lock = JSON.parse(read("package-lock.json"));
const inside = /^(vega|d3-|topojson-client|delaunator|robust-predicates|internmap)/;
const left = /^vega-(lite-|cli)/;
const named = new Map(); // the text of a license: the packages that it is of
for (const path of Object.keys(lock.packages).sort()) {
  const name = path.replace("node_modules/", "");
  if (!inside.test(name) || left.test(name)) continue;
  const file = readdirSync(`${modules}/${name}`).find((each) => /^licen[sc]e/i.test(each));
  const { version, license } = lock.packages[path];
  const text = read(`${modules}/${name}/${file}`).toString().replaceAll("\r", "").trim();
  named.set(text, [...(named.get(text) ?? []), `${name} ${version}, ${license}`]);
}
const parts = [...named].map(([text, names]) => `${names.join("\n")}\n\n${text}\n`);
writeFileSync("LICENSES.txt", parts.join(`\n${"-".repeat(100)}\n\n`));

const sums = ["LICENSES.txt", "vega-interpreter.min.js", "vega-lite.min.js", "vega.min.js"].map(
  (name) => `${createHash("sha256").update(read(name)).digest("hex")}  ${name}\n`,
);
writeFileSync("SHA256SUMS", sums.join(""));
