"""Pictures by gnuplot: grouped bars, bars with a second axis, box plots, lines on logarithmic axes; SVG and PNG of each.

Bars stand in the order of the legend and differ from their neighbours in grey, so that a picture printed in black and
white can be read. gnuplot reads scripts that are made here from numbers and quoted names.
"""
import math
import pathlib
import subprocess

# By planner. Grey values of neighbours in a figure differ by a quarter of the scale or more, lines have dashes of their own.
COLOURS = {
    "Varuna": "#8a8a8a",
    "AMP": "#e3b04b",
    "Piper": "#5d5296",
    "Galvatron": "#a9d3ee",
    "Aceso": "#9c4a26",
    "FlashFlex": "#86c596",
    "Metis": "#8c4f7e",
    "DTFM": "#eadfc3",
    "Atlas": "#4f7ea8",
    "Oobleck": "#c9c9c9",
    "Sailor (authors)": "#c9524f",
    "Sailor": "#14294a",
    "Sailor, by simulator": "#14294a",
}
DASHES = {"Sailor": 1, "Sailor (authors)": 2, "AMP": 3, "FlashFlex": 4, "Sailor, by simulator": 5}


def colour_of(name):
    return COLOURS.get(name.removesuffix(", fixed"), "#777777")


def quote(text):
    """A string constant of gnuplot, without its markup."""
    return "'" + "".join(c if c.isprintable() else " " for c in str(text)).replace("'", "''") + "'"


def tick(name):
    """The same for the name of a bar, in two lines where it has a part in brackets."""
    return '"' + str(name).replace('\\', "").replace('"', "'").replace(" (", "\\n(") + '"'


def draw(script, path, width, height):
    """PATH.svg and PATH.png; width and height in points of a page. Raises RuntimeError with what gnuplot says."""
    path = pathlib.Path(path)
    fonts = 'font "DejaVu Sans,11"'
    for ending, terminal in ((".svg", f"svg size {width},{height} dynamic {fonts} background '#ffffff'"),
                             (".png", f"pngcairo size {width * 3},{height * 3} fontscale 3 linewidth 3 pointscale 2.4 "
                                      f"{fonts} background '#ffffff'")):
        text = f"set encoding utf8\nset terminal {terminal} noenhanced\nset output\n{script}"
        try:
            run = subprocess.run(["gnuplot", "-"], input=text.encode(), capture_output=True, check=False, timeout=60)
        except FileNotFoundError:
            raise RuntimeError("there is no program 'gnuplot' in PATH; install Debian's package gnuplot-nox") from None
        if run.returncode != 0 or run.stderr.strip():
            raise RuntimeError(f"gnuplot: {run.stderr.decode(errors='replace').strip()}")
        path.with_suffix(ending).write_bytes(run.stdout)


FRAME = """set border 3 lw 0.8 lc rgb '#444444'
set tics nomirror out scale 0.5
set grid ytics lw 0.5 lc rgb '#c4c8ce'
set key outside below center horizontal samplen 2.4 spacing 1.25 maxrows 3 height 1
set style fill solid 1 border rgb '#222222'
set boxwidth 0.86
"""
TEXT_BOX = "set style textbox opaque noborder fillcolor rgb '#ffffff' margins 0.4,0.3\n"


def nice_top(value, headroom):
    """A round number above value * headroom."""
    top = max(value, 1e-12) * headroom
    step = 10 ** math.floor(math.log10(top))
    return next(step * factor for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * factor >= top)


def bars(path, title, groups, series, x_title, y_title, reference_title):
    """Grouped bars. series: [(name, [bar or None for each group])], a bar a dict with value, label (above it) and
    reference (a value to compare with, or None). A value of 0 is a cross."""
    count = len(series)
    stride = count + 1.4
    top = nice_top(max([bar["value"] for _, bars_ in series for bar in bars_ if bar] +
                       [bar["reference"] or 0 for _, bars_ in series for bar in bars_ if bar] + [0]), 1.22)
    script = FRAME
    plots, data = [], []
    references = []
    for i, (name, bars_) in enumerate(series):
        rows, crosses, labels = [], [], []
        for g, bar in enumerate(bars_):
            x = g * stride + i
            if bar is None:
                continue
            if bar["value"] > 0:
                rows.append(f"{x} {bar['value']:.6g}")
            else:
                crosses.append(f"{x} {top * 0.015:.6g}")
            if bar.get("reference") is not None and bar["reference"] > 0:
                references.append(f"{x} {bar['reference']:.6g}")
            if bar.get("label"):
                height = max(bar["value"], bar.get("reference") or 0) + top * (0.02 if bar["value"] > 0 else 0.04)
                labels.append(f"{x} {height:.6g} \"{bar['label']}\"")
        colour = colour_of(name)
        # A series without a bar is in the legend all the same: NaN draws nothing.
        data.append(f"$bars{i} << EOD\n" + "\n".join(rows or ["0 NaN"]) + "\nEOD\n")
        plots.append(f"$bars{i} using 1:2 with boxes lc rgb '{colour}' title {quote(name)}")
        if crosses:
            data.append(f"$crosses{i} << EOD\n" + "\n".join(crosses) + "\nEOD\n")
            plots.append(f"$crosses{i} using 1:2 with points pt 2 ps 1.1 lw 2 lc rgb '{colour}' notitle")
        if labels:
            data.append(f"$labels{i} << EOD\n" + "\n".join(labels) + "\nEOD\n")
            plots.append(f"$labels{i} using 1:2:3 with labels left rotate by 90 font ',8.5' notitle")
    if references:
        data.append("$references << EOD\n" + "\n".join(references) + "\nEOD\n")
        plots.append("$references using 1:2 with points pt 12 ps 0.85 lw 1.4 lc rgb '#000000' "
                     f"title {quote(reference_title)}")
    tics = ", ".join(f"{quote(name)} {g * stride + (count - 1) / 2}" for g, name in enumerate(groups))
    script += "".join(data)
    script += (f"set title {quote(title)} font ',12'\nset xtics ({tics}) scale 0\nset xlabel {quote(x_title)}\n"
               f"set ylabel {quote(y_title)}\nset xrange [{-1.2}:{(len(groups) - 1) * stride + count + 0.2}]\n"
               f"set yrange [0:{top}]\nplot {', '.join(plots)}\n")
    draw(script, path, 860, 470)


