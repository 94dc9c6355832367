// The sentences of a round's phases: the film's text track, which screen readers read, too.

export const digits = (value) => String(Number(value.toPrecision(3)));
export const quoted = (text) => `“${text.trim() || text.replaceAll("\n", "↵")}”`;
const counted = (number, thing) => `${number} ${thing}${number === 1 ? "" : "s"}`;

/** What happens in the phase that is shown. */
export function sentenceOf(round, seen) {
  const { drafts, verdicts, own, written, kept } = round;
  switch (seen.now) {
    case "draft": {
      const [text, q] = drafts[seen.drafts - 1];
      return `Draft token ${seen.drafts}: ${quoted(text)}${q === undefined ? "" : `, drawn with probability q = ${digits(q)}`}.`;
    }
    case "verify":
      return `The target reads ${drafts.length === 1 ? "the draft token" : `all ${drafts.length} draft tokens`} in one forward pass.`;
    case "forward":
      return "One forward pass of the target.";
    case "verdict":
      return verdictOf(quoted(drafts[seen.verdicts - 1][0]), verdicts[seen.verdicts - 1]);
    case "own":
      if (own.kind === "bonus") return `All accepted, so the same pass gives a bonus token: ${quoted(own.text)}.`;
      return own.kind === "recovered" ? `The target's own token takes its place: ${quoted(own.text)}.` : `The target chooses ${quoted(own.text)}.`;
    case "rollback":
      return `Rollback: ${counted(written - kept, "slot")} of rejected tokens will be overwritten.`;
    default:
      return tallyOf(round);
  }
}

function verdictOf(word, { p, q, u, chance, accepted }) {
  if (u === undefined) return `${word} is ${accepted ? "" : "not "}the target's own choice: ${accepted ? "accepted" : "rejected"}.`;
  return `${word}: accepted with probability ${digits(chance ?? Math.min(1, p / q))}. Drawn ${digits(u)}: ${accepted ? "accepted" : "rejected"}.`;
}

/** The outcome of a round. */
export function tallyOf({ drafts, verdicts, own }) {
  const accepted = verdicts.filter((verdict) => verdict.accepted).length;
  const gave = `${counted(accepted + (own ? 1 : 0), "token")} from one target pass`;
  return drafts.length ? `${accepted} of ${drafts.length} accepted: ${gave}.` : `${gave}.`;
}
