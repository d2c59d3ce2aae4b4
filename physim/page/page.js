// What is chosen, what that gives, and how it is shown, in that order.

const facts = JSON.parse(document.getElementById("facts").textContent);
const tables = new Tables(facts, await unpacked(document.getElementById("numbers").textContent, facts.arrays));
const by = (id) => document.getElementById(id);
const show = (id, text, value) => {
  by(id).textContent = text;
  if (value !== undefined) by(id).dataset.value = value;
};
const unique = (values) => [...new Set(values)];
const GIB = 2 ** 30;

// Choices that are numbers: their least and greatest, and whether they are whole.
const { inputs, outputs } = facts.axes;
const ends = (axis) => [2 ** axis.start, 2 ** (axis.start + axis.step * (axis.count - 1))];
const ranges = { rate: [0.01, 100, false], input: [...ends(inputs), true], output: [...ends(outputs), true] };
const allSeqs = unique(facts.servers.map((server) => server.max_num_seqs)).sort((a, b) => a - b);
const allBudgets = unique(facts.servers.map((server) => server.max_num_batched_tokens)).sort((a, b) => a - b);
const LIMITS = [["seqs", "max-num-seqs", allSeqs], ["budget", "max-num-batched-tokens", allBudgets]];
const prices = { ...facts.prices };
// What can be asked of latencies, how many of its unit a second has, and what is asked, in seconds.
const ASKED = { ttft_p99: [1e3, "TTFT p99"], itl: [1e3, "ITL"], itl_p99: [1e3, "ITL p99"], e2e_p99: [1, "E2E p99"] };
const asked = {};
// What the address asks for that the page does not have, one line each.
let lacking = [];
const choice = { ...facts.first };

/** The server of a group with limits, or the nearest that there is. */
function serverOf(group, seqs, budget) {
  const own = facts.servers.map((server, row) => ({ ...server, row })).filter((server) => server.group === group);
  const far = (server) => Math.abs(Math.log(server.max_num_seqs / seqs)) + Math.abs(Math.log(server.max_num_batched_tokens / budget));
  return own.reduce((best, server) => (far(server) < far(best) ? server : best));
}

const groupOf = (gpu, layout) => facts.groups.findIndex((group) => group.gpu === gpu && group.layout === layout);
const layoutsOf = (gpu) => facts.groups.filter((group) => group.gpu === gpu);

// ---- what is chosen ----

function fill(select, values, labels = values) {
  select.replaceChildren(...values.map((value, i) => new Option(labels[i], value)));
}

function prepare() {
  const gpus = unique(facts.groups.map((group) => group.gpu));
  fill(by("gpu"), gpus, gpus.map((gpu) => facts.gpus[gpu]));
  for (const [id, , list] of LIMITS) {
    by(id).max = list.length - 1;
    by(id).disabled = list.length === 1;
  }
  // From next to nothing to what the fastest server takes of the shortest requests.
  const most = Math.max(...facts.servers.map((_, row) => tables.saturation(row, ranges.input[0], ranges.output[0])));
  ranges.rate[1] = most;
  for (const id of ["input", "output"]) [by(`${id}-typed`).min, by(`${id}-typed`).max] = ranges[id].map(Math.round);
  readAddress();
}

function readAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  for (const name of Object.keys(asked)) delete asked[name];
  for (const [name, value] of said) {
    const [what, gpu] = name.split(".");
    if (what === "price" && gpu in facts.gpus && Number(value) > 0) prices[gpu] = Number(value);
    else if (what === "slo" && gpu in ASKED && Number(value) > 0) asked[gpu] = Number(value) / ASKED[gpu][0];
    else if (name in choice) choice[name] = ["gpu", "layout"].includes(name) ? value : Number(value);
  }
  for (const name of ["rate", "input", "output"]) choice[name] = within(name, choice[name]);
  choice.count = Math.min(Math.max(Math.round(choice.count) || 1, 1), 32);
  if (groupOf(choice.gpu, choice.layout) < 0) ({ gpu: choice.gpu, layout: choice.layout } = facts.groups[0]);
  lacking = [];
  for (const [name, option, list] of LIMITS) {
    const kept = nearest(list, choice[name]);
    if (kept !== choice[name]) lacking.push(`The page has no ${option} of ${choice[name]}: this is ${kept}.`);
    choice[name] = kept;
  }
}

const nearest = (values, wanted) => values.reduce((a, b) => (Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a));

function within(name, value) {
  const [low, high, whole] = ranges[name];
  const kept = Math.min(Math.max(Number.isFinite(value) && value > 0 ? value : facts.first[name], low), high);
  return whole ? Math.round(kept) : kept;
}

