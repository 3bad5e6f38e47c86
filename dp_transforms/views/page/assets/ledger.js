"use strict";
// A served page of a ledger: what each population has spent, and its runs.
(() => {
  const { ledger, after } = JSON.parse(document.getElementById("ledger").textContent);
  const make = (tag, text = "", attributes = {}) => {
    const made = document.createElement(tag);
    made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const budget = ({ name, share, spent, most, left }) => {
    const line = make("p", "", { class: "budget" });
    const bar = make("meter", `${spent} of ${most}`, { min: 0, max: 1, high: 0.9, optimum: 0, value: share });
    bar.setAttribute("aria-label", `${name}: ${spent} of ${most} spent`);
    line.append(make("span", name), bar, make("span", `${spent} of ${most} spent, ${left} left`));
    return line;
  };
  const table = (name, heads, rows) => {
    const body = make("tbody"), top = make("tr"), head = make("thead"), made = make("table");
    for (const each of heads) top.append(make("th", each, { scope: "col" }));
    head.append(top);
    for (const [first, ...cells] of rows) {
      const row = make("tr");
      // On a narrow screen each cell is a line of its own, and its head stands before it.
      row.append(make("th", first, { scope: "row" }), ...cells.map((cell, n) => make("td", cell, { "data-head": heads[n + 1] })));
      body.append(row);
    }
    made.className = "runs";
    made.append(make("caption", `Runs of ${name}, the latest first`, { class: "note" }), head, body);
    const box = make("div", "", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Runs of ${name}` });
    box.append(made);
    return box;
  };
  const section = ({ name, about, budgets, heads, runs, more }, place) => {
    const made = make("section", "", { "aria-labelledby": `population-${place}` });
    made.append(make("h2", name, { id: `population-${place}` }), make("p", about, { class: "note" }), ...budgets.map(budget));
    made.append(runs.length ? table(name, heads, runs) : make("p", "No run yet."));
    if (more) made.append(make("p", more, { class: "note" }));
    return made;
  };
  const show = (populations) => {
    const empty = make("p", "The ledger has no populations yet.");
    document.getElementById("populations").replaceChildren(...(populations.length ? populations.map(section) : [empty]));
    document.documentElement.dataset.ready = "yes";
  };
  show(ledger);
  followServer(after, { ledger: show });
})();
