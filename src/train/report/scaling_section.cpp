// Benchmarks over ranks: throughput with the ideal line, efficiency, phases, every row.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "choir/core/clock.hpp"
#include "choir/train/report/report_page.hpp"
#include "choir/train/report/svg_chart.hpp"

namespace choir::report {
namespace {

using Rows = std::vector<const ScalingRow*>;

/// What is drawn as one line: rows that differ in ranks and layout only.
std::string group_of(const ScalingRow& row) {
  std::string name;
  for (const char* column : {"sweep", "kind", "mode", "deck", "precision", "device"})
    if (std::string text = row.text(column); !text.empty()) {
      text = text.substr(text.rfind('/') + 1);  // inputs/bench_a.json
      if (text.ends_with(".json")) text.resize(text.size() - 5);
      name += (name.empty() ? "" : ", ") + text;
    }
  return name;
}

/// The best rate of each number of ranks.
Curve best_of(const Rows& rows) {
  std::map<double, double> best;
  for (const ScalingRow* row : rows) best[row->ranks] = std::max(best[row->ranks], row->rate);
  Curve curve;
  for (const auto& [ranks, rate] : best) {
    curve.x.push_back(ranks);
    curve.y.push_back(rate);
  }
  return curve;
}

std::string row_name(const ScalingRow& row) {
  std::string name = row.text("variant");
  if (name.empty()) name = row.text("layout");
  return fmt::format("{} on {:.0f} rank{}", name.empty() ? row.text("deck") : name, row.ranks,
                     row.ranks == 1 ? "" : "s");
}

constexpr std::array<std::pair<const char*, int>, 6> kParts{
    {{"data", 4}, {"forward", 0}, {"backward", 5}, {"comm", 1}, {"optimizer", 2}, {"other", 7}}};

std::string step_bars(const std::string& group, const Rows& rows) {
  double longest = 0;
  for (const ScalingRow* row : rows) longest = std::max(longest, row->number("step_ms_med"));
  if (longest <= 0) return {};
  std::string body =
      "<div class=card><h3>" + escape_html(group) + ": phases of a step</h3>" + "<div class=keys>";
  for (const auto& [part, colour] : kParts) body += legend_key(colour, part);
  body += "</div>";
  for (const ScalingRow* row : rows) {
    std::vector<BarPart> parts;
    for (const auto& [part, colour] : kParts) {
      const double ms = row->number(std::string(part) + "_ms");
      parts.push_back({fmt::format("{}: {:.3f} ms", part, ms), colour, ms});
    }
    body += bar(row_name(*row),
                fmt::format("{:.4g} ms, {}/s", row->number("step_ms_med"),
                            row->rate < 100 ? fmt::format("{:.1f}", row->rate)
                                            : format_count(std::lround(row->rate))),
                parts, longest);
  }
  return body + "</div>";
}

std::string all_rows(const ScalingTable& table) {
  std::string out =
      fmt::format("<details><summary>all {} rows</summary><div class=\"card wide\"><table><tr>",
                  table.rows.size());
  for (const std::string& column : table.columns) out += "<th>" + escape_html(column) + "</th>";
  out += "</tr>";
  for (const ScalingRow& row : table.rows) {
    out += row.valid ? "<tr>" : "<tr class=bad>";
    for (const std::string& column : table.columns)
      out += "<td class=w>" + escape_html(row.text(column)) + "</td>";
    out += "</tr>";
  }
  return out + "</table></div></details>";
}

}  // namespace

std::string scaling_section(const ScalingTable& table) {
  std::map<std::string, Rows> groups;
  for (const ScalingRow& row : table.rows)
    if (row.valid) groups[group_of(row)].push_back(&row);
  Chart rate{.title = "Throughput", .unit = table.unit, .x_label = "ranks", .from_zero = true};
  Chart efficiency{
      .title = "Efficiency", .unit = "% of the ideal line", .x_label = "ranks", .from_zero = true};
  std::set<double> counts;
  std::string bars;
  int colour = 0;
  for (const auto& [name, rows] : groups) {
    bars += step_bars(name, rows);
    const Curve best = best_of(rows);
    if (best.x.size() < 2) continue;
    Curve ideal, share;
    for (std::size_t i = 0; i < best.x.size(); ++i) {
      counts.insert(best.x[i]);
      ideal.x.push_back(best.x[i]);
      ideal.y.push_back(best.y[0] / best.x[0] * best.x[i]);
      share.x.push_back(best.x[i]);
      share.y.push_back(100 * best.y[i] / ideal.y[i]);
    }
    rate.series.push_back({.label = name, .colour = colour, .curve = best, .dots = true});
    rate.series.push_back(
        {.label = "", .colour = colour, .curve = std::move(ideal), .dashed = true});
    efficiency.series.push_back(
        {.label = name, .colour = colour, .curve = std::move(share), .dots = true});
    colour = (colour + 1) % kColours;
  }
  if (counts.size() <= 6) rate.x_ticks.assign(counts.begin(), counts.end());
  efficiency.x_ticks = rate.x_ticks;
  double slowest = INFINITY, fastest = 0;
  for (const ChartSeries& s : rate.series)
    for (const double y : s.curve.y) slowest = std::min(slowest, y), fastest = std::max(fastest, y);
  rate.logarithmic = fastest > 20 * slowest;
  rate.from_zero = !rate.logarithmic;
  if (rate.logarithmic) rate.unit += ", logarithmic axis";
  rate.note =
      "The best VALID row of each number of ranks. Dashed: ideal, as many times the smallest "
      "number's as there are ranks.";
  std::string body;
  if (table.invalid > 0)
    body += fmt::format("<p class=warn>{} of {} rows are not VALID and are not drawn.</p>",
                        table.invalid, table.rows.size());
  if (table.damaged > 0)
    body += fmt::format("<p class=warn>{} lines are no rows (cut off?) and are left out.</p>",
                        table.damaged);
  body += "<div class=grid>" + to_html(rate) + to_html(efficiency) + bars + "</div>";
  return section("Benchmark " + table.path, body + all_rows(table));
}

}  // namespace choir::report
