#include "choir/train/report/report_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "choir/core/clock.hpp"
#include "choir/train/report/svg_chart.hpp"

namespace choir::report {
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

double median_rate(const Curve& curve) {
  std::vector<double> values;
  for (const double y : curve.y)
    if (std::isfinite(y)) values.push_back(y);
  if (values.empty()) return NAN;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Of all logged steps: dt is their mean since the line before.
double stepping_seconds(const ReportedRun& run) {
  const Curve& dt = run.curve("dt");
  double seconds = 0, before = 0;
  for (std::size_t i = 0; i < dt.x.size(); ++i) {
    if (std::isfinite(dt.y[i])) seconds += dt.y[i] * (dt.x[i] - before);
    before = dt.x[i];
  }
  return seconds;
}

std::string tiles(const ReportedRun& run) {
  std::string out = "<dl class=tiles>";
  const auto tile = [&](const char* name, const std::string& value) {
    out += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", name, escape_html(value));
  };
  const auto number = [&](const char* name, double value, const char* form) {
    if (std::isfinite(value)) tile(name, fmt::format(fmt::runtime(form), value));
  };
  const std::string of = run.deck_value("train.max_steps");
  tile("steps", format_count(static_cast<std::int64_t>(run.last_step())) +
                    (of.empty() ? "" : " of " + format_count(std::atoll(of.c_str()))));
  number("last loss", last_of(run.curve("loss")), "{:.4f}");
  number("best validation loss", lowest_of(run.curve("val_loss")), "{:.4f}");
  number("best word error rate", 100 * lowest_of(run.curve("val_wer")), "{:.2f} %");
  const bool speech = !run.curve("rtfx").x.empty();
  const double rate = median_rate(run.curve(speech ? "rtfx" : "tps"));
  if (std::isfinite(rate))
    tile(speech ? "times real time, median" : "tokens a second, median",
         format_count(std::lround(rate)));
  tile("time in steps", format_duration(stepping_seconds(run)));
  if (run.start.parameters > 0)
    tile("parameters", format_count(static_cast<std::int64_t>(run.start.parameters)));
  if (run.start.known)
    tile("ranks",
         fmt::format("{} on {} node{}", run.start.ranks.size(), run.start.ranks.back().node + 1,
                     run.start.ranks.back().node == 0 ? "" : "s"));
  return out + "</dl>";
}

std::string run_card(const ReportedRun& run, std::size_t index) {
  std::string out = fmt::format(
      "<div class=card><h3><i class=\"chip f{}\"></i>{} <span class=state>{}</span></h3>{}",
      index % kColours, escape_html(run.name), escape_html(run.state), tiles(run));
  for (const std::string& note : run.notes) out += "<p class=warn>" + escape_html(note) + "</p>";
  return out + "</div>";
}

/// "digits" twice: the names of their directories, else the paths tell them apart.
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
  return "<section><h2>" + escape_html(title) + "</h2>\n" + body + "</section>\n";
}

std::string report_page(const std::vector<ReportedRun>& given,
                        const std::vector<ScalingTable>& tables) {
  const std::vector<ReportedRun> runs = with_distinct_names(given);
  std::string title = runs.empty() ? "Benchmarks" : runs[0].name;
  if (runs.size() > 1) title = fmt::format("{} runs", runs.size());
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport "
      "content=\"width=device-width,initial-scale=1\"><title>{0} - choir report</title>\n"
      "<style>{1}</style></head>\n<body><main><h1>{0}</h1><p class=lead>choir report, {2}</p>\n",
      escape_html(title), page_style(), timestamp());
  if (!runs.empty()) {
    out += "<div class=grid>";
    for (std::size_t i = 0; i < runs.size(); ++i) out += run_card(runs[i], i);
    out += "</div>" + curves_section(runs) + phases_section(runs) + memory_section(runs) +
           layout_section(runs) + events_section(runs) + samples_section(runs);
  }
  for (const ScalingTable& table : tables) out += scaling_section(table);
  if (!runs.empty()) out += deck_section(runs) + provenance_section(runs);
  return out + "</main></body></html>\n";
}

}  // namespace choir::report
