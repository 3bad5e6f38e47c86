"use strict";
// The page of a report. All text of the report reaches the document as text (textContent).
(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const { windows, labels, titles, texts, strengths, sizes, classes, least_change: leastChange } = report.columns;
  const read = readReport(report);
  const { zone, names, startOf, endOf, edgeOf, items, placeOf, stateAt, writeTime, writeWindow, ticksOf } = read;
  const { drawn, joinedOf, columnsOf, rectsOf, shade } = stripsOf(report.columns, read);
  const strengthTitle = report.strength;
  const element = (id) => document.getElementById(id);
  const make = (tag, text = "", className = "") => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const makeButton = (text, className, run) => {
    const button = make("button", text, className);
    button.type = "button";
    button.addEventListener("click", run);
    return button;
  };
  const whole = (number) => number.toLocaleString("en-US");
  const count = (number, what) => `${whole(number)} ${what}${number === 1 ? "" : "s"}`;
  /** "at least 480 users" as in a column of numbers. */
  const brief = (text) => text.replaceAll("at least ", "≥\u00a0").replaceAll("about ", "≈\u00a0")
    .replaceAll(/ users(, with noise)?| the threshold|size /g, "");
  /** Some entries, and a button for the rest: nothing is hidden without a sign. */
  const addSome = (list, entries, few, what) => {
    list.replaceChildren(...entries.slice(0, few).map((entry) => entry()));
    if (entries.length <= few) return;
    const rest = make(list.tagName === "OL" ? "li" : "span", list.tagName === "OL" ? "" : ", ", "rest");
    rest.append(makeButton(`and ${count(entries.length - few, what)} more`, "link", () => {
      rest.remove();
      list.append(...entries.slice(few).map((entry) => entry()));
      mark();
    }));
    list.append(rest);
  };

  // ---- what is chosen, and stands in the address --------------------------------------------------------------------

  const all = [], firstOf = [], largestOf = [], searched = []; // by item
  items.forEach(({ windows: held, states }, item) => {
    all[item] = item;
    firstOf[item] = held[0];
    largestOf[item] = states.reduce((most, state) => Math.max(most, strengths[state]), -Infinity);
    searched[item] = `${labels[item]}\n${titles[item] ?? ""}`.toLowerCase();
  });
  const goesOn = report.goes_on; // else what is latest may be long ago
  const lastWindow = Math.max(windows.count - 1, 0);
  /** The latest window whose sizes add up to as much as those of the middle one of all that have an item. */
  const busy = (() => {
    const sums = new Map();
    for (const { windows: held, states } of items) held.forEach((w, n) => sums.set(w, (sums.get(w) ?? 0) + strengths[states[n]]));
    const middle = [...sums.values()].sort((a, b) => a - b)[sums.size >> 1];
    return [...sums].reduce((latest, [w, sum]) => (sum >= middle && w > latest ? w : latest), 0);
  })();
  const chosen = { window: goesOn ? lastWindow : busy, item: -1, rows: 0 };
  const readAddress = () => {
    const asked = new URLSearchParams(location.hash.slice(1)), time = Date.parse(asked.get("window"));
    if (windows.count && time >= startOf(0)) {
      const w = windows.step ? Math.floor((time - startOf(0)) / windows.step) : placeOf(windows.starts, time + 1) - 1;
      chosen.window = Math.min(w, lastWindow);
    }
    if (asked.has("item") || asked.has("window")) chosen.item = labels.indexOf(asked.get("item"));
  };
  const writeAddress = () => {
    if (!windows.count) return;
    const asked = new URLSearchParams(), isNow = goesOn && chosen.window === lastWindow; // which moves on
    if (!isNow) asked.set("window", new Date(startOf(chosen.window)).toISOString());
    if (chosen.item >= 0) asked.set("item", labels[chosen.item]);
    history.replaceState(null, "", `#${asked}`);
  };
  /** Marks the chosen item wherever it stands. */
  const mark = () => document.querySelectorAll("[data-item]").forEach((row) => {
    const isChosen = +row.dataset.item === chosen.item;
    row.classList.toggle("marked", isChosen);
    row.querySelector("button").setAttribute("aria-pressed", isChosen);
  });
  const itemButton = (item) => {
    const button = makeButton(names[item], "link", () => choose({ item }));
    button.dir = "auto";
    return button;
  };


  // ---- one window --------------------------------------------------------------------------------------------------

  const FEW = 10;
  const SIGNS = { new: "★ new", rising: "▲ rising", falling: "▼ falling", "": "" };
  /** The rule of trends.py. */
  const changeOf = (item, w) => {
    const now = stateAt(item, w), before = w ? stateAt(item, w - 1) : -1;
    if (now < 0) return before < 0 ? null : "gone";
    if (!w) return "";
    if (before < 0) return "new";
    const [a, b] = [strengths[before], strengths[now]], low = Math.min(a, b), high = Math.max(a, b);
    if (leastChange === null || high - low < leastChange || high < 1.5 * low) return "";
    return b > a ? "rising" : "falling";
  };
  /** The largest first. The rule of trends.py; of equal sizes a text has nothing but a noisy count more. */
  const inOrder = (named, w) => {
    const keyOf = (item) => {
      const state = stateAt(item, w);
      return [-strengths[state], -texts[state].replace(/\D/g, ""), labels[item]];
    };
    return named.map((item) => [item, keyOf(item)]).sort(([, a], [, b]) => {
      const at = a.findIndex((part, place) => part !== b[place]);
      return at < 0 ? 0 : a[at] < b[at] ? -1 : 1;
    }).map(([item]) => item);
  };
  const drawWindow = () => {
    const w = chosen.window;
    element("earlier").disabled = w <= 0;
    element("later").disabled = element("latest").disabled = w >= lastWindow;
    if (!windows.count) {
      element("when").textContent = "No item was named in any window.";
      element("slider").disabled = true;
      element("run").parentElement.hidden = true;
      return;
    }
    const spoken = `${writeWindow(w)} (${zone}), window ${whole(w + 1)} of ${whole(windows.count)}`;
    element("slider").value = w;
    element("slider").setAttribute("aria-valuetext", spoken);
    element("when").textContent = writeWindow(w);
    element("which").textContent = w === lastWindow ? (goesOn ? "Now" : "Latest window")
      : w === busy && !goesOn ? "Latest busy window" : `Window ${whole(w + 1)} of ${whole(windows.count)}`;
    const changes = all.map((item) => changeOf(item, w));
    const strengthOf = (item) => strengths[stateAt(item, w)];
    const named = inOrder(all.filter((item) => stateAt(item, w) >= 0), w);
    const gone = all.filter((item) => changes[item] === "gone");
    const of = (change) => changes.filter((each) => each === change).length;
    const compared = w ? `${of("new")} new, ${of("rising")} rising, ${of("falling")} falling, ${gone.length} gone`
      : "the first window of the page, so there is nothing to compare it with";
    element("changes").textContent = (named.length ? `${count(named.length, "item")}: ${compared}.` : "No item was named.") + ` Times in ${zone}.`;
    const most = Math.max(1, ...named.map(strengthOf));
    let rank = 0;
    const ranks = named.map((item, place) => (rank = place && strengthOf(named[place - 1]) === strengthOf(item) ? rank : place + 1));
    addSome(element("ranked"), named.map((item, place) => () => {
      const text = texts[stateAt(item, w)], line = make("li"), bar = make("span", "", "bar"), fill = make("span");
      line.dataset.item = item;
      fill.style.width = `${(100 * Math.max(strengthOf(item), 0)) / most}%`;
      bar.append(fill);
      const size = make("span", brief(text), strengthOf(item) > 0 ? "size" : "size quiet"), spoken = make("span", text, "hidden");
      size.setAttribute("aria-hidden", "true");
      line.append(make("span", ranks[place], "rank"), itemButton(item), bar, size, spoken,
        make("span", SIGNS[changes[item]], `badge ${changes[item]}`));
      return line;
    }), FEW, "item");
    element("gone").replaceChildren();
    if (gone.length) {
      const list = make("span");
      addSome(list, gone.map((item, place) => () => {
        const entry = make("span", place ? ", " : "");
        entry.append(itemButton(item));
        return entry;
      }), 5, "item");
      element("gone").append("Gone since the window before: ", list);
    }
  };

  // ---- the whole run -----------------------------------------------------------------------------------------------

  const rangeShown = () => {
    const span = +element("span").value, [begin, end] = [startOf(0), edgeOf(lastWindow)];
    if (!span || span >= end - begin || !windows.step) return [0, lastWindow];
    const middle = Math.min(Math.max(startOf(chosen.window), begin + span / 2), end - span / 2);
    const near = (time) => Math.round((time - begin) / windows.step);
    return [near(middle - span / 2), near(middle + span / 2) - 1];
  };
  const stripWidth = () => Math.max(200, element("picture").clientWidth - (innerWidth <= 640 ? 0 : 272)); // as in page.css
  /** Where a window begins in a range, in percent. Windows without a grid stand one beside the other. */
  const percent = (w, first, last) => (100 * (w - first)) / (last - first + 1);
  const ticksAt = (first, last) => {
    if (!windows.step) return [first, (first + last) >> 1].map((w) => [percent(w, first, last), writeTime(startOf(w))]);
    const [from, to] = [startOf(first), edgeOf(last)], most = Math.min(9, Math.max(2, Math.floor(stripWidth() / 75)));
    return ticksOf(from, to, most).map(([time, text]) => [(100 * (time - from)) / (to - from), text]);
  };
  const overlay = (first, last, isAxis) => {
    const box = make("div", "", isAxis ? "axis" : "lines");
    for (const [at, text] of ticksAt(first, last)) {
      const fits = (at / 100) * stripWidth() + 8 * text.length < stripWidth();
      const tick = make("span", isAxis && fits ? text : "", "tick");
      tick.style.left = `${at}%`;
      box.append(tick);
    }
    if (!isAxis && chosen.window >= first && chosen.window <= last) {
      const now = make("span", "", "now");
      now.style.left = `${percent(chosen.window, first, last)}%`;
      now.style.width = `${100 / (last - first + 1)}%`;
      box.append(now);
    }
    return box;
  };
  const rowsAtOnce = () => (innerWidth < 640 ? 15 : 30);
  const byPlace = (a, b) => firstOf[a] - firstOf[b] || a - b;
  const drawRun = () => {
    if (!windows.count) return;
    const [first, last] = rangeShown(), number = last - first + 1;
    const text = element("find").value.trim().toLowerCase();
    const isThere = (item) => items[item].windows[placeOf(items[item].windows, first)] <= last;
    const found = all.filter((item) => searched[item].includes(text) && isThere(item));
    chosen.rows = Math.max(chosen.rows, rowsAtOnce());
    const rows = found.toSorted((a, b) => largestOf[b] - largestOf[a] || a - b).slice(0, chosen.rows).sort(byPlace);
    const picture = element("picture"), list = make("ul", "", "rows");
    picture.replaceChildren();
    element("more").hidden = rows.length === found.length;
    element("more").textContent = `Show ${Math.min(30, found.length - rows.length)} more`;
    if (!rows.length) {
      element("shown").textContent = "No item of these windows has this in its name.";
      return;
    }
    picture.append(legend(), overlay(first, last, true), list);
    const joined = joinedOf(number, stripWidth());
    const which = rows.length < found.length ? `The ${whole(rows.length)} largest of ${count(found.length, "item")}` : count(found.length, "item");
    element("shown").textContent = `${which}${text ? " with this in the name" : ""}, in the order in which they appeared. `
      + (joined > 1 ? `A column is ${count(joined, "window")}: its height is the share of them in which the item was named, its colour the largest size.`
        : "The darker (on a dark page the lighter), the larger the size.");
    for (const item of rows) {
      const row = make("li"), strip = drawn("svg", { viewBox: `0 0 ${number} 1`, preserveAspectRatio: "none", "aria-hidden": "true" },
        ...rectsOf(columnsOf(item, first, last, joined), joined, number));
      row.dataset.item = item;
      const label = itemButton(item);
      const times = count(items[item].windows.length, "window");
      label.title = names[item];
      label.setAttribute("aria-label", `${names[item]}: named in ${times}, at most ${texts[largestState(item)]}`);
      const windowAt = (event) => {
        const { left, width: wide } = strip.getBoundingClientRect();
        return Math.min(last, first + Math.floor(((event.clientX - left) / wide) * number));
      };
      strip.addEventListener("click", (event) => choose({ window: windowAt(event), item }));
      strip.addEventListener("pointermove", (event) => showTip(event, item, first + Math.floor((windowAt(event) - first) / joined) * joined, joined));
      strip.addEventListener("pointerleave", () => { tip.hidden = true; });
      row.append(label, strip);
      list.append(row);
    }
    list.append(overlay(first, last, false));
    mark();
  };
  const largestState = (item) => items[item].states.reduce((most, state) => (strengths[state] > strengths[most] ? state : most));
  const legend = () => {
    const box = make("ul", "", "legend");
    classes.forEach((text, size) => {
      const entry = make("li");
      entry.append(make("span", "", `swatch size-${shade(size)}`), text);
      box.append(entry);
    });
    return box;
  };
  const tip = make("div", "", "tip");
  tip.hidden = true;
  document.body.append(tip);
  const showTip = (event, item, w, joined) => {
    const [cell] = columnsOf(item, w, Math.min(w + joined - 1, lastWindow), joined);
    tip.hidden = !cell;
    if (!cell) return;
    const until = Math.min(w + joined - 1, lastWindow);
    tip.textContent = `${names[item]}\n${writeTime(startOf(w))} to ${writeTime(endOf(until))}\n`
      + (joined > 1 ? `named in ${cell.named} of ${count(until - w + 1, "window")}, at most: ${texts[cell.state]}` : texts[stateAt(item, w)]);
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 300)}px`;
    tip.style.top = `${event.clientY + 14}px`;
  };

  // ---- one item ----------------------------------------------------------------------------------------------------

  const drawItem = () => {
    const { item } = chosen, panel = element("panel");
    panel.hidden = item < 0;
    document.documentElement.classList.toggle("with-panel", item >= 0);
    if (item < 0) return;
    const { windows: held } = items[item];
    const name = make("h2", names[item]), close = makeButton("✕", "close", () => choose({ item: -1 }));
    name.id = "item";
    name.tabIndex = -1;
    name.dir = "auto";
    close.setAttribute("aria-label", "Close");
    const most = texts[largestState(item)];
    const said = make("p", `${titles[item] ? `${labels[item]}. ` : ""}Named in ${count(held.length, "window")}, first ${writeTime(startOf(held[0]))}, `
      + `last ${writeTime(startOf(held.at(-1)))} (${zone}). The most: ${most}.`);
    panel.replaceChildren(close, name, said, historyOf(item), stretchesOf(item));
  };
  /** Its sizes over time, as long as it was there. */
  const historyOf = (item) => {
    const { windows: held } = items[item], [first, last] = [held[0], held.at(-1)], number = last - first + 1;
    const joined = joinedOf(number, 1100), most = Math.max(1, largestOf[item]), figure = make("figure");
    const bars = columnsOf(item, first, last, joined).map(({ column, state }) => {
      const height = Math.max(strengths[state], 0) / most;
      return drawn("rect", { x: column * joined, width: joined, y: 0.97 * (1 - height), height: 0.97 * height + 0.03, class: "history" });
    });
    const now = drawn("rect", { x: chosen.window - first, width: 1, y: 0, height: 1, class: "here" });
    const chart = drawn("svg", { viewBox: `0 0 ${number} 1`, preserveAspectRatio: "none", "aria-hidden": "true" },
      ...(chosen.window >= first && chosen.window <= last ? [now] : []), ...bars);
    const ends = make("p", "", "ends");
    ends.append(make("span", writeTime(startOf(first))), make("span", writeTime(endOf(last))));
    figure.append(make("figcaption", `${strengthTitle}: up to ${whole(largestOf[item])}`, "note"), chart, ends);
    return figure;
  };
  const stretchesOf = (item) => {
    const { windows: held, states } = items[item], stretches = [];
    held.forEach((w, place) => {
      const last = stretches.at(-1), said = brief(texts[states[place]]);
      if (last && last.said === said && last.to === w - 1) last.to = w;
      else stretches.push({ from: w, to: w, said });
    });
    stretches.reverse();
    const table = make("table"), head = make("tr"), body = make("tbody"), top = make("thead");
    for (const text of [`window (${zone})`, "size"]) {
      const cell = make("th", text);
      cell.scope = "col";
      head.append(cell);
    }
    top.append(head);
    const line = ({ from, to, said }) => {
      const row = make("tr"), told = make("td", said);
      row.append(make("td", `${writeTime(startOf(from))} to ${writeTime(endOf(to)).replace(`${writeTime(startOf(from)).slice(0, 11)}`, "")}`), told);
      return row;
    };
    const MANY = 100;
    body.append(...stretches.slice(0, MANY).map(line));
    table.append(make("caption", "Each stretch in which the same was said, the latest first", "note"), top, body);
    if (stretches.length <= MANY) return table;
    const box = make("div");
    const more = makeButton(`Show all ${count(stretches.length, "stretch").replace("stretchs", "stretches")}`, "", () => {
      body.append(...stretches.slice(MANY).map(line));
      more.remove();
    });
    box.append(table, more);
    return box;
  };

  // ---- controls ----------------------------------------------------------------------------------------------------

  const choose = ({ window: w = chosen.window, item = chosen.item }) => {
    const before = chosen.item;
    chosen.window = Math.min(Math.max(w, 0), lastWindow);
    chosen.item = item;
    drawWindow();
    drawItem();
    runSoon();
    mark();
    writeAddress();
    if (item >= 0 && item !== before) element("item").focus({ preventScroll: true });
    if (item < 0 && before >= 0) document.querySelector(`[data-item="${before}"] button`)?.focus({ preventScroll: true });
  };
  const later = (run, wait) => { let timer; return () => { clearTimeout(timer); timer = setTimeout(run, wait); }; };
  const runSoon = later(drawRun, 60);
  element("slider").max = lastWindow;
  element("slider").addEventListener("input", (event) => choose({ window: +event.target.value }));
  element("earlier").addEventListener("click", () => choose({ window: chosen.window - 1 }));
  element("later").addEventListener("click", () => choose({ window: chosen.window + 1 }));
  element("latest").addEventListener("click", () => choose({ window: lastWindow }));
  element("find").addEventListener("input", () => { chosen.rows = 0; runSoon(); });
  element("span").addEventListener("change", drawRun);
  element("more").addEventListener("click", () => { chosen.rows += 30; drawRun(); });
  document.addEventListener("keydown", ({ key }) => { if (key === "Escape" && chosen.item >= 0) choose({ item: -1 }); });
  addEventListener("hashchange", () => { readAddress(); drawWindow(); drawItem(); drawRun(); });
  new ResizeObserver(runSoon).observe(element("picture"));

  for (const option of [...element("span").options]) {
    if (windows.count && +option.value >= edgeOf(lastWindow) - startOf(0)) option.remove();
  }
  readAddress();
  drawWindow();
  drawItem();
  drawRun();
  // Who only watches sees what is new.
  const isOnlyWatched = () => chosen.window === lastWindow && chosen.item < 0 && !element("find").value;
  if (goesOn) setInterval(() => { if (isOnlyWatched()) location.reload(); }, 60e3);
  document.documentElement.dataset.ready = "yes";
})();