def bars_and_cost(path, title, entries, limit, limit_on_cost, reference_title):
    """One bar of throughput and one star of cost for each planner, with the limit as a line. entries: dicts with name,
    throughput, cost, label and references (throughput and cost to compare with, or None)."""
    costs = [e["cost"] for e in entries if e["cost"]] + ([limit] if limit_on_cost else [])
    most = max([e["throughput"] for e in entries] + [e["reference"] or 0 for e in entries] + ([0] if limit_on_cost else [limit]))
    top = nice_top(most, 1.25)
    # One planner's plan may cost ten times the others': stars above the axis stand at its end, with their number.
    cost_top = nice_top(sorted(costs)[-2] if len(costs) > 1 else max(costs, default=1), 1.25)
    script, plots = FRAME + TEXT_BOX, []
    for i, e in enumerate(entries):
        colour = colour_of(e["name"])
        script += f"$bar{i} << EOD\n{i} {e['throughput'] if e['throughput'] else 'NaN'}\nEOD\n"
        plots.append(f"$bar{i} using 1:2 with boxes lc rgb '{colour}' notitle")
    none = [f"{i} {top * 0.02}" for i, e in enumerate(entries) if not e["throughput"]]
    if none:
        script += "$none << EOD\n" + "\n".join(none) + "\nEOD\n"
        plots.append("$none using 1:2 with points pt 2 ps 1.2 lw 2 lc rgb '#555555' title 'no plan'")
    references = [f"{i} {e['reference']}" for i, e in enumerate(entries) if e["reference"]]
    if references:
        script += "$references << EOD\n" + "\n".join(references) + "\nEOD\n"
        plots.append(f"$references using 1:2 with points pt 12 ps 0.9 lw 1.4 lc rgb '#000000' title {quote(reference_title)}")
    stars = [f"{i} {min(e['cost'], cost_top * 0.93):.6g} \"{e['cost']:.2f} USD\"" for i, e in enumerate(entries) if e["cost"]]
    if stars:
        script += "$stars << EOD\n" + "\n".join(stars) + "\nEOD\n"
        plots.append("$stars using 1:2 axes x1y2 with points pt 3 ps 1.5 lw 2.2 lc rgb '#e8a200' title 'cost (right axis)'")
        plots.append("$stars using 1:2:3 axes x1y2 with labels boxed center offset 0,1.1 font ',9' notitle")
    labels = [f"{i} {max(e['throughput'], e['reference'] or 0) + top * 0.025:.6g} \"{e['label']}\"" for i, e in enumerate(entries) if e["label"]]
    if labels:
        script += "$labels << EOD\n" + "\n".join(labels) + "\nEOD\n"
        plots.append("$labels using 1:2:3 with labels boxed center offset 0,0.6 font ',9' notitle")
    axis = "x1y2" if limit_on_cost else "x1y1"
    script += f"$limit << EOD\n-0.6 {limit}\n{len(entries) - 0.4} {limit}\nEOD\n"
    what = f"limit: {limit:g} USD/iteration" if limit_on_cost else f"limit: {limit:g} iterations/s"
    plots.insert(len(entries), f"$limit using 1:2 axes {axis} with lines lw 1.6 dt 2 lc rgb '#a00000' title {quote(what)}")
    tics = ", ".join(f"{tick(e['name'])} {i}" for i, e in enumerate(entries))
    script += (f"set title {quote(title)} font ',12'\nset xtics ({tics}) scale 0\nset border 11 lw 0.8\nset boxwidth 0.6\n"
               f"set ylabel 'throughput (iterations/s)'\nset y2label 'cost (USD/iteration)'\nset xlabel ' '\nset y2tics nomirror\n"
               f"set xrange [-0.6:{len(entries) - 0.4}]\nset yrange [0:{top}]\nset y2range [0:{cost_top}]\nplot {', '.join(plots)}\n")
    draw(script, path, 860, 430)


