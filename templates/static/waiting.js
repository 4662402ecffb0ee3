// Makes the waiting page live: counts down, asks how the ticket stands (which is never early) and
// hears when its turn has come, starts the download in place, says how to check it and when it is
// complete.
// Without it the page works by Refresh.
"use strict";
(() => {
  const page = document.querySelector("[data-queue]");
  if (!page) return;
  const words = JSON.parse(page.dataset.words);
  const name = decodeURIComponent(page.dataset.path.split("/").pop());
  const at = (name) => page.querySelector(`[data-live="${name}"]`);
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
  // As protocol.units.split_duration divides it.
  const time = (seconds) => {
    const n = Math.max(0, Math.round(seconds));
    // A figure and its unit stay on one line.
    const unit = (name, count) =>
      new Intl.NumberFormat(document.documentElement.lang, {
        style: "unit",
        unit: name,
        numberingSystem: "latn",
      })
        .format(count)
        .replaceAll(" ", "\u00a0");
    if (n < 90) return unit("second", n);
    const minutes = Math.round(n / 60);
    if (minutes < 90) return unit("minute", minutes);
    const hours = Math.floor(minutes / 60);
    if (hours >= 48) return unit("day", Math.round(hours / 24));
    return minutes % 60 ? `${unit("hour", hours)} ${unit("minute", minutes % 60)}` : unit("hour", hours);
  };
  // As protocol.units.bound_of: a bound is rounded up.
  const bound = (seconds) => {
    for (const [step, below] of [[1, 90], [60, 48 * 3600]]) {
      const up = Math.ceil(Math.max(0, seconds) / step) * step;
      if (up < below) return up;
    }
    return Math.ceil(seconds / 86400) * 86400;
  };
  const show = (name, text) => {
    const node = at(name);
    if (node && node.textContent !== text) node.textContent = text;
  };

  const clock = () => Date.now() / 1000;
  const began = clock() - Number(page.dataset.waited);
  let starts = page.dataset.expected ? clock() + Number(page.dataset.expected) : null;
  let has = page.dataset.has ? clock() + Number(page.dataset.has) : null;
  let visit = clock() + Number(page.dataset.visit);
  let started = false;
  let done = false;
  let asked = clock();
  let asking = false;
  let fetched = -Infinity;

  // Progress never falls, whatever is expected now, in this page or in the one that follows it.
  let furthest = 0;
  try {
    const [path, since, percent] = JSON.parse(sessionStorage.getItem("progress"));
    if (path === page.dataset.path && Math.abs(since - began) < 60) furthest = percent;
  } catch {
    // Nothing is kept, or nothing may be.
  }
  const advance = (percent) => {
    const row = at("progress");
    if (!row) return;
    furthest = Math.min(99, Math.max(furthest, percent));
    row.querySelector("progress").value = furthest;
    row.hidden = false;
    try {
      sessionStorage.setItem("progress", JSON.stringify([page.dataset.path, began, furthest]));
    } catch {
      // Then it holds for this page only.
    }
  };

  const tick = () => {
    const now = clock();
    if (now - asked >= interval() && !done && !document.hidden) ask();
    if (started) return;
    show("waited", time(now - began));
    if (starts !== null) {
      show("expected", fill(words.expected_value, { time: time(Math.max(1, starts - now)) }));
      advance((100 * (now - began)) / Math.max(1, starts - began));
    }
    if (has !== null) tellEnd(now);
    // After the visit the next answer says how the ticket stands: no time is known until then.
    at("visit").hidden = visit - now < 1;
    show("visit", fill(words.next_visit, { time: time(visit - now) }));
  };

  // The end, counted down and as a time of day: who reads it may be elsewhere meanwhile.
  const tellEnd = (now) => {
    const left = time(Math.max(1, has - now));
    show("has", fill(words.expected_value, { time: left }));
    const row = at("has-at");
    if (row) row.hidden = false;
    const day = has - now > 72000 ? { weekday: "short" } : {};
    const when = new Date(1000 * has);
    const style = { ...day, hour: "2-digit", minute: "2-digit", numberingSystem: "latn" };
    show("has-at", `≈ ${when.toLocaleTimeString(document.documentElement.lang, style)}`);
    const heading = at("title").textContent;
    document.title = `${left} – ${heading} – ${name}`;
  };

  // How often the numbers are to be of now, seconds.
  const interval = () => {
    if (started) return 20;
    const left = starts === null ? 60 : starts - clock();
    return Math.min(20, Math.max(4, left / 4));
  };

  // The server holds its answer until the turn has come, or until the numbers are to be renewed.
  const ask = async () => {
    if (asking || done) return;
    asking = true;
    let held = false;
    try {
      do {
        asked = clock();
        const answer = await fetch(page.dataset.queue, {
          cache: "no-store",
          headers: { Prefer: `wait=${Math.ceil(interval())}` },
        });
        if (!answer.ok) break;
        // An answer that was held for no time at all is none to ask again after at once.
        held = answer.headers.has("Preference-Applied") && clock() - asked > 1;
        take(await answer.json());
      } while (held && !started && clock() - fetched > 5);
    } catch {
      // The network is away for a moment; the next question follows by itself.
    }
    asking = false;
  };

  const take = (status) => {
    const now = clock();
    if (status.state === "done") return completed(status);
    if (status.state === "started") return begun(status);
    if (status.state === "over") {
      // A second visit after a fetch could download the file twice.
      if (started || fetched > 0) return begun(status);
      done = true;
      window.location.replace(page.dataset.path);
      return;
    }
    // Its slot is kept for it, so no visit is early now.
    if (status.state === "called") return start();
    if (status.expected_wait_s !== undefined) starts = now + status.expected_wait_s;
    if (status.expected_done_s !== undefined) {
      // Half of the way to each new forecast: what is shown never jumps, and is soon true.
      const told = now + status.expected_done_s;
      has = has === null ? told : has + (told - has) / 2;
      show("has-latest", fill(words.latest, { time: time(bound(status.p90_done_s)) }));
    }
    if (status.place) {
      const place = status.place.toLocaleString(document.documentElement.lang);
      const soon = starts === null || starts - now <= Number(page.dataset.soon);
      const next = status.place === 1 ? words.title_next : words.title_ready;
      const near = soon && (status.place === 1 || status.state === "ready");
      show("title", near ? next : fill(words.title_place, { place }));
    }
    if (status.p90_wait_s !== undefined) {
      show("latest", fill(words.latest, { time: time(bound(status.p90_wait_s)) }));
    }
    // A ready ticket may knock at once when a slot is free; any other visit before its time is early.
    if (status.free && visit - now > 2) start();
  };

  // The answer is either the file, which leaves this page as it is, or this page anew.
  const start = () => {
    if (clock() - fetched < 5) return;
    fetched = visit = clock();
    window.location.assign(page.dataset.file);
    window.setTimeout(ask, 2000);
  };

  const begun = (status) => {
    if (!started) {
      started = true;
      // Ends the Refresh of this page, once the answer has become a download of its own.
      window.setTimeout(() => window.stop(), 1500);
      show("title", words.title_started);
      document.title = `${words.title_started} – ${name}`;
      for (const node of page.querySelectorAll("[data-while='waiting']")) node.hidden = true;
      for (const node of page.querySelectorAll("[data-while='started']")) node.hidden = false;
    }
    // Without a digest the commands on the page still check the file.
    if (!status.sha256) return;
    show("digest", status.sha256);
    at("digest-row").hidden = false;
  };

  const completed = (status) => {
    begun(status);
    done = true;
    show("title", words.title_done);
    document.title = `${words.title_done} – ${name}`;
    show("lead", page.dataset.done);
    show("check", words.check_done);
  };

  window.setInterval(tick, 1000);
  document.addEventListener("visibilitychange", () => document.hidden || ask());
  ask();
})();
