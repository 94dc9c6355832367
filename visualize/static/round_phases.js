// The phases of a round, in the order in which the engine goes through them. Each shows one kind of event of
// lab/trace/events.py; how long each is shown is the only thing that is chosen here.

const MS = { draft: 250, forward: 400, verify: 400, verdict: 300, own: 350, rollback: 300, tally: 150 };

/** The stages of a round, as the strip lists them, and the phases that belong to each; and those of a step without draft
    tokens. */
const ROUND = [
  ["Draft", ["draft"]],
  ["Verify", ["verify"]],
  ["Accept or reject", ["verdict"]],
  ["Commit", ["own", "rollback", "tally"]],
];
const STEP = [
  ["Forward pass", ["forward"]],
  ["Commit", ["own", "rollback", "tally"]],
];
export const stagesOf = ({ round }) => (round.drafts.length ? ROUND : STEP);

/** The phases of a frame: [{name, count, ms}]. ``count``: how many draft tokens, or verdicts, are seen in it. A frame
    without a round (a start, an admission, an end) has none. */
export function phasesOf({ round }) {
  if (!round) return [];
  const { drafts, verdicts, own, written, kept, parallel } = round;
  const many = (name, list) => list.map((_, i) => ({ name, count: i + 1 }));
  const drafting = parallel && drafts.length ? [{ name: "draft", count: drafts.length }] : many("draft", drafts);
  const phases = [...drafting, { name: drafts.length ? "verify" : "forward" }, ...many("verdict", verdicts)];
  if (own) phases.push({ name: "own" });
  if (written > kept) phases.push({ name: "rollback" });
  phases.push({ name: "tally" });
  return phases.map((phase) => ({ count: 0, ...phase, ms: MS[phase.name] }));
}

/** What has happened in a round by the end of one of its phases. */
export function reached(frame, place) {
  const phases = phasesOf(frame);
  const past = phases.slice(0, place + 1);
  const has = (name) => past.some((phase) => phase.name === name);
  const counted = (name) => past.findLast((phase) => phase.name === name)?.count ?? 0;
  return {
    now: phases[place]?.name,
    drafts: counted("draft"),
    read: has("verify") || has("forward"),
    verdicts: counted("verdict"),
    own: has("own"),
    rolledBack: has("rollback") || (has("tally") && frame.round.written > frame.round.kept),
    over: has("tally"),
  };
}

/** The place of the phase that is shown at a share (0 to 1) of a round's time. */
export function phaseAt(frame, share) {
  const phases = phasesOf(frame);
  let left = share * phases.reduce((sum, { ms }) => sum + ms, 0);
  for (const [place, { ms }] of phases.entries()) if ((left -= ms) < 0) return place;
  return phases.length - 1;
}

/** Milliseconds that a round takes where it is explained. */
export const explained = (frame) => phasesOf(frame).reduce((sum, { ms }) => sum + ms, 0);
