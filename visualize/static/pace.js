// How long each frame is shown. A speed is in rounds per second, so it is the same for a run on a laptop, a recording of
// a GPU and a pool of requests; only "real" is the run's own time.

import { explained } from "./round_phases.js";

const PER_SECOND = { slow: 1, fast: 5 };
const EXPLAINED = 2; // rounds that "auto" explains before it gets faster
const FASTER = 0.8; // of the time of the round before
const LEAST = 16; // milliseconds of a round, at the fastest: one picture
const FIT = 20_000; // milliseconds that a run takes which is to fit
const NOTE = 900; // milliseconds for a frame that is no step, as a preemption

/** When each of a run's frames begins and ends, in milliseconds of its film. The run may still grow. */
export class Timeline {
  constructor(frames, pace, over) {
    Object.assign(this, { frames, pace, over });
    this.ends = []; // of frames, in milliseconds of the film
    this.steps = 0; // after the prefill, so far
  }

  /** When a frame has been shown whole. */
  end(seq) {
    while (this.ends.length <= seq) this.ends.push((this.ends.at(-1) ?? 0) + this.#lasts(this.ends.length));
    return seq < 0 ? 0 : this.ends[seq];
  }

  /** The frame that is shown at an instant, and the share of its time that has passed. */
  at(clock, last) {
    let seq = 0;
    while (seq < last && this.end(seq) <= clock) seq += 1; // frames are hundreds; ends are known
    const begin = this.end(seq - 1);
    const lasts = this.end(seq) - begin;
    return { seq, share: lasts ? Math.min(1, (clock - begin) / lasts) : 1 };
  }

  #lasts(seq) {
    const frame = this.frames[seq];
    const { pace, frames } = this;
    if (pace === "real") return seq ? frame.t_ms - frames[seq - 1].t_ms : 0;
    if (frame.step < 0 || frame.finished) return 0;
    if (frame.linger && !frame.round) return pace === "explain" || pace === "auto" ? NOTE : 0;
    if (pace === "fit" && this.over) return FIT / frames.length;
    if (pace in PER_SECOND) return 1000 / PER_SECOND[pace];
    if (pace === "fit") return 1000 / PER_SECOND.fast; // its length is not known yet
    if (pace === "explain") return explained(frame) || 1000;
    const place = frame.step ? this.steps++ : 0;
    if (place < EXPLAINED) return explained(frame) || 1000;
    return Math.max(LEAST, 1000 * FASTER ** (place - EXPLAINED));
  }
}
