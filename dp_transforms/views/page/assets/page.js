"use strict";
// The page of a report. All text of the report reaches the document as text (textContent) or as data of a chart.
const reportPage = (() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const { columns, charts } = report;
  let strengthTitle = report.strength;
  const { windows, labels, titles, texts, strengths, sizes, classes, tolerance } = columns;
  const { zone, names, startOf, edgeOf, endOf, items, placeOf, stateAt, addWindow, writeTime, writeWindow,
    ticksOf } = readReport(report);
  const element = (id) => document.getElementById(id);
  const make = (tag, text = "", className = "") => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  };

  // ---- charts ------------------------------------------------------------------------------------------------------

  const tip = make("div", "", "tip");
  tip.hidden = true;
  document.body.append(tip);
  const showTip = (_, event, item, value) => {
    tip.hidden = value == null || value === "";
    tip.textContent = value ?? "";
    if (tip.hidden) return; // also when a chart ends, without an event
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 300)}px`;
    tip.style.top = `${event.clientY + 14}px`;
  };
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const sizeColors = () => classes.map((_, n) =>
    color(`--size-${classes.length === 1 ? 3 : Math.round((n * 5) / (classes.length - 1))}`));

  /** The rectangles of an item in a range of windows: the strongest of the windows that share a column is shown. */
  const cellsOf = (item, first, last, perColumn) => {
    const { windows: held, states } = items[item];
    const cells = [];
    let open = null;
    for (let place = placeOf(held, first); place < held.length && held[place] <= last; ) {
      const column = Math.floor((held[place] - first) / perColumn);
      let size = -1, strength = -Infinity, text = "";
      for (; place < held.length && held[place] <= last && Math.floor((held[place] - first) / perColumn) === column; place++) {
        const state = states[place];
        if (sizes[state] > size || (sizes[state] === size && strengths[state] > strength)) {
          [size, strength, text] = [sizes[state], strengths[state], texts[state]];
        }
      }
      const from = first + column * perColumn, to = Math.min(from + perColumn - 1, last);
      if (windows.step && open && open.to === from - 1 && open.sized === size && open.strength === strength) open.to = to;
      else cells.push((open = { from, to, sized: size, strength, text }));
    }
    return cells.map(({ from, to, sized, strength, text }) => ({
      name: names[item], item, from, start: startOf(from), end: edgeOf(to), size: classes[sized], strength,
      tip: `${names[item]}\n${writeTime(startOf(from))} to ${writeTime(endOf(to))}\n${perColumn > 1 ? "at most: " : ""}${text}`,
    }));
  };

  const draw = async (box, specification, cells, range, fill) => {
    const spec = structuredClone(specification);
    const [rects] = spec.layer;
    const width = Math.max(box.clientWidth, 300);
    spec.data.values = cells;
    spec.width = width;
    spec.autosize = { type: "fit-x", contains: "padding" };
    rects.encoding.x.scale.domain = range;
    const at = ticksOf(...range, width < 600 ? 3 : 9);
    Object.assign(rects.encoding.x.axis, {
      title: `start of the window (${zone})`, values: at.map(([time]) => time),
      labelExpr: `(${JSON.stringify(Object.fromEntries(at))})[datum.value]`,
    });
    rects.encoding.color.scale = { domain: classes, range: sizeColors() };
    fill(spec, rects, width);
    spec.layer.at(-1).mark.color = color("--mark");
    const [ink, quiet, line] = ["--ink", "--quiet", "--line"].map(color);
    const config = {
      background: null, font: getComputedStyle(document.body).fontFamily, view: { stroke: line },
      axis: { labelColor: ink, titleColor: quiet, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12,
        titleFontSize: 12, titleFontWeight: 400 },
      legend: { labelColor: ink, titleColor: quiet, labelFontSize: 12 },
    };
    const compiled = vegaLite.compile(spec, { config }).spec;
    // As a tree, since Vega would else make functions out of text, which the policy of this page forbids.
    const view = new vega.View(vega.parse(compiled, null, { ast: true }), {
      expr: vegaInterpreter.expressionInterpreter, renderer: "svg", container: box, tooltip: showTip,
      logLevel: vega.Error,
    });
    await view.runAsync();
    return view;
  };
  const markWindow = (view) => view?.data("chosen", [{ start: startOf(chosen.window) }]).runAsync();

  // ---- what is chosen ----------------------------------------------------------------------------------------------

  const chosen = { window: Math.max(windows.count - 1, 0), item: items.length ? 0 : -1, row: 0 };
  // By item, measured again when there are more windows.
  const all = [], firstOf = [], largestOf = [], searched = [];
  const measure = () => items.forEach(({ windows: held, states }, item) => {
    all[item] = item;
    firstOf[item] = held[0];
    largestOf[item] = states.reduce((most, state) => Math.max(most, strengths[state]), -Infinity);
    searched[item] = `${labels[item]}\n${titles[item] ?? ""}`.toLowerCase();
  });
  measure();
  const ORDERS = {
    first: (a, b) => firstOf[a] - firstOf[b] || a - b,
    long: (a, b) => items[b].windows.length - items[a].windows.length || firstOf[a] - firstOf[b] || a - b,
    strong: (a, b) => largestOf[b] - largestOf[a] || a - b,
    name: (a, b) => names[a].localeCompare(names[b]) || a - b,
  };
  const matching = (text) => all.filter((item) => searched[item].includes(text.trim().toLowerCase()));
  const WINDOWS_AT_ONCE = 1000;
  const rowsAtOnce = () => (innerWidth < 640 ? 15 : 30);
  let overview = null, single = null;

  const rangeShown = () => {
    const span = +element("span").value, [begin, end] = [startOf(0), edgeOf(windows.count - 1)];
    if (!span || span >= end - begin) return [0, windows.count - 1];
    const near = (time) => {
      let low = 0, high = windows.count - 1;
      while (low < high) { const middle = Math.ceil((low + high) / 2); if (startOf(middle) <= time) low = middle; else high = middle - 1; }
      return low;
    };
    const middle = Math.min(Math.max(startOf(chosen.window), begin + span / 2), end - span / 2);
    return [near(middle - span / 2), near(middle + span / 2 - 1)];
  };

  let drawing = 0;
  const drawOverview = async () => {
    const mine = ++drawing;
    const [first, last] = rangeShown();
    const isThere = (item) => items[item].windows[placeOf(items[item].windows, first)] <= last;
    const found = matching(element("find").value).filter(isThere);
    const count = rowsAtOnce();
    chosen.row = Math.min(chosen.row, Math.max(0, Math.floor((found.length - 1) / count) * count));
    const order = element("order").value;
    // Pages hold the longest-lived items first; on a page the rows stand as they appeared.
    const sorted = found.toSorted(ORDERS[order === "first" ? "long" : order]);
    let rows = sorted.slice(chosen.row, chosen.row + count);
    if (order === "first") rows = rows.toSorted(ORDERS.first);
    element("rows-before").disabled = chosen.row === 0;
    element("rows-after").disabled = chosen.row + count >= found.length;
    const of = found.length === items.length ? `${items.length} items` : `${found.length} found of ${items.length} items`;
    element("rows").textContent = found.length > count ? `${chosen.row + 1} to ${chosen.row + rows.length} of ${of}` : of;
    const box = element("picture");
    if (!rows.length) {
      box.replaceChildren(make("p", items.length ? "No item of these windows has this in its name."
        : "The report names no item.", "note"));
      overview = null;
      return;
    }
    const perColumn = Math.ceil((last - first + 1) / Math.max(100, box.clientWidth / 2));
    const cells = rows.flatMap((item) => cellsOf(item, first, last, perColumn));
    const view = await draw(box, charts.items, cells, [startOf(first), edgeOf(last)], (spec, { encoding }, width) => {
      spec.height = rows.length * 20;
      encoding.y.scale.domain = rows.map((item) => names[item]);
      encoding.y.axis.labelLimit = Math.min(260, width / 3);
      encoding.color.legend.columns = width < 560 ? 1 : width < 1000 ? 3 : 6;
    });
    if (mine !== drawing) { view.finalize(); return; }
    overview?.finalize();
    overview = view;
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", `${rows.length} items from ${writeTime(startOf(first))} to ${writeTime(endOf(last))}, `
      + "each a row, marked in the windows in which it is named. The lists below hold the same.");
    view.addEventListener("click", (event, mark) => {
      if (mark?.datum?.item === undefined) return;
      const inside = event.clientX - box.querySelector("svg").getBoundingClientRect().left - view.origin()[0];
      const time = view.scale("x").invert(inside);
      const { windows: held } = items[mark.datum.item];
      let place = placeOf(held, mark.datum.from);
      while (place + 1 < held.length && startOf(held[place + 1]) <= time) place++;
      choose({ window: held[place], item: mark.datum.item });
    });
    await markWindow(view);
  };

  // ---- one window --------------------------------------------------------------------------------------------------

  const FEW = 100;
  const itemButton = (item) => {
    const button = make("button", names[item]);
    button.type = "button";
    button.dir = "auto";
    button.addEventListener("click", () => {
      choose({ item });
      element("item").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    });
    return button;
  };
  const listCard = (title, meaning, entries) => {
    const card = make("div", "", "card");
    const list = make("ul", "", "items");
    list.tabIndex = 0; // it scrolls
    list.setAttribute("aria-label", title);
    const add = (from, to) => entries.slice(from, to).forEach(({ item, text }) => {
      const line = make("li");
      line.append(itemButton(item), make("small", titles[item] && names[item] === titles[item] ? `${labels[item]}: ${text}` : text));
      list.append(line);
    });
    add(0, FEW);
    card.append(make("h3", `${title} (${entries.length})`), make("p", meaning, "note"), list);
    if (entries.length > FEW) {
      const more = make("button", `Show all ${entries.length}`);
      more.type = "button";
      more.addEventListener("click", () => { add(FEW); more.remove(); });
      card.append(more);
    }
    return card;
  };

  const drawWindow = () => {
    const w = chosen.window;
    element("earlier").disabled = w <= 0;
    element("later").disabled = w >= windows.count - 1;
    if (!windows.count) { element("when").textContent = "The report holds no window."; return; }
    const spoken = `${writeWindow(w)} (${zone}), window ${w + 1} of ${windows.count}`;
    element("slider").value = w;
    element("slider").setAttribute("aria-valuetext", spoken);
    element("when").textContent = spoken;
    const groups = { fresh: [], rising: [], falling: [], same: [], gone: [] };
    for (const item of all) {
      const now = stateAt(item, w), before = w ? stateAt(item, w - 1) : -1;
      if (now < 0 && before < 0) continue;
      const change = now < 0 || before < 0 ? 0 : strengths[now] - strengths[before];
      const [kind, text] = now < 0 ? ["gone", `before: ${texts[before]}`]
        : before < 0 ? ["fresh", w && firstOf[item] < w ? `${texts[now]}; back` : texts[now]]
        : change > tolerance ? ["rising", `${texts[now]} (before: ${texts[before]})`]
        : change < -tolerance ? ["falling", `${texts[now]} (before: ${texts[before]})`] : ["same", texts[now]];
      groups[kind].push({ item, text, strength: strengths[now < 0 ? before : now] });
    }
    Object.values(groups).forEach((entries) => entries.sort((a, b) => b.strength - a.strength || a.item - b.item));
    const { fresh, rising, falling, same, gone } = groups;
    const named = fresh.length + rising.length + falling.length + same.length;
    const count = named === 1 ? "1 item" : `${named} items`;
    element("changes").textContent = w
      ? `${count}: ${fresh.length} new, ${rising.length} rising, ${falling.length} falling, ${same.length} as before; ${gone.length} gone.`
      : `${count}. It is the first window of the report: there is nothing to compare it with.`;
    const cards = w ? [["New", "Not named in the window before.", fresh], ["Rising", "A larger size is stated than in the window before.", rising],
      ["Falling", "A smaller size is stated than in the window before.", falling], ["As before", "The same size is stated, or none.", same],
      ["Gone", "Named in the window before, and not in this one.", gone]] : [["Named", "", fresh]];
    element("lists").replaceChildren(...cards.filter(([, , entries]) => entries.length).map((card) => listCard(...card)));
  };

  // ---- one item ----------------------------------------------------------------------------------------------------

  const drawItem = async () => {
    const { item } = chosen;
    if (item < 0) return;
    const { windows: held, states } = items[item];
    const title = make("p", "", "title");
    const name = make("strong", names[item]);
    name.dir = "auto";
    const times = held.length === 1 ? "in 1 window" : `in ${held.length} windows`;
    title.append(name, make("small", `${titles[item] ? `${labels[item]}: ` : ""}named ${times}, first ${writeTime(startOf(held[0]))}, `
      + `last ${writeTime(startOf(held.at(-1)))} (${zone})`));
    element("history").replaceChildren(title);
    element("stretches").replaceChildren(stretchTable(held, states));
    const box = element("one-picture");
    // As long as the item was there, and a little before and after.
    const around = Math.max(12, Math.ceil((held.at(-1) - held[0]) / 20));
    const [first, last] = [Math.max(0, held[0] - around), Math.min(windows.count - 1, held.at(-1) + around)];
    const cells = cellsOf(item, first, last, Math.ceil((last - first + 1) / Math.max(100, box.clientWidth / 2)));
    const view = await draw(box, charts.item, cells, [startOf(first), edgeOf(last)], (spec, { encoding }) => {
      encoding.y.axis.title = strengthTitle;
      if (largestOf[item] <= 4) encoding.y.axis.values = [...Array(Math.max(largestOf[item], 0) + 1).keys()];
    });
    single?.finalize();
    single = view;
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", `${names[item]} over time; the table below holds the same.`);
    await markWindow(single);
  };

  const stretchTable = (held, states) => {
    const stretches = [];
    held.forEach((w, place) => {
      const last = stretches.at(-1);
      if (last && last.state === states[place] && last.to === w - 1) last.to = w;
      else stretches.push({ from: w, to: w, state: states[place] });
    });
    stretches.reverse();
    const box = make("div", "", "scroll");
    const table = make("table"), head = make("tr"), body = make("tbody");
    table.append(make("caption", "Each stretch in which the same was said, the latest first", "note"));
    for (const text of [`from (${zone})`, `to (${zone})`, "size"]) {
      const cell = make("th", text);
      cell.scope = "col";
      head.append(cell);
    }
    const add = (from, to) => stretches.slice(from, to).forEach(({ from: first, to: last, state }) => {
      const row = make("tr");
      row.append(make("td", writeTime(startOf(first))), make("td", writeTime(endOf(last))), make("td", texts[state]));
      body.append(row);
    });
    add(0, FEW);
    const top = make("thead");
    top.append(head);
    table.append(top, body);
    box.append(table);
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "Stretches of the item");
    if (stretches.length > FEW) {
      const more = make("button", `Show all ${stretches.length} stretches`);
      more.type = "button";
      more.addEventListener("click", () => { add(FEW); more.remove(); });
      box.append(more);
    }
    return box;
  };

  // ---- controls ----------------------------------------------------------------------------------------------------

  const choose = ({ window: w = chosen.window, item = chosen.item }) => {
    const isOther = item !== chosen.item;
    chosen.window = Math.min(Math.max(w, 0), Math.max(windows.count - 1, 0));
    chosen.item = item;
    drawWindow();
    if (isOther) drawItem(); else markWindow(single);
    markWindow(overview);
    if (+element("span").value) overviewSoon(); // the days around another window
    if (isOther) { element("which").value = names[item]; element("no-item").textContent = ""; }
  };
  const later = (run, wait) => { let timer; return () => { clearTimeout(timer); timer = setTimeout(run, wait); }; };
  const overviewSoon = later(drawOverview, 80);
  const setSlider = () => { element("slider").max = Math.max(windows.count - 1, 0); };
  setSlider();
  element("slider").addEventListener("input", (event) => choose({ window: +event.target.value }));
  element("earlier").addEventListener("click", () => choose({ window: chosen.window - 1 }));
  element("later").addEventListener("click", () => choose({ window: chosen.window + 1 }));
  element("find").addEventListener("input", later(() => { chosen.row = 0; drawOverview(); }, 120));
  element("order").addEventListener("change", () => { chosen.row = 0; drawOverview(); });
  element("span").addEventListener("change", drawOverview);
  element("rows-before").addEventListener("click", () => { chosen.row = Math.max(0, chosen.row - rowsAtOnce()); drawOverview(); });
  element("rows-after").addEventListener("click", () => { chosen.row += rowsAtOnce(); drawOverview(); });
  element("which").addEventListener("input", ({ target }) => {
    const exact = all.find((item) => names[item] === target.value || labels[item] === target.value);
    if (exact !== undefined && exact !== chosen.item) { choose({ item: exact }); return; }
    const found = matching(target.value);
    element("no-item").textContent = found.length ? "" : "No item has this in its name.";
    element("all-items").replaceChildren(...found.slice(0, 50).map((item) => {
      const option = make("option");
      option.value = names[item];
      return option;
    }));
  });
  element("which").addEventListener("change", ({ target }) => {
    const found = matching(target.value);
    if (found.length) choose({ item: all.find((item) => names[item] === target.value) ?? found[0] });
  });
  element("save").addEventListener("click", async () => {
    if (!overview) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([await overview.toSVG()], { type: "image/svg+xml" }));
    link.download = "items.svg";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10e3);
  });
  const redraw = () => { drawOverview(); drawItem(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", later(() => { if (innerWidth !== width) { width = innerWidth; redraw(); } }, 150));

  // A long report opens at its end: so many windows would be too small to see.
  if (windows.step && windows.count > WINDOWS_AT_ONCE) {
    const spans = [...element("span").options].map(({ value }) => value).filter((value) => value > 0);
    element("span").value = spans.find((value) => value / windows.step <= WINDOWS_AT_ONCE) ?? spans.at(-1);
  }
  if (chosen.item >= 0) element("which").value = names[chosen.item];
  drawWindow();
  Promise.all([drawOverview(), drawItem()]).then(() => { document.documentElement.dataset.ready = "yes"; });

  /** Adds windows of a report that goes on; false if one does not fit. Who looks at the latest window then sees the newest. */
  const addWindows = (added) => {
    const isLatest = chosen.window >= windows.count - 1;
    if (!added.every(addWindow)) return false;
    strengthTitle = added.at(-1).strength;
    measure();
    setSlider();
    if (isLatest) chosen.window = windows.count - 1;
    drawWindow();
    redraw();
    return true;
  };
  return { live: report.live, addWindows, make, element, writeTime, zone };
})();
