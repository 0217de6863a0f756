// The chart: losses against tokens, time or bytes, as SVG of the width of its element.
const chart = (() => {
  const START_UP = 0.15; // part of the axis whose losses may lie above the chart
  const DOTS = 60;       // validation points that are few enough for dots
  const PIXELS = 2.5;
  const HEIGHT = 320, LEFT = 52, RIGHT = 12, TOP = 10, BOTTOM = 30;
  const TIMES = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 57600, 86400, 172800,
    345600, 604800, 1209600, 2592000, 5184000, 10368000, 31536000];
  const TEXTS = {tokens: units.count, seconds: units.duration, bytes: units.bytes};
  const curves = {train: empty(), validation: empty()};
  let axis = "tokens", view = null;

  function empty() {
    return {round: [], tokens: [], seconds: [], bytes: [], loss: [], least: null, largest: null};
  }

  // Replaces the points from `news.from` on.
  function take(name, news) {
    const curve = curves[name];
    for (const key of ["round", "tokens", "seconds", "bytes", "loss"]) {
      curve[key].length = Math.min(curve[key].length, news.from);
      curve[key].push(...news[key]);
    }
    for (const key of ["least", "largest"]) {
      if (!news[key]) {
        curve[key] = null;
        continue;
      }
      curve[key] = (curve[key] || curve.loss.slice(0, news.from)).slice(0, news.from).concat(news[key]);
    }
  }

  function element(name, attributes, parent) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (parent) parent.append(node);
    return node;
  }

  // A step of 1, 2 or 5 times a power of ten that gives at most `most` lines.
  function step(span, most) {
    const raw = span / most, power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999);
  }

  function ticks(low, high, most, steps) {
    const by = (steps && steps.find((n) => (high - low) / n <= most)) || step(high - low, most), list = [];
    for (let i = Math.ceil(low / by); i * by <= high * (1 + 1e-9); i++) list.push(i * by);
    return list;
  }

  // The range of losses: after the start-up, and all validation losses behind it.
  function range(low, high) {
    const losses = [];
    for (const curve of [curves.train, curves.validation]) {
      const x = curve[axis], from = x.length < 8 ? low : low + START_UP * (high - low);
      curve.loss.forEach((loss, i) => { if (loss !== null && x[i] >= from) losses.push(loss); });
    }
    if (!losses.length) return [0, 1];
    const least = losses.reduce((a, b) => Math.min(a, b)), largest = losses.reduce((a, b) => Math.max(a, b));
    const pad = (largest - least) * 0.06 || Math.abs(largest) * 0.05 || 0.5;
    return [least - pad, largest + pad];
  }

  function line(xs, ys, x, y) {
    let path = "", pen = "M";
    for (let i = 0; i < xs.length; i++) {
      if (xs[i] === null || ys[i] === null) continue;
      path += `${pen}${x(xs[i]).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
      pen = "L";
    }
    return path;
  }

  // At most one point in each PIXELS of the screen: the means, and the least and the largest loss.
  function thin(curve, width) {
    const size = Math.ceil(curve.loss.length * PIXELS / width), few = {x: [], loss: [], least: [], largest: []};
    const wide = size > 1 || curve.least;
    for (let i = 0; i < curve.loss.length; i += size) {
      const part = (list) => list.slice(i, i + size).filter((value) => value !== null), losses = part(curve.loss);
      few.x.push(curve[axis][Math.min(i + size, curve.loss.length) - 1]);
      few.loss.push(losses.length ? losses.reduce((a, b) => a + b) / losses.length : null);
      few.least.push(Math.min(...part(curve.least || curve.loss)));
      few.largest.push(Math.max(...part(curve.largest || curve.loss)));
    }
    if (!wide) few.least = few.largest = null;
    return few;
  }

  function curve(parent, name, points, x, y) {
    if (points.least) {
      const back = line([...points.x].reverse(), [...points.least].reverse(), x, y).replace("M", "L");
      element("path", {class: `band ${name}`, d: `${line(points.x, points.largest, x, y)}${back}Z`}, parent);
    }
    element("path", {class: name, d: line(points.x, points.loss, x, y)}, parent);
  }

  function axes(svg, width, xRange, yRange, x, y) {
    const bottom = HEIGHT - BOTTOM;
    for (const value of ticks(...yRange, 6)) {
      element("line", {class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value)}, svg);
      element("text", {x: LEFT - 8, y: y(value) + 4, "text-anchor": "end"}, svg).textContent = Number(value.toPrecision(4));
    }
    for (const value of ticks(...xRange, Math.max(2, Math.floor(width / 110)), axis === "seconds" ? TIMES : null)) {
      const at = x(value), end = at > width - 40;
      element("text", {x: end ? width - RIGHT : at, y: bottom + 20, "text-anchor": end ? "end" : "middle"}, svg)
        .textContent = value ? TEXTS[axis](value) : "0";
    }
  }

  function draw(parent) {
    const width = Math.max(parent.clientWidth, 260), train = curves.train, validation = curves.validation;
    const all = [...train[axis], ...validation[axis]].filter((value) => value !== null);
    if (!all.length) return;
    const high = all.reduce((a, b) => Math.max(a, b)) || 1, yRange = range(0, high);
    const x = (value) => LEFT + (width - LEFT - RIGHT) * value / high;
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (yRange[1] - value) / (yRange[1] - yRange[0]);
    const svg = element("svg", {viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `Loss against ${axis}`});
    axes(svg, width, [0, high], yRange, x, y);
    const clip = element("clipPath", {id: "inside"}, svg);
    element("rect", {x: LEFT, y: 0, width: width - LEFT, height: HEIGHT - BOTTOM}, clip);
    const inside = element("g", {"clip-path": "url(#inside)"}, svg);
    curve(inside, "train", thin(train, width), x, y);
    curve(inside, "validation", thin(validation, width), x, y);
    if (validation.loss.length <= DOTS) dots(inside, validation, "validation", x, y);
    if (train.loss.length === 1) dots(inside, train, "train", x, y);
    const hair = element("line", {class: "hair", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden"}, svg);
    view = {svg, hair, x, width, high};
    parent.replaceChildren(svg);
  }

  function dots(parent, curve, name, x, y) {
    curve.loss.forEach((loss, i) => {
      if (loss !== null) element("circle", {class: name, r: 3, cx: x(curve[axis][i]), cy: y(loss)}, parent);
    });
  }

  function nearest(values, to) {
    let low = 0, high = values.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < to) low = middle + 1; else high = middle;
    }
    return low && to - values[low - 1] < values[low] - to ? low - 1 : low;
  }

  // What the curves say at a place of the screen; "" outside the chart.
  function read(clientX) {
    const curve = curves.train.loss.length ? curves.train : curves.validation;
    if (!view || clientX === null || !curve.loss.length) {
      if (view) view.hair.setAttribute("visibility", "hidden");
      return "";
    }
    const box = view.svg.getBoundingClientRect(), at = (clientX - box.left) * view.width / box.width;
    const i = nearest(curve[axis], (at - LEFT) / (view.width - LEFT - RIGHT) * view.high), place = view.x(curve[axis][i]);
    for (const key of ["x1", "x2"]) view.hair.setAttribute(key, place);
    view.hair.setAttribute("visibility", "visible");
    const validation = curves.validation, j = validation.round.findLastIndex((round) => round <= curve.round[i]);
    return `round ${curve.round[i]}: training ${units.loss(curve.loss[i])}` +
      (j < 0 ? "" : `, validation ${units.loss(validation.loss[j])} (round ${validation.round[j]})`) +
      `, ${units.count(curve.tokens[i])} tokens, ${units.duration(curve.seconds[i])}, ${units.bytes(curve.bytes[i])}`;
  }

  return {
    take, draw, read,
    choose: (name) => { axis = name; },
    size: () => curves.train.loss.length + curves.validation.loss.length,
  };
})();
