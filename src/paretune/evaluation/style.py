"""The report's style sheet: light and dark, from a phone to a wide screen, and on paper."""

from __future__ import annotations

STYLE = """
:root{--bg:#fafaf7;--card:#fff;--ink:#1b2326;--muted:#586469;--line:#dbe0e1;--accent:#0b6e99;--win:#2a7f62;--tie:#c3c9cb;
--loss:#b4533c;--on:#fff;--on-tie:#1b2326;--yes:#e6f3ee;--no:#f8ece7;--open:#eef1f2}
@media (prefers-color-scheme:dark){:root{--bg:#12171a;--card:#1a2124;--ink:#e5eaeb;--muted:#9caab0;--line:#303a3e;
--accent:#5bb8e0;--win:#57b894;--tie:#4c575c;--loss:#e08a70;--on:#10181b;--on-tie:#e5eaeb;--yes:#16302a;--no:#36211b;
--open:#222b2f}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1200px;margin:0 auto;padding:24px clamp(14px,3vw,40px) 64px}
h1,h2,h3{line-height:1.2;overflow-wrap:anywhere}
h1{font-size:clamp(1.5rem,4vw,2.2rem);margin:.1em 0}
h2{font-size:1.45rem;margin:2.4rem 0 .8rem;padding-top:1.2rem;border-top:2px solid var(--line)}
h3{font-size:1.12rem;margin:0 0 .5rem}
section{margin:0 0 2rem}
p{margin:.4rem 0 .8rem;max-width:75ch}
.muted,figcaption,caption,.tick{color:var(--muted)}
.muted,figcaption,caption{font-size:.88rem}
.eyebrow,.role{font-size:.78rem;text-transform:uppercase;letter-spacing:.06em;color:var(--muted);margin:0 0 .2rem}
.verdict{padding:18px 22px;border-radius:10px;border-left:6px solid var(--muted);background:var(--open)}
.verdict.yes{background:var(--yes);border-color:var(--win)}
.verdict.no{background:var(--no);border-color:var(--loss)}
.headline{font-size:1.3rem;font-weight:650;line-height:1.3}
.grid{display:grid;gap:18px;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr));align-items:start}
.grid.small{grid-template-columns:repeat(auto-fit,minmax(min(100%,250px),300px))}
figure{margin:0;padding:14px;width:100%;max-width:580px;background:var(--card);
border:1px solid var(--line);border-radius:10px}
figcaption{margin-top:.4rem;overflow-wrap:anywhere}
.chart{display:block;width:100%;max-width:520px;height:auto;font-size:12px}
.chart text{fill:var(--ink)}.chart .tick{fill:var(--muted);font-size:11px}
.chart .value{font-variant-numeric:tabular-nums}
.rule{stroke:var(--line)}.leader{stroke:var(--muted);stroke-width:.7}.zero{stroke:var(--ink);stroke-width:1.5}
.ideal{stroke:var(--muted);stroke-dasharray:4 4}.curve{fill:none;stroke:var(--accent);stroke-width:2}
.whisker{stroke:var(--muted);stroke-width:2}.whisker.sensed{stroke:var(--accent)}.whisker.good{stroke:var(--win)}
.dot{fill:var(--muted)}.dot.sensed{fill:var(--accent)}.dot.good{fill:var(--win)}
.dot.hollow{fill:var(--card);stroke:var(--muted);stroke-width:2}
rect.win{fill:var(--win)}rect.tie{fill:var(--tie)}rect.loss{fill:var(--loss)}
.chart .on-win,.chart .on-loss{fill:var(--on)}.chart .on-tie{fill:var(--on-tie)}
.key{padding:1px 8px;border-radius:4px;font-size:.85rem}
.key.win{background:var(--win);color:var(--on)}.key.tie{background:var(--tie);color:var(--on-tie)}
.key.loss{background:var(--loss);color:var(--on)}
.track{fill:var(--line)}.bar{fill:var(--accent)}.target{stroke:var(--ink);stroke-width:2.5}
.scroll{overflow-x:auto;margin:1rem 0}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;min-width:min(100%,420px)}
caption{text-align:left;padding-bottom:.3rem}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--line);vertical-align:top;white-space:nowrap}
td:nth-child(2){white-space:normal;min-width:9.5em}
thead th{color:var(--muted);font-weight:600}
tbody th{font-weight:600}
.sample{display:grid;gap:14px;padding:16px 0;border-top:1px solid var(--line);grid-template-columns:minmax(0,1fr)}
.answers{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,240px),1fr))}
.said{white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate;font-size:.94rem;max-height:26em;overflow-y:auto}
.asked .said{font-weight:600;margin-bottom:.5rem}
.answer{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px;min-width:0}
@media (min-width:1000px){.sample{grid-template-columns:minmax(0,1fr) minmax(0,2.4fr)}}
pre{white-space:pre-wrap;overflow-wrap:anywhere;padding:12px;background:var(--card);border:1px solid var(--line);
border-radius:8px}
@media print{body{background:#fff;font-size:11pt}main{max-width:none;padding:0}
figure,.sample,.verdict,tr{break-inside:avoid}
.said{max-height:none}.scroll{overflow:visible}th,td{white-space:normal}
rect,.dot,.key,.verdict{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
