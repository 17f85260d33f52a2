// The style sheet of the pages of sailor-report: light and dark, for wide windows, phones and paper.
#pragma once

#include <string_view>

namespace sailor::reports {

// The palette is that of plot.cpp (Okabe & Ito, Color Universal Design, 2008); its black is light grey on dark pages.
inline constexpr std::string_view page_style = R"CSS(
:root { --paper: #ffffff; --ink: #1c2430; --soft: #566171; --line: #d9dfe6; --panel: #f4f6f9; --idle: #e6e9ed;
  --link: #0b5ea8; --good: #17663d; --good-paper: #e2f3e9; --bad: #a32116; --bad-paper: #fbe6e3; --open: #6b4e00;
  --open-paper: #fbf0d3; --c6: #000000; --on6: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181d; --ink: #e4e8ed; --soft: #a3aebb; --line: #343c46;
  --panel: #1d232a; --idle: #2f363f; --link: #7db8ee; --good: #7ddba5; --good-paper: #15301f; --bad: #ff9d92;
  --bad-paper: #3d1a17; --open: #f0cd76; --open-paper: #372b0d; --c6: #dfe4e9; --on6: #000000; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 1180px; padding: 1.2rem clamp(.8rem, 3vw, 2rem) 3rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", Helvetica, Arial, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .2rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: .95rem; margin: 1.1rem 0 .3rem; }
p { margin: .3rem 0 .6rem; overflow-wrap: anywhere; }
a { color: var(--link); }
nav { margin: .9rem 0 0; } nav a { display: inline-block; margin: 0 .9rem .3rem 0; }
.lead, .source, footer, figcaption { color: var(--soft); }
.source, footer, figcaption { font-size: .86rem; }
footer { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: .6rem; overflow-wrap: anywhere; }
.verdict { display: inline-block; margin: .5rem 0 .2rem; padding: .25rem .7rem; border-radius: .4rem; font-weight: 600; }
.verdict.good { color: var(--good); background: var(--good-paper); }
.verdict.bad, td.bad { color: var(--bad); } .verdict.bad { background: var(--bad-paper); }
.verdict.open { color: var(--open); background: var(--open-paper); }
.notes { margin: .4rem 0; padding-left: 1.2rem; color: var(--open); font-size: .9rem; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(158px, 1fr)); gap: .6rem; margin: .8rem 0; }
.cards div { background: var(--panel); border-radius: .4rem; padding: .5rem .7rem; min-width: 0; }
.cards dt { color: var(--soft); font-size: .8rem; } .cards dd { margin: 0; font-size: 1.1rem; font-weight: 600; overflow-wrap: anywhere; }
.cards small { display: block; color: var(--soft); font-size: .78rem; font-weight: 400; }
dl { margin: 0; }
.scroll { overflow-x: auto; margin: .5rem 0 .8rem; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .6rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { background: var(--panel); font-weight: 600; } th.n, td.n { text-align: right; }
.facts th, .facts td { white-space: normal; }
#events td:last-child { white-space: normal; min-width: 18rem; }
pre { overflow-x: auto; font: 12px/1.45 "DejaVu Sans Mono", Consolas, monospace; background: var(--panel); padding: .6rem; border-radius: .4rem; }
summary { cursor: pointer; color: var(--link); font-size: .9rem; } details { margin: .5rem 0; }
figure { margin: .4rem 0 .8rem; } svg { display: block; } svg text { fill: var(--ink); font-size: 13px; }
.wide { min-width: 900px; width: 100%; height: auto; } .chart { width: 100%; max-width: 640px; height: auto; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: .4rem 1.6rem; align-items: end; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1rem; margin: .4rem 0; padding: 0; font-size: .84rem; }
.legend li { display: flex; align-items: center; gap: .35rem; } .key { width: .8rem; height: .8rem; flex: none; }
.bars .row { display: grid; grid-template-columns: minmax(11rem, 17rem) 1fr 11.5rem; gap: .7rem; align-items: center; margin: .15rem 0;
  font-size: .84rem; font-variant-numeric: tabular-nums; } .bars .value { text-align: right; }
.bars .bad { color: var(--bad); font-weight: 600; } .bar { width: 100%; height: 20px; } .base { fill: #6c7a89; }
.numbers { font-size: 11px; } .numbers text, text.box { font-size: 12px; } .numbers.light text { fill: #ffffff; } .numbers.dark text { fill: #000000; }
svg text.small { font-size: 11px; } svg text.soft { fill: var(--soft); } svg text.light { fill: #ffffff; } svg text.dark { fill: #000000; }
svg text.strong { font-weight: 600; } svg text.f6.light { fill: var(--on6); }
.axis { stroke: var(--soft); stroke-width: 1; } .grid { stroke: var(--line); stroke-width: 1; }
.limit { stroke: var(--bad); stroke-width: 2; } .measured { stroke: var(--ink); stroke-width: 3; }
rect.measured { fill: var(--ink); stroke: none; } rect.limit { fill: var(--bad); stroke: none; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .dashed { stroke-dasharray: 6 4; }
.idle { fill: var(--idle); } .frame { stroke: var(--paper); stroke-width: 1.5; }
.f0 { fill: #0072b2; } .f1 { fill: #d55e00; } .f2 { fill: #009e73; } .f3 { fill: #cc79a7; } .f4 { fill: #e69f00; }
.f5 { fill: #56b4e9; } .f6 { fill: var(--c6); } .f7 { fill: #8c6d1f; }
.s0 { stroke: #0072b2; } .s1 { stroke: #d55e00; } .s2 { stroke: #009e73; } .s3 { stroke: #cc79a7; } .s4 { stroke: #e69f00; }
.s5 { stroke: #56b4e9; } .s6 { stroke: var(--c6); } .s7 { stroke: #8c6d1f; }
@media (prefers-color-scheme: dark) { .s0 { stroke: #3b9bd6; } }
@media (max-width: 640px) { th { white-space: normal; } h1 { font-size: 1.25rem; } .bars .row { grid-template-columns: 1fr max-content; gap: 0 .7rem; margin: .5rem 0; }
  .bars svg { grid-column: 1 / -1; grid-row: 2; } .cards { grid-template-columns: repeat(2, 1fr); } }
@media print { nav, summary { display: none; } section { break-inside: avoid; } .scroll { overflow: visible; } }
)CSS";

}  // namespace sailor::reports
