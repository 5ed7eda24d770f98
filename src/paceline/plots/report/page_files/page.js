"use strict";
// Draws the figures, keeps their colours in step with the page, and runs the table of trials.
// Text goes in as text, never as markup.
(() => {
  const payload = JSON.parse(document.getElementById("payload").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const plots = [...document.querySelectorAll(".plot")];

  // Figures

  const inks = (on) =>
    on
      ? { ink: "#e4e8ec", grid: "rgba(152,162,173,0.20)", card: "#171c22", line: "#3a434d" }
      : { ink: "#1b1f24", grid: "rgba(92,102,112,0.18)", card: "#ffffff", line: "#cfd5db" };

  const colours = (layout, on) => {
    const { ink, grid, card, line } = inks(on);
    const update = {
      "font.color": ink,
      "hoverlabel.bgcolor": card,
      "hoverlabel.bordercolor": line,
      "hoverlabel.font.color": ink,
      "modebar.color": line,
      "modebar.activecolor": ink,
      "modebar.bgcolor": "rgba(0,0,0,0)",
    };
    for (const name of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
      update[`${name}.gridcolor`] = grid;
      update[`${name}.linecolor`] = grid;
      update[`${name}.tickcolor`] = grid;
    }
    // Words that lie on lines keep a ground of their own.
    (layout.annotations ?? []).forEach((_, at) => {
      update[`annotations[${at}].bgcolor`] = on ? "rgba(23,28,34,0.7)" : "rgba(255,255,255,0.7)";
    });
    return update;
  };

  // Bars that touch are told apart by the ground between them.
  const separate = async (plot, on) => {
    const bars = plot.data.flatMap((trace, at) => (trace.marker?.line?.width ? [at] : []));
    if (bars.length) await Plotly.restyle(plot, { "marker.line.color": inks(on).card }, bars);
  };

  const paint = (on, size = () => ({})) =>
    Promise.all(
      plots.map(async (plot) => {
        await Plotly.relayout(plot, { ...colours(plot.layout, on), ...size(plot) });
        await separate(plot, on);
      }),
    );

  // What fits on a page across, in a card alone and in one of two.
  const onPaper = (plot) => ({ width: plot.closest(".pair") ? 480 : 990 });
  const onScreen = () => ({ width: null, autosize: true });

  // Without a pointer that hovers, plotly's buttons would lie on the legend for ever, and a finger
  // that wants to scroll would zoom.
  const touch = window.matchMedia("(hover: none)").matches;
  const config = { ...payload.config, ...(touch ? { displayModeBar: false } : {}) };

  const draw = async () => {
    for (const plot of plots) {
      const { data, layout } = payload.figures[plot.dataset.figure];
      if (touch) layout.dragmode = false;
      await Plotly.newPlot(plot, data, layout, config);
      await Plotly.relayout(plot, colours(layout, dark.matches));
      await separate(plot, dark.matches);
      plot.on("plotly_click", (event) => {
        const found = event.points[0]?.customdata;
        const trial = Array.isArray(found) ? found[0] : found;
        if (Number.isInteger(trial)) reveal(trial);
      });
      // Let the page answer between two figures.
      await new Promise((done) => setTimeout(done));
    }
    document.documentElement.dataset.drawn = "yes";
  };

  dark.addEventListener("change", () => paint(dark.matches));
  window.addEventListener("beforeprint", () => paint(false, onPaper));
  window.addEventListener("afterprint", () => paint(dark.matches, onScreen));

  // Copying

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // A page of a file may not use the clipboard; a selection can always be copied.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };
  for (const button of document.querySelectorAll("button[data-copy]")) {
    const label = button.textContent;
    button.addEventListener("click", async () => {
      await copy(button.dataset.copy);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = label), 2000);
    });
  }

  // Trials

  const { columns, rows, stories, shades } = payload.table;
  const PAGE = 25;
  const body = document.querySelector("#trials tbody");
  const heads = [...document.querySelectorAll("#trials th")];
  const filter = document.getElementById("filter");
  const count = document.getElementById("count");
  const more = document.getElementById("more");
  const opened = new Set();
  let sorted = [...rows.keys()];
  let shown = [];
  let limit = PAGE;

  // A cell is a value, or a pair of what it sorts by and what it shows.
  const key = (cell) => (Array.isArray(cell) ? cell[0] : cell);
  const words = (cell) => {
    const text = Array.isArray(cell) ? cell[1] : cell;
    return text === null ? "\u2013" : String(text);
  };
  const haystacks = rows.map((row) =>
    [...row.cells.map(words), row.config].join(" ").toLowerCase(),
  );

  const compare = (one, other) => {
    // What has no value comes last, whichever way is up.
    if (one === null || other === null) return (one === null) - (other === null);
    if (typeof one === typeof other) return one < other ? -1 : one > other ? 1 : 0;
    return typeof one === "number" ? -1 : 1;
  };

  const sort = (column, way) => {
    const down = way === "descending";
    sorted.sort((one, other) => {
      const [a, b] = [key(rows[one].cells[column]), key(rows[other].cells[column])];
      const order = compare(a, b);
      return (down && a !== null && b !== null ? -order : order) || one - other;
    });
    heads.forEach((head, at) => {
      if (at === column) head.setAttribute("aria-sort", way);
      else head.removeAttribute("aria-sort");
    });
    render();
  };

  const element = (name, text, kind) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };

  const storyRow = (row) => {
    const line = element("tr", undefined, "story");
    const cell = element("td");
    cell.colSpan = columns.length;
    cell.append(element("p", row.config, "note"));
    const told = stories[row.trial];
    if (told) {
      const list = element("ol");
      for (const sentence of told) list.append(element("li", sentence));
      cell.append(list);
    } else {
      cell.append(element("p", payload.table.untold.replace("TRIAL", row.trial)));
    }
    line.append(cell);
    return line;
  };

  const toggle = (line, row) => {
    const open = !opened.has(row.trial);
    line.classList.toggle("open", open);
    line.setAttribute("aria-expanded", open);
    if (open) {
      opened.add(row.trial);
      line.after(storyRow(row));
    } else {
      opened.delete(row.trial);
      line.nextElementSibling.remove();
    }
  };

  const trialRow = (row) => {
    const line = element("tr", undefined, "trial");
    line.tabIndex = 0;
    line.dataset.trial = row.trial;
    line.setAttribute("aria-expanded", opened.has(row.trial));
    row.cells.forEach((cell, at) => {
      const made = element("td", undefined, columns[at].number ? "number" : "");
      if (columns[at].status) {
        const dot = element("span", undefined, "dot");
        dot.style.background = shades[row.shade];
        made.append(dot);
      }
      made.append(words(cell));
      line.append(made);
    });
    line.addEventListener("click", () => {
      if (!String(window.getSelection())) toggle(line, row);
    });
    line.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      toggle(line, row);
    });
    return line;
  };

  const render = () => {
    const asked = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = sorted.filter((at) => asked.every((word) => haystacks[at].includes(word)));
    const lines = [];
    for (const at of shown.slice(0, limit)) {
      const line = trialRow(rows[at]);
      lines.push(line);
      if (opened.has(rows[at].trial)) {
        line.classList.add("open");
        lines.push(storyRow(rows[at]));
      }
    }
    body.replaceChildren(...lines);
    const left = shown.length - Math.min(limit, shown.length);
    more.hidden = left === 0;
    more.firstElementChild.textContent = `Show ${Math.min(PAGE, left)} more of ${left}`;
    count.textContent = asked.length ? `${shown.length} of ${rows.length}` : "";
  };

  const reveal = (trial) => {
    const at = sorted.findIndex((index) => rows[index].trial === trial);
    if (at < 0) return;
    filter.value = "";
    limit = Math.max(limit, at + 1);
    opened.add(trial);
    render();
    body.querySelector(`[data-trial="${trial}"]`).scrollIntoView({ block: "center" });
  };

  if (body) {
    heads.forEach((head, at) =>
      head.firstElementChild.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const first = columns[at].first;
        const other = first === "ascending" ? "descending" : "ascending";
        sort(at, before === first ? other : first);
      }),
    );
    filter.addEventListener("input", () => {
      limit = PAGE;
      render();
    });
    more.firstElementChild.addEventListener("click", () => {
      limit += PAGE;
      render();
    });
    sort(payload.table.by, columns[payload.table.by].first);
  }
  draw();
})();
