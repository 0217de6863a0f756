// The page: receives events and shows them. Names and texts come from strangers: they are only ever text of a node.
(() => {
  const SILENT_MS = 15000, REDIAL_MS = 5000, EVENTS = 60;
  const by = (id) => document.getElementById(id);
  const seen = new Set(); // events that are on the page
  const rates = new Map(); // by worker: the last transfer that its state named
  let page = null, arrived = 0, why = "connecting to the page's server";

  // A hostile name may change the order of the characters around it.
  function clean(value) {
    return String(value).replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, "?");
  }

  function make(tag, text, parent) {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = clean(text);
    if (parent) parent.append(node);
    return node;
  }

  function show(id, text) {
    by(id).hidden = !text;
    by(id).textContent = clean(text || "");
  }

  const known = units.known;

  // --- the run ---

  function showHead(s) {
    const parts = [s.method, known(s.params) && `${units.count(s.params)} parameters`].filter(Boolean);
    const of = known(s.rounds) ? ` of ${s.rounds}` : "";
    by("run").textContent = clean(s.run || "Atoll");
    document.title = clean(`${known(s.percent) ? `${Math.floor(s.percent)} % ` : ""}${s.run || "Atoll"}`);
    show("about", parts.join(", "));
    by("progress").hidden = !known(s.round);
    by("done").style.width = `${Math.min(100, s.percent || 0)}%`;
    const left = s.state !== "done" && known(s.eta_s) && s.eta_s > 0 && `${units.seconds(s.eta_s)} left`;
    const spent = known(s.wall_s) && `${units.seconds(s.wall_s)} ${s.state === "done" ? "in all" : "so far"}`;
    const percent = known(s.percent) && units.percent(s.percent / 100);
    by("left").textContent = [`round ${s.round}${of}`, percent, left, spent].filter(Boolean).join(", ");
    show("waiting", s.waiting_for && `Waiting for ${s.waiting_for}`);
  }

  function tile(parent, name, value, more) {
    const box = make("div", undefined, parent);
    make("dt", name, box);
    const dd = make("dd", value, box);
    if (more) make("small", more, dd);
  }

  function budgetTile(parent, b) {
    if (!b || (!known(b.max_hours) && !known(b.max_gb))) return;
    const time = known(b.max_hours) && `${units.seconds(b.hours * 3600)} of ${units.seconds(b.max_hours * 3600)}`;
    const bytes = known(b.max_gb) && `${units.bytes(b.gb * 1e9)} of ${units.bytes(b.max_gb * 1e9)}`;
    tile(parent, "budget", time || bytes, time && bytes);
  }

  const counted = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

  function showTiles(s) {
    const box = make("dl"), final = known(s.final_val_loss), val = final ? s.final_val_loss : s.val_loss;
    if (known(s.train_loss)) tile(box, "training loss", units.loss(s.train_loss), "nats per token");
    if (known(val))
      tile(box, final ? "final validation loss" : "validation loss", units.loss(val), s.val_by_one_worker ? "by one worker" : "nats per token");
    if (known(s.tokens_per_s)) tile(box, "speed", `${units.count(s.tokens_per_s)} tokens/s`, known(s.utilization) && `computing ${units.percent(s.utilization)} of the time`);
    if (known(s.tokens)) tile(box, "tokens", units.count(s.tokens), known(s.steps) && counted(s.steps, "step"));
    if (known(s.bytes_up)) tile(box, "sent", units.bytes(s.bytes_up + s.bytes_down), `${units.bytes(s.bytes_up)} up, ${units.bytes(s.bytes_down)} down`);
    budgetTile(box, s.budget);
    if (s.restarts || s.deltas_refused)
      tile(box, "trouble", counted(s.restarts || 0, "restart"), s.deltas_refused ? `${counted(s.deltas_refused, "delta")} refused` : "");
    by("tiles").replaceChildren(...box.childNodes);
  }

  // Alerts of the coordinator, then what it warns of.
  function showAlerts(s) {
    const list = make("ul");
    for (const alert of s.alerts || [])
      make("li", `${alert.text || alert.rule}${known(alert.since_s) ? `, for ${units.seconds(alert.since_s)}` : ""}`, list);
    for (const note of [s.bottleneck, ...(s.notes || [])]) if (note) make("li", note, list);
    by("alerts").hidden = !list.childNodes.length;
    by("alerts").replaceChildren(...list.childNodes);
  }

  // --- workers ---

  const ABSENT = ["silent", "closed", "lost", "gone"];

  function linkOf(w, times) {
    const moving = /^(sending|receiving).* at ([\d.]+ .bit\/s)/.exec(w.doing || "");
    if (moving) rates.set(w.name, `${moving[2]} ${moving[1] === "sending" ? "up" : "down"}`);
    if (rates.has(w.name)) return rates.get(w.name);
    return times && known(times.mbit) ? `${units.count(times.mbit * 1e6)}bit/s up` : "";
  }

  function rowOf(w, times, round) {
    const row = make("tr"), absent = ABSENT.includes(w.state);
    const behind = known(w.round) ? round - w.round : 0; // 1: its heartbeat is older than the last round
    row.className = absent ? "absent" : w.aside ? "aside" : "";
    const cells = [
      ["", w.name],
      ["", absent ? w.state : w.aside || w.doing || w.state],
      ["round", known(w.round) ? `${w.round}${behind > 1 ? `, ${behind} behind` : ""}` : ""],
      ["step", known(w.step_s) && w.step_s > 0 ? units.duration(w.step_s) : ""],
      ["speed", !absent && times && known(times.tokens_per_s) ? `${units.count(times.tokens_per_s)} tokens/s` : ""],
      ["link", absent ? "" : linkOf(w, times)],
      ["heard", known(w.silent_s) ? (w.silent_s < 1 ? "now" : `${units.seconds(w.silent_s)} ago`) : ""],
      ["tokens", known(w.tokens) ? units.count(w.tokens) : ""],
    ];
    for (const [label, text] of cells) {
      const cell = make("td", text || "", row);
      if (label) cell.dataset.label = label;
    }
    return row;
  }

  function showWorkers(s, times) {
    const workers = s.workers || [], more = [];
    by("workers").replaceChildren(...workers.map((w) => rowOf(w, Object.hasOwn(times, w.name) ? times[w.name] : null, s.round || 0)));
    if (s.workers_gone) more.push(`${s.workers_gone} left`);
    if (s.workers_not_listed) more.push(`${s.workers_not_listed} more`);
    show("others", more.join(", "));
    by("table").hidden = !workers.length;
    by("members").hidden = !workers.length && !more.length;
  }

  // --- events; the locale "sv" writes 2026-01-31 18:05:00 ---

  function textOf(e) {
    if (e.kind === "change") return `${e.key} from ${e.from} to ${e.to} after round ${e.round}`;
    if (e.kind === "rollback" || e.kind === "exclude")
      return [e.worker, `back to round ${e.round} from ${e.before}`].filter(Boolean).join(": ");
    if (e.kind === "alert") return `${e.rule}${e.state === "end" ? " is over" : ""}: ${e.text || ""}`;
    return [e.worker, e.text || (known(e.round) ? `round ${e.round}` : "")].filter(Boolean).join(": ");
  }

  function addEvents(list) {
    for (const e of list) {
      const key = JSON.stringify(e);
      if (seen.has(key)) continue;
      seen.add(key);
      const row = make("li");
      make("span", known(e.time) ? new Date(e.time * 1000).toLocaleString("sv") : "", row);
      make("b", e.kind, row);
      make("p", textOf(e), row);
      row.className = ["fault", "evict"].includes(e.kind) ? e.kind : "";
      by("events").prepend(row);
    }
    while (by("events").childNodes.length > EVENTS) by("events").lastChild.remove();
    by("past").hidden = !by("events").childNodes.length;
  }

  // --- whether all of this is true now ---

  function showState() {
    const silent = Date.now() - arrived > SILENT_MS, s = page && page.status;
    const reason = why || (silent ? "the page's server is silent" : page && !page.current ? page.reason : "");
    const age = page && known(page.age_s) ? page.age_s + (Date.now() - arrived) / 1000 : null;
    const old = reason && s ? ` These numbers are ${age === null ? "old" : `${units.seconds(age)} old`}.` : "";
    show("stale", reason && `Not current: ${reason}.${old}`);
    document.body.classList.toggle("old", Boolean(reason));
    by("state").textContent = clean(reason && (!s || s.state !== "stopped") ? "not current" : s.state);
    by("state").className = `tag ${reason ? "bad" : "good"}`;
  }

  function showAll(message) {
    page = message.page;
    arrived = Date.now();
    why = "";
    chart.take("train", message.curves.train);
    chart.take("validation", message.curves.validation);
    by("chart").hidden = !chart.size();
    chart.draw(by("plot"));
    if (page.status) {
      showHead(page.status);
      showTiles(page.status);
      showAlerts(page.status);
      showWorkers(page.status, page.times);
    }
    addEvents(page.events);
    showState();
  }

  function connect() {
    const source = new EventSource("/events");
    source.addEventListener("full", (event) => {
      seen.clear();
      by("events").replaceChildren();
      showAll(JSON.parse(event.data));
    });
    source.addEventListener("tick", (event) => showAll(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      why = "the page's server does not answer";
      showState();
      if (source.readyState !== EventSource.CLOSED) return; // the browser dials again
      source.close();
      setTimeout(connect, REDIAL_MS);
    });
  }

  by("axes").addEventListener("change", (event) => {
    chart.choose(event.target.value);
    chart.draw(by("plot"));
  });
  for (const name of ["pointermove", "pointerdown"])
    by("plot").addEventListener(name, (event) => { by("readout").textContent = chart.read(event.clientX); });
  by("plot").addEventListener("pointerleave", () => { by("readout").textContent = chart.read(null); });
  new ResizeObserver(() => chart.draw(by("plot"))).observe(by("chart"));
  setInterval(showState, 1000);
  showState();
  connect();
})();
