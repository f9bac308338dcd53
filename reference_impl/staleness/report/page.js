// Draws the charts: unpacks plotly.js, gives it the figures in the page's colours, and follows the reader's scheme.
const figures = JSON.parse(document.getElementById("figures").textContent);
const scheme = matchMedia("(prefers-color-scheme: dark)");

async function unpacked(id) {
  const packed = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(packed.length);
  for (let at = 0; at < packed.length; at++) bytes[at] = packed.charCodeAt(at);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// Plotly takes colours, not CSS variables: the page's own are read and handed over, now and on every change.
function colours(layout) {
  const page = getComputedStyle(document.documentElement);
  const colour = name => page.getPropertyValue(name).trim();
  const change = {"font.color": colour("--ink"), "hoverlabel.bgcolor": colour("--ground"),
    "hoverlabel.bordercolor": colour("--quiet"), "hoverlabel.font.color": colour("--ink")};
  for (const axis of Object.keys(layout).filter(key => /^[xy]axis/.test(key))) {
    change[axis + ".gridcolor"] = colour("--line");
    change[axis + ".tickfont.color"] = colour("--quiet");
  }
  return change;
}

function coloured(layout) {
  for (const [path, value] of Object.entries(colours(layout))) {
    const keys = path.split("."), last = keys.pop();
    keys.reduce((at, key) => at[key] ??= {}, layout)[last] = value;
  }
  return layout;
}

// Hover text of Plotly is a small HTML, in which a token such as "<b>" has to be escaped to be seen.
const escaped = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/\n/g, "<br>");

async function draw() {
  const script = document.createElement("script");
  script.textContent = await unpacked("plotly");
  document.head.append(script);
  const config = {displayModeBar: false, displaylogo: false, responsive: true};
  for (const [id, {data, layout, shared}] of Object.entries(figures)) {
    if (shared) {
      const customdata = shared.customdata.map(row => row.map(escaped));
      for (const trace of data) trace.customdata = customdata;
    }
    await Plotly.newPlot(id, data, coloured(layout), config);
  }
  scheme.addEventListener("change", () => {
    for (const plot of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(plot, colours(plot.layout));
  });
}

// What a figure says of its tokens is the title of the same tokens in the text, put there when one is pointed at.
document.addEventListener("pointerover", event => {
  const span = event.target.closest?.(".answer span");
  if (!span || span.title) return;
  const article = span.closest("article");
  const facts = figures[article.parentElement.dataset.figure].shared.customdata;
  const row = [...article.parentElement.querySelectorAll("article")].indexOf(article);
  span.title = facts[row][[...span.parentElement.children].indexOf(span)];
});

draw().catch(error => {
  const old = typeof DecompressionStream === "undefined";
  const said = document.createElement("p");
  said.className = "error";
  said.textContent = old ? "This browser cannot unpack the page's charts; one from 2023 or later can. " +
    "Numbers, tables and texts are below." : `The charts could not be drawn: ${error.message}`;
  document.body.prepend(said);
});
