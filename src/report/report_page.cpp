// The frame and the overview of the page, and its style: light or dark like the reader's system,
// one column on narrow screens. Colours of data after M. Okabe and K. Ito, who chose them to be
// distinguishable with any kind of colour vision; darker on white, lighter on black.

#include "src/report/report_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <set>
#include <string_view>

#include "src/core/quantities.hpp"
#include "src/core/stats.hpp"
#include "src/core/text.hpp"
#include "src/report/svg_chart.hpp"
#include "src/run/energy_meter.hpp"

namespace choir::report {

std::string page_style() {
  return R"css(
:root{color-scheme:light dark;--bg:#f6f7f8;--card:#fff;--ink:#1c2329;--soft:#5a6570;
--line:#d5dae0;
--grid:#e9ecf0;--cell:#eef1f4;--c0:#0072b2;--c1:#d55e00;--c2:#00906a;--c3:#b4568f;--c4:#c28a00;
--c5:#4ba3d9;
--c6:#7b6a52;--c7:#6c757d}
@media(prefers-color-scheme:dark){:root{--bg:#12161a;--card:#1a1f25;--ink:#e3e8ec;--soft:#9aa5b0;
--line:#363d45;--grid:#272d34;--cell:#232a31;--c0:#4aa5e0;--c1:#f0874a;--c2:#35b98f;--c3:#dd93bd;
--c4:#e6b83f;
--c5:#a5d6f4;--c6:#b9a587;--c7:#8b959f}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",
"DejaVu Sans",Helvetica,Arial,sans-serif}
main{max-width:1240px;margin:0 auto;padding:20px 20px 48px}
h1{font-size:26px;margin:0;font-weight:650;overflow-wrap:anywhere;line-height:1.25}
h2{font-size:18px;margin:34px 0 10px;font-weight:650;scroll-margin-top:12px}
h3{font-size:15px;margin:0 0 8px;font-weight:650;overflow-wrap:anywhere}
.head{display:flex;flex-wrap:wrap;align-items:center;gap:6px 12px;margin:0 0 4px}
.badge{display:inline-flex;align-items:center;gap:7px;border:1px solid var(--line);
background:var(--card);border-radius:99px;padding:1px 11px 1px 9px;font-size:13px;font-weight:500;
white-space:nowrap}
.badge i{width:9px;height:9px;border-radius:50%;flex:none}
.lead,.note,figcaption span{color:var(--soft)}.lead{margin:0 0 4px}.note{font-size:13px;
margin:6px 0 0}
nav{display:flex;flex-wrap:wrap;gap:0 16px;margin:0 0 16px;font-size:14px}
a{color:var(--c0);text-decoration:none}a:hover{text-decoration:underline}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,460px),1fr));gap:14px}
.runs{grid-template-columns:repeat(auto-fill,minmax(min(100%,350px),1fr))}
.gallery{grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr))}
.gallery pre{max-height:560px;overflow:auto;margin:0}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:0 14px}
.pair .grid{grid-template-columns:minmax(0,1fr)}.pair section{display:flex;flex-direction:column;
min-width:0}.pair section>.grid{flex:1}
.stack{display:grid;gap:14px;align-content:start}
.card,figure{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px;
margin:0;min-width:0}
figure .note{margin:6px 4px 4px}
figure{padding:12px 12px 8px;display:flex;flex-direction:column}figure svg{margin-top:auto}
figcaption{margin:0 4px 6px;display:flex;justify-content:space-between;align-items:baseline;
gap:12px}
figcaption b,.key b{color:var(--ink);font-weight:600}
figcaption span+span,.key b{white-space:nowrap;
font-variant-numeric:tabular-nums}figcaption span+span b{font-size:16px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:10px 14px;
margin:0}
.tiles dt{color:var(--soft);font-size:13px}.tiles dd{margin:0;font-size:20px;font-weight:600;
line-height:1.3;font-variant-numeric:tabular-nums}
.tiles small{font-size:13px;font-weight:400;color:var(--soft);white-space:nowrap}
.warn{border-left:4px solid var(--c1);padding:4px 10px;
margin:10px 0 0;
font-size:14px;background:var(--cell)}
svg{display:block;width:100%;height:auto;overflow:visible}svg text{font-size:12px;
fill:var(--soft)}
.e{text-anchor:end}.m{text-anchor:middle}
.a{stroke:var(--soft);fill:none}.g{stroke:var(--grid);fill:none}
.v{stroke:var(--soft);stroke-dasharray:2 3;fill:none}
.l{fill:none;stroke-width:1.9;stroke-linejoin:round}.p{stroke-width:1.2;opacity:.38}
.d{stroke-dasharray:6 4;stroke-width:1.4}
.r1{stroke-dasharray:9 3 2 3}.r2{stroke-dasharray:2 3}.r3{stroke-dasharray:14 3}
.b{opacity:.2}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}
.s4{stroke:var(--c4)}
.s5{stroke:var(--c5)}.s6{stroke:var(--c6)}.s7{stroke:var(--c7)}
.f0{fill:var(--c0);background:var(--c0)}.f1{fill:var(--c1);background:var(--c1)}
.f2{fill:var(--c2);
background:var(--c2)}
.f3{fill:var(--c3);background:var(--c3)}.f4{fill:var(--c4);background:var(--c4)}
.f5{fill:var(--c5);
background:var(--c5)}
.f6{fill:var(--c6);background:var(--c6)}.f7{fill:var(--c7);background:var(--c7)}
.b0{border-color:var(--c0)}.b1{border-color:var(--c1)}.b2{border-color:var(--c2)}
.b3{border-color:var(--c3)}
.b4{border-color:var(--c4)}.b5{border-color:var(--c5)}.b6{border-color:var(--c6)}
.b7{border-color:var(--c7)}
.keys{display:flex;flex-wrap:wrap;gap:2px 14px;margin:0 4px 4px;font-size:13px}
.key{display:inline-flex;align-items:center;gap:6px;overflow-wrap:anywhere}
.key i{flex:none;width:12px;height:12px;border-radius:3px}
.key svg{flex:none;width:34px;height:12px;margin:0}
.key .dash{height:0;border-width:2px 0 0;border-style:dashed;
border-radius:0}
.chip{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:8px;
vertical-align:-1px}
.row{display:grid;grid-template-columns:1fr auto;gap:0 12px;margin:0 0 10px;font-size:14px}
.row .name{overflow-wrap:anywhere}.amount{color:var(--soft);font-variant-numeric:tabular-nums}
.bar{grid-column:1/-1;display:flex;height:14px;background:var(--cell);border-radius:3px;
overflow:hidden}
.bar i{display:block;height:100%}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;width:100%}
th,td{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid var(--grid);
vertical-align:top}
.deck td{overflow-wrap:anywhere}.deck td:first-child,.deck td:last-child{overflow-wrap:normal}
.card>.head{margin-bottom:8px}
th{color:var(--soft);font-weight:500}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;
white-space:nowrap}
td.w{white-space:nowrap}tr.bad td{color:var(--soft);text-decoration:line-through}
pre{margin:0 0 10px;white-space:pre-wrap;overflow-wrap:anywhere;
font:13px/1.45 ui-monospace,"DejaVu Sans Mono",Menlo,
Consolas,monospace;background:var(--cell);border-radius:6px;padding:10px}
details{margin:8px 0}.thick .bar{height:22px}.o{fill-opacity:.92}summary{cursor:pointer;
color:var(--soft)}
.mesh{max-width:100%;width:auto;height:auto;margin:0 auto}.mesh text{fill:var(--ink)}
.mesh .t{fill:var(--soft)}
.cell{fill-opacity:.3;stroke:var(--card);stroke-width:2}
@media(max-width:560px){main{padding:14px 10px 32px}svg.chart text{font-size:14.5px}
body{font-size:14px}
.card{padding:12px}h1{font-size:22px}figure{padding:10px 6px 6px}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}.tiles dd{font-size:18px}
td,th{padding-right:8px}}
figure{position:relative}
.tip{position:absolute;pointer-events:none;background:var(--card);border:1px solid var(--line);
border-radius:6px;padding:4px 8px;font-size:12px;line-height:1.4;white-space:nowrap;
font-variant-numeric:tabular-nums;z-index:1}
.tip i{display:inline-block;width:9px;height:9px;border-radius:2px;margin-right:6px}
tr.noisy td{color:var(--soft);font-style:italic}
@media print{@page{size:A4;margin:14mm}body{background:#fff;font-size:11px}
main{padding:0;max-width:none}.wide{overflow:visible}details{display:none}
.card,figure,tr{break-inside:avoid}h2{break-after:avoid}}
)css";
}