/** Sets the controls to what is chosen. */
function setControls(typed) {
  by("gpu").value = choice.gpu;
  fill(by("layout"), layoutsOf(choice.gpu).map((group) => group.layout));
  by("layout").value = choice.layout;
  by("seqs").value = allSeqs.indexOf(choice.seqs);
  by("budget").value = allBudgets.indexOf(choice.budget);
  by("count").value = choice.count;
  show("seqs-shown", choice.seqs.toLocaleString("en"));
  show("budget-shown", choice.budget.toLocaleString("en"));
  show("count-shown", choice.count);
  for (const id of ["seqs", "budget", "count"]) by(id).setAttribute("aria-valuetext", by(`${id}-shown`).textContent);
  if (typed !== "price") by("price").value = prices[choice.gpu] ?? "";
  for (const name of ["rate", "input", "output"]) {
    const slider = by(name);
    const [low, high] = ranges[name];
    // A slider that is moved stays where it is put, though whole tokens lie beside it.
    if (atSlider(name) !== choice[name]) slider.value = (Math.log(choice[name] / low) / Math.log(high / low)) * slider.max;
    slider.setAttribute("aria-valuetext", digits(choice[name]));
    if (typed !== `${name}-typed`) by(`${name}-typed`).value = ranges[name][2] ? choice[name] : Number(choice[name].toPrecision(3));
  }
  const said = new URLSearchParams(choice);
  said.set("rate", Number(choice.rate.toPrecision(3)));
  for (const [gpu, price] of Object.entries(prices)) said.set(`price.${gpu}`, price);
  for (const [name, [scale]] of Object.entries(ASKED)) {
    const own = name in asked ? Number((asked[name] * scale).toPrecision(6)) : "";
    if (typed !== `slo-${name}`) by(`slo-${name}`).value = own;
    if (own) said.set(`slo.${name}`, own);
  }
  history.replaceState(null, "", `#${said}`);
}

/** Takes over what somebody set. */
function choose({ id, value }) {
  const [name, typed] = id.split("-");
  lacking = [];
  if (name === "gpu") {
    // The same layout, or one with about as many GPUs.
    const before = facts.groups[groupOf(choice.gpu, choice.layout)];
    const far = (group) => (group.layout === before.layout ? -1 : Math.abs(group.gpus - before.gpus));
    choice.gpu = value;
    choice.layout = layoutsOf(value).reduce((best, group) => (far(group) < far(best) ? group : best)).layout;
  } else if (name === "layout") choice.layout = value;
  else if (name === "count") choice.count = Number(value);
  else if (name === "seqs") choice.seqs = allSeqs[value];
  else if (name === "budget") choice.budget = allBudgets[value];
  else if (name === "price") {
    if (Number(value) > 0) prices[choice.gpu] = Number(value);
    else delete prices[choice.gpu];
  } else if (name === "slo") {
    if (Number(value) > 0) asked[typed] = Number(value) / ASKED[typed][0];
    else delete asked[typed];
  } else if (typed) {
    if (Number(value) > 0) choice[name] = within(name, Number(value));
  } else choice[name] = atSlider(name);
}

/** The number that a slider stands at. */
function atSlider(name) {
  const [low, high, whole] = ranges[name];
  const found = low * (high / low) ** (by(name).value / by(name).max);
  return within(name, whole ? found : Number(found.toPrecision(3)));
}

// ---- what that gives ----

/** All numbers of what is chosen. */
function answer() {
  const group = groupOf(choice.gpu, choice.layout);
  const server = serverOf(group, choice.seqs, choice.budget);
  const rate = choice.rate / choice.count;
  const { input, output } = choice;
  const found = tables.at(server.row, input, output, rate);
  const gpus = facts.groups[group].gpus * choice.count;
  const served = Math.min(rate, found.saturation) * choice.count;
  const intervals = tables.intervals(["ttft", "itl", "e2e", "saturation"], server, input, output, rate);
  const price = prices[choice.gpu];
  const cost = (requests) => ((price * gpus) / 3600 / (requests * output)) * 1e6;
  return {
    ...found, server, rate, gpus, served, intervals, price,
    // A pipeline's queue may grow without end below its saturation throughput.
    endless: found.saturated || Number.isNaN(found.ttft),
    group: facts.groups[group],
    parts: tables.parts(server.row, input, output, rate),
    cost: price && cost(served),
    least_cost: price && cost(found.saturation * choice.count),
  };
}

