#include "choir/report/report_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <set>
#include <string_view>

#include "choir/core/clock.hpp"
#include "src/report/svg_chart.hpp"

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
  tile("steps", format_count(clamped_integer(run.last_step())),
       of.empty() ? "" : "of " + format_count(clamped_integer(std::strtod(of.c_str(), nullptr))));
  const auto loss = [&](const char* name, double value) {
    number(name, value, std::abs(value) < 1e4 ? "{:.4f}" : "{:.3g}");
  };
  loss("last loss", last_of(run.curve("loss")));
  loss("best validation loss", lowest_of(run.curve("val_loss")));
  number("best word error rate", 100 * lowest_of(run.curve("val_wer")), "{:.2f}", "%");
  const bool speech = !run.curve("rtfx").x.empty();
  const double rate = median_rate(run.curve(speech ? "rtfx" : "tps"));
  if (std::isfinite(rate))
    tile(speech ? "median x real time" : "median tokens/s",
         format_count(clamped_integer(std::round(rate))));
  tile("time in steps", format_duration(run.stepping_seconds()));
  if (run.start.parameters > 0)
    tile("parameters", format_count(clamped_integer(run.start.parameters)));
  if (run.start.known) {
    int nodes = 0;
    for (const RankPlace& place : run.start.ranks) nodes = std::max(nodes, place.node + 1);
    tile("ranks", std::to_string(run.start.ranks.size()),
         fmt::format("on {} node{}", nodes, nodes == 1 ? "" : "s"));
  }
  return out + "</dl>";
}

std::string badge(const ReportedRun& run) {
  constexpr std::array<int, 6> kColour{7, 2, 4, 1, 0, 1};
  return fmt::format("<span class=badge><i class=f{}></i>{}</span>",
                     kColour[static_cast<std::size_t>(run.fate)], name_of(run.fate));
}

/// Warnings to read before the numbers.
std::string warnings(const ReportedRun& run) {
  std::string out;
  if (!run.state.empty()) out += "<p class=warn>" + escape_html(run.state) + "</p>";
  for (const std::string& note : run.notes) out += "<p class=warn>" + escape_html(note) + "</p>";
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

std::string report_page(const std::vector<ReportedRun>& given,
                        const std::vector<ScalingTable>& tables,
                        const std::vector<RecordedDialogue>& dialogues) {
  const std::vector<ReportedRun> runs = with_distinct_names(given);
  const bool one = runs.size() == 1;
  std::string title = tables.empty() ? "Dialogues" : "Benchmarks";
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
    body += curves_section(runs) + phases_section(runs) + memory_section(runs) +
            (one ? "<div class=pair>" + where + "</div>" : where) + samples_section(runs);
  }
  for (std::size_t i = 0; i < dialogues.size(); ++i) body += dialogue_section(dialogues[i], i);
  for (const ScalingTable& table : tables) body += scaling_section(table);
  if (!runs.empty()) body += deck_section(runs) + provenance_section(runs);
  return fmt::format(
             "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport "
             "content=\"width=device-width,initial-scale=1\"><title>{} - choir report</title>\n"
             "<style>{}</style></head>\n<body><main>",
             escape_html(title), page_style()) +
         head_of(runs, title) + contents(body) + overview + body + "</main></body></html>\n";
}

}  // namespace choir::report
