"use strict";
// A served page: hears of each window that closes, and finds its way back after the server was away.
(() => {
  const { live, addWindows, make, element, writeTime, zone } = reportPage;
  const SILENCE = 40e3; // the server says something each 15 s
  const MOST_GROWTH = 20_000; // windows; after that the page begins anew, with the latest alone
  let { after } = live;
  let source = null, heard = 0, waiting = [], timer = 0, grown = 0, troubled = "";

  const say = (text, isWell) => {
    element("live-state").textContent = troubled && isWell ? troubled : text;
    element("live-state").dataset.well = isWell && !troubled ? "yes" : "no";
  };
  const leave = () => { source?.close(); source = null; };
  // Not more often than each 2 s, whatever the server says.
  const loadAnew = () => { leave(); setTimeout(() => location.reload(), Math.max(0, 2e3 - performance.now())); };

  const show = () => {
    timer = 0;
    const added = waiting.splice(0);
    grown += added.length;
    if (grown > MOST_GROWTH || !addWindows(added)) { loadAnew(); return; }
    element("summary").textContent = added.at(-1).summary;
    say(`Live. The latest window was heard of at ${writeTime(Date.now())} (${zone}).`, true);
  };
  const showOperator = ({ rows, warning }) => {
    const list = make("dl");
    for (const [name, value] of rows) list.append(make("dt", name), make("dd", value));
    element("operator-numbers").replaceChildren(...(warning ? [make("p", warning, "warning")] : []), list);
  };

  const connect = () => {
    if (document.hidden || source) return;
    heard = Date.now();
    const mine = source = new EventSource(`events?after=${encodeURIComponent(after)}`);
    const on = (kind, run) => mine.addEventListener(kind, (event) => {
      if (mine !== source) return;
      heard = Date.now();
      run(event.data ? JSON.parse(event.data) : null, event);
    });
    on("window", (added, event) => {
      after = event.lastEventId;
      waiting.push(added);
      timer ||= setTimeout(show, 100);
    });
    on("status", ({ summary, problem }) => {
      troubled = problem;
      element("summary").textContent = summary;
      say("Live. Windows appear as they close.", true);
    });
    on("operator", showOperator);
    on("reload", loadAnew);
    on("beat", () => {});
    mine.onerror = () => { if (mine === source) retry(); };
  };
  const retry = async () => {
    leave();
    say("The server does not answer. What is shown stays; trying again.", false);
    await new Promise((done) => setTimeout(done, 1e3 + Math.random() * 1e3));
    const answer = await fetch("alive", { cache: "no-store" }).catch(() => null);
    if (answer?.ok) connect();
    else {
      if (answer?.status === 401) say("The token is another one now: open the address that shh serve prints.", false);
      if (!document.hidden && !source) retry();
    }
  };

  setInterval(() => { if (source && Date.now() - heard > SILENCE) retry(); }, 5e3);
  // A browser has few connections for all of its tabs: those that nobody sees leave theirs to others.
  document.addEventListener("visibilitychange", () => { if (document.hidden) leave(); else connect(); });
  connect();
})();