namespace {

/// Replaces variables by their values on a white page, which are the first in the style.
std::string with_light_colours(std::string css) {
  const std::string style = page_style();
  for (std::size_t at = css.find("var("); at != std::string::npos; at = css.find("var(")) {
    const std::size_t end = css.find(')', at);
    const std::string name = css.substr(at + 4, end - at - 4) + ":";
    const std::size_t value = style.find(name) + name.size();
    css.replace(at, end + 1 - at, style.substr(value, style.find_first_of(";}", value) - value));
  }
  return css;
}

}  // namespace

std::string page_for_weasyprint(std::string page) {
  const std::string style = page_style();
  const std::size_t from = style.find(".e{text-anchor"), to = style.find(".b0{border-color");
  const std::string drawing = "<style>" +
                              with_light_colours(
                                  "text{font-size:12px;fill:var(--soft)}.o{fill-opacity:.92}"
                                  ".cell{fill-opacity:.3;stroke:var(--card);stroke-width:2}" +
                                  style.substr(from, to - from)) +
                              "</style>";
  for (std::size_t at = page.find("<svg"); at != std::string::npos; at = page.find("<svg", at)) {
    at = page.find('>', at) + 1;
    page.insert(at, drawing);
  }
  // WeasyPrint ignores a variable in a shorthand property such as `background` or `border`.
  if (const std::size_t at = page.find(style); at != std::string::npos)
    page.replace(at, style.size(), with_light_colours(style));
  const std::size_t head = page.find("</head>");
  if (head == std::string::npos) return page;
  return page.insert(head, R"css(<style>
.grid,.pair,.stack,.tiles,.keys,.row,figure{display:block}.card{break-inside:auto}
.grid>*,.pair>section{display:inline-block;width:48.5%;vertical-align:top;margin:0 1% 8px 0}
.pair .grid>*,.runs>*,.gallery>*,.stack>*{display:block;width:auto;margin:0 0 8px}
.tiles>div{display:inline-block;margin:0 16px 6px 0}
.key{display:inline-block;white-space:nowrap;margin-right:12px;overflow-wrap:normal}
.key i{margin-right:5px}.key i,.bar,.bar i{display:inline-block}
.bar{width:100%;white-space:nowrap;font-size:0}
.key svg{display:inline-block;width:34px}.row .name,.row .amount{display:inline-block}
.row .amount{margin-left:12px}
</style>)css");
}

