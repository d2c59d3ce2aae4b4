// Draws lines on axes as SVG, and bars.

const SVG = "http://www.w3.org/2000/svg";
// Okabe and Ito's colours, which all eyes tell apart, and some more.
const COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#b2a300", "#7f7f7f", "#1b9e9e", "#a6761d", "#e7298a", "#66a61e", "#525252"];

function element(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

/** Three digits, and no more of large numbers. */
function digits(value, count = 3) {
  if (!Number.isFinite(value)) return "-";
  if (value === 0) return "0";
  const places = Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(value))));
  const rounded = Number(value.toFixed(Math.min(places, 12)));
  return rounded.toLocaleString("en", { maximumFractionDigits: 12 });
}

/** From a range of values to pixels, with ticks. */
function scale([low, high], [from, to], logarithmic) {
  const f = logarithmic ? Math.log10 : (value) => value;
  const at = (value) => from + ((f(value) - f(low)) / (f(high) - f(low))) * (to - from);
  const ticks = [];
  if (logarithmic) {
    const wide = high / low > 2000;
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const digit of wide ? [1] : high / low > 30 ? [1, 3] : [1, 2, 5]) ticks.push(digit * 10 ** power);
  } else {
    const step = 10 ** Math.floor(Math.log10((high - low) / 3));
    const rounded = [1, 2, 5, 10].map((own) => own * step).find((own) => (high - low) / own <= 6);
    for (let tick = Math.ceil(low / rounded) * rounded; tick <= high; tick += rounded) ticks.push(tick);
  }
  return { at, ticks: ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001) };
}

/**
 * Draws lines into a figure.
 * @param picture x and y: {label, range, logarithmic}; lines: [{points, color, wide, faint, dashed}];
 *   band: {low, high, color}; upright: an x to mark; level: a y to mark; here: a point to mark; said: what it shows, in words.
 */
function draw(figure, { x, y, lines, band, upright, level, here, said }) {
  const [width, height, left, right, top, bottom] = [480, 300, 58, 14, 12, 44];
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said });
  const across = scale(x.range, [left, width - right], x.logarithmic);
  const up = scale(y.range, [height - bottom, top], y.logarithmic);
  const axis = (a, b, c, d) => svg.append(element("line", { x1: a, y1: b, x2: c, y2: d, class: "axis" }));
  for (const tick of across.ticks) {
    axis(across.at(tick), top, across.at(tick), height - bottom);
    svg.append(element("text", { x: across.at(tick), y: height - bottom + 16, "text-anchor": "middle" }, digits(tick)));
  }
  for (const tick of up.ticks) {
    axis(left, up.at(tick), width - right, up.at(tick));
    svg.append(element("text", { x: left - 6, y: up.at(tick) + 4, "text-anchor": "end" }, digits(tick)));
  }
  svg.append(element("text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, x.label));
  svg.append(element("text", { x: 14, y: (top + height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${(top + height - bottom) / 2})` }, y.label));
  const held = ([a, b]) => [Math.min(Math.max(a, x.range[0]), x.range[1]), Math.min(Math.max(b, y.range[0]), y.range[1])];
  const path = (points) => "M" + points.map(held).map(([a, b]) => `${across.at(a).toFixed(1)} ${up.at(b).toFixed(1)}`).join("L");
  if (band?.low.length) {
    const around = path([...band.low, ...band.high.toReversed()]);
    svg.append(element("path", { d: `${around}Z`, fill: band.color, style: "opacity: var(--band)" }));
  }
  for (const { points, color, wide, faint, dashed } of lines)
    if (points.length) svg.append(element("path", { d: path(points), fill: "none", stroke: color, "stroke-width": wide ? 2.5 : 1.5, opacity: faint ? 0.45 : 1, ...(dashed ? { "stroke-dasharray": "6 4" } : {}) }));
  if (upright > x.range[0] && upright < x.range[1])
    svg.append(element("line", { x1: across.at(upright), x2: across.at(upright), y1: top, y2: height - bottom, class: "mark", "stroke-dasharray": "4 3" }));
  if (level > y.range[0] && level < y.range[1])
    svg.append(element("line", { x1: left, x2: width - right, y1: up.at(level), y2: up.at(level), class: "mark", "stroke-dasharray": "4 3" }));
  if (here?.every(Number.isFinite)) {
    const [a, b] = held(here);
    svg.append(element("circle", { cx: across.at(a), cy: up.at(b), r: 6, class: "here" }));
  }
  figure.replaceChildren(svg);
}

/** A list of colours with what they stand for. */
function explain(list, entries) {
  list.replaceChildren(
    ...entries.map(([color, text]) => {
      const item = document.createElement("li");
      const square = document.createElement("i");
      square.style.background = color;
      item.append(square, text);
      return item;
    }),
  );
}

/** A bar of parts that add up to one or less: [color, share, text]. */
function drawBar(bar, list, parts) {
  bar.replaceChildren(
    ...parts.map(([color, share, text]) => {
      const piece = document.createElement("span");
      piece.style.cssText = `width: ${share * 100}%; background: ${color}`;
      piece.title = text;
      return piece;
    }),
  );
  explain(list, parts.map(([color, , text]) => [color, text]));
}
