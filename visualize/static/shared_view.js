// What the Lab's stage shows, and what a workshop's presenter shows: between stage and workshop bar, whichever page has both.

/** ``shown``: {run, at, number} of this page; ``guess``: [frame, place] of the draft token that is open, or null; ``led``:
    what a presenter shows, {run, at, guess}, or null where nobody is followed. */
export const view = { shown: {}, guess: null, led: null };