namespace {

double last_of(const Curve& curve) {
  for (std::size_t i = curve.y.size(); i-- > 0;)
    if (std::isfinite(curve.y[i])) return curve.y[i];
  return NAN;
}

double lowest_of(const Curve& curve) {
  double lowest = NAN;
  for (const double y : curve.y)
    if (std::isfinite(y) && !(y >= lowest)) lowest = y;
  return lowest;
}

/// The energy of all jobs of a run, each of which counts from 0.
double joules_of(const Curve& total) {
  double before = 0, job = 0;
  for (const double y : total.y) {
    if (!std::isfinite(y)) continue;
    if (y < job) before += job;
    job = y;
  }
  return before + job;
}

std::string tiles(const ReportedRun& run) {
  std::string out = "<dl class=tiles>";
  const auto tile = [&](const char* name, const std::string& value, const std::string& more = "") {
    out += fmt::format("<div><dt>{}</dt><dd>{}{}</dd></div>", name, escape_html(value),
                       more.empty() ? "" : " <small>" + escape_html(more) + "</small>");
  };
  const auto number = [&](const char* name, double value, const char* form, const char* unit = "") {
    if (std::isfinite(value)) tile(name, fmt::format(fmt::runtime(form), value), unit);
  };
  const std::string of = run.deck_value("train.max_steps");
  tile("steps", format_count(clamped_integer(run.steps_done())),
       of.empty() ? "" : "of " + format_count(clamped_integer(std::strtod(of.c_str(), nullptr))));
  const auto loss = [&](const char* name, double value, const std::string& more = "") {
    number(name, value, std::abs(value) < 1e4 ? "{:.4f}" : "{:.3g}", more.c_str());
  };
  // The summary of the run calls the same number "loss".
  const Curve& training = run.curve("loss");
  loss("loss", last_of(training),
       training.x.empty() ? "" : "of step " + format_count(clamped_integer(training.x.back())));
  loss("best validation loss", lowest_of(run.curve("val_loss")));
  number("best word error rate", 100 * lowest_of(run.curve("val_wer")), "{:.2f}", "%");
  const bool speech = !run.curve("rtfx").x.empty();
  const double rate = median_of_lines(run.curve(speech ? "rtfx" : "tps").y);
  if (std::isfinite(rate))
    tile(speech ? "x real time" : "tokens/s", format_count(clamped_integer(std::round(rate))),
         kMedianOfLines);
  tile("time in steps", format_duration(run.stepping_seconds()));
  if (const double joules = joules_of(run.curve("energy_total_j")); joules > 0)
    tile("energy", format_energy(joules),
         format_energy(median_of_lines(run.curve("j_per_token").y)) + " a token");
  if (run.start.parameters > 0)
    tile("parameters", format_count(clamped_integer(run.start.parameters)));
  if (run.start.known) {
    int nodes = 0;
    for (const RankPlace& place : run.start.ranks) nodes = std::max(nodes, place.node + 1);
    tile("ranks", std::to_string(run.start.ranks.size()),
         fmt::format("on {} node{}", nodes, nodes == 1 ? "" : "s"));
  }
  if (run.saved >= 0 && !untrained(run.fate)) tile("newest checkpoint", format_count(run.saved));
  return out + "</dl>";
}

std::string badge(const ReportedRun& run) {
  constexpr std::array<int, 9> kColour{7, 2, 4, 1, 0, 1, 7, 1, 7};
  return fmt::format("<span class=badge><i class=f{}></i>{}</span>",
                     kColour[static_cast<std::size_t>(run.fate)], name_of(run.fate));
}

/// Warnings to read before the numbers.
std::string warnings(const ReportedRun& run) {
  std::string out;
  if (!run.state.empty())
    out += fmt::format("<p class={}>{}</p>",
                       untrained(run.fate) || run.fate == Fate::running ? "note" : "warn",
                       escape_html(run.state));
  for (const std::string& note : run.notes) out += "<p class=warn>" + escape_html(note) + "</p>";
  for (std::string_view line : run.summary)
    if (take_prefix(line, "diagnosis "))
      out += "<p class=note>Diagnosis of the last job: " + escape_html(std::string(trim(line))) +
             "</p>";
  return out;
}

std::string run_card(const ReportedRun& run, std::size_t index) {
  return fmt::format(
      "<div class=card><div class=head><h3 style=margin:0><i class=\"chip f{}\"></i>{}</h3>{}</div>"
      "{}{}</div>",
      index % kColours, escape_html(run.name), badge(run), tiles(run), warnings(run));
}

std::string head_of(const std::vector<ReportedRun>& runs, const std::string& title) {
  if (runs.size() != 1)
    return fmt::format("<h1>{}</h1><p class=lead>choir report of {}</p>\n", escape_html(title),
                       timestamp());
  const RunStart& start = runs[0].start;
  std::string where;
  if (start.known) where = fmt::format(" · {} · {}", start.ranks[0].host, start.device);
  for (const auto& [key, value] : start.provenance)
    if (key == "revision") where += " · revision " + value;
  return fmt::format("<div class=head><h1>{}</h1>{}</div><p class=lead>choir report of {}{}</p>\n",
                     escape_html(title), badge(runs[0]), timestamp(), escape_html(where));
}

/// Links to the existing sections.
std::string contents(const std::string& body) {
  std::string out;
  constexpr std::string_view kBefore = "<h2 id=";
  int sections = 0;
  for (std::size_t at = body.find(kBefore); at != std::string::npos; at = body.find(kBefore, at)) {
    at += kBefore.size();
    const std::size_t name = body.find('>', at) + 1;
    out += fmt::format("<a href=\"#{}\">{}</a>", body.substr(at, name - 1 - at),
                       body.substr(name, body.find("</h2>", name) - name));
    ++sections;
  }
  return sections < 3 ? "" : "<nav>" + out + "</nav>\n";
}

/// Makes names distinct: if "digits" occurs twice, by the directory names, else by the paths.
std::vector<ReportedRun> with_distinct_names(std::vector<ReportedRun> runs) {
  const auto distinct = [&] {
    std::set<std::string> names;
    for (const ReportedRun& run : runs) names.insert(run.name);
    return names.size() == runs.size();
  };
  if (!distinct())
    for (ReportedRun& run : runs) run.name = run.path.substr(run.path.rfind('/') + 1);
  if (!distinct())
    for (ReportedRun& run : runs) run.name = run.path;
  return runs;
}

}  // namespace

