// The claims with no server: as they were found. ``?claim=`` and an id leads to one.

mount("claims", document.querySelector("#claims"))(
  JSON.stringify({
    running: false,
    checked: JSON.parse(document.querySelector("#recorded").textContent),
    open: window.decodeLab.asked.get("claim"),
  }),
);
