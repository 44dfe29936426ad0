/* The dashboard: filters, tables and what its charts show. The data come from dashboard_data.js. */
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const root = document.getElementById("stk-dashboard");
  const { files, ours, noTopk } = window.softtopkResults;
  const charts = window.softtopkCharts;
  // What an operator does, or did in older files, where no method is asked for; other methods start
  // switched off.
  const USUAL = new Set([null, undefined, "auto", "newton", "contour"]);
  const AXES = {
    entry: ["time per entry", "time per entry (ns)", (r) => (1e9 * r.seconds) / (r.rows * r.n)],
    call: ["time per call", "time per call (ms)", (r) => 1e3 * r.seconds],
    ratio: ["ratio", null, (r) => r.ratio],
  };

  function html(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  const unique = (values) => [...new Set(values)];
  const isOurs = (result) => ours.includes(result.operator);
  const label = (r) => [r.operator, r.curve, r.method].filter(Boolean).join(" ");
  const shape = (r) => `${size(r)}, k = ${charts.whole(r.k)}`;
  const size = (r) => `${charts.whole(r.rows)} × ${charts.whole(r.n)}`;
  const bySize = (a, b) => a.n - b.n || a.rows - b.rows || a.k - b.k;
  const digits = (value) => Number(value.toPrecision(value < 1 ? 2 : 3)).toLocaleString("en");

  function time(seconds) {
    const [scale, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [0, "ns"]].find(([s]) => seconds >= s);
    return `${digits(seconds / (scale || 1e-9))} ${unit}`;
  }

  /** As `record.machine_name`: processors of several kinds can call themselves by one name. */
  const machineName = ({ machine }) => machine.gpu || `${machine.cpu} (${machine.host})`;
  const unitName = ({ what }) => (what === "value" ? "torch.softmax" : "softmax's backward pass");

  function exactly(r, file) {
    return [
      `${label(r)}, ${r.what}`,
      `${r.rows} × ${r.n}, k = ${r.k}, ${r.dtype}, ${r.data} rows`,
      `ratio ${r.ratio.toPrecision(4)}, quartiles ${r.low.toPrecision(4)} to ${r.high.toPrecision(4)}`,
      `${time(r.seconds)}; ${unitName(r)} takes ${time(r.unit_seconds)}; ${r.rounds} rounds`,
      `${machineName(file)}, threads: ${file.threads}, ${file.date}`,
    ].join("\n");
  }

  /** Of each rows × n the k that most results of the file have: the others are a sweep over k. */
  function usualShapes({ results }) {
    const counts = new Map();
    for (const r of results) counts.set(shape(r), (counts.get(shape(r)) || 0) + 1);
    const best = new Map();
    for (const r of results) {
      const held = best.get(size(r));
      if (!held || counts.get(shape(r)) > counts.get(held)) best.set(size(r), shape(r));
    }
    return new Set(best.values());
  }

  // Every series keeps its colour and its symbol, whatever the filters leave.
  const looks = new Map();
  const seen = { true: 0, false: 0 };
  for (const r of files.flatMap((file) => file.results)) {
    if (looks.has(label(r))) continue;
    const place = seen[isOurs(r)]++;
    const style = isOurs(r) ? `stk-ours stk-colour-${place % 7}` : `stk-baseline stk-dash-${place % 4}`;
    looks.set(label(r), { label: label(r), place, style, shown: USUAL.has(r.method) });
  }

  const state = { axis: "entry", operator: "all", shape: "all" };

  /** Results of the chosen device, types, data and operator, of one file. */
  function chosen(file) {
    const fits = (r) => ["dtype", "what", "data"].every((name) => r[name] === state[name]);
    const named = (r) => !isOurs(r) || state.operator === "all" || r.operator === state.operator;
    return file.results.filter((r) => fits(r) && named(r)).sort(bySize);
  }

  const current = () => files.find((file) => file.name === state.file);

  const first = (values, wanted) => (values.includes(wanted) ? wanted : values[0]);

  /** Choices that the files hold; what is no longer among them goes back to its default. */
  function choices() {
    const devices = unique(files.map((file) => file.machine.device)).sort();
    state.device = first(devices, state.device);
    const here = files.filter((file) => file.machine.device === state.device);
    const names = here.map((file) => file.name).reverse();
    state.file = first(names, state.file);
    const results = current().results;
    const of = (field) => unique(results.map((r) => r[field]));
    state.dtype = first(of("dtype"), state.dtype || "float32");
    state.what = first(of("what"), state.what || "value");
    state.data = first(of("data"), state.data || "normal");
    const operators = unique(results.filter(isOurs).map((r) => r.operator));
    state.operator = first(["all", ...operators], state.operator);
    const shapes = unique(chosen(current()).map(shape));
    state.shape = first(["all", ...shapes], state.shape);
    const plain = (values) => values.map((value) => [value, value]);
    const described = (name) => {
      const file = files.find((f) => f.name === name);
      return [name, `${machineName(file)}, ${file.date}, ${file.threads} threads`];
    };
    return {
      device: ["Device", plain(devices)],
      file: ["Machine", names.map(described)],
      operator: ["Operators shown", [["all", "all"], ...plain(operators)]],
      what: ["Value or derivative", plain(of("what"))],
      dtype: ["Type", plain(of("dtype"))],
      data: ["Rows drawn from", plain(of("data"))],
      shape: ["Shapes shown", [["all", "all shapes"], ...plain(shapes)]],
      axis: ["Charts of n and k show", Object.entries(AXES).map(([name, axis]) => [name, axis[0]])],
    };
  }

  function drawSelects(holder, selects) {
    const focused = document.activeElement && document.activeElement.id;
    const fields = Object.entries(selects).map(([name, [text, options]]) => {
      const select = html("select", { id: `stk-${name}` });
      for (const [value, shown] of options) select.append(html("option", { value }, shown));
      select.value = state[name] || options[0][0];
      select.addEventListener("change", () => {
        state[name] = select.value;
        draw();
      });
      return html("label", { for: select.id }, text, select);
    });
    document.getElementById(holder).replaceChildren(...fields);
    const again = focused && document.getElementById(focused);
    if (again) again.focus();
  }

  function drawFilters() {
    const { file, device, ...others } = choices();
    const several = device[1].length > 1 ? { device } : {};
    drawSelects("stk-filters", { ...several, ...others });
  }

  /** The newest file of each machine of the chosen device. */
  function newest() {
    const here = files.filter((file) => file.machine.device === state.device);
    return [...new Map(here.map((file) => [machineName(file), file])).values()];
  }

  const sameRows = (r) => ["dtype", "what", "data"].every((name) => r[name] === state[name]);
  const isPlain = (r) => USUAL.has(r.method);
  const isToday = (r) => !isOurs(r) && !["torch.softmax", "np.copyto"].includes(r.operator);

  /** What the answer is about: an operator, a size, a k and what it is compared with. */
  function question() {
    const results = current().results.filter((r) => sameRows(r) && isPlain(r)).sort(bySize);
    const pick = (name, values, wanted) => {
      state[name] = first(unique(values), values.includes(state[name]) ? state[name] : wanted);
      return unique(values);
    };
    const ours = pick("mine", results.filter(isOurs).map(label), "thretopk laplace newton");
    const mine = results.filter((r) => label(r) === state.mine);
    const sizes = pick("size", mine.map(size), "1024 × 1024");
    const sized = mine.filter((r) => size(r) === state.size);
    const usual = usualShapes(current());
    const main = sized.find((r) => usual.has(shape(r))) || sized[0];
    const ks = pick("k", sized.map((r) => String(r.k)), main && String(main.k));
    const at = (r) => size(r) === state.size && String(r.k) === state.k;
    const todays = pick("today", results.filter((r) => isToday(r) && at(r)).map(label), "torch.topk");
    return { ours, sizes, ks, todays };
  }

  /** The result of the operator and of what is used today, in a file. */
  function answerOf(file) {
    const of = (name) => file.results.find((r) => sameRows(r) && isPlain(r) && label(r) === name
      && size(r) === state.size && String(r.k) === state.k);
    return { mine: of(state.mine), today: state.today && of(state.today) };
  }

  const times = (ratio) => `${digits(ratio)} ×`;
  const inverse = (ratio) => (ratio < 0.95 ? ` (${digits(1 / ratio)} times as fast)` : "");

  function drawAnswer() {
    const { ours, sizes, ks, todays } = question();
    const plain = (values) => values.map((value) => [value, value]);
    const none = [["", "nothing else was measured for this"]];
    drawSelects("stk-question", {
      file: choices().file,
      mine: ["Operator", plain(ours)],
      size: ["Rows × entries of a row", plain(sizes)],
      k: ["k", plain(ks)],
      today: ["I use today", todays.length ? plain(todays) : none],
    });
    const { mine, today } = answerOf(current());
    const holder = document.getElementById("stk-answer");
    if (!mine) return holder.replaceChildren(nothing());
    const parts = [
      `${state.mine} takes `, html("strong", {}, `${times(mine.ratio)} the time of ${unitName(state)}`),
    ];
    if (today) {
      const ratio = mine.ratio / today.ratio;
      const text = `${times(ratio)} the time of ${state.today}`;
      parts.push(" and ", html("strong", {}, text), inverse(ratio));
    }
    const { cpu, gpu, host } = current().machine;
    const shaped = `${state.size} ${state.dtype} numbers, k = ${state.k}, ${state.data} rows`;
    const where = `${gpu || `${cpu} (${host})`}, ${current().threads} threads, ${current().date}`;
    const small = `${state.what}: ${time(mine.seconds)} a call on ${shaped}. ${where}.`;
    holder.replaceChildren(html("p", {}, ...parts, "."), html("p", { class: "stk-small" }, small));
    drawMachines();
  }

  /** The same two ratios on every machine where the case was measured. */
  function drawMachines() {
    const rows = newest().map((file) => [file, answerOf(file)]).filter(([, { mine }]) => mine)
      .map(([file, { mine, today }]) => ({
        row: [
          `${machineName(file)}`, digits(mine.ratio), today ? digits(mine.ratio / today.ratio) : "",
          time(mine.seconds),
        ],
        kind: file.name === state.file ? "stk-row-chosen" : "",
      }));
    const head = ["on each machine", `× ${unitName(state)}`, state.today ? `× ${state.today}` : "", "a call"];
    document.getElementById("stk-machines").replaceChildren(tableOf(head, rows));
  }

  function drawMachine() {
    const file = current();
    const { cpu, host, cores, simd, gpu } = file.machine;
    const parts = [gpu, `${cpu} (${host})`, cores && `${cores} cores`, simd, `threads: ${file.threads}`];
    const there = Object.entries(file.versions).filter(([, version]) => version);
    const versions = there.map(([name, version]) => `${name} ${version}`);
    const text = `${parts.filter(Boolean).join(", ")}. ${versions.join(", ")}. Measured ${file.date}.`;
    document.getElementById("stk-machine").textContent = text;
  }

  /** Baselines of the same shape that took less time, fastest first. */
  function faster(result, results) {
    if (!isOurs(result) || noTopk.includes(result.operator)) return [];
    const counts = (r) => !isOurs(r) && !noTopk.includes(r.operator) && shape(r) === shape(result);
    const ahead = results.filter((r) => counts(r) && r.ratio < result.ratio);
    return ahead.sort((a, b) => a.ratio - b.ratio);
  }

  /** A loss is told in words as well as by colour; where quartiles overlap it is a draw. */
  function loss(result, other) {
    const level = other.high >= result.low;
    const words = html("span", { class: "visually-hidden" }, level ? "level with" : "slower than");
    const text = ` ${label(other)} ${digits(other.ratio)}`;
    return html("span", { class: level ? "stk-draw" : "stk-loss" }, level ? "△ " : "▲ ", words, text);
  }

  function tableOf(head, body) {
    const cells = (row, tag) => row.map((cell, i) => {
      const scope = tag === "th" ? { scope: "col" } : { scope: "row" };
      return html(i && tag === "td" ? "td" : "th", i && tag === "td" ? {} : scope, ...[cell].flat());
    });
    const rows = body.map(({ row, kind = "" }) => html("tr", { class: kind }, ...cells(row, "td")));
    return html(
      "table",
      { class: "table stk-table" },
      html("thead", {}, html("tr", {}, ...cells(head, "th"))),
      html("tbody", {}, ...rows),
    );
  }

  const kind = (r) => (isOurs(r) ? "stk-row-ours" : "stk-row-baseline");

  /** One row for each operator, one column for each shape. */
  function overview(results) {
    const usual = usualShapes(current());
    const shown = results.filter((r) => usual.has(shape(r)));
    const columns = unique(shown.map(shape));
    const names = unique(shown.map(label));
    const body = names.map((name) => {
      const mine = shown.filter((r) => label(r) === name);
      const cells = columns.map((column) => {
        const result = mine.find((r) => shape(r) === column);
        if (!result) return "";
        const [other] = faster(result, shown);
        return other ? [digits(result.ratio), loss(result, other)] : digits(result.ratio);
      });
      return { row: [name, ...cells], kind: kind(mine[0]) };
    });
    return tableOf([`ratio to ${unitName(state)}`, ...columns], body);
  }

  /** One shape, with everything that was measured of it. */
  function details(results) {
    const head = ["", "ratio", "quartiles", "time", `${unitName(state)} takes`, "rounds", "faster baselines"];
    const body = results.map((r) => ({
      row: [
        label(r), digits(r.ratio), `${digits(r.low)} to ${digits(r.high)}`, time(r.seconds),
        time(r.unit_seconds), r.rounds, faster(r, results).map((other) => loss(r, other)),
      ],
      kind: kind(r),
    }));
    return tableOf(head, body);
  }

  function drawTable() {
    const holder = document.getElementById("stk-table");
    const results = chosen(current()).sort((a, b) => isOurs(b) - isOurs(a));
    if (!results.length) return holder.replaceChildren(nothing());
    const one = results.filter((r) => shape(r) === state.shape);
    holder.replaceChildren(one.length ? details(one) : overview(results));
  }

  /** First calls and imports, which are no part of any ratio. */
  function drawStartup() {
    const rows = Object.entries(current().startup || {}).map(([name, s]) => ({ row: [name, time(s)] }));
    const holder = document.getElementById("stk-startup");
    holder.hidden = rows.length === 0;
    holder.replaceChildren(tableOf(["in a fresh process", "takes"], rows));
  }

  const nothing = () => html("p", { class: "stk-none" }, "Nothing was measured for this choice.");

  function drawLegend() {
    const names = unique(chosen(current()).map(label));
    const buttons = names.map((name) => {
      const look = looks.get(name);
      const button = html("button", { type: "button", "aria-pressed": look.shown }, charts.swatch(look), name);
      button.addEventListener("click", () => {
        look.shown = !look.shown;
        button.setAttribute("aria-pressed", look.shown);
        drawCharts();
      });
      return button;
    });
    document.getElementById("stk-legend").replaceChildren(...buttons);
  }

  /** Points of each series that is switched on. */
  function series(results, point) {
    const on = results.filter((r) => looks.get(label(r)).shown);
    return unique(on.map(label)).map((name) => ({
      ...looks.get(name),
      points: on.filter((r) => label(r) === name).map(point),
    }));
  }

  function figure(name, title, drawn) {
    document.getElementById(`stk-title-${name}`).textContent = title;
    const holder = document.getElementById(`stk-chart-${name}`);
    if (drawn) charts.place(holder, drawn());
    else holder.replaceChildren(nothing());
  }

  function drawCharts() {
    const file = current();
    const results = chosen(file);
    const relative = `time relative to ${unitName(state)}`;
    const [axisName, axisTitle, height] = AXES[state.axis];
    const spread = (r) => (state.axis === "ratio" ? { low: r.low, high: r.high } : {});
    const point = (x) => (r) => ({ x: r[x], y: height(r), ...spread(r), text: exactly(r, file) });
    const about = `${state.what}, ${state.dtype}, ${state.data} rows; ${machineName(file)}, ${file.date}`;

    const usual = usualShapes(file);
    // A line joins the largest array of each n; one row of the same n is a mark of its own.
    const main = results.filter((r) => usual.has(shape(r)));
    const alongN = series(main, (r) => ({
      ...point("n")(r),
      alone: main.some((other) => label(other) === label(r) && other.n === r.n && other.rows > r.rows),
    }));
    const names = (x) => ({ x, y: axisTitle || relative });
    const title = `${axisName} against n: ${about}`;
    figure("n", title, alongN.length && (() => charts.lines(title, names("n, entries of a row"), alongN)));

    // Without a choice, the rows × n with the most k, and of shapes the one with the most results.
    const most = (keys) => unique(keys).sort((a, b) => count(keys, b) - count(keys, a))[0];
    const count = (keys, key) => keys.filter((k) => k === key).length;
    const picked = results.filter((r) => shape(r) === state.shape);
    const sizes = unique(results.map(shape)).map((s) => size(results.find((r) => shape(r) === s)));
    const swept = picked.length ? size(picked[0]) : most(sizes);
    const alongK = series(results.filter((r) => size(r) === swept), point("k"));
    const ks = unique(alongK.flatMap((s) => s.points.map((p) => p.x)));
    const note = ks.length === 1 ? " (only one k was measured here)" : "";
    const titleK = `${axisName} against k: ${swept}${note}, ${about}`;
    figure("k", titleK, alongK.length && (() => charts.lines(titleK, names("k, entries to select"), alongK)));

    const at = picked.length ? state.shape : most(results.map(shape).filter((s) => usual.has(s)));
    const rows = results
      .filter((r) => shape(r) === at && looks.get(label(r)).shown)
      .sort((a, b) => a.ratio - b.ratio)
      .map((r) => ({ ...looks.get(label(r)), value: r.ratio, low: r.low, high: r.high, text: exactly(r, file) }));
    const titleBaselines = `beside other libraries: ${at}, ${about}`;
    figure("baselines", titleBaselines, rows.length && (() => charts.bars(titleBaselines, { x: `${relative}; whiskers are quartiles` }, rows)));

    // The newest file of each machine, whatever file is chosen.
    const each = newest();
    const cases = each.flatMap((f, x) => chosen(f).filter((r) => shape(r) === at)
      .map((r) => ({ ...r, x, text: exactly(r, f) })));
    const places = (r) => ({ x: r.x, y: r.ratio, low: r.low, high: r.high, text: r.text });
    const across = series(cases, places);
    const titleMachines = `by machine: ${at}, ${state.what}, ${state.dtype}, ${state.data} rows`;
    const axesMachines = { x: "machine", y: relative };
    const labels = each.map((f) => f.machine.gpu || f.machine.host);
    figure("machines", titleMachines, across.length && (() => charts.lines(titleMachines, axesMachines, across, labels)));
  }

  function draw() {
    drawFilters();
    drawAnswer();
    drawMachine();
    drawTable();
    drawLegend();
    drawCharts();
    drawStartup();
  }

  document.getElementById("stk-empty").hidden = files.length > 0;
  root.hidden = files.length === 0;
  if (files.length === 0) return;
  charts.listen(root, document.getElementById("stk-tip"));
  draw();
});
