/* The timeline of design/staleness: a recorded schedule, one event at a time.
 *
 * The page holds the events that a tracker was told, as JSON lines, and the colour of each epoch. `states` replays them by the
 * rules of the page: an array with what every request and slot is like after each event. The rest draws one of the states.
 * Without this script the page shows the still figure. */
"use strict";

const RECORDS = { policy: "policy epoch", kv: "KV epoch", attended: "oldest attended" };

/** What is known after each event; the first state is before all of them. */
function states(events) {
  let state = { epoch: 0, told: "Nothing has happened yet.", requests: [], slots: new Map(), changed: [] };
  const all = [state];
  for (const event of events) {
    state = structuredClone(state);
    state.changed = [];
    state.told = HAPPENS[event.event](state, event) || event.event;
    all.push(state);
  }
  return all;
}

function find(state, name) {
  return state.requests.find((request) => request.name === name);
}

function free(state, request) {
  for (const [slot, held] of state.slots) {
    if (held.request === request.name) state.slots.delete(slot);
  }
}

/* What each event does to a state, and how it is said. */
const HAPPENS = {
  weights_changed(state, event) {
    state.epoch = event.epoch;
    return `The weights change to epoch ${event.epoch}.`;
  },
  admit(state, event) {
    const none = () => new Array(event.prompt_length).fill(null);
    state.requests.push({
      name: event.request, prompt: event.prompt_length, cached: 0, phase: "queued", evictions: 0, logits: null,
      policy: none().fill(state.epoch), kv: none(), attended: none(),
    });
    return `Request ${event.request} is admitted with ${event.prompt_length} prompt tokens.`;
  },
  forward(state, event) {
    const rows = new Map();
    event.requests.forEach((name, row) => {
      const request = find(state, name), position = event.positions[row], slot = event.slots[row];
      request.kv[position] = state.epoch;
      request.cached = position + 1;
      request.phase = "running";
      state.slots.set(slot, { request: name, position, epoch: state.epoch });
      state.changed.push(`${name} kv ${position}`);
      request.logits = { policy: state.epoch, attended: Math.min(...request.kv.slice(0, position + 1)) };
      rows.set(name, (rows.get(name) || 0) + 1);
    });
    const said = [...rows].map(([name, count]) => `${count} of request ${name}`).join(", ");
    return `A forward pass at epoch ${state.epoch} writes keys and values: ${said}.`;
  },
  sample(state, event) {
    for (const name of event.requests) {
      const request = find(state, name);
      request.policy.push(request.logits.policy);
      request.attended.push(request.logits.attended);
      request.kv.push(null);
      for (const kind of ["policy", "attended"]) state.changed.push(`${name} ${kind} ${request.policy.length - 1}`);
    }
    return `One token is sampled for request ${event.requests.join(" and ")}; it has no keys and values yet.`;
  },
  evict(state, event) {
    const request = find(state, event.request);
    free(state, request);
    Object.assign(request, { cached: 0, phase: "evicted", evictions: request.evictions + 1 });
    request.kv.fill(null);
    return `Request ${event.request} is evicted: its keys and values are gone.`;
  },
  preempt(state, event) {
    find(state, event.request).phase = "paused";
    return `Request ${event.request} is paused and keeps its slots.`;
  },
  finish(state, event) {
    const request = find(state, event.request);
    free(state, request);
    request.phase = "finished";
    // The token sampled last was never read; its record carries its policy epoch.
    request.kv = request.kv.map((epoch, position) => (epoch === null ? request.policy[position] : epoch));
    return `Request ${event.request} finishes with ${request.policy.length} tokens.`;
  },
};

