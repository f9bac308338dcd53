// Tables of rollouts: a press on a heading, by mouse or key, sorts all rows by it; a second press turns the order round.
// Only the first rows of the order are in the document.
for (const box of document.querySelectorAll(".rollouts")) {
  const {digits, rows, sort, descending, shown, total} = JSON.parse(box.querySelector("script").textContent);
  const heads = [...box.querySelectorAll("thead tr:last-child th")];
  const count = number => number.toLocaleString("en");
  let order = {by: sort, down: descending};

  const compare = (a, b) => {
    const [x, y] = [a[order.by], b[order.by]];
    if (x === null || y === null) return (x === null) - (y === null); // what is not known comes last, either way
    const less = typeof x === "string" ? x.localeCompare(y) : x - y;
    return order.down ? -less : less;
  };

  const cell = (value, column) => {
    const element = document.createElement(column ? "td" : "th");
    if (!column) element.scope = "row";
    const number = typeof value === "number";
    element.textContent = value === null ? "–" : number ? value.toFixed(digits[column]) : value;
    return element;
  };

  function show() {
    const lines = [...rows].sort(compare).slice(0, shown).map(row => {
      const line = document.createElement("tr");
      line.append(...row.map(cell));
      return line;
    });
    box.querySelector("tbody").replaceChildren(...lines);
    heads.forEach((head, column) => head.removeAttribute("aria-sort"));
    heads[order.by].setAttribute("aria-sort", order.down ? "descending" : "ascending");
    box.querySelector("[aria-live]").textContent =
      (lines.length < rows.length ? `The first ${count(lines.length)} in this order, of ` : "") +
      (rows.length < total ? `the ${count(rows.length)} stalest of ${count(total)} rollouts.` : `${count(total)} rollouts.`);
  }

  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const text = digits[column] === null;
    order = {by: column, down: order.by === column ? !order.down : !text};
    show();
  }));
  show();
}
