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
    const until = has ?? starts;
    const left = until === null ? "" : `${time(Math.max(1, until - now))} – `;
    document.title = `${left}${at("title").textContent} – ${name}`;
    // After the visit the next answer says how the ticket stands: no time is known until then.
    at("visit").hidden = visit - now < 1;
    show("visit", fill(words.next_visit, { time: time(visit - now) }));
  };

  // The end, counted down and as a time of day: who reads it may be elsewhere meanwhile.
  const tellEnd = (now) => {
    show("has", fill(words.expected_value, { time: time(Math.max(1, has - now)) }));
    const row = at("has-at");
    if (row) row.hidden = false;
    const day = has - now > 72000 ? { weekday: "short" } : {};
    const when = new Date(1000 * has);
    const style = { ...day, hour: "2-digit", minute: "2-digit", numberingSystem: "latn" };
    show("has-at", `≈ ${when.toLocaleTimeString(document.documentElement.lang, style)}`);
  };

  // The tab's picture: the place while it waits, then a sign. It is drawn only when it changes.
  let pictured = "";
  const picture = (text) => {
    const icon = document.querySelector("link[rel=icon]");
    const canvas = document.createElement("canvas");
    const pen = canvas.getContext("2d");
    if (text === pictured || !icon || !pen) return;
    pictured = text;
    canvas.width = canvas.height = 64;
    pen.fillStyle = "#0b6e7f";
    pen.beginPath();
    pen.arc(32, 32, 32, 0, 7);
    pen.fill();
    pen.fillStyle = "#ffffff";
    pen.font = `bold ${[44, 44, 36, 27][Math.min(text.length, 3)]}px sans-serif`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(text, 32, 35);
    icon.type = "image/png";
    icon.href = canvas.toDataURL();
  };

  const picturePlace = (place) => picture(place > 999 ? "…" : String(place));

  // What tells somebody who looks elsewhere. Both are asked for by hand; neither asks by itself.
  let sounds = null;
  const melodies = { bell: [880], chime: [660, 830, 990] };
  const ring = () => {
    const notes = melodies[at("sound")?.value];
    if (!notes || !sounds) return;
    sounds.resume();
    notes.forEach((pitch, number) => {
      const begin = sounds.currentTime + number * 0.35;
      const tone = sounds.createOscillator();
      const loud = sounds.createGain();
      tone.frequency.value = pitch;
      loud.gain.setValueAtTime(0.3, begin);
      loud.gain.exponentialRampToValueAtTime(0.001, begin + 1.2);
      tone.connect(loud).connect(sounds.destination);
      tone.start(begin);
      tone.stop(begin + 1.2);
    });
  };
  const tell = (text) => {
    ring();
    if (window.Notification?.permission !== "granted" || at("notify")?.dataset.on === undefined) return;
    try {
      new Notification(text, { body: name, icon: document.querySelector("link[rel=icon]").href });
    } catch {
      // Some phones let only a service worker notify; the sound and the title tell it there.
    }
  };
  // Each visit loads the page anew: what was chosen holds in this tab.
  const chosen = (name, value) => {
    try {
      if (value !== undefined) sessionStorage.setItem(`tell-${name}`, value);
      return sessionStorage.getItem(`tell-${name}`) ?? "";
    } catch {
      return value ?? "";
    }
  };
  const offer = () => {
    if (!at("tell")) return;
    at("tell").hidden = false;
    at("sound").value = chosen("sound");
    if (at("sound").value) sounds = new AudioContext();
    at("sound").addEventListener("change", () => {
      // A browser lets a page sound only after its visitor has touched it: this is the touch.
      sounds ??= new AudioContext();
      chosen("sound", at("sound").value);
      ring();
    });
    // Only a secure page may notify.
    if (!("Notification" in window) || !window.isSecureContext) return;
    const on = () => {
      at("notify").dataset.on = "";
      at("notify").hidden = true;
      show("told", words.notify_on);
    };
    if (chosen("notify") && Notification.permission === "granted") return on();
    at("notify").hidden = false;
    at("notify").addEventListener("click", async () => {
      if ((await Notification.requestPermission()) !== "granted") return;
      chosen("notify", "yes");
      on();
    });
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
    else if (starts !== null) {
      // The doors are closed: how long the queue takes says nothing of when they open.
      starts = has = null;
      for (const one of ["expected", "latest", "has", "has-at", "has-latest"]) show(one, "…");
    }
    if (status.expected_done_s !== undefined) {
      // Half of the way to each new forecast: what is shown never jumps, and is soon true.
      const told = now + status.expected_done_s;
      has = has === null ? told : has + (told - has) / 2;
      show("has-latest", fill(words.latest, { time: time(bound(status.p90_done_s)) }));
    }
    if (status.place) {
      picturePlace(status.place);
      const place = status.place.toLocaleString(document.documentElement.lang);
      const soon = starts === null || starts - now <= Number(page.dataset.soon);
      const next = soon && status.place === 1;
      show("title", next ? words.title_next : fill(words.title_place, { place }));
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

  const isThere = async () => {
    try {
      const answer = await fetch(page.dataset.queue, { cache: "no-store", signal: AbortSignal.timeout?.(10000) });
      return answer.status < 500;
    } catch {
      return false;
    }
  };

  // The visit in place of Refresh: while the server or the network is away, as after a restart or a
  // sleep, this page stays, where Refresh would leave the browser's own error page.
  const revisit = async () => {
    if (started || done) return;
    if (clock() - fetched > 30) {
      if (await isThere()) start();
      else visit = clock() + 5;
    }
    window.setTimeout(revisit, 5000);
  };

  const begun = (status) => {
    if (!started) {
      started = true;
      picture("▼");
      tell(words.title_started);
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
    picture("✓");
    show("title", words.title_done);
    document.title = `${words.title_done} – ${name}`;
    show("lead", page.dataset.done);
    show("check", words.check_done);
  };

  // The place is kept by a cookie. `navigator.cookieEnabled` is true in browsers that drop them.
  document.cookie = "tidegate-try=1; samesite=strict";
  at("return")?.toggleAttribute("hidden", !document.cookie.includes("tidegate-try=1"));
  document.cookie = "tidegate-try=; max-age=0";
  window.setInterval(tick, 1000);
  document.addEventListener("visibilitychange", () => document.hidden || ask());
  offer();
  if (Number(page.dataset.place)) picturePlace(Number(page.dataset.place));
  window.addEventListener("load", () => {
    // Ends the Refresh of this page.
    window.stop();
    window.setTimeout(revisit, 1000 * Number(page.dataset.visit));
    ask();
  });
})();
