// Looks up what physim predicted, as physim/page/interpolation.py and tables.py do.

/** Numbers of the page's tables by name, from their gzip in base64. */
async function unpacked(text, arrays) {
  const zipped = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("gzip"));
  const content = new DataView(await new Response(stream).arrayBuffer());
  const found = {};
  let place = 0;
  for (const { name, shape, low, high } of arrays) {
    const values = new Float32Array(shape.reduce((a, b) => a * b));
    for (let i = 0; i < values.length; i++, place += 2) {
      const whole = content.getUint16(place, true);
      values[i] = whole === 0 ? NaN : low + ((whole - 1) / 65534) * (high - low);
    }
    found[name] = { shape, values };
  }
  return found;
}

const harmonic = (one, other) => (one * other > 0 ? (2 * one * other) / (one + other) : 0);

/** The value between two points, by a cubic that never overshoots. */
function cubic(before, left, right, after, share) {
  if (share === 0) return left;
  if (share === 1) return right;
  const slope = right - left;
  const start = harmonic(Number.isNaN(before) ? slope : left - before, slope);
  const end = harmonic(slope, Number.isNaN(after) ? slope : after - right);
  return left + share * (start + share * (3 * slope - 2 * start - end + share * (start + end - 2 * slope)));
}

/**
 * A value of a table between its points.
 * @param places where along each axis but the first and, if `last` is given, the last.
 */
function lookUp(table, row, places, last = 0) {
  const { shape, values } = table;
  const strides = shape.map((_, axis) => shape.slice(axis + 1).reduce((a, b) => a * b, 1));
  const along = (axis, offset) => {
    if (axis > places.length) return values[offset + (axis < shape.length ? last : 0)];
    const end = shape[axis] - 1;
    const place = Math.min(Math.max(places[axis - 1], 0), end);
    const left = Math.min(Math.floor(place), Math.max(end - 1, 0));
    const at = (i) => (i < 0 || i > end ? NaN : along(axis + 1, offset + i * strides[axis]));
    return cubic(at(left - 1), at(left), at(left + 1), at(left + 2), place - left);
  };
  return along(1, row * strides[0]);
}

const placeOn = (axis, value) => (value - axis.start) / axis.step;
const logit = (share) => Math.log(share / (1 - share));
const shareAt = (axis, place) => 1 / (1 + Math.exp(-(axis.start + axis.step * place)));

/** What is known of a model's servers. */
class Tables {
  constructor(facts, tables) {
    Object.assign(this, { facts, tables });
    const { loads } = facts.axes;
    this.shares = [shareAt(loads, 0), shareAt(loads, loads.count - 1)];
  }

  /** Requests per second at most; NaN where a request does not fit. */
  saturation(row, input, output) {
    const { inputs, fine } = this.facts.axes;
    const places = [placeOn(inputs, Math.log2(input)), placeOn(fine, Math.log2(output))];
    return Math.exp(lookUp(this.tables.saturation, row, places));
  }

  /** A server under a load: seconds, requests and shares. Near saturation, those of the last point. */
  at(row, input, output, rate, names = this.facts.values) {
    const saturation = this.saturation(row, input, output);
    const share = rate / saturation;
    const places = this.places(this.facts.axes, input, output, share);
    const found = { saturation, share, saturated: share > 1, near: share > this.shares[1] && share <= 1 };
    for (const name of names) {
      const full = share > 1 && this.tables[`full_${name}`];
      found[name] = Math.exp(full ? lookUp(full, row, places.slice(0, 2)) : lookUp(this.tables[name], row, places));
    }
    return found;
  }

  /** Shares of a step's time by part. */
  parts(row, input, output, rate) {
    const share = rate / this.saturation(row, input, output);
    const places = this.places(this.facts.axes, input, output, share);
    const [table, where] = share > 1 ? [this.tables.full_parts, places.slice(0, 2)] : [this.tables.parts, places];
    const shares = this.facts.parts.map((_, part) => Math.max(lookUp(table, row, where, part), 0));
    const sum = shares.reduce((a, b) => a + b);
    return shares.map((one) => one / sum);
  }

  /**
   * The 90% intervals of some names; null where the fit knows of none. Without end where the load may be above
   * capacity. As `Widths.ends` of physim/page/widths.py.
   */
  intervals(names, server, input, output, rate) {
    const { width_axes: axes } = this.facts;
    if (!axes) return Object.fromEntries(names.map((name) => [name, null]));
    const most = this.saturation(server.row, input, output);
    const [first, last] = [shareAt(axes.loads, 0), shareAt(axes.loads, axes.loads.count - 1)];
    const near = Math.min(Math.max(rate / most, first), last) * most;
    const places = this.places(axes, input, output, near / most);
    const wide = (name) => Math.exp(lookUp(this.tables[`width_${name}`], server.group, places));
    const [fewer, more] = [wide("saturation_below"), wide("saturation")];
    const latencies = names.filter((name) => name !== "saturation");
    const [slower, slowerNear, here, fasterNear, faster] = [rate * fewer, near * fewer, near, near / more, rate / more].map((own) =>
      this.at(server.row, input, output, own, latencies),
    );
    const found = { saturation: [most / fewer, most * more] };
    for (const name of latencies) {
      const low = (faster[name] * here[name]) / fasterNear[name] / wide(`${name}_below`);
      const high = ((slower[name] * here[name]) / slowerNear[name]) * wide(name);
      const endless = rate * fewer > most && name !== "itl";
      found[name] = [Math.max(low, this.least(name, server, input, output)), endless ? Infinity : high];
    }
    return found;
  }

  /** What no measurement goes below, by the GPU's datasheet. */
  least(name, server, input, output) {
    const { ttft_s_per_token: token, itl_s: itl } = this.facts.groups[server.group].least;
    const ttft = token * this.newTokens(input);
    return { ttft, itl, e2e: ttft + (output - 1) * itl }[name] ?? 0;
  }

  /** Prompt tokens that are not found in the prefix cache. */
  newTokens(input) {
    const { tokens, share } = this.facts.cached;
    return Math.max(input - tokens - share * input, 1);
  }

  /** Where lengths and a load are on axes; of a load beyond these, at their end. */
  places({ inputs, outputs, loads }, input, output, share) {
    const kept = Math.min(Math.max(share, shareAt(loads, 0)), shareAt(loads, loads.count - 1));
    return [placeOn(inputs, Math.log2(input)), placeOn(outputs, Math.log2(output)), placeOn(loads, logit(kept))];
  }
}
