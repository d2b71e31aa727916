// Benchmarks over ranks: reading of the tables, and their section with throughput, the ideal line,
// efficiency, phases and every row.

#include "src/report/report_page.hpp"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/quantities.hpp"
#include "src/report/report_page.hpp"
#include "src/report/svg_chart.hpp"

namespace choir::report {

std::string ScalingRow::text(const std::string& column) const {
  const auto found = cells.find(column);
  return found == cells.end() ? "" : found->second;
}

double ScalingRow::number(const std::string& column) const {
  const double value = std::strtod(text(column).c_str(), nullptr);
  return std::isfinite(value) ? value : 0;
}

std::vector<std::string> split_csv(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"')
      cells.back() += line[++i];
    else if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      cells.emplace_back();
    else if (c != '\r')
      cells.back() += c;
  }
  return cells;
}

namespace {

constexpr std::array kNeeded{"ranks", "tok_s", "valid"};

bool has(const std::vector<std::string>& cells, const std::string& cell) {
  return std::find(cells.begin(), cells.end(), cell) != cells.end();
}

/// True for a header. A file may have several tables; headers of older programs have fewer columns.
bool is_header(const std::vector<std::string>& cells) {
  return std::all_of(kNeeded.begin(), kNeeded.end(),
                     [&](const char* needed) { return has(cells, needed); });
}

}  // namespace

ScalingTable parse_scaling(const std::string& text, const std::string& path) {
  ScalingTable table;
  table.path = path;
  std::istringstream lines(text);
  std::vector<std::string> columns;  // of the last header
  bool speech = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    std::vector<std::string> cells = split_csv(line);
    if (columns.empty())
      for (const char* needed : kNeeded)
        if (!has(cells, needed))
          throw DataError(fmt::format("{} has no column '{}' in its first line", path, needed),
                          "give files of `choir bench step --csv` or bench/scaling.sh");
    if (is_header(cells)) {
      columns = std::move(cells);
      for (const std::string& column : columns)
        if (!has(table.columns, column)) table.columns.push_back(column);
      continue;
    }
    ScalingRow row;
    for (std::size_t i = 0; i < cells.size() && i < columns.size(); ++i)
      row.cells[columns[i]] = std::move(cells[i]);
    row.ranks = row.number("ranks");
    if (cells.size() != columns.size() || row.ranks < 1) {
      ++table.damaged;
      continue;
    }
    row.valid = row.text("valid") == "VALID" && row.number("tok_s") > 0;
    speech = speech || row.number("real_time") > 0;
    row.noisy = row.text("noisy") == "1";
    table.invalid += !row.valid;
    table.noisy += row.valid && row.noisy;
    table.rows.push_back(std::move(row));
  }
  if (table.columns.empty())
    throw DataError(path + " is empty", "the sweep may have been interrupted: run it again");
  if (table.invalid == table.rows.size())
    throw DataError(
        fmt::format("{}: none of its {} rows is VALID", path, table.rows.size()),
        "the output of the benchmark explains why a row is INVALID; run the sweep again");
  for (ScalingRow& row : table.rows) row.rate = row.number(speech ? "real_time" : "tok_s");
  table.unit = speech ? "seconds of audio per second" : "tokens per second";
  return table;
}

ScalingTable read_scaling(const std::string& path) {
  constexpr std::size_t kMostMiB = 256;
  const auto [text, fault] = read_capped_file(path, kMostMiB, Pipes::read);
  if (!fault.empty())
    throw DataError(fmt::format("'{}' {}", path, fault), "check the path and its permissions");
  return parse_scaling(text, path);
}

namespace {

using ScalingRows = std::vector<const ScalingRow*>;

/// "inputs/bench_a.json" as "bench_a".
std::string short_text(const ScalingRow& row, const char* column) {
  std::string text = row.text(column);
  text = text.substr(text.rfind('/') + 1);
  if (text.ends_with(".json")) text.resize(text.size() - 5);
  return text;
}

/// The columns that distinguish series of measurements: values that all rows share go into a title,
/// the others into the names of the lines.
struct Naming {
  std::string shared;
  std::vector<const char*> varying;