std::string section(const std::string& title, const std::string& body) {
  std::string id;
  for (const char c : title)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      id += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return "<section><h2 id=" + id + ">" + escape_html(title) + "</h2>\n" + body + "</section>\n";
}

std::string page_script() {
  return R"js(
for(const svg of document.querySelectorAll('svg[data-values]')){
const d=JSON.parse(svg.dataset.values),[left,width,whole]=d.at,[first,last]=d.x;
const figure=svg.parentNode,tip=document.createElement('div'),cursor=
document.createElementNS(svg.namespaceURI,'path');
tip.className='tip';tip.hidden=true;cursor.setAttribute('class','v');
figure.appendChild(tip);svg.appendChild(cursor);
const nearest=(xs,x)=>{let best=-1;for(let i=0;i<xs.length;++i)
if(best<0||Math.abs(xs[i]-x)<Math.abs(xs[best]-x))best=i;return best};
const text=v=>Math.abs(v)>=1e4?Math.round(v).toLocaleString('en'):String(+v.toPrecision(5));
svg.addEventListener('pointermove',e=>{
const box=svg.getBoundingClientRect(),scale=box.width/whole;
const at=first+((e.clientX-box.left)/scale-left)/width*(last-first);
let x=null;for(const s of d.series){const i=nearest(s.x,at);
if(i>=0&&(x===null||Math.abs(s.x[i]-at)<Math.abs(x-at)))x=s.x[i]}
if(x===null)return;
const place=left+(x-first)/(last-first)*width;
cursor.setAttribute('d','M'+place+' 12V208');
tip.textContent=d.unit+' '+text(x);
for(const s of d.series){const i=nearest(s.x,x);if(i<0)continue;
const row=document.createElement('div'),chip=document.createElement('i');
chip.className='f'+s.colour;row.appendChild(chip);
row.append((s.name?s.name+' ':'')+text(s.y[i])+(s.x[i]===x?'':' ('+d.unit+' '+text(s.x[i])+')'));
tip.appendChild(row)}
tip.hidden=false;
const frame=figure.getBoundingClientRect(),px=box.left-frame.left+place*scale;
tip.style.top=(box.top-frame.top+8)+'px';
tip.style.left=px>frame.width/2?'auto':(px+12)+'px';
tip.style.right=px>frame.width/2?(frame.width-px+12)+'px':'auto'});
svg.addEventListener('pointerleave',()=>{tip.hidden=true;cursor.removeAttribute('d')})}
)js";
}

