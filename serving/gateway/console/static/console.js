// What every page of the console does in the browser: parts that update themselves, questions before changes,
// times in words, and a word when the server is gone. Pages work without it, except that they stand still.
"use strict";
(() => {
  const PART = { "X-Console-Part": "1" };
  const gone = document.getElementById("gone");
  const signedOut = document.getElementById("signed-out");

  // ---- the server is there, or is not

  function setReachable(reachable) {
    if (gone.hidden !== reachable) {
      gone.hidden = reachable;
      document.dispatchEvent(new CustomEvent(reachable ? "server-back" : "server-gone"));
    }
  }

  // The answer, or null if there is none worth showing; says so at the head of the page.
  async function ask(address, options = {}) {
    try {
      const answer = await fetch(address, { ...options, headers: { ...PART, ...options.headers } });
      setReachable(answer.status !== 502 && answer.status !== 503 && answer.status !== 504);
      signedOut.hidden = answer.status !== 401;
      return answer;
    } catch {
      setReachable(false);
      return null;
    }
  }

  // ---- parts that are fetched again

  // By which column each sorted table of a part is sorted: what is fetched again is in the server's order.
  const readOrder = (part) => [...part.querySelectorAll("table[data-sortable]")].map((table) => {
    const header = table.querySelector("th[aria-sort]");
    return header && { column: header.cellIndex, order: header.getAttribute("aria-sort"), focused: header.contains(document.activeElement) };
  });

  function restoreOrder(part, orders) {
    part.querySelectorAll("table[data-sortable]").forEach((table, index) => {
      const sorted = orders[index];
      const header = sorted && table.tHead?.rows[0]?.cells[sorted.column];
      if (!header) return;
      sortRows(table, header, sorted.order);
      if (sorted.focused) header.querySelector("button")?.focus();
    });
  }

  // What each part was last made of, as the server calls it.
  const etags = new WeakMap();

  async function refresh(part) {
    const known = etags.get(part);
    const answer = await ask(part.dataset.live, known ? { headers: { "If-None-Match": known } } : {});
    // Not with 304: the part shows it already.
    if (answer === null || !answer.ok) return;
    const text = await answer.text();
    if (!part.isConnected) return;
    const done = answer.status === 286;
    const orders = readOrder(part);
    Idiomorph.morph(part, text, {
      ignoreActiveValue: true,
      callbacks: {
        // What the reader has opened stays open.
        beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS"),
      },
    });
    const now = part.id ? document.getElementById(part.id) : part;
    if (now && done) delete now.dataset.live;
    if (now) {
      etags.set(now, answer.headers.get("ETag"));
      prepare(now);
      restoreOrder(now, orders);
    }
    document.dispatchEvent(new CustomEvent("part-updated", { detail: now }));
  }

  const lastAsked = new WeakMap();

  async function tick() {
    if (document.hidden) return;
    const now = performance.now();
    for (const part of document.querySelectorAll("[data-live]")) {
      const seconds = Number(part.dataset.every || 2);
      if (now - (lastAsked.get(part) ?? 0) >= seconds * 1000) {
        lastAsked.set(part, now);
        await refresh(part);
      }
    }
  }

  let busy = false;
  setInterval(async () => {
    if (busy) return;
    busy = true;
    try { await tick(); } finally { busy = false; }
  }, 500);

  // ---- menus: closed by Escape, and by a click or a focus elsewhere

  function closeMenus(except) {
    document.querySelectorAll(".menu[open]").forEach((menu) => { if (menu !== except) menu.open = false; });
  }

  document.addEventListener("click", (event) => closeMenus(event.target.closest(".menu")));
  document.addEventListener("focusin", (event) => closeMenus(event.target.closest(".menu")));
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && document.querySelector(".menu[open]");
    if (!menu) return;
    closeMenus();
    menu.querySelector("summary").focus();
  });

  // ---- times in words

  const relative = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });
  const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

  function showTime(element) {
    const date = new Date(element.dateTime);
    if (Number.isNaN(date.getTime())) return;
    const seconds = (date - Date.now()) / 1000;
    const [unit, length] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? UNITS[3];
    element.textContent = relative.format(Math.round(seconds / length), unit);
    element.title = date.toLocaleString();
  }

  setInterval(() => { if (!document.hidden) document.querySelectorAll("time[datetime]").forEach(showTime); }, 30000);

  // ---- questions before changes

  function confirmFirst(form) {
    const dialog = document.createElement("dialog");
    const text = document.createElement("p");
    text.id = "confirm-text";
    text.textContent = form.dataset.confirm;
    dialog.setAttribute("aria-labelledby", text.id);
    const row = document.createElement("div");
    row.className = "row";
    const yes = document.createElement("button");
    yes.textContent = form.querySelector("button:not([type=button])")?.textContent ?? "Yes";
    yes.className = "danger";
    const no = document.createElement("button");
    no.textContent = "Keep it as it is";
    row.append(no, yes);
    dialog.append(text, row);
    document.body.append(dialog);
    dialog.addEventListener("close", () => dialog.remove());
    no.addEventListener("click", () => dialog.close());
    yes.addEventListener("click", () => {
      dialog.close();
      form.dataset.confirmed = "yes";
      form.requestSubmit();
    });
    dialog.showModal();
    no.focus();
  }

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.dataset.confirm && form.dataset.confirmed !== "yes") {
      event.preventDefault();
      confirmFirst(form);
      return;
    }
    // A second click must not send the form again.
    if (form.method === "post") setTimeout(() => form.querySelectorAll("button").forEach((one) => { one.disabled = true; }));
  });
  // A page that is shown again by the back button has its buttons back.
  addEventListener("pageshow", () => document.querySelectorAll("form button[disabled]").forEach((one) => { one.disabled = false; }));

  // ---- copying, files, sorting

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const before = button.dataset.label ??= button.textContent;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy by hand";
    }
    setTimeout(() => { button.textContent = before; }, 1500);
  });

  // The bytes of a file, as base64, in the field that the input names. Until they are there the form is not sent.
  document.addEventListener("change", (event) => {
    const input = event.target;
    const field = document.getElementById(input.dataset?.into ?? "");
    if (!field) return;
    const file = input.files?.[0];
    const isTooLarge = file !== undefined && file.size > Number(input.dataset.mostBytes ?? Infinity);
    field.value = "";
    input.setCustomValidity(isTooLarge ? input.dataset.tooLarge : "");
    if (!file || !input.reportValidity()) return;
    const buttons = [...input.form.querySelectorAll("button")];
    const reader = new FileReader();
    // In the alphabet that a form sends as it is.
    reader.onload = () => { field.value = reader.result.slice(reader.result.indexOf(",") + 1).replaceAll("+", "-").replaceAll("/", "_"); };
    reader.onerror = () => { input.setCustomValidity("The file cannot be read."); input.reportValidity(); };
    reader.onloadend = () => buttons.forEach((one) => { one.disabled = false; });
    buttons.forEach((one) => { one.disabled = true; });
    reader.readAsDataURL(file);
  });

  function sortRows(table, header, order) {
    table.querySelectorAll("th[aria-sort]").forEach((one) => one.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", order);
    const body = table.tBodies[0];
    const column = header.cellIndex;
    const key = (row) => row.cells[column]?.dataset.value ?? row.cells[column]?.textContent.trim() ?? "";
    const rows = [...body.rows].sort((one, other) => {
      const [a, b] = [key(one), key(other)];
      const numbers = a !== "" && b !== "" && !Number.isNaN(Number(a)) && !Number.isNaN(Number(b));
      return numbers ? a - b : a.localeCompare(b, undefined, { numeric: true });
    });
    body.append(...(order === "descending" ? rows.reverse() : rows));
  }

  function makeSortable(table) {
    for (const header of table.querySelectorAll("thead th")) {
      // A refresh takes the buttons away, as the server's page has none.
      if (!header.textContent.trim() || header.querySelector(".sort")) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => {
        sortRows(table, header, header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending");
      });
    }
  }

  function prepare(root) {
    root.querySelectorAll("time[datetime]").forEach(showTime);
    root.querySelectorAll("table[data-sortable]").forEach(makeSortable);
  }

  document.querySelectorAll("a[data-back]").forEach((link) => {
    link.href += `?next=${encodeURIComponent(location.pathname.replace(/^\/console/, "") + location.search)}`;
  });
  prepare(document);
  window.pilotlight = { ask, setReachable, prepare };
})();
