// The sentences of a round's phases: the film's text track, which screen readers read, too.

import { counted } from "./dom.js";
import { number } from "./token_text.js";

export const quoted = (text) => `“${text.trim() || text.replaceAll("\n", "↵")}”`;

/** What happens in the phase that is shown. */
export function sentenceOf(frame, seen) {
  const { drafts, verdicts, own, written, kept, parallel } = frame.round;
  switch (seen.now) {
    case "draft": {
      if (parallel) return `One parallel pass drafts ${counted(drafts.length, "token")}: ${drafts.map(({ text }) => quoted(text)).join(", ")}.`;
      const { text, q } = drafts[seen.drafts - 1];
      return `Draft token ${seen.drafts}: ${quoted(text)}${q === undefined ? "" : `, q = ${number(q)}`}.`;
    }
    case "verify":
      return `The target reads ${drafts.length === 1 ? "the draft token" : `all ${drafts.length} draft tokens`} in one forward pass.`;
    case "forward":
      return "One forward pass of the target.";
    case "verdict":
      return verdictOf(quoted(drafts[seen.verdicts - 1].text), verdicts[seen.verdicts - 1]);
    case "own":
      if (own.kind === "bonus") return `All accepted, so the same pass gives a bonus token: ${quoted(own.text)}.`;
      return own.kind === "recovered" ? `The target's own token takes its place: ${quoted(own.text)}.` : `The target chooses ${quoted(own.text)}.`;
    case "rollback":
      return `Rollback: ${counted(written - kept, "slot")} written for draft tokens will be overwritten.`;
    default:
      return tallyOf(frame);
  }
}

/** By the rule that the run verifies with: lab/backends/torch/rejection_sampler.py. */
function verdictOf(word, { p, u, chance, threshold, accepted }) {
  const verdict = accepted ? "accepted" : "rejected";
  if (threshold !== undefined && u !== undefined) {
    const result = u < threshold ? "it passes, accepted" : accepted ? "it fails, but a longer one passes: accepted" : "it fails, rejected";
    return `The block up to ${word} passes with probability ${number(threshold)}. The random draw is ${number(u)}: ${result}.`;
  }
  if (threshold !== undefined) return `${word}: p = ${number(p)} is ${accepted ? "" : "not "}above the threshold ${number(threshold)}: ${verdict}.`;
  if (u === undefined) return `${word} is ${accepted ? "" : "not "}the target's own choice: ${verdict}.`;
  return `${word}: accepted with probability ${number(chance)}. The random draw is ${number(u)}: ${verdict}.`;
}

/** The outcome of a round. A text may end within it: then fewer tokens stay than were accepted. */
export function tallyOf({ round, tokens = [] }) {
  const { drafts, verdicts } = round;
  const accepted = verdicts.filter((verdict) => verdict.accepted).length;
  const gave = `${counted(tokens.length, "token")} from one target pass`;
  return drafts.length ? `${accepted} of ${drafts.length} accepted: ${gave}.` : `${gave}.`;
}
