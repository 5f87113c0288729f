"use strict";
{
  const { runs, charts, places } = JSON.parse(document.getElementById("data").textContent);
  const several = runs.length > 1;
  const DASHES = ["", "6 4", "2 3", "9 3 2 3", "12 4", "1 4"];
  const COLORS = 8, HEIGHT = 232, LEFT = 52, RIGHT = 16, TOP = 8, BOTTOM = 36;
  const byId = (id) => document.getElementById(id);

  // State shared by all charts: axis, smoothing, scale, visible range, and hidden runs.
  const view = { axis: "step", smooth: 0, log: false, range: null, hidden: new Set() };

  const node = (name, attributes = {}, text = "") => {
    const created = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) created.setAttribute(key, value);
    if (text) created.textContent = text;
    return created;
  };
  const element = (name, text = "") => {
    const created = document.createElement(name);
    created.textContent = text;
    return created;
  };
  const shown = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    return Number.isInteger(value) && size < 1e9 ? String(value)
      : size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(3).replace(/\.?0+e/, "e") : String(+value.toPrecision(4));
  };

  const brief = (value) => {
    const size = Math.abs(value);
    return size >= 1e6 ? `${shown(value / 1e6)}M` : size >= 1e4 ? `${shown(value / 1e3)}k` : shown(value);
  };

  // --- data of lines ---

  const across = (chart, line) => chart.across ? places[line.x] : places[line.x][view.axis];
  const visible = (chart) => chart.lines.filter((line) => chart.across || !view.hidden.has(line.run));
  const color = (chart, line) => `var(--c${(several && !chart.across ? line.run : line.style) % COLORS})`;
  const dash = (line) => DASHES[line.style % DASHES.length];
  const label = (chart, line) => {
    if (!several || chart.across) return line.name;
    const { letter } = runs[line.run];
    return line.name === chart.title ? letter : `${letter} ${line.name}`;
  };

  // Exponential moving average with bias correction.
  const smoothed = (values, weight) => {
    if (!weight) return values;
    let mean = 0, known = 0;
    return values.map((value) => {
      if (value === null) return null;
      mean = mean * weight + value * (1 - weight);
      known = known * weight + (1 - weight);
      return mean / known;
    });
  };

  const extent = (values) => {
    let low = Infinity, high = -Infinity;
    for (const value of values) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    return [low, high];
  };

  const ticks = (low, high, count) => {
    const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw) || raw;
    const values = [];
    for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) values.push(+at.toPrecision(12));
    return values;
  };

  const decades = (low, high) => {
    const powers = [];
    for (let power = Math.ceil(low); power <= high; power++) powers.push(power);
    return powers.length > 1 ? powers : ticks(low, high, 3);
  };

  // Of many points only the lowest and the highest in each column of pixels: others would be covered.
  const columns = (x, y, toX, width) => {
    const kept = [];
    if (x.length <= 2 * width) return [...x.keys()];
    for (let from = 0, to; from < x.length; from = to) {
      const column = Math.floor(toX(x[from]));
      let low = from, high = from;
      for (to = from + 1; to < x.length && Math.floor(toX(x[to])) === column; to++) {
        if (y[to] < y[low]) low = to;
        if (y[to] > y[high]) high = to;
      }
      kept.push(...new Set([Math.min(low, high), Math.max(low, high)]));
    }
    return kept;
  };

  // --- drawing ---

  const draw = (figure) => {
    const chart = charts[figure.dataset.chart], plot = figure.querySelector(".plot");
    const state = figure.state ||= { range: null, cursor: null };
    const range = chart.across ? state.range : view.range;
    const lines = visible(chart).map((line) => {
      const x = across(chart, line), y = smoothed(line.y, chart.across ? 0 : view.smooth);
      return { line, x, y };
    });
    const width = plot.clientWidth || 320;
    const [left, right] = range || extent(lines.flatMap(({ x }) => [x[0], x[x.length - 1]]));
    const log = view.log && !chart.across;
    const height = (value) => value === null || (log && value <= 0) ? null : log ? Math.log10(value) : value;
    const seen = lines.flatMap(({ x, y }) => y.filter((_, at) => x[at] >= left && x[at] <= right).map(height));
    let [low, high] = chart.bounds && !range ? chart.bounds : extent(seen);
    if (!Number.isFinite(low) || !Number.isFinite(left)) {
      const message = element("p", "nothing to show");
      message.className = "note";
      plot.replaceChildren(message);
      figure.shape = null;
      return;
    }
    const margin = chart.bounds ? 0 : (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
    low -= margin;
    high += margin;
    const single = left === right;  // in the middle
    const toX = (value) => LEFT + (single ? 0.5 : (value - left) / (right - left)) * (width - LEFT - RIGHT);
    const toY = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
    const svg = node("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, tabindex: 0, role: "img" });
    svg.setAttribute("aria-label", `${figure.querySelector("figcaption").textContent}: arrow keys move through its points`);
    const clip = `clip-${figure.dataset.chart}`;
    const window_ = node("clipPath", { id: clip });
    window_.append(node("rect", { x: LEFT - 4, y: TOP - 4, width: Math.max(0, width - LEFT - RIGHT + 8), height: HEIGHT - TOP - BOTTOM + 8 }));
    svg.append(window_);
    for (const tick of log ? decades(low, high) : ticks(low, high, 5)) {
      svg.append(node("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: toY(tick), y2: toY(tick) }));
      svg.append(node("text", { x: LEFT - 6, y: toY(tick) + 4, "text-anchor": "end" }, brief(log ? 10 ** tick : tick)));
    }
    for (const tick of single ? [left] : ticks(left, right, Math.max(4, width / 90))) {
      svg.append(node("text", { x: toX(tick), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, brief(tick)));
    }
    svg.append(node("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, chart.across || view.axis));
    const inside = node("g", { "clip-path": `url(#${clip})` });
    svg.append(inside);
    const path = (x, y) => {
      let text = "", pen = "M";
      for (const at of columns(x, y, toX, width - LEFT - RIGHT)) {
        const value = height(y[at]);
        if (value === null) { pen = "M"; continue; }
        text += `${pen}${toX(x[at]).toFixed(1)} ${toY(value).toFixed(1)}`;
        pen = "L";
      }
      return text;
    };
    for (const { line, x, y } of lines) {
      const stroke = `stroke:${color(chart, line)}`;
      if (view.smooth && !chart.across) inside.append(node("path", { class: "raw", d: path(x, line.y), style: stroke }));
      inside.append(node("path", { d: path(x, y), style: stroke, "stroke-dasharray": dash(line) }));
      if (x.length < 40 || chart.across && x.length < 20) {
        x.forEach((value, at) => {
          const up = height(y[at]);
          if (up !== null) inside.append(node("circle", { cx: toX(value), cy: toY(up), r: 2.5, style: `fill:${color(chart, line)}` }));
        });
      }
    }
    if (several && !chart.across) {
      const letters = []; // lines of a run that end close to each other share a letter
      for (const { line, x, y } of lines) {
        let at = x.length - 1;
        while (at > 0 && (height(y[at]) === null || x[at] > right)) at--;
        const up = height(y[at]);
        if (up === null) continue;
        const position = { run: line.run, x: Math.min(width - 12, toX(x[at]) + 4), y: toY(up) + 4 };
        if (letters.some((other) => other.run === position.run && Math.hypot(other.x - position.x, other.y - position.y) < 14)) continue;
        letters.push(position);
        const text = node("text", { class: "letter", x: position.x, y: position.y }, runs[line.run].letter);
        text.style.fill = color(chart, line);
        svg.append(text);
      }
    }
    // Keep the keyboard focus.
    const focused = plot.contains(document.activeElement);
    plot.replaceChildren(svg);
    if (focused) svg.focus({ preventScroll: true });
    figure.shape = { chart, lines, left, right, toX, toY, height, svg, width };
    listen(figure);
    readout(figure);
    const numbers = figure.querySelector(".numbers");
    if (numbers.open) tabulate(figure);
  };

  const swatch = (chart, line) => {
    const svg = node("svg", { width: 22, height: 8, "aria-hidden": true });
    svg.append(node("line", { x1: 0, x2: 22, y1: 4, y2: 4, "stroke-width": 3, "stroke-dasharray": dash(line), style: `stroke:${color(chart, line)}` }));
    return svg;
  };

  const nearest = (x, wanted) => {
    let low = 0, high = x.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (x[middle] < wanted) low = middle; else high = middle;
    }
    return Math.abs(x[low] - wanted) <= Math.abs(x[high] - wanted) ? low : high;
  };

  // Names of the lines, and their values at the cursor.
  const readout = (figure) => {
    const { shape, state } = figure, output = figure.querySelector(".readout");
    if (!shape) { output.replaceChildren(); return; }
    const { chart, lines, left, right, toX, toY, height, svg } = shape;
    svg.querySelectorAll(".cursor, .here").forEach((mark) => mark.remove());
    const items = [];
    if (state.cursor !== null && state.cursor >= left && state.cursor <= right) {
      svg.append(node("line", { class: "cursor", x1: toX(state.cursor), x2: toX(state.cursor), y1: TOP, y2: HEIGHT - BOTTOM }));
      items.push(element("span", `${chart.across || view.axis} ${shown(state.cursor)}`));
    }
    for (const { line, x, y } of lines) {
      if (lines.length === 1 && state.cursor === null && label(chart, line) === chart.title) continue; // the title says it
      const item = element("span");
      item.append(swatch(chart, line), label(chart, line));
      if (state.cursor !== null && x.length) {
        const at = nearest(x, state.cursor), up = height(y[at]);
        item.append(` ${shown(y[at])}`);
        if (up !== null && x[at] >= left && x[at] <= right)
          svg.append(node("circle", { class: "here", cx: toX(x[at]), cy: toY(up), r: 4, style: `fill:${color(chart, line)}` }));
      }
      items.push(item);
    }
    output.replaceChildren(...items);
  };

  const tabulate = (figure) => {
    const MAX_ROWS = 400, { shape } = figure, container = figure.querySelector(".numbers > div");
    const table = element("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    if (!shape) { container.replaceChildren(); return; }
    for (const name of ["line", shape.chart.across || view.axis, "value"]) {
      const cell = element("th", name);
      cell.scope = "col";
      head.append(cell);
    }
    const every = Math.ceil(shape.lines.reduce((sum, { x }) => sum + x.length, 0) / MAX_ROWS) || 1;
    for (const { line, x } of shape.lines) {
      for (let at = (x.length - 1) % every; at < x.length; at += every) {
        const row = body.insertRow();
        for (const text of [label(shape.chart, line), shown(x[at]), shown(line.y[at])]) row.insertCell().textContent = text;
      }
    }
    container.replaceChildren(table);
  };

  // --- reading and zooming ---

  const zoom = (figure, range) => {
    const valid = range && range[1] - range[0] > 0 ? range : null;
    if (figure.shape && figure.shape.chart.across) { figure.state.range = valid; draw(figure); }
    else { view.range = valid; redraw(); }
  };

  const valueAt = (figure, event) => {
    const { svg, left, right, width } = figure.shape, box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width * width - LEFT) / (width - LEFT - RIGHT);
    return left + Math.min(1, Math.max(0, at)) * (right - left);
  };

  const listen = (figure) => {
    const { svg, toX } = figure.shape;
    let start = null, area = null;
    svg.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && event.pointerType !== "touch") { start = valueAt(figure, event); svg.setPointerCapture(event.pointerId); }
    });
    svg.addEventListener("pointermove", (event) => {
      figure.state.cursor = valueAt(figure, event);
      readout(figure);
      if (start === null) return;
      area ||= svg.appendChild(node("rect", { class: "select", y: TOP, height: HEIGHT - TOP - BOTTOM }));
      const [from, to] = [toX(start), toX(figure.state.cursor)].sort((a, b) => a - b);
      area.setAttribute("x", from);
      area.setAttribute("width", to - from);
    });
    svg.addEventListener("pointerup", (event) => {
      const from = start, to = valueAt(figure, event);
      start = null;
      area?.remove();
      area = null;
      if (from !== null && Math.abs(toX(to) - toX(from)) > 6) zoom(figure, [Math.min(from, to), Math.max(from, to)]);
    });
    svg.addEventListener("pointerleave", () => {
      if (start === null && document.activeElement !== svg) { figure.state.cursor = null; readout(figure); }
    });
    svg.addEventListener("dblclick", () => zoom(figure, null));
    svg.addEventListener("keydown", (event) => { if (handleKey(figure, event.key)) event.preventDefault(); });
  };

  const handleKey = (figure, key) => {
    const { lines, left, right } = figure.shape, state = figure.state;
    const x = lines.reduce((longest, line) => line.x.length > longest.length ? line.x : longest, []);
    const middle = state.cursor ?? (left + right) / 2;
    if (key === "ArrowLeft" || key === "ArrowRight") {
      const at = state.cursor === null ? (key === "ArrowRight" ? -1 : x.length) : nearest(x, state.cursor);
      state.cursor = x[Math.min(x.length - 1, Math.max(0, at + (key === "ArrowRight" ? 1 : -1)))];
      readout(figure);
    } else if (key === "+" || key === "=") zoom(figure, [middle - (right - left) / 4, middle + (right - left) / 4]);
    else if (key === "-") zoom(figure, [middle - (right - left), middle + (right - left)]);
    else if (key === "0" || key === "Escape") zoom(figure, null);
    else return false;
    return true;
  };

  // --- only visible charts are drawn ---

  const near = new Set();
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) { near.add(target); draw(target); } else near.delete(target);
    }
  }, { rootMargin: "200px" });
  let due = false;
  const redraw = () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; near.forEach(draw); });
  };
  for (const figure of document.querySelectorAll(".chart")) {
    figure.state = { range: null, cursor: null };
    observer.observe(figure);
    figure.querySelector(".numbers").addEventListener("toggle", () => tabulate(figure));
  }
  addEventListener("beforeprint", () => document.querySelectorAll(".chart").forEach(draw));
  new ResizeObserver(redraw).observe(document.body);

  // --- controls ---

  byId("axis").addEventListener("change", (event) => { view.axis = event.target.value; view.range = null; redraw(); });
  byId("smooth").addEventListener("input", (event) => {
    view.smooth = Number(event.target.value);
    byId("smoothness").value = event.target.value;
    redraw();
  });
  byId("log").addEventListener("change", (event) => { view.log = event.target.checked; redraw(); });
  byId("reset").addEventListener("click", (event) => { event.preventDefault(); view.range = null; redraw(); });
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  if (several) {
    runs.forEach((run, number) => {
      const button = element("button"), line = { run: number, style: 0 };
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.append(swatch({ across: "" }, line), `${run.letter} ${run.name}`);
      button.addEventListener("click", () => {
        if (!view.hidden.delete(number)) view.hidden.add(number);
        button.setAttribute("aria-pressed", String(!view.hidden.has(number)));
        redraw();
      });
      byId("legend").append(button);
    });
  }
}
