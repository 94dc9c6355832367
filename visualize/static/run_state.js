// A run at one instant: its frames (visualize/reduce/frames.py), applied up to one of them. It can go forward and
// back, and knows nothing of the page. tests/visualize/picture.py does the same in Python.

export class RunState {
  /** The state before the first frame; ``start`` has each chart's first columns. */
  constructor(start = {}) {
    this.frames = [];
    this.at = -1;
    this.head = null;
    this.tokens = [];
    this.columns = structuredClone(start);
    this.layouts = Object.fromEntries(Object.keys(start).map((name) => [name, {}]));
    this.captions = {};
    this.readouts = {};
    this.say = this.notice = this.compared = "";
    this.undo = [];
  }

  get last() {
    return this.frames.length - 1;
  }

  get frame() {
    return this.frames[this.at];
  }

  /** The last step of the run so far. */
  get steps() {
    return Math.max(0, ...this.frames.slice(-2).map((frame) => frame.step));
  }

  /** Go to a frame, forward or back. Returns the names of the charts that have changed. */
  go(seq) {
    const changed = new Set();
    const to = Math.min(Math.max(seq, -1), this.last);
    while (this.at !== to) {
      const frame = this.frames[this.at < to ? this.at + 1 : this.at];
      if (this.at < to) this.#forward(frame);
      else this.#back();
      for (const part of [frame.columns, frame.charts, frame.layout, frame.captions]) Object.keys(part ?? {}).forEach((name) => changed.add(name));
    }
    return changed;
  }

  /** Let ``read`` see the run at another frame. */
  glance(seq, read) {
    const { at } = this;
    this.go(seq);
    read(this);
    this.go(at);
  }

  #forward(frame) {
    const { head, columns, layouts, captions, readouts, say, notice, compared } = this;
    const undo = { state: { head, columns, layouts, captions, readouts, say, notice, compared }, tokens: this.tokens.length, rows: [] };
    this.at += 1;
    this.undo[this.at] = undo;
    this.head = frame.head ?? head;
    this.tokens.push(...(frame.tokens ?? []));
    // What an undo keeps is replaced, never changed; only rows are changed in place.
    if (frame.columns) this.columns = { ...columns, ...structuredClone(frame.columns) };
    for (const [name, patches] of Object.entries(frame.charts ?? {})) {
      for (const [trace, index, row] of patches) undo.rows.push([name, trace, index, this.#put(name, trace, index, row)]);
    }
    if (frame.layout) {
      this.layouts = { ...layouts };
      for (const [name, paths] of Object.entries(frame.layout)) this.layouts[name] = { ...layouts[name], ...paths };
    }
    if (frame.captions) this.captions = { ...captions, ...frame.captions };
    if (frame.readouts) this.readouts = { ...readouts, ...frame.readouts };
    this.say = frame.say ?? say;
    this.notice = frame.notice ?? notice;
    this.compared = frame.compared ?? compared;
  }

  #back() {
    const { state, tokens, rows } = this.undo[this.at];
    this.at -= 1;
    for (const [name, trace, index, row] of rows.reverse()) {
      if (index !== null) this.#put(name, trace, index, row);
      else for (const column of Object.keys(row)) this.columns[name][trace][column].pop();
    }
    this.tokens.length = tokens;
    Object.assign(this, state);
  }

  /** Set a row, or append it when ``index`` is null. Returns what was there, or what was appended. */
  #put(name, trace, index, row) {
    const before = {};
    for (const [column, value] of Object.entries(row)) {
      const values = (this.columns[name][trace][column] ??= []);
      before[column] = index === null ? value : values[index];
      if (index === null) values.push(value);
      else values[index] = value;
    }
    return before;
  }
}
