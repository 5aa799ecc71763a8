// Keeps the page up to date by server-sent events, and remembers which runs were chosen for a comparison.
(() => {
  "use strict";
  const linked = document.getElementById("linked");
  const link = document.getElementById("link");
  const said = document.getElementById("said");
  let apart = 0; // of the server's clock from ours, in seconds
  let asked = 0; // pages that are on their way

  // --- ages ---

  function ago(seconds) {
    if (seconds < 0.95) return "now";
    if (seconds < 100) return `${Math.round(seconds)} s ago`;
    if (seconds < 6000) return `${Math.round(seconds / 60)} min ago`;
    return seconds < 172800 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} d ago`;
  }

  function age() {
    const now = Date.now() / 1000 + apart;
    for (const each of document.querySelectorAll("[data-at]")) {
      const text = ago(Math.max(0, now - Number(each.dataset.at)));
      if (each.textContent !== text) each.textContent = text;
    }
  }

  // --- figures of runs that go on ---

  function show(key, cells) {
    const row = document.querySelector(`tr[data-run="${key}"]`);
    if (!row) return;
    row.className = cells.tone;
    for (const cell of row.querySelectorAll("[data-cell]")) {
      const text = cells[cell.dataset.cell];
      if (cell.textContent !== text) cell.textContent = text;
    }
    const progress = row.querySelector("progress");
    progress.max = cells.planned;
    progress.value = cells.step;
    for (const [selector, at] of [["td.age", cells.at], ["[data-event-age]", cells.event_at]]) {
      const cell = row.querySelector(selector);
      if (at === null) delete cell.dataset.at;
      else cell.dataset.at = at;
    }
  }

  // --- the page once more, part by part; what is being typed or looked at stays ---

  async function renew() {
    const own = (asked += 1);
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!answer.ok || own !== asked) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (own !== asked) return;
    const focus = document.activeElement?.closest("[data-part]") && (document.activeElement.getAttribute("href") ?? document.activeElement.value);
    for (const part of document.querySelectorAll("[data-part]")) {
      const other = fresh.querySelector(`[data-part="${part.dataset.part}"]`);
      if (other && other.innerHTML !== part.dataset.was) {
        part.dataset.was = other.innerHTML;
        part.replaceChildren(...document.importNode(other, true).childNodes);
      }
    }
    if (focus) [...document.querySelectorAll("main a, main input, main button")].find((each) => (each.getAttribute("href") ?? each.value) === focus)?.focus({ preventScroll: true });
    pick();
    age();
  }

  function connect() {
    const source = new EventSource("/events");
    let isFirst = true;
    source.addEventListener("hello", (event) => {
      apart = JSON.parse(event.data).now - Date.now() / 1000;
      link.className = "link live";
      linked.textContent = "live";
      if (!isFirst) renew(); // what happened meanwhile
      isFirst = false;
    });
    source.addEventListener("live", (event) => {
      const { now, runs } = JSON.parse(event.data);
      apart = now - Date.now() / 1000;
      for (const [key, cells] of Object.entries(runs)) show(key, cells);
      age();
    });
    source.addEventListener("changed", (event) => {
      const { ended } = JSON.parse(event.data);
      if (ended.length) said.textContent = ended.map(([name, outcome]) => `${name}: ${outcome}`).join("; ");
      renew();
    });
    source.addEventListener("error", () => {
      if (link.className === "link lost") return;
      link.className = "link lost";
      linked.textContent = `not connected since ${new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false })}`;
    });
  }

  // --- two runs to compare, also from different pages ---

  const chosen = () => JSON.parse(sessionStorage.getItem("chosen") ?? "[]");

  function pick() {
    const form = document.getElementById("comparing");
    if (!form) return;
    const runs = chosen();
    for (const box of form.querySelectorAll("input[name=run]")) box.checked = runs.some(([key]) => key === box.value);
    const place = document.getElementById("picked");
    const [hint, button] = [place.querySelector(".hint"), place.querySelector("button")];
    const text = ["Choose two to compare", `${runs[0]?.[1]} and …`, `${runs[0]?.[1]} and ${runs[1]?.[1]}`][runs.length];
    if (hint.textContent !== text) hint.textContent = text;
    button.disabled = runs.length !== 2;
  }

  function listen() {
    document.addEventListener("change", (event) => {
      const box = event.target;
      if (box.matches("input[name=run]")) {
        const others = chosen().filter(([key]) => key !== box.value);
        const name = box.closest("tr").querySelector("th a").textContent;
        sessionStorage.setItem("chosen", JSON.stringify(box.checked ? [...others, [box.value, name]].slice(-2) : others));
        pick();
      } else if (box.matches(".filter select")) box.form.requestSubmit();
    });
    document.addEventListener("submit", (event) => {
      if (event.target.id === "comparing") {
        event.preventDefault();
        const runs = chosen();
        if (runs.length !== 2) return;
        location.href = `/compare?${new URLSearchParams(runs.map(([key]) => ["run", key]))}`;
      } else if (event.target.matches(".filter")) {
        for (const field of event.target.querySelectorAll("input, select")) field.disabled = !field.value; // a short address
      }
    });
    addEventListener("pageshow", () => {
      for (const field of document.querySelectorAll(".filter :disabled")) field.disabled = false;
      pick();
    });
    document.addEventListener("keydown", (event) => {
      const search = document.querySelector(".search input");
      if (event.key !== "/" || !search || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
      event.preventDefault();
      search.select();
    });
  }

  pick();
  listen();
  age();
  setInterval(age, 1000);
  if (document.querySelector("[data-part]")) connect();
  else link.hidden = true;
})();
