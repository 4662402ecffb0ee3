// The live parts of the administration: charts and lists that follow. Without
// this file every page still works; pictures and lists are then as old as the page.
"use strict";

(() => {
  const root = document.documentElement;
  const colour = (name) => {
    // A custom property holds light-dark(...): let the browser resolve it on an element.
    const probe = document.createElement("span");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };

  const faint = (rgb) => rgb.replace(/^rgb\((.*)\)$/, "rgba($1, 0.13)");

  const bits = (value) => {
    const units = ["", "k", "M", "G", "T"];
    let at = 0;
    while (value >= 999.5 && at < units.length - 1) { value /= 1000; at += 1; }
    return `${value >= 9.95 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1)} ${units[at]}bit/s`;
  };
  const span = (s) => {
    // As protocol.units.split_duration has it.
    const minutes = Math.round(Math.round(s) / 60);
    if (Math.round(s) < 90) return `${Math.round(s)} s`;
    if (minutes < 90) return `${minutes} min`;
    const hours = Math.floor(minutes / 60);
    if (hours >= 48) return `${Math.round(hours / 24)} d`;
    return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  };
  const show = {
    count: (v) => v.toLocaleString("en"),
    per_s: (v) => `${+v.toPrecision(3)}/s`,
    bit_s: bits,
    s: span,
    share: (v) => `${Math.round(v * 100)} %`,
  };

  // Steps between the lines of an axis that people can read: 5 min, not 500 s.
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800];

  const make = (figure, data) => {
    const unit = figure.dataset.unit;
    const plot = figure.querySelector(".plot");
    const labels = [...figure.querySelectorAll(".legend li")].map((li) => li.textContent);
    const ink = colour("muted");
    const grid = colour("line");
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    plot.replaceChildren();
    // A folded chart has no width until it is opened.
    const size = () => ({ width: Math.max(plot.clientWidth, 200), height: 150 });
    const chart = new uPlot({
      ...size(),
      tzDate: (ts) => uPlot.tzDate(new Date(ts * 1e3), root.dataset.zone),
      cursor: { y: false, points: { size: 7 } },
      legend: { show: false },
      scales: { y: { range: (_, low, high) => [0, unit === "share" ? 1 : (high > 0 ? high : 1) * 1.08] } },
      series: [{}, ...labels.map((label, index) => ({ label, stroke: colour(`c${index + 1}`), fill: index === 0 ? faint(colour("c1")) : undefined, width: 2, points: { show: false }, spanGaps: false }))],
      axes: [
        { ...axis, size: 28, space: 70, values: [[86400, "{YYYY}-{MM}-{DD}"], [60, "{HH}:{mm}"], [1, "{HH}:{mm}:{ss}"]].map(([s, f]) => [s, f, null, null, null, null, null, null, 1]) },
        { ...axis, size: 68, space: 36, ...(unit === "s" ? { incrs: steps } : {}), values: (_, ticks) => ticks.map(show[unit]) },
      ],
    }, data, plot);
    new ResizeObserver(() => chart.setSize(size())).observe(plot);
    return chart;
  };

  // The server takes a sample every five seconds.
  const live = () => {
    const area = document.querySelector("[data-history]");
    if (!area || typeof uPlot === "undefined") return;
    const charts = {};
    const load = async () => {
      if (document.hidden) return;
      const answer = await fetch(area.dataset.history).catch(() => null);
      if (!answer?.ok) return;
      for (const [name, columns] of Object.entries(await answer.json())) {
        const figure = area.querySelector(`[data-chart="${name}"]`);
        charts[name] ? charts[name].setData(columns) : (charts[name] = make(figure, columns));
        figure.querySelectorAll(".legend li").forEach((li, at) => { li.hidden = at > 0 && columns[at + 1].every((value) => value === null); });
        if (columns.slice(1).flat().some((value) => value)) figure.closest("details")?.setAttribute("open", "");
      }
    };
    load();
    setInterval(load, 5000);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const name of Object.keys(charts)) delete charts[name];
      load();
    });
  };

  // Lists follow unless somebody is about to use one of their controls.
  const follow = () => {
    if (document.hidden) return;
    for (const part of document.querySelectorAll('[hx-trigger="tick"]')) {
      if (!part.contains(document.activeElement) || document.activeElement === part) {
        part.dispatchEvent(new CustomEvent("tick"));
      }
    }
  };

  // A form with a preview shows in it what is typed.
  const preview = (form) => {
    let due, unsaved = false;
    form.addEventListener("submit", () => { unsaved = false; });
    window.addEventListener("beforeunload", (event) => unsaved && event.preventDefault());
    form.addEventListener("input", () => {
      unsaved = true;
      clearTimeout(due);
      due = setTimeout(async () => {
        const words = new FormData(form);
        words.delete("logo");
        const answer = await fetch(form.dataset.preview, { method: "POST", body: new URLSearchParams(words) });
        if (!answer.ok) return;
        const page = await answer.text();
        for (const frame of document.querySelectorAll("iframe.preview")) frame.srcdoc = page;
      }, 300);
    });
  };

  root.classList.add("script");
  document.addEventListener("DOMContentLoaded", () => {
    document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    live();
    document.querySelectorAll("form[data-preview]").forEach(preview);
    setInterval(follow, 2000);
  });
})();