  explicit Naming(const ScalingRows& rows) {
    for (const char* column : {"kind", "mode", "deck", "precision", "device"}) {
      std::set<std::string> values;
      for (const ScalingRow* row : rows) values.insert(short_text(*row, column));
      if (values.size() > 1)
        varying.push_back(column);
      else if (!values.begin()->empty())
        shared += (shared.empty() ? "" : ", ") + *values.begin();
    }
  }
  /// Layouts of bench/scaling.sh ("zero2") are the same on any number of ranks; those of
  /// `choir bench step` ("dp=2 tp=1 ...") are not.
  std::string line(const ScalingRow& row) const {
    std::string name = row.text("sweep").empty() ? "" : row.text("layout");
    for (const char* column : varying) name += (name.empty() ? "" : ", ") + short_text(row, column);
    return name.empty() ? "best" : name;
  }
};

/// The fastest row of each x.
std::map<double, const ScalingRow*> best_by(const ScalingRows& rows, const std::string& x) {
  std::map<double, const ScalingRow*> best;
  for (const ScalingRow* row : rows) {
    const ScalingRow*& at = best[row->number(x)];
    if (at == nullptr || at->rate < row->rate) at = row;
  }
  return best;
}

std::string row_name(const ScalingRow& row, const Naming& naming) {
  std::string name = row.text("variant");
  if (name.empty()) name = row.text("layout");
  name = fmt::format("{} on {:.0f} rank{}", name.empty() ? row.text("deck") : name, row.ranks,
                     row.ranks == 1 ? "" : "s");
  for (const char* column : naming.varying) name.insert(0, short_text(row, column) + ", ");
  if (row.text("sweep") == "batch") name += ", batch of " + row.text("global_batch");
  return name + (row.text("oversubscribed") == "1" ? " *" : "") + (row.noisy ? " NOISY" : "");
}

constexpr std::array<std::pair<const char*, int>, 6> kParts{
    {{"data", 4}, {"forward", 0}, {"backward", 5}, {"comm", 1}, {"optimizer", 2}, {"other", 7}}};

/// Bars of shares, because step times of one sweep can differ by powers of ten; the times are
/// printed beside them.
std::string step_bars(const ScalingRows& rows, const Naming& naming) {
  std::string bars, keys;
  bool crowded = false;
  for (const ScalingRow* row : rows) {
    std::vector<BarPart> parts;
    double sum = 0;
    for (const auto& [part, colour] : kParts) {
      const double ms = row->number(std::string(part) + "_ms");
      parts.push_back({fmt::format("{}: {:.3f} ms", part, ms), colour, ms});
      sum += ms;
    }
    if (sum <= 0) continue;
    crowded = crowded || row->text("oversubscribed") == "1";
    bars += bar(row_name(*row, naming),
                fmt::format("{:.4g} ms, {}/s", row->number("step_ms_med"), number_text(row->rate)),
                parts, sum);
  }
  if (bars.empty()) return {};
  for (const auto& [part, colour] : kParts) keys += legend_key(colour, part);
  return "<div class=card><h3>Shares of a step</h3><div class=keys style=margin-bottom:8px>" +
         keys + "</div>" + bars + (crowded ? "<p class=note>* more ranks than cores.</p>" : "") +
         "</div>";
}

std::string all_rows(const ScalingTable& table) {
  std::string out =
      fmt::format("<details><summary>all {} rows</summary><div class=\"card wide\"><table><tr>",
                  table.rows.size());
  for (const std::string& column : table.columns) out += "<th>" + escape_html(column) + "</th>";
  out += "</tr>";
  for (const ScalingRow& row : table.rows) {
    out += !row.valid ? "<tr class=bad>" : row.noisy ? "<tr class=noisy>" : "<tr>";
    for (const std::string& column : table.columns)
      out += "<td class=w>" + escape_html(row.text(column)) + "</td>";
    out += "</tr>";
  }
  return out + "</table></div></details>";
}

/// Charts of rate, efficiency and communication over ranks (in batch sweeps over batches).
struct SweepCharts {
  Chart rate, efficiency, exposed;
  std::set<double> at;
  std::string x = "ranks";
  std::size_t lines = 0;