def percentile(values, share):
    """Between neighbours, linearly."""
    values = sorted(values)
    at = share * (len(values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def boxes(path, title, y_title, entries):
    """A box from quartile to quartile, whiskers to the 5th and 95th percentile, the mean as a diamond, every value as a
    point. entries: [(name, values, what to write where there are none)]."""
    shown = [percentile(v, 0.95) for _, v, _ in entries if v]
    script, plots = FRAME + TEXT_BOX, []
    # A planner that is off by hundreds of per cent would flatten the others.
    top = nice_top(min(max(shown, default=1), 110), 1.1)
    for i, (name, values, otherwise) in enumerate(entries):
        if not values:
            script += f"set label {i + 1} {quote(otherwise)} at {i},{top * 0.03} rotate by 90 font ',9' textcolor rgb '#666666'\n"
            continue
        colour = colour_of(name)
        q = [percentile(values, share) for share in (0.05, 0.25, 0.5, 0.75, 0.95)]
        script += (f"$box{i} << EOD\n{i} {q[1]} {q[0]} {q[4]} {q[3]} {q[2]} {sum(values) / len(values)}\nEOD\n"
                   f"$points{i} << EOD\n" + "\n".join(f"{i + 0.32} {v}" for v in values) + "\nEOD\n")
        plots += [f"$box{i} using 1:2:3:4:5 with candlesticks whiskerbars 0.5 lc rgb '{colour}' notitle",
                  f"$box{i} using ($1-0.25):6:(0.5):(0) with vectors nohead lw 2 lc rgb '#f4f4f4' notitle",
                  f"$points{i} using 1:2 with points pt 7 ps 0.25 lc rgb '#777777' notitle",
                  f"$box{i} using 1:7 with points pt 13 ps 0.9 lc rgb '#f5c518' notitle",
                  f"$box{i} using 1:7 with points pt 12 ps 0.9 lw 1.2 lc rgb '#111111' {'title ' + quote('mean') if not plots else 'notitle'}"]
        if q[4] > top:
            script += f"set label {i + 1} {quote(f'mean {sum(values) / len(values):.0f} %')} at {i},{top * 0.94} center front boxed font ',9'\n"
    tics = ", ".join(f"{tick(name)} {i}" for i, (name, _, _) in enumerate(entries))
    script += (f"set title {quote(title)} font ',12'\nset xtics ({tics}) scale 0 font ',9.5'\nset xlabel ' '\nset boxwidth 0.5\n"
               f"set ylabel {quote(y_title)}\nset xrange [-0.6:{len(entries) - 0.4}]\nset yrange [0:{top}]\nplot {', '.join(plots)}\n")
    draw(script, path, 860, 400)


def lines(path, title, x_title, y_title, series):
    """Lines on logarithmic axes. series: [(name, kind, reference, [(x, y)])]: the planner, 1 to 3 for the number of GPU
    types, whether the numbers are the authors'. The legend has the planners, then the marks of the numbers of types."""
    script, plots, named = FRAME, [], set()
    full, hollow = {1: 7, 2: 5, 3: 9}, {1: 6, 2: 4, 3: 8}
    xs = sorted({x for _, _, _, points in series for x, _ in points})
    for i, (name, kind, reference, points) in enumerate(series):
        if not points:
            continue
        colour, dash = ("#000000", 3) if reference else (colour_of(name), DASHES.get(name, 1))
        shown = "the authors' own planner, as it ran" if reference else name
        if shown not in named:
            plots.insert(len(named), f"NaN with lines lw 2 dt {dash} lc rgb '{colour}' title {quote(shown)}")
            named.add(shown)
        script += f"$line{i} << EOD\n" + "\n".join(f"{x} {y}" for x, y in sorted(points)) + "\nEOD\n"
        plots.append(f"$line{i} using 1:2 with linespoints pt {(hollow if reference else full)[kind]} ps 0.9 lw 1.5 "
                     f"dt {dash} lc rgb '{colour}' notitle")
    for kind in (1, 2, 3):
        plots.append(f"NaN with points pt {full[kind]} lc rgb '#555555' title '{kind} GPU type{'s' if kind > 1 else ''}'")
    script += (f"set title {quote(title)} font ',12'\nset logscale xy\nset xlabel {quote(x_title)}\nset ylabel {quote(y_title)}\n"
               f"set xtics ({', '.join(f'{quote(x)} {x}' for x in xs if x & (x - 1) == 0)})\nset grid xtics ytics\n"
               f"set xrange [{min(xs) * 0.85}:{max(xs) * 1.18}]\nset format y '%g'\nplot {', '.join(plots)}\n")
    draw(script, path, 860, 480)
