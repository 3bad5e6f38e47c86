"use strict";
// Items over time as strips of rectangles: of a report that is read (columns.js).
const stripsOf = ({ windows, sizes, strengths, classes }, { items, placeOf }) => {
  const drawn = (tag, attributes, ...inside) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...inside);
    return made;
  };
  const DAY = 86400e3, LEAST_PIXELS = 6, LEAST_PIXELS_OF_DAYS = 2;
  const JOINED = [1, 2, 3, 4, 6, 8, 12, 24, 48, 96, 168, 336, 672, 1344, 2688, 5376, 10752];
  /** How many windows share a column of a picture: so many that it can be seen, or those of a day. */
  const joinedOf = (number, width) => {
    if (!windows.step) return 1;
    const pixels = (joined) => (joined * width) / number;
    const days = DAY / windows.step;
    return [...JOINED, days].sort((a, b) => a - b).find((joined) => Number.isInteger(joined)
      && pixels(joined) >= (joined * windows.step >= DAY ? LEAST_PIXELS_OF_DAYS : LEAST_PIXELS)) ?? JOINED.at(-1);
  };
  /** Of an item: columns with the strongest size in it, and the share of its windows in which it is named. */
  const columnsOf = (item, first, last, joined) => {
    const { windows: held, states } = items[item], found = [];
    for (let place = placeOf(held, first); place < held.length && held[place] <= last; place++) {
      const column = Math.floor((held[place] - first) / joined), state = states[place];
      if (found.at(-1)?.column !== column) found.push({ column, named: 0, state });
      const open = found.at(-1);
      open.named++;
      if (strengths[state] > strengths[open.state]) open.state = state;
    }
    return found;
  };
  const rectsOf = (columns, joined, number) => {
    const rects = [];
    for (const { column, named, state } of columns) {
      const from = column * joined, to = Math.min(from + joined, number), share = named / (to - from), size = sizes[state];
      const open = rects.at(-1);
      if (open && open.to === from && open.share === share && open.size === size) open.to = to;
      else rects.push({ from, to, share, size });
    }
    return rects.map(({ from, to, share, size }) =>
      drawn("rect", { x: from, width: to - from, y: 1 - share, height: share, class: `size-${shade(size)}` }));
  };
  const shade = (size) => (classes.length === 1 ? 3 : Math.round((size * 5) / (classes.length - 1)));

  return { drawn, joinedOf, columnsOf, rectsOf, shade };
};
