"use strict";
// How a served page hears from its server, and finds its way back after the server was away.
// after: what the page holds already. handlers: by kind of event, called with its data. words: what to say while all is well.
const followServer = (after, handlers, words = () => "Live. What is new appears by itself.") => {
  const SILENCE = 40e3; // the server says something each 15 s
  let source = null, heard = 0, troubled = "", finished = "", isLive = false;

  const say = (text, isWell) => {
    isLive = isWell;
    const badge = document.getElementById("live-state");
    const shown = isWell ? troubled || finished || words() : text;
    if (badge.textContent !== shown) badge.textContent = shown;
    badge.dataset.well = isWell && !troubled ? "yes" : "no";
  };
  const summarize = (text) => { document.getElementById("summary").textContent = text; };
  const leave = () => { source?.close(); source = null; };
  // Not more often than each 2 s, whatever the server says.
  const loadAnew = () => { leave(); setTimeout(() => location.reload(), Math.max(0, 2e3 - performance.now())); };

  const connect = () => {
    if (document.hidden || source) return;
    heard = Date.now();
    const mine = source = new EventSource(`events?after=${encodeURIComponent(after)}`);
    const on = (kind, run) => mine.addEventListener(kind, (event) => {
      if (mine !== source) return;
      heard = Date.now();
      if (event.lastEventId) after = event.lastEventId;
      run(event.data ? JSON.parse(event.data) : null);
    });
    for (const [kind, run] of Object.entries(handlers)) on(kind, run);
    on("status", ({ summary, problem, state }) => {
      troubled = problem;
      finished = state;
      summarize(summary);
      say("", true);
    });
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

  setInterval(() => {
    if (source && Date.now() - heard > SILENCE) retry();
    else if (isLive) say("", true);
  }, 5e3);
  // A browser has few connections for all of its tabs: those that nobody sees leave theirs to others.
  document.addEventListener("visibilitychange", () => { if (document.hidden) leave(); else connect(); });
  connect();
  return { say, summarize, loadAnew };
};
