/* Charts in SVG. No library: a page that is opened from a disk loads nothing from elsewhere. */
"use strict";

window.softtopkCharts = (() => {
  const WIDTH = 680;
  const MARKS = [
    "M-4.5,0a4.5,4.5 0 1,0 9,0a4.5,4.5 0 1,0 -9,0Z",
    "M-4,-4H4V4H-4Z",
    "M0,-5.2L5,3.8H-5Z",
    "M0,-5.6L5.6,0L0,5.6L-5.6,0Z",
    "M0,5.2L5,-3.8H-5Z",
    "M-1.6,-5H1.6V-1.6H5V1.6H1.6V5H-1.6V1.6H-5V-1.6H-1.6Z",
  ];

  function svg(tag, attributes, ...children) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  /** A number as people read it: at most three digits that count, large powers of ten as such. */
  function format(value) {
    const power = Math.round(Math.log10(value));
    const digits = "⁰¹²³⁴⁵⁶⁷⁸⁹";
    if (Math.abs(value / 10 ** power - 1) < 1e-9 && (power > 4 || power < -3)) {
      const sign = power < 0 ? "⁻" : "";
      return `10${sign}${[...String(Math.abs(power))].map((d) => digits[d]).join("")}`;
    }
    return Number(value.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
  }

  /** A count, with every digit, but for large powers of ten. */
  const whole = (value) => (/^10{5,}$/.test(String(value)) ? format(value) : String(value));

  /** Positions on a logarithmic axis from `from` to `to`, and its ticks. */
  function logarithmic(values, from, to) {
    const ends = [Math.log10(Math.min(...values)), Math.log10(Math.max(...values))];
    const margin = Math.max(0.08, (0.7 - ends[1] + ends[0]) / 2);
    const [low, high] = [ends[0] - margin, ends[1] + margin];
    const at = (value) => from + ((Math.log10(value) - low) / (high - low)) * (to - from);
    const steps = high - low > 3.2 ? [1] : [1, 2, 5];
    const ticks = [];
    for (let power = Math.floor(low); power <= high; power++) {
      for (const step of steps) {
        const value = Number(`${step}e${power}`);
        const place = Math.log10(value);
        if (place >= low && place <= high) ticks.push({ value, label: format(value) });
      }
    }
    return { at, ticks };
  }

  /** Equal steps for things in an order, such as dates. */
  function ordered(labels, from, to) {
    const step = (to - from) / labels.length;
    return {
      at: (place) => from + (place + 0.5) * step,
      ticks: labels.map((label, value) => ({ value, label })),
    };
  }

  function emptyChart(title, height) {
    return svg("svg", {
      viewBox: `0 0 ${WIDTH} ${height}`,
      class: "stk-chart",
      role: "group",
      "aria-label": `${title}. Arrow keys go from mark to mark.`,
    });
  }

  function axes(chart, box, x, y, names) {
    const grid = svg("g", { class: "stk-axes" });
    for (const tick of x.ticks) {
      const at = x.at(tick.value);
      grid.append(svg("line", { x1: at, x2: at, y1: box.top, y2: box.bottom }));
      grid.append(svg("text", { x: at, y: box.bottom + 18, "text-anchor": "middle" }, tick.label));
    }
    for (const tick of y ? y.ticks : []) {
      const at = y.at(tick.value);
      grid.append(svg("line", { x1: box.left, x2: box.right, y1: at, y2: at }));
      grid.append(svg("text", { x: box.left - 8, y: at + 4, "text-anchor": "end" }, tick.label));
    }
    const middle = (box.top + box.bottom) / 2;
    const name = { class: "stk-axis-name", "text-anchor": "middle" };
    const below = { x: (box.left + box.right) / 2, y: box.bottom + 42, ...name };
    grid.append(svg("text", below, names.x));
    if (names.y) {
      grid.append(svg("text", { transform: `translate(18,${middle}) rotate(-90)`, ...name }, names.y));
    }
    chart.append(grid);
  }

  function whisker(x1, y1, x2, y2) {
    const cap = x1 === x2 ? `M${x1 - 4},${y1}h8M${x2 - 4},${y2}h8` : `M${x1},${y1 - 4}v8M${x2},${y2 - 4}v8`;
    return svg("path", { class: "stk-whisker", d: `M${x1},${y1}L${x2},${y2}${cap}` });
  }

  /** One mark of a chart: what a pointer or the keyboard reaches, and what it says. */
  function mark(series, text, ...shapes) {
    return svg(
      "g",
      { class: `stk-mark ${series.style}`, "data-text": text, "data-series": series.label,
        role: "img", "aria-label": text, tabindex: -1 },
      ...shapes,
    );
  }

  function symbol(series) {
    return svg("path", { class: "stk-symbol", d: MARKS[series.place % MARKS.length] });
  }

  /** What a legend shows for a series. */
  function swatch(series) {
    const middle = svg("g", { transform: "translate(16,7)" }, symbol(series));
    const line = svg("path", { class: "stk-line", d: "M0,7H32" });
    return svg("svg", { viewBox: "0 0 32 14", class: `stk-swatch ${series.style}`, "aria-hidden": "true" }, line, middle);
  }

  /**
   * Lines through points {x, y, low, high, text}, but for those that stand alone; `names` are the
   * axes', with their units.
   */
  function lines(title, names, series, labels) {
    const height = 400;
    const box = { left: 76, right: WIDTH - 16, top: 12, bottom: height - 58 };
    const points = series.flatMap((s) => s.points);
    const chart = emptyChart(title, height);
    const x = labels
      ? ordered(labels, box.left, box.right)
      : logarithmic(points.map((p) => p.x), box.left, box.right);
    const heights = points.flatMap((p) => (p.low ? [p.y, p.low, p.high] : [p.y]));
    const y = logarithmic(heights, box.bottom, box.top);
    axes(chart, box, x, y, names);
    for (const s of series) {
      const joined = s.points.filter((p) => !p.alone);
      const places = joined.map((p) => `${x.at(p.x)},${y.at(p.y)}`);
      const path = svg("path", { class: "stk-line", d: `M${places.join("L")}` });
      chart.append(svg("g", { class: s.style, "data-series": s.label }, path));
    }
    for (const s of series) {
      for (const p of s.points) {
        const at = [x.at(p.x), y.at(p.y)];
        const shapes = p.low ? [whisker(at[0], y.at(p.low), at[0], y.at(p.high))] : [];
        shapes.push(svg("g", { transform: `translate(${at})` }, symbol(s)));
        chart.append(mark(s, p.text, ...shapes));
      }
    }
    return chart;
  }

  /** Horizontal bars {label, value, low, high, text}, with a line at 1. */
  function bars(title, names, rows) {
    const [step, left] = [24, 205];
    const box = { left, right: WIDTH - 70, top: 8, bottom: 8 + step * rows.length };
    const chart = emptyChart(title, box.bottom + 58);
    const x = logarithmic([1, ...rows.flatMap((r) => [r.value, r.low, r.high])], left, box.right);
    axes(chart, box, x, null, names);
    const unit = { class: "stk-unit", x1: x.at(1), x2: x.at(1), y1: box.top, y2: box.bottom };
    chart.append(svg("line", unit));
    rows.forEach((r, i) => {
      const y = box.top + step * (i + 0.5);
      const width = Math.max(x.at(r.value) - left, 1);
      chart.append(
        svg("text", { class: "stk-bar-name", x: left - 10, y: y + 4.5, "text-anchor": "end" }, r.label),
        mark(
          r,
          r.text,
          svg("rect", { class: "stk-bar", x: left, y: y - 8, width, height: 16 }),
          whisker(x.at(r.low), y, x.at(r.high), y),
        ),
        svg("text", { class: "stk-bar-value", x: x.at(r.high) + 8, y: y + 4.5 }, format(r.value)),
      );
    });
    return chart;
  }

  /** Tooltips by pointer and by keyboard for every chart inside `root`. */
  function listen(root, tip) {
    const hide = () => {
      tip.hidden = true;
      root.querySelectorAll(".stk-other").forEach((node) => node.classList.remove("stk-other"));
    };
    const show = (node) => {
      hide();
      tip.textContent = node.dataset.text;
      tip.hidden = false;
      const [at, home] = [node.querySelector(".stk-symbol, .stk-bar") || node, root]
        .map((n) => n.getBoundingClientRect());
      const free = home.width - tip.offsetWidth;
      const middle = at.left + at.width / 2 - home.left;
      tip.style.left = `${Math.max(0, Math.min(middle - tip.offsetWidth / 2, free))}px`;
      tip.style.top = `${at.top - home.top - tip.offsetHeight - 10}px`;
      for (const other of node.closest("svg").querySelectorAll("[data-series]")) {
        other.classList.toggle("stk-other", other.dataset.series !== node.dataset.series);
      }
    };
    const over = (event) => event.target.closest && event.target.closest(".stk-mark");
    root.addEventListener("pointerover", (event) => over(event) && show(over(event)));
    root.addEventListener("pointerout", (event) => over(event) && hide());
    root.addEventListener("focusin", (event) => over(event) && show(over(event)));
    root.addEventListener("focusout", hide);
    root.addEventListener("keydown", (event) => {
      if (event.key === "Escape") hide();
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
      const here = over(event);
      if (!here || !steps[event.key]) return;
      event.preventDefault();
      const marks = [...here.closest("svg").querySelectorAll(".stk-mark")];
      const next = marks[(marks.indexOf(here) + steps[event.key] + marks.length) % marks.length];
      here.setAttribute("tabindex", -1);
      next.setAttribute("tabindex", 0);
      next.focus();
    });
  }

  /** Put a chart in its place; its first mark is where the tab key stops. */
  function place(holder, chart) {
    const first = chart.querySelector(".stk-mark");
    if (first) first.setAttribute("tabindex", 0);
    holder.replaceChildren(chart);
  }

  return { bars, lines, listen, place, swatch, whole };
})();