/** Requests per second that a server takes within the objectives; 0 where one is missed at any load. */
function mostWithinObjectives({ row }) {
  const { loads } = facts.axes;
  const { input, output } = choice;
  const saturation = tables.saturation(row, input, output);
  const rateAt = (place) => shareAt(loads, place) * saturation;
  const kept = (place) => {
    const found = tables.at(row, input, output, rateAt(place), Object.keys(asked));
    // Where a queue has no end there is no number.
    return Object.entries(asked).every(([name, most]) => found[name] <= most);
  };
  let [low, high] = [0, loads.count - 1];
  if (kept(high)) return rateAt(high);
  if (!kept(low)) return 0;
  while (high - low > 1e-3) {
    const middle = (low + high) / 2;
    if (kept(middle)) low = middle;
    else high = middle;
  }
  return rateAt(low);
}

/** In what the choice is beyond the runs that the fit knows, one line each. */
function beyond(now) {
  const batch = Math.max(now.batch, 1);
  const values = {
    weight_bytes: now.group.weight_bytes, tp: now.group.degrees.tp, batch, step_s: now.step,
    context: choice.input + choice.output / 2,
    new_tokens: tables.newTokens(choice.input),
  };
  const lines = now.group.stands_in ? [`a ${choice.gpu}, of which no kernel was measured`] : [];
  for (const { quantity, before, after, scale, least, most } of now.group.ranges) {
    const value = values[quantity];
    const side = value > most * facts.beyond ? ["more", most] : value < least / facts.beyond ? ["less", least] : null;
    if (side) lines.push(`${before}${digits(value * scale)}${after}, ${side[0]} than the fitted runs' ${digits(side[1] * scale)}`);
  }
  return lines;
}

/** Points of a server from its lightest load to the heaviest under which its queue ends. */
function sweep(row, count, names) {
  const { input, output } = choice;
  const saturation = tables.saturation(row, input, output);
  if (Number.isNaN(saturation)) return [];
  const { loads } = facts.axes;
  const points = Array.from({ length: count }, (_, i) => {
    const rate = shareAt(loads, (i / (count - 1)) * (loads.count - 1)) * saturation;
    return { rate, ...tables.at(row, input, output, rate, names) };
  });
  return points.filter((point) => !Number.isNaN(point.ttft));
}

// ---- how it is shown ----

const ms = (seconds) => (seconds >= 10 ? `${digits(seconds)} s` : `${digits(seconds * 1e3)} ms`);
const seconds = (value) => `${digits(value)} s`;
const fromTo = (pair, unit) => (pair ? `90%: ${unit(pair[0])} to ${pair[1] === Infinity ? "no end" : unit(pair[1])}` : "");

function showAnswers(now) {
  const fits = !Number.isNaN(now.saturation);
  const lines = [...lacking];
  if (!fits) lines.push("Such a request does not fit: it is longer than the model's context, or than the KV cache.");
  else if (now.near && !now.endless) lines.push(`So near to saturation latencies are those at ${digits(tables.shares[1] * 100)}% of it.`);
  else if (now.saturated) lines.push(`Above capacity: the queue grows without end. ${choice.count > 1 ? "The servers take" : "The server takes"} ${digits(now.saturation * choice.count)} requests per second.`);
  else if (now.endless) lines.push("Above capacity: the queue grows without end.");
  if (fits) for (const line of beyond(now)) lines.push(`Beyond what was measured: ${line}.`);
  const own = now.server;
  if (own.max_num_seqs !== choice.seqs || own.max_num_batched_tokens !== choice.budget)
    lines.push(`There is no such server: this is one with ${own.max_num_seqs} requests and ${own.max_num_batched_tokens} tokens.`);
  show("warning", lines.join(" "));
  for (const [name, unit] of [["ttft", ms], ["itl", ms], ["e2e", seconds]]) {
    const never = !fits || (now.endless && name !== "itl");
    show(name, never ? "-" : unit(now[name]), never ? "" : now[name]);
    const p99 = `${name}_p99` in now ? `p99 ${unit(now[`${name}_p99`])}` : "";
    show(`${name}-more`, never ? "" : [fromTo(now.intervals[name], unit), p99].filter(Boolean).join("; "));
  }
  const perSecond = (value) => `${digits(value * choice.count)}/s`;
  show("saturation", fits ? perSecond(now.saturation) : "-", fits ? now.saturation : "");
  show("saturation-more", fits ? `${digits(now.share * 100)}% in use; ${fromTo(now.intervals.saturation, perSecond)}` : "");
  show("throughput", fits ? `${digits(now.served * choice.output)} tok/s` : "-", now.served * choice.output);
  show("throughput-more", fits ? `${now.gpus === 1 ? "one GPU" : `${digits((now.served * choice.output) / now.gpus)} tok/s of each of ${now.gpus} GPUs`}; ${digits(now.batch)} requests decode in a server` : "");
  showNeeded(now, fits);
  show("cost", now.cost && fits ? digits(now.cost) : "-", now.cost ?? "");
  show("cost-more", now.cost && fits ? `a million generated tokens; ${digits(now.least_cost)} at saturation` : "give a price");
}