  SweepCharts(const std::string& sweep, const std::string& unit) {
    if (sweep == "batch") x = "global_batch";
    const std::string label = x == "ranks" ? x : "sequences of a global batch";
    rate = {.title = "Throughput", .unit = unit, .x_label = label, .from_zero = true};
    efficiency = {.title = "Efficiency",
                  .unit = x == "ranks" ? "% of the ideal" : "% of the best rate",
                  .x_label = label,
                  .from_zero = true};
    exposed = {.title = "Cost of communication",
               .unit = "% of the step, against a run without it",
               .x_label = label,
               .from_zero = true};
  }
  /// Names the points of noisy rows below the charts of times.
  void note_noisy(const std::string& name, double place) {
    const std::string point = fmt::format("{} at {:.0f}", name, place);
    for (Chart* chart : {&rate, &efficiency})
      chart->note += (chart->note.empty() ? "NOISY: " : ", ") + point;
  }
  /// `base`: the rate of one rank.
  void add(const std::string& name, const ScalingRows& rows, double base) {
    ChartSeries line{.label = name, .curve = {}, .dots = true};
    take_turn(line, lines++, kColours - 1);  // the last colour is for the ideal
    ChartSeries share = line, comm = line;
    for (const auto& [place, row] : best_by(rows, x)) {
      at.insert(place);
      if (row->noisy) note_noisy(name, place);
      line.curve.x.push_back(place);
      line.curve.y.push_back(row->rate);
      const double given = row->number("efficiency");
      share.curve.x.push_back(place);
      share.curve.y.push_back(100 * (given > 0 ? given : row->rate / (base * place)));
      if (row->text("comm_pct").empty()) continue;
      comm.curve.x.push_back(place);
      comm.curve.y.push_back(row->number("comm_pct"));
    }
    rate.series.push_back(std::move(line));
    efficiency.series.push_back(std::move(share));
    if (!comm.curve.x.empty()) exposed.series.push_back(std::move(comm));
  }
  /// `base` times the number of ranks: a curve on a logarithmic axis.
  void add_ideal(const std::string& name, int of, double base) {
    ChartSeries ideal{.label = name, .colour = of, .curve = {}, .dashed = true};
    for (const double ranks : at) {
      ideal.curve.x.push_back(ranks);
      ideal.curve.y.push_back(base * ranks);
    }
    rate.series.push_back(std::move(ideal));
  }
  /// `base` > 0: one ideal line for all series.
  std::string html(double base) {
    if (at.size() < 2) return {};
    if (x == "ranks" && base > 0) add_ideal("ideal", kColours - 1, base);
    double slowest = INFINITY, fastest = 0;
    for (const ChartSeries& s : rate.series)
      for (const double y : s.curve.y)
        slowest = std::min(slowest, y), fastest = std::max(fastest, y);
    rate.logarithmic = fastest > 20 * slowest;
    if (rate.logarithmic) rate.from_zero = false, rate.unit += ", logarithmic axis";
    if (at.size() <= 6) rate.x_ticks.assign(at.begin(), at.end());
    efficiency.x_ticks = exposed.x_ticks = rate.x_ticks;
    return to_html(rate) + to_html(efficiency) + to_html(exposed);
  }
};

/// The best rate per rank on the fewest ranks.
double rate_of_one(const ScalingRows& rows) {
  double fewest = INFINITY, rate = 0;
  for (const ScalingRow* row : rows) fewest = std::min(fewest, row->ranks);
  for (const ScalingRow* row : rows)
    if (row->ranks == fewest) rate = std::max(rate, row->rate / row->ranks);
  return rate;
}

/// "1.2 h", "3 days 4 h"
std::string long_time(double hours) {
  if (hours < 48) return number_text(hours) + " h";
  const double days = std::floor(hours / 24);
  return fmt::format("{} days {:.0f} h", number_text(days), hours - 24 * days);
}

/// Efficiency with the range that the 10th and 90th percentile of the steps allow.
std::string efficiency_text(const ScalingRow& row) {
  const double share = 100 * row.number("efficiency"), median = row.number("step_ms_med");
  const double fast = row.number("step_ms_p10"), slow = row.number("step_ms_p90");
  if (!(share > 0)) return "";
  if (!(fast > 0) || !(slow > 0)) return fmt::format("{:.1f} %", share);
  return fmt::format("{:.1f} % ({:.1f} to {:.1f})", share, share * median / slow,
                     share * median / fast);
}

/// The table that a computing centre prints: a row for each measurement.
std::string goal_table(const std::string& sweep, const ScalingRows& rows, const Naming& naming,
                       const TrainingGoal& goal) {
  if (sweep != "weak" && sweep != "strong") return {};
  const bool speech = rows.front()->number("real_time") > 0;
  const bool energy = std::ranges::any_of(
      rows, [](const ScalingRow* row) { return row->number("j_per_token") > 0; });
  std::string out = fmt::format(
      "<div class=\"card wide\"><table><tr><th>row<th>nodes<th>step ms (10 to 90 "
      "%)<th>{}<th>speed-up"
      "<th>efficiency (range)<th>{}",
      speech ? "x real time" : "tokens/s", escape_html(rows.front()->text("cost_unit")));
  if (goal.tokens > 0)
    out += fmt::format("<th>time for {} {}", format_count(clamped_integer(goal.tokens)),
                       speech ? "h" : "tokens");
  if (goal.price > 0) out += fmt::format("<th>{} for it", escape_html(goal.currency));
  if (energy) out += "<th>J/token";
  if (energy && goal.tokens > 0) out += "<th>kWh for it";
  out += "</tr>";
  for (const ScalingRow* row : rows) {
    out += fmt::format("<tr{}><td>{}<td>{}<td>{} ({} to {})<td>{}<td>{}<td>{}<td>{}",
                       row->noisy ? " class=noisy" : "", escape_html(row_name(*row, naming)),
                       escape_html(row->text("nodes")), number_text(row->number("step_ms_med")),
                       number_text(row->number("step_ms_p10")),
                       number_text(row->number("step_ms_p90")), number_text(row->rate),
                       escape_html(row->text("speedup")), efficiency_text(*row),
                       number_text(row->number("cost")));
    // `rate` counts tokens, or seconds of speech, per second; `cost` the seconds of processors for
    // a million tokens or an hour of speech.
    if (goal.tokens > 0) out += "<td>" + long_time(goal.tokens / row->rate / (speech ? 1 : 3600));
    if (goal.price > 0)
      out += "<td>" + number_text(goal.price / 3600 * row->number("cost") * goal.tokens /
                                  (speech ? 1 : 1e6));
    const double joules = row->number("j_per_token");
    if (energy) out += "<td>" + (joules > 0 ? number_text(joules) : std::string("-"));
    if (energy && goal.tokens > 0)
      out += "<td>" + (joules > 0 ? number_text(joules * goal.tokens / 3.6e6) : std::string("-"));
    out += "</tr>";
  }
  out +=
      "</table><p class=note>Ranges: the efficiency with the 10th and the 90th percentile of the "
      "steps in place of their median.";
  if (goal.tokens > 0)
    out +=
        " Times are those of steps alone: evaluations, checkpoints and waits in queues are not in "
        "them.";
  if (!energy) out += " Energy was not readable where this was measured.";
  return out + "</p></div>";
}

/// Revision, compiler and machine of the rows, each value once.
std::string origin_of(const ScalingTable& table) {
  std::string out;
  for (const char* column : {"date", "git", "compiler", "march", "mpi", "cuda", "driver_cuda",
                             "nccl", "hosts", "launcher", "job"}) {
    std::set<std::string> values;
    for (const ScalingRow& row : table.rows)
      if (const std::string text = row.text(column); !text.empty()) values.insert(text);
    if (values.empty()) continue;
    std::string text = *values.begin();
    // Dates have a range; of other columns a few values are shown.
    if (values.size() > 1 && std::string_view(column) == "date")
      text += " to " + *values.rbegin();
    else if (values.size() > 1)
      text += fmt::format(" and {} more", values.size() - 1);
    out += fmt::format("<tr><th>{}<td class=w>{}</tr>", column, escape_html(text));
  }
  return out.empty()
             ? ""
             : "<div class=\"card wide\"><h3>Provenance</h3><table>" + out + "</table></div>";
}

std::string one_sweep(const std::string& sweep, const ScalingRows& rows, const std::string& unit,
                      const TrainingGoal& goal) {
  const Naming naming(rows);
  std::map<std::string, ScalingRows> lines;
  for (const ScalingRow* row : rows) lines[naming.line(*row)].push_back(row);
  SweepCharts charts(sweep, unit);
  const bool alike = naming.varying.empty();  // else each line has its own ideal
  const double base = rate_of_one(rows);
  for (const auto& [name, of] : lines) charts.add(name, of, alike ? base : rate_of_one(of));
  if (!alike && charts.x == "ranks") {
    int colour = 0;
    for (const auto& [name, of] : lines)
      charts.add_ideal("", colour++ % (kColours - 1), rate_of_one(of));
  }
  std::string title = sweep.empty() ? "" : sweep + " scaling";
  if (sweep == "batch") title = "batch sweep";
  title += (title.empty() || naming.shared.empty() ? "" : ": ") + naming.shared;
  std::string out =
      title.empty() ? "" : "<h3 style=\"margin:18px 0 8px\">" + escape_html(title) + "</h3>";
  return out + goal_table(sweep, rows, naming, goal) + "<div class=grid>" +
         charts.html(alike ? base : 0) + step_bars(rows, naming) + "</div>";
}

/// The processors and GPUs of the rows as text; "" if the table does not have them.
std::string measured_on(const ScalingTable& table) {
  std::set<std::string> all;
  for (const ScalingRow& row : table.rows) {
    std::string here;
    for (const char* column : {"cpus", "cpu_clocks", "gpus"}) {
      std::string text = row.text(column);  // the first and the last are JSON lists
      std::erase_if(text, [](char c) { return c == '[' || c == ']' || c == '"'; });
      if (!text.empty()) here += (here.empty() ? "" : ", ") + text;
    }
    if (!here.empty()) all.insert(here);
  }
  std::string out;
  for (const std::string& here : all) out += (out.empty() ? "" : "; ") + here;
  return out.empty() ? "" : "<p class=lead>Measured on " + escape_html(out) + ".</p>";
}

}  // namespace

std::string scaling_section(const ScalingTable& table, const TrainingGoal& goal) {
  std::map<std::string, ScalingRows> sweeps;
  for (const ScalingRow& row : table.rows)
    if (row.valid) sweeps[row.text("sweep")].push_back(&row);
  std::string body = measured_on(table);
  if (table.invalid > 0)
    body += fmt::format("<p class=warn>{} of {} rows are not VALID and not shown.</p>",
                        table.invalid, table.rows.size());
  if (table.noisy > 0)
    body += fmt::format(
        "<p class=warn>{} of {} rows are NOISY: other work disturbed their steps, so that their "
        "times are not known to 5 %. They are marked; measure them again on idle cores.</p>",
        table.noisy, table.rows.size());
  if (table.damaged > 0)
    body += fmt::format("<p class=warn>{} {} (cut off?); not shown.</p>",
                        counted(table.damaged, "line"),
                        table.damaged == 1 ? "is not a row" : "are not rows");
  for (const auto& [name, rows] : sweeps) body += one_sweep(name, rows, table.unit, goal);
  return section("Benchmark " + std::filesystem::path(table.path).stem().string(),
                 body + origin_of(table) + all_rows(table));
}

}  // namespace choir::report