/** The records of a state as the Python side writes them: `[[start, epoch], ...]`. */
function recordsOf(state) {
  const spans = (epochs) =>
    epochs.flatMap((epoch, start) => (start && epochs[start - 1] === epoch ? [] : [[start, epoch]]));
  return state.requests.map((request) => ({
    request: request.name, num_evictions: request.evictions,
    policy_epoch: spans(request.policy), kv_cache_epoch: spans(request.kv),
    oldest_attended_kv_epoch: spans(request.attended),
  }));
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

class Timeline {
  constructor(figure) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    this.colours = data.colours;
    this.all = states(data.events);
    this.slots = 1 + Math.max(...data.events.flatMap((event) => event.slots || []));
    this.length = Math.max(...this.all.at(-1).requests.map((request) => request.policy.length));
    this.playing = null;
    this.build(figure);
    // The finished run: a reader who moves nothing sees what the still figure shows.
    this.show(this.all.length - 1);
  }

  build(figure) {
    this.told = element("p", { class: "timeline-told", role: "status" });
    this.slider = element("input", {
      type: "range", min: 0, max: this.all.length - 1, value: 0, "aria-label": "Event of the schedule",
    });
    this.slider.addEventListener("input", () => this.show(Number(this.slider.value)));
    const button = (label, text, act) => {
      const made = element("button", { type: "button", "aria-label": label, title: label }, text);
      made.addEventListener("click", act);
      return made;
    };
    this.play = button("Play", "▶", () => this.toggle());
    const controls = element(
      "div", { class: "timeline-controls" },
      button("Previous event", "‹", () => this.show(this.at - 1)), this.play,
      button("Next event", "›", () => this.show(this.at + 1)), this.slider,
    );
    this.cache = element("div", { class: "timeline-cells timeline-slots" });
    this.requests = element("div");
    figure.querySelector(".timeline-still").hidden = true;
    figure.append(controls, this.told, element("p", { class: "timeline-name" }, "KV slots"), this.cache, this.requests);
    figure.dataset.ready = "true";
  }

  toggle() {
    if (this.playing) return this.stop();
    if (this.at === this.all.length - 1) this.show(0);
    this.playing = setInterval(() => (this.at < this.all.length - 1 ? this.show(this.at + 1) : this.stop()), 700);
    this.play.replaceChildren("❚❚");
    this.play.setAttribute("aria-label", "Pause");
  }

  stop() {
    clearInterval(this.playing);
    this.playing = null;
    this.play.replaceChildren("▶");
    this.play.setAttribute("aria-label", "Play");
  }

  show(at) {
    this.at = Math.max(0, Math.min(at, this.all.length - 1));
    const state = this.all[this.at];
    this.slider.value = this.at;
    this.slider.setAttribute("aria-valuetext", `${this.at} of ${this.all.length - 1}: ${state.told}`);
    this.told.textContent = `${this.at}/${this.all.length - 1}  ${state.told}`;
    const slots = [];
    for (let slot = 0; slot < this.slots; slot++) {
      const held = state.slots.get(slot);
      const said = held ? `request ${held.request}, position ${held.position}, epoch ${held.epoch}` : "free";
      slots.push(this.cell(held ? held.epoch : null, held ? `${held.request}:${held.position}` : "", `slot ${slot}: ${said}`));
    }
    this.cache.replaceChildren(...slots);
    this.requests.replaceChildren(...state.requests.map((request) => this.request(state, request)));
  }

  request(state, request) {
    const rows = Object.entries(RECORDS).map(([kind, label]) => {
      const cells = Array.from({ length: this.length }, (_, position) => {
        const epoch = request[kind][position];
        const made = this.cell(epoch ?? null, epoch ?? "", `${label} of token ${position}: ${epoch ?? "none"}`);
        made.classList.toggle("timeline-prompt", position < request.prompt);
        made.classList.toggle("timeline-now", state.changed.includes(`${request.name} ${kind} ${position}`));
        made.classList.toggle("timeline-absent", position >= request.policy.length);
        return made;
      });
      return element("div", { class: "timeline-row" }, element("span", {}, label), element("div", { class: "timeline-cells" }, ...cells));
    });
    const evicted = request.evictions ? `, evicted ${request.evictions}×` : "";
    const head = element("p", { class: "timeline-name" }, `Request ${request.name}: ${request.phase}${request.phase === "evicted" ? "" : evicted}`);
    return element("div", {}, head, ...rows);
  }

  cell(epoch, text, said) {
    const made = element("span", { class: "timeline-cell", title: said }, String(text));
    if (epoch !== null) {
      const [fill, ink] = this.colours[epoch];
      made.style.backgroundColor = fill;
      made.style.color = ink;
    }
    return made;
  }
}

document.addEventListener("DOMContentLoaded", () => {
  for (const figure of document.querySelectorAll(".timeline")) figure.timeline = new Timeline(figure);
});