function showNeeded(now, fits) {
  const names = Object.keys(asked);
  const each = fits && names.length ? mostWithinObjectives(now.server) : 0;
  const needed = Math.ceil(choice.rate / each);
  show("needed", each > 0 ? needed.toLocaleString("en") : "-", each > 0 ? needed : "");
  const missed = names.filter((name) => !(now[name] <= asked[name]) || (now.endless && !name.startsWith("itl")));
  const lines = [each > 0 ? `one takes ${digits(each)}/s` : names.length ? "the objectives are missed at any load" : "give an objective"];
  if (missed.length) lines.push(`${missed.map((name) => ASKED[name][1]).join(", ")} missed with ${choice.count}`);
  show("needed-more", fits ? lines.join("; ") : "");
}

function showStep(now) {
  const shares = now.parts.map((share, i) => [COLORS[i % COLORS.length], share, facts.parts[i].label]);
  const shown = shares.filter(([, share]) => share > 0.002);
  show("step-said", `${ms(now.step)}, mean of all steps.`, now.step);
  drawBar(by("step-bar"), by("step-legend"), shown.map(([color, share, label]) => [color, share, `${label} ${ms(share * now.step)} (${share < 0.01 ? "<1" : Math.round(share * 100)}%)`]));
}

function showMemory({ server, kv_use: use }) {
  const { weights, kv_cache: cache, graphs, activations, usable } = server.memory;
  const parts = [["weights", weights], ["KV cache in use", cache * use], ["KV cache, free", cache * (1 - use)], ["CUDA graphs", graphs], ["activations", activations]];
  show("memory-said", `${digits(usable / GIB)} GiB, with a KV cache of ${server.kv_tokens.toLocaleString("en")} tokens.`);
  drawBar(by("memory-bar"), by("memory-legend"), parts.map(([name, size], i) => [["#0072b2", "#d55e00", "#e6b98a", "#8c6bb1", "#009e73"][i], size / usable, `${name} ${digits(size / GIB)}`]));
}

function showLoad(now) {
  const points = sweep(now.server.row, 49, ["ttft", "ttft_p99", "itl"]);
  if (!points.length) return void ["ttft", "itl"].forEach((name) => by(`${name}-picture`).replaceChildren());
  const rates = points.map((point) => point.rate * choice.count);
  for (const [name, bounded, color] of [["ttft", "ttft_p99", COLORS[0]], ["itl", "itl", COLORS[2]]]) {
    const bounds = points.map((point) => tables.intervals([name], now.server, choice.input, choice.output, point.rate)[name]);
    const line = (pick) => points.map((point, i) => [rates[i], pick(point, i) * 1e3]);
    const level = asked[bounded] * 1e3;
    const values = points.flatMap((point) => [point[name] * 1e3, point[bounded] * 1e3]);
    if (level) values.push(level);
    const here = now.endless ? [NaN] : [choice.rate, now[name] * 1e3];
    draw(by(`${name}-picture`), {
      x: { label: "requests per second", range: [0, rates.at(-1) * 1.02] },
      y: { label: `${name.toUpperCase()}, ms${bounded === name ? "" : " (dashed: p99)"}`, range: [Math.min(...values) / 2, Math.max(...values) * 1.5], logarithmic: true },
      lines: [{ points: line((point) => point[name]), color, wide: true }, ...(bounded === name ? [] : [{ points: line((point) => point[bounded]), color, dashed: true }])],
      level,
      band: bounds[0] && { low: line((_, i) => bounds[i][0]), high: line((_, i) => bounds[i][1]), color },
      upright: choice.rate,
      here,
      said: `${name.toUpperCase()} against requests per second: ${ms(points[0][name])} of few, ${ms(points.at(-1)[name])} near ${digits(rates.at(-1))} per second`,
    });
  }
}

/** The most tokens of a GPU that any line gives to a user who gets so many, or more. */
function envelope(lines) {
  const most = Math.max(...lines.flat().map(([x]) => x));
  const found = [];
  for (let i = 200, best = 0; i > 0; i--) {
    const x = (i / 200) * most;
    for (const points of lines)
      for (let k = 1; k < points.length; k++) {
        const [[a, b], [c, d]] = [points[k - 1], points[k]];
        if (x <= Math.max(a, c) && x >= Math.min(a, c) && a !== c) best = Math.max(best, b * (d / b) ** ((x - a) / (c - a)));
      }
    if (best > 0) found.push([x, best]);
  }
  return found;
}

