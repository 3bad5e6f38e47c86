"use strict";
// The columns of a report (report_columns.py): its windows, its items, and its times in a time zone. Draws nothing.
const readReport = ({ columns, zone: wished }) => {
  const { windows, labels, titles, texts, strengths, sizes, classes } = columns;
  const names = [...(columns.names.length ? columns.names : labels)];

  // ---- windows and items -------------------------------------------------------------------------------------------

  const startOf = (w) => (windows.step ? windows.starts[0] + w * windows.step : windows.starts[w]);
  const endOf = (w) => (windows.step ? windows.ends[0] + w * windows.step : windows.ends[w]);
  // Where a rectangle ends: of sliding windows where the next one begins.
  const edgeOf = (w) => (windows.step ? startOf(w) + windows.step : endOf(w));
  const stateOf = new Map([...columns.signs].map((sign, state) => [sign, state]));

  /** By item: the windows in which it is named, rising, and what is said of it there. */
  const items = columns.presence.map((parts) => {
    let at = 0;
    const held = [], states = [];
    for (const part of parts) {
      if (typeof part === "number") at += part;
      else for (const sign of part) { held.push(at++); states.push(stateOf.get(sign)); }
    }
    return { windows: Float64Array.from(held), states: Uint16Array.from(states) };
  });

  /** The first place in a rising list whose value is at least this. */
  const placeOf = (list, value) => {
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle] < value) low = middle + 1; else high = middle;
    }
    return low;
  };
  const stateAt = (item, w) => {
    const place = placeOf(items[item].windows, w);
    return items[item].windows[place] === w ? items[item].states[place] : -1;
  };

  // ---- times -------------------------------------------------------------------------------------------------------

  // In UTC where the browser does not know the zone.
  const [zone, clock] = (() => {
    const options = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit",
      second: "2-digit", hourCycle: "h23" };
    const clockOf = (timeZone) => [timeZone, new Intl.DateTimeFormat("en-US", { ...options, timeZone })];
    try { return clockOf(wished); } catch { return clockOf("UTC"); }
  })();
  const pad = (number) => String(number).padStart(2, "0");
  /** The local time as if it were UTC, in milliseconds. */
  const wall = (time) => {
    const part = Object.fromEntries(clock.formatToParts(time).map(({ type, value }) => [type, +value]));
    return Date.UTC(part.year, part.month - 1, part.day, part.hour, part.minute, part.second);
  };
  const writeTime = (time) => {
    const text = new Date(wall(time)).toISOString();
    return `${text.slice(0, 10)} ${text.slice(11, text.slice(17, 19) === "00" ? 16 : 19)}`;
  };
  const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
  const writeWindow = (w) => {
    const [from, to] = [writeTime(startOf(w)), writeTime(endOf(w))];
    return `${DAYS[new Date(wall(startOf(w))).getUTCDay()]} ${from} to ${from.slice(0, 10) === to.slice(0, 10) ? to.slice(11) : to}`;
  };
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const DAY = 86400e3, HOUR = 3600e3, MINUTE = 60e3;
  const STEPS = [1, 5, 15, 30].map((n) => n * 1e3).concat([1, 5, 15, 30].map((n) => n * MINUTE),
    [1, 3, 6, 12].map((n) => n * HOUR), [1, 2, 7, 14, 28, 91, 364, 1820, 18200].map((n) => n * DAY));
  /** Round local times in a range and how each is written. */
  const ticksOf = (from, to, most) => {
    const [first, last] = [wall(from), wall(to)];
    const step = STEPS.find((each) => (last - first) / each <= most) ?? STEPS.at(-1);
    const found = [];
    for (let at = Math.ceil(first / step) * step; at <= last && found.length <= most; at += step) {
      let time = at - (wall(at) - at);
      time = at - (wall(time) - time); // where the clock was put forward or back in between
      const date = new Date(at);
      const day = `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}`;
      const hour = `${pad(date.getUTCHours())}:${pad(date.getUTCMinutes())}`;
      const text = step >= 28 * DAY ? `${day} ${date.getUTCFullYear()}` : step >= DAY || at % DAY === 0 ? day
        : step >= MINUTE ? hour : `${hour}:${pad(date.getUTCSeconds())}`;
      if (time >= from && time <= to) found.push([time, text]);
    }
    return found;
  };

  return { zone, names, startOf, endOf, edgeOf, items, placeOf, stateAt, writeTime, writeWindow, ticksOf };
};
