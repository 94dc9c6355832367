// The claims with no server, as recorded. ``?claim=`` with an id leads to one.

mount("claims", document.querySelector("#claims"))(
  JSON.stringify({
    running: false,
    checked: JSON.parse(document.querySelector("#recorded").textContent),
    open: new URLSearchParams(location.search).get("claim"),
  }),
);