function showPareto(now) {
  const gpus = unique(facts.groups.map((group) => group.gpu));
  const lines = [];
  const all = [];
  facts.groups.forEach((group, place) => {
    const server = serverOf(place, choice.seqs, choice.budget);
    const points = sweep(server.row, 25, ["ttft", "itl"]).map(({ rate, itl }) => [1 / itl, (rate * choice.output) / group.gpus]);
    all.push(...points);
    const current = group === now.group;
    lines.push({ points, color: COLORS[gpus.indexOf(group.gpu)], faint: !current, wide: current });
  });
  if (!all.length) return void by("pareto-picture").replaceChildren();
  const best = envelope(lines.map((line) => line.points));
  const here = now.endless ? [NaN] : [1 / now.itl, (now.served * choice.output) / now.gpus];
  const spread = (i) => [Math.min(...all.map((p) => p[i])), Math.max(...all.map((p) => p[i]))];
  draw(by("pareto-picture"), {
    x: { label: "tokens per second of a user", range: [0, spread(0)[1] * 1.05] },
    y: { label: "tokens per second of a GPU", range: [spread(1)[1] / 300, spread(1)[1] * 1.3], logarithmic: true },
    lines: [...lines, { points: best, color: "var(--ink)" }],
    here,
    said: `Tokens per second of a GPU against those of a user, for ${facts.groups.length} deployments; the best give ${digits(spread(1)[1])} of a GPU or ${digits(spread(0)[1])} of a user`,
  });
  explain(by("pareto-legend"), [...gpus.map((gpu, i) => [COLORS[i], facts.gpus[gpu]]), ["var(--ink)", "the best of all"], ["var(--mark)", "what is chosen"]]);
}

function showCommand(now) {
  const { max_num_seqs: seqs, max_num_batched_tokens: budget } = now.server;
  const degrees = Object.entries(now.group.degrees).map(([name, degree]) => `--${name} ${degree}`);
  show("command", `${facts.command} --gpu ${choice.gpu} ${degrees.join(" ")} --max-num-seqs ${seqs} --max-num-batched-tokens ${budget} --rate ${Number(now.rate.toPrecision(6))} --input ${choice.input} --output ${choice.output}`);
}

function showErrors() {
  const percent = Math.round(facts.knee * 100);
  show("errors-said", `What is shown lies between points that physim predicted. At ${facts.checked} lengths and loads between them it differs from physim's full model by this much, up to ${percent}% of the saturation throughput and above it:`);
  const names = { saturation: "saturation", ttft: "TTFT", ttft_p99: "TTFT p99", itl: "ITL", itl_p99: "ITL p99", e2e: "E2E", e2e_p99: "E2E p99", interval: "ends of ITL's interval" };
  const row = (cells, kind = "td") => {
    const made = document.createElement("tr");
    cells.forEach((text, i) => {
      const cell = document.createElement(i ? kind : "th");
      cell.textContent = text;
      made.append(cell);
    });
    return made;
  };
  const { below, above } = facts.errors;
  const shown = (off) => off?.map((share) => `${digits(share * 100, 2)}%`) ?? ["-", "-", "-"];
  by("errors").replaceChildren(
    row(["", "median", "95 of 100", "most", "median", "95 of 100", "most"], "th"),
    ...Object.entries(names).filter(([name]) => name in below).map(([name, label]) => row([label, ...shown(below[name]), ...shown(above[name])])),
  );
  const groups = by("errors").insertRow(0);
  for (const [text, span] of [["off by", 1], [`to ${percent}%`, 3], ["above", 3]]) {
    const cell = document.createElement("th");
    Object.assign(cell, { textContent: text, colSpan: span });
    groups.append(cell);
  }
  by("refused").replaceChildren(...facts.refused.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
}

let typed;
function refresh() {
  setControls(typed);
  const now = answer();
  showAnswers(now);
  if (!Number.isNaN(now.saturation)) {
    showStep(now);
    showMemory(now);
  }
  showLoad(now);
  showPareto(now);
  showCommand(now);
}

let waiting = false;
function later() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    refresh();
  });
}

by("controls").addEventListener("input", ({ target }) => {
  typed = target.id;
  choose(target);
  later();
});
by("controls").addEventListener("change", () => {
  typed = undefined;
  later();
});
by("controls").addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", () => {
  typed = undefined;
  readAddress();
  refresh();
});
by("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
});
prepare();
showErrors();
refresh();
document.documentElement.dataset.ready = "true";