std::string report_page(const std::vector<ReportedRun>& given,
                        const std::vector<ScalingTable>& tables,
                        const std::vector<RecordedDialogue>& dialogues,
                        const std::vector<KernelTable>& kernels, const TrainingGoal& goal) {
  const std::vector<ReportedRun> runs = with_distinct_names(given);
  const bool one = runs.size() == 1;
  std::string title = tables.empty() && kernels.empty() ? "Dialogues" : "Benchmarks";
  if (runs.empty() && dialogues.empty() && kernels.empty() && tables.size() == 1 &&
      !tables[0].rows.empty() && !tables[0].rows[0].text("sweep").empty())
    title = "Scaling of training steps";
  if (one) title = runs[0].name;
  if (runs.size() > 1) title = fmt::format("{} runs", runs.size());
  std::string overview, body;
  if (one) {
    overview = "<div class=card>" + tiles(runs[0]) + warnings(runs[0]) + "</div>";
  } else if (!runs.empty()) {
    overview = "<div class=\"grid runs\">";
    for (std::size_t i = 0; i < runs.size(); ++i) overview += run_card(runs[i], i);
    overview += "</div>";
    for (const std::string& caution : comparison_cautions(runs))
      overview += "<p class=warn>" + escape_html(caution) + "</p>";
  }
  if (!runs.empty()) {
    const std::string where = layout_section(runs) + events_section(runs);
    body += curves_section(runs) + evaluations_section(runs) + worst_section(runs) +
            phases_section(runs) + memory_section(runs) +
            (one ? "<div class=pair>" + where + "</div>" : where) + samples_section(runs);
  }
  for (std::size_t i = 0; i < dialogues.size(); ++i) body += dialogue_section(dialogues[i], i);
  for (const ScalingTable& table : tables) body += scaling_section(table, goal);
  for (const KernelTable& table : kernels) body += roofline_section(table, runs);
  if (!runs.empty()) body += deck_section(runs) + provenance_section(runs);
  return fmt::format(
             "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport "
             "content=\"width=device-width,initial-scale=1\"><title>{} - choir report</title>\n"
             "<style>{}</style></head>\n<body><main>",
             escape_html(title), page_style()) +
         head_of(runs, title) + contents(body) + overview + body + "</main>\n<script>" +
         page_script() + "</script></body></html>\n";
}

}  // namespace choir::report
