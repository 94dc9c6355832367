// A page with no server behind it: modules of the Lab's pages, out of ``bundle``, mounted on existing elements.

const components = {}; // by name: the path of a module, and what it starts with

document.body.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches);

/** Mount a component. ``trigger(event, detail)`` is called with what a person requests. Returns a function that sets the
    component's value, as the server would. */
function mount(name, element, trigger = () => {}) {
  const props = { value: "" };
  let changed = () => {};
  const watch = (_, listen) => (changed = listen);
  const [module, setup] = components[name];
  bundle[module].mount(element, { props, trigger, server: null, watch }, setup);
  return (value) => {
    props.value = value;
    changed();
  };
}
