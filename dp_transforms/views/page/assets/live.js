"use strict";
// A served page of a report: adds each window that closes.
(() => {
  const { live, addWindows, make, element, writeTime, zone } = reportPage;
  const MOST_GROWTH = 20_000; // windows; after that the page begins anew, with the latest alone
  let waiting = [], timer = 0, grown = 0, cameAt = 0;

  // Says something else once a minute at most: it is read out.
  const cameWhen = () => {
    const minutes = Math.floor((Date.now() - cameAt) / 60e3);
    if (minutes < 1) return "less than a minute ago";
    if (minutes < 90) return minutes === 1 ? "a minute ago" : `${minutes} minutes ago`;
    return `at ${writeTime(cameAt)} (${zone})`;
  };
  const words = () => (cameAt ? `Live. The latest window came ${cameWhen()}.` : "Live. New windows appear by themselves.");
  const show = () => {
    timer = 0;
    const added = waiting.splice(0);
    grown += added.length;
    if (grown > MOST_GROWTH || !addWindows(added)) { server.loadAnew(); return; }
    cameAt = Date.now();
    server.summarize(added.at(-1).summary);
    server.say("", true);
  };
  const showOperator = ({ rows, warning }) => {
    const list = make("dl");
    for (const [name, value] of rows) list.append(make("dt", name), make("dd", value));
    element("operator-numbers").replaceChildren(...(warning ? [make("p", warning, "warning")] : []), list);
  };
  const server = followServer(live.after, {
    window: (added) => {
      waiting.push(added);
      timer ||= setTimeout(show, 100);
    },
    operator: showOperator,
  }, words);
})();
