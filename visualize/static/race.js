// The race: recorded runs on one clock, drawn in the browser.

import { calm, make, onKeys, write } from "./dom.js";
import { offerPanel } from "./pictures.js";

const AHEAD = 0.9; // of the second's time: less may be scatter
const LONG_ENOUGH = 8000; // milliseconds

export class Race {
  /** ``states``: of tokens, as in visualize/states.py. ``remember`` is called with the instant at which a person leaves the race, null at its end. It is a share of the
      whole, because another run of the same race takes another time. */
  constructor(root, { states }, remember = () => {}) {
    this.root = root;
    this.remember = remember;
    this.play = root.querySelector(".play");
    this.clock = root.querySelector(".clock");
    this.now = root.querySelector(".now");
    this.pace = root.querySelector("select"); // empty: slow enough to watch
    this.lanes = [];
    this.at = this.ms = 0;
    this.play.onclick = () => (this.running ? this.leave() : this.start());
    const keys = { " ": () => this.play.onclick(), home: () => this.put(0), end: () => this.put(this.ms) };
    onKeys(root, this.play, Object.fromEntries(Object.entries(keys).map(([key, act]) => [key, (held) => held || act()])));
    this.list = root.querySelector(".lanes");
    const pieces = ["plain", "accepted", "recovered", "bonus"].map((origin) =>
      make("li", { dataset: { origin } }, make("span", `piece ${origin}`, states[origin].label)));
    root.querySelector(".legend").append(...pieces);
    offerPanel(root);
    new ResizeObserver(() => this.fit()).observe(this.list);
    this.clock.oninput = () => this.put(Number(this.clock.value));
  }

  /** Load a race: play it if it is fresh, else show its end, or the ``share`` of it that a link asks for. */
  load({ prompt, ms, lanes }, fresh = true, share = null) {
    this.stop();
    this.ms = ms;
    this.clock.max = ms;
    this.play.disabled = this.clock.disabled = false;
    this.measured = null;
    this.lanes = lanes.map((lane) => new RaceLane(lane, prompt));
    this.list.replaceChildren(...this.lanes.map((lane) => lane.row));
    const [first, second] = this.lanes.toSorted((one, other) => one.lasts - other.lasts);
    first.row.classList.toggle("first", first.lasts < AHEAD * second?.lasts);
    this.legend(lanes);
    this.fit();
    this.show(0);
    if (share === null && fresh && !calm.matches) return this.start();
    this.show(ms * (share ?? 1));
    this.leave();
  }

  /** Lanes as they are measured: of each, what its newest run has so far. */
  live({ prompt, tokens, lanes }) {
    this.stop();
    const names = lanes.map(({ name }) => name).join("\n");
    if (this.measured !== names) {
      this.ms = this.at = 0;
      this.play.disabled = this.clock.disabled = true;
      write(this.now, "");
      this.lanes = lanes.map((lane) => new RaceLane(lane, prompt));
      this.list.replaceChildren(...this.lanes.map((lane) => lane.row));
      this.fit();
      this.measured = names;
    }
    lanes.forEach((lane, i) => this.lanes[i].grow(lane, tokens));
    this.legend(lanes);
  }

  /** Name the origins that the lanes have. */
  legend(lanes) {
    const origins = new Set(lanes.flatMap(({ commits }) => commits.flatMap(([, pieces]) => pieces.map(([, origin]) => origin))));
    for (const item of this.root.querySelectorAll(".legend li")) item.hidden = !origins.has(item.dataset.origin);
  }

  /** Whole lines of text in every lane, as many as there is room for. */
  fit() {
    if (!this.lanes.length) return;
    const line = parseFloat(getComputedStyle(this.lanes[0].text).lineHeight);
    const lines = Math.floor((this.list.clientHeight / this.lanes.length - 12) / line);
    this.list.style.setProperty("--text", `${Math.max(2, lines) * line}px`);
    for (const lane of this.lanes) lane.follow();
  }

  /** Milliseconds of the race per millisecond of watching. */
  get speed() {
    return Number(this.pace.value) || Math.min(1, this.ms / LONG_ENOUGH);
  }

  start() {
    if (this.at >= this.ms) this.show(0);
    this.running = true;
    this.play.textContent = "Pause";
    let before = performance.now();
    const step = (time) => {
      if (!this.root.isConnected) return this.stop();
      this.show(Math.min(this.ms, this.at + Math.max(0, time - before) * this.speed));
      before = time;
      if (this.at >= this.ms) this.leave();
      else this.ticking = requestAnimationFrame(step);
    };
    this.ticking = requestAnimationFrame(step);
  }

  stop() {
    this.running = false;
    cancelAnimationFrame(this.ticking);
    this.play.textContent = this.ms && this.at >= this.ms ? "Again" : "Play";
  }

  /** A person moves it. */
  put(at) {
    this.show(at);
    this.leave();
  }

  /** It is over, or a person stopped it. */
  leave() {
    this.stop();
    this.remember(this.at < this.ms ? this.at / this.ms : null);
  }

  /** Everything as it was ``at`` milliseconds after each run's start. */
  show(at) {
    this.at = at;
    this.clock.value = at;
    this.now.textContent = `${(at / 1000).toFixed(2)} of ${(this.ms / 1000).toFixed(2)} s`;
    this.clock.setAttribute("aria-valuetext", this.now.textContent); // and not a number of milliseconds
    for (const lane of this.lanes) lane.show(at);
  }
}

class RaceLane {
  constructor({ name, mark, run, commits }, prompt) {
    this.run = run;
    this.commits = commits;
    this.tokens = commits.reduce((sum, [, pieces]) => sum + pieces.length, 0);
    this.count = make("span", "count");
    this.done = make("i", "done");
    const title = make("b", { title: name }, name);
    const head = [make("span", "mark", mark), title, this.count, make("div", "track", this.done)];
    this.text = make("div", { className: "lane-text", dir: "auto", translate: false });
    this.prompt = make("span", "piece prompt", prompt);
    this.row = make("li", { className: "lane", dataset: { lane: name } }, make("div", "lane-head", ...head), this.text);
    this.clear();
  }

  clear() {
    this.next = this.shown = 0;
    this.text.replaceChildren(this.prompt);
  }

  /** Show all that a run has so far; ``tokens``: as many as it will have. */
  grow({ run, commits }, tokens) {
    if (run !== this.run) this.clear();
    Object.assign(this, { run, commits, tokens });
    this.show(Infinity);
  }

  /** Milliseconds to its last token. */
  get lasts() {
    return this.commits.at(-1)?.[0] ?? Infinity;
  }

  /** Bring the newest line into view. */
  follow() {
    this.text.scrollTop = this.text.scrollHeight;
  }

  show(at) {
    if (this.next && this.commits[this.next - 1][0] > at) this.clear();
    const from = this.next;
    while (this.next < this.commits.length && this.commits[this.next][0] <= at) {
      for (const [text, origin] of this.commits[this.next][1]) {
        this.text.append(make("span", `piece ${origin}`, text));
        this.shown += 1;
      }
      this.next += 1;
    }
    if (this.next !== from || !this.next) this.follow();
    const over = this.shown === this.tokens;
    this.row.classList.toggle("over", over);
    const first = this.row.matches(".first") ? "first: " : "";
    this.count.textContent = over ? `${first}${this.tokens} in ${(this.lasts / 1000).toFixed(2)} s` : `${this.shown} of ${this.tokens}`;
    this.done.style.width = `${(100 * this.shown) / this.tokens}%`;
  }
}
