// Sections of the page about runs: the curves of all runs, overlaid; and the resources of a run,
// that is time by phases, ranks on the mesh, and the memory of rank 0 (the plan, its entries, the
// measured use).

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "choir/comm/layout.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/report/report_page.hpp"
#include "src/report/svg_chart.hpp"

namespace choir::report {
namespace {

/// Marks of restarts and failed saves, if the page has one run.
std::vector<ChartMark> marks_of(const std::vector<ReportedRun>& runs) {
  std::vector<ChartMark> marks;
  if (runs.size() != 1) return marks;
  for (const RunEvent& event : runs[0].events)
    if (event.step > 0 &&
        (event.kind == EventKind::restart || event.kind == EventKind::failed_save))
      marks.push_back({static_cast<double>(event.step), event.text});
  return marks;
}

struct Subject {
  const char *key, *title, *unit;
  bool from_zero = false, may_be_logarithmic = false, noisy = false;
  Chart::Shown shown = Chart::Shown::last;
};

/// True if the values span more than a factor of 20: they are drawn on a logarithmic axis.
bool wants_logarithm(const Chart& chart) {
  double low = INFINITY, high = 0;
  for (const ChartSeries& s : chart.series)
    for (const double y : s.curve.y) {
      if (!std::isfinite(y)) continue;
      if (y <= 0) return false;
      low = std::min(low, y);
      high = std::max(high, y);
    }
  return high > 20 * low;
}

Chart chart_of(const Subject& subject, const std::vector<ReportedRun>& runs) {
  Chart chart{.title = subject.title, .unit = subject.unit, .from_zero = subject.from_zero};
  for (std::size_t r = 0; r < runs.size(); ++r) {
    Curve curve = runs[r].curve(subject.key);
    if (curve.x.empty()) continue;
    chart.series.push_back(
        {.label = runs[r].name, .curve = std::move(curve), .noisy = subject.noisy});
    take_turn(chart.series.back(), r, kColours);
  }
  chart.shown = subject.shown;
  chart.marks = marks_of(runs);
  if (subject.may_be_logarithmic) chart.logarithmic = wants_logarithm(chart);
  if (chart.logarithmic) chart.unit += ", logarithmic axis";
  for (const ChartSeries& s : chart.series) {
    const auto lost = std::count_if(s.curve.y.begin(), s.curve.y.end(),
                                    [](double y) { return !std::isfinite(y); });
    if (lost > 0)
      chart.note += (chart.note.empty() ? "" : " ") + s.label + ": " + std::to_string(lost) +
                    " values are not finite and not shown.";
    if (s.curve.x.size() > kColumns && chart.note.empty())
      chart.note = "Lines are means of neighbouring steps; the shaded area spans their extremes.";
    else if (s.noisy && s.curve.x.size() >= kSmoothed && chart.note.empty())
      chart.note = "Thin line: as logged. Thick line: running mean.";
  }
  return chart;
}

/// "100 % is 2.23 TFLOP/s: ... (from step 1); 0.213 TFLOP/s: ... (from step 1891).": each start of
/// a run measures its peak, and another precision has another one. "" if it is not known.
std::string peaks_of(const ReportedRun& run) {
  constexpr std::size_t kMost = 6;  // a long chain of jobs
  std::vector<const JobStart*> jobs;
  for (const JobStart& job : run.starts)
    if (!job.mfu_peak.empty() && (jobs.empty() || jobs.back()->mfu_peak != job.mfu_peak))
      jobs.push_back(&job);
  if (jobs.size() == 1) return fmt::format("100 % is {}.", jobs.front()->mfu_peak);
  if (jobs.size() > kMost)
    jobs.erase(jobs.begin(), jobs.end() - static_cast<std::ptrdiff_t>(kMost));
  std::string text;
  for (const JobStart* const job : jobs)
    text += fmt::format("{}{} (from step {})", text.empty() ? "100 % is " : "; ", job->mfu_peak,
                        job->step + 1);
  return text.empty() ? text : text + ".";
}

/// Names the peaks of which the MFU is a percentage.
void add_peaks(Chart& chart, const std::vector<ReportedRun>& runs) {
  for (const ReportedRun& run : runs)
    if (const std::string peaks = peaks_of(run); !peaks.empty())
      chart.note += (chart.note.empty() ? "" : " ") +
                    (runs.size() > 1 ? run.name + ": " : std::string()) + peaks;
}

struct ValidationSubject {
  const char *key, *title, *unit;
  double factor = 1;
};

/// The sets of a metric: "val_wer/voices" -> "voices"; "val_wer" -> "". Other curves are ignored.
std::set<std::string> sets_of(const char* key, const std::vector<ReportedRun>& runs) {
  std::set<std::string> sets;
  const std::string prefix = std::string(key) + "/";
  for (const ReportedRun& run : runs)
    for (const auto& [name, curve] : run.curves) {
      if (name == key) sets.insert("");
      if (name.starts_with(prefix)) sets.insert(name.substr(prefix.size()));
    }
  return sets;
}

ChartSeries validation_series(const ValidationSubject& subject, const ReportedRun& run,
                              const std::string& set) {
  Curve curve = run.curve(subject.key + (set.empty() ? set : "/" + set));
  for (double& y : curve.y) y *= subject.factor;
  const bool few = curve.x.size() <= 40;
  return {.label = set.empty() ? "all" : set, .curve = std::move(curve), .dots = few};
}

Chart empty_chart(const ValidationSubject& subject, const std::vector<ReportedRun>& runs) {
  return {.title = subject.title,
          .unit = subject.unit,
          .marks = marks_of(runs),
          .from_zero = subject.factor != 1,
          .shown = Chart::Shown::last};
}

std::string finished(Chart chart, const ValidationSubject& subject) {
  if (subject.factor == 1) chart.logarithmic = wants_logarithm(chart);
  if (chart.logarithmic) chart.unit += ", logarithmic axis";
  return to_html(chart);
}

/// One run has all its sets in one chart; several runs have a chart for each set.
std::string validation(const ValidationSubject& subject, const std::vector<ReportedRun>& runs) {
  const std::set<std::string> sets = sets_of(subject.key, runs);
  std::string out;
  Chart together = empty_chart(subject, runs);
  for (const std::string& set : sets) {
    Chart chart = empty_chart(subject, runs);
    if (!set.empty()) chart.title += ": " + set;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      ChartSeries series = validation_series(subject, runs[r], set);
      if (series.curve.x.empty()) continue;
      if (runs.size() == 1) {
        take_turn(series, together.series.size(), kColours);
        together.series.push_back(std::move(series));
        continue;
      }
      series.label = runs[r].name;
      take_turn(series, r, kColours);
      chart.series.push_back(std::move(series));
    }
    if (runs.size() > 1) out += finished(std::move(chart), subject);
  }
  if (runs.size() > 1) return out;
  // The training loss between evaluations shows overfitting.
  if (std::string(subject.key) == "val_loss" && !runs[0].curve("train_loss").x.empty())
    together.series.push_back({.label = "training, mean since the previous evaluation",
                               .colour = 7,
                               .curve = runs[0].curve("train_loss"),
                               .dashed = true});
  return finished(std::move(together), subject);
}

}  // namespace

namespace {

/// Charts of the other metrics of evaluations: "val_exact_match", "val_mel_db" ...
std::string other_metrics(const std::vector<ReportedRun>& runs) {
  constexpr std::size_t kMostCharts = 8;
  std::set<std::string> keys;
  for (const ReportedRun& run : runs)
    for (const auto& [name, curve] : run.curves)
      if (name.starts_with("val_")) keys.insert(name.substr(0, name.find('/')));
  for (const char* shown : {"val_loss", "val_wer", "val_cer"}) keys.erase(shown);
  std::string charts;
  std::size_t count = 0;
  for (const std::string& key : keys) {
    if (++count > kMostCharts) break;
    const bool exact = key == "val_exact_match";
    const std::string title = exact ? "Exact answers" : key;
    charts += validation({.key = key.c_str(),
                          .title = title.c_str(),
                          .unit = exact ? "% of the answers" : "of the validation data",
                          .factor = exact ? 100.0 : 1.0},
                         runs);
  }
  return charts;
}

}  // namespace

std::string curves_section(const std::vector<ReportedRun>& runs) {
  const bool speech = std::any_of(runs.begin(), runs.end(), [](const ReportedRun& run) {
    return !run.curve("rtfx").x.empty();
  });
  std::string body;
  body += to_html(chart_of({.key = "loss",
                            .title = "Training loss",
                            .unit = speech ? "per label, nats" : "per token, nats",
                            .may_be_logarithmic = true,
                            .noisy = true},
                           runs));
  for (const ValidationSubject& subject :
       {ValidationSubject{"val_loss", "Validation loss",
                          speech ? "per label, nats" : "per token, nats"},
        ValidationSubject{"val_wer", "Word error rate", "% of the words of the references", 100},
        ValidationSubject{"val_cer", "Character error rate", "% of the characters", 100}})
    body += validation(subject, runs);
  body += other_metrics(runs);
  for (const Subject& subject :
       {Subject{"lr", "Learning rate", "", true},
        Subject{"grad_norm", "Gradient norm", "before clipping", false, true, true},
        Subject{"tps", "Throughput",
                speech ? "labels per second, all ranks" : "tokens per second, all ranks", true,
                false, true, Chart::Shown::median},
        Subject{"rtfx", "Throughput", "seconds of audio per second, all ranks", true, false, true,
                Chart::Shown::median},
        Subject{"mfu", "Model FLOPs utilisation", "% of the peak", true, false, true,
                Chart::Shown::median},
        Subject{"energy_j", "Energy", "joules per step, all devices", true, false, true,
                Chart::Shown::median},
        Subject{"j_per_token", "Energy",
                speech ? "joules per label, all devices" : "joules per token, all devices", true,
                false, true, Chart::Shown::median},
        Subject{"loss_scale", "Loss scale", "", false, true}}) {
    if (speech && std::string(subject.key) == "tps") continue;
    Chart chart = chart_of(subject, runs);
    if (std::string(subject.key) == "mfu") add_peaks(chart, runs);
    body += to_html(chart);
  }
  return body.empty() ? "" : section("Curves", "<div class=grid>" + body + "</div>");
}

namespace {

struct PhaseColumn {
  const char *key, *name;
  int colour;
};
constexpr std::array<PhaseColumn, 6> kPhaseColumns{{{"data", "data", 4},
                                                    {"dtf", "forward", 0},
                                                    {"dtb", "backward", 5},
                                                    {"comm", "communication", 1},
                                                    {"optimizer", "optimizer", 2},
                                                    {"other", "other", 7}}};

/// The first line of a run covers one step, which warms up. If it takes twice as long as the mean,
/// it is omitted, because it would compress all others.
Chart phase_chart(const ReportedRun& run) {
  Chart chart{.title = "Phases of a step",
              .unit = "milliseconds, stacked",
              .from_zero = true,
              .stacked = true};
  const Curve& dt = run.curve("dt");
  const bool slow_start = dt.x.size() > 2 && dt.y[0] > 2 * (dt.y[1] + dt.y[2]) / 2;
  if (slow_start)
    chart.note =
        fmt::format("Step {:.0f} took {:.4g} ms and is not shown.", dt.x[0], 1e3 * dt.y[0]);
  for (const PhaseColumn& phase : kPhaseColumns) {
    Curve curve = run.curve(phase.key);
    if (slow_start && !curve.x.empty()) {
      curve.x.erase(curve.x.begin());
      curve.y.erase(curve.y.begin());
    }
    for (double& y : curve.y) y *= 1e3;
    chart.series.push_back({.label = phase.name, .colour = phase.colour, .curve = curve});
  }
  return chart;
}

constexpr double kCell = 46, kHigh = 26, kGap = 14, kLabels = 52;

/// One stage: rows are data-parallel ranks, columns are ranks of the tensor and context axes.
std::string stage_cells(const Layout& layout, const RunStart& start, int stage, int rows,
                        int columns, double left) {
  const int tensor = layout.size(Axis::tensor);
  std::string out = fmt::format(
      "<text x={:.0f} y=14 class=\"m t\">{}</text>", left + columns * kCell / 2,
      layout.size(Axis::pipeline) > 1 ? fmt::format("pp {}", stage) : std::string("rank"));
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column) {
      Coordinates at;
      at[Axis::tensor] = column % tensor;
      at[Axis::context] = column / tensor;
      at[Axis::data] = row;
      at[Axis::pipeline] = stage;
      const int rank = layout.rank(at);
      const RankPlace& place = start.ranks[static_cast<std::size_t>(rank)];
      const double x = left + column * kCell, y = 40 + row * kHigh;
      out += fmt::format(
          "<rect class=\"cell f{}\" x={:.0f} y={:.0f} width={} height={} rx=4><title>rank {}: dp "
          "{} tp {} pp {} cp {}, {} (node {}), {}, {} planned</title></rect><text x={:.0f} "
          "y={:.0f} class=m>{}</text>",
          place.node % kColours, x, y, kCell, kHigh, rank, row, at[Axis::tensor], stage,
          at[Axis::context], escape_html(place.host), place.node, counted(place.threads, "thread"),
          format_bytes(place.planned), x + kCell / 2, y + kHigh / 2 + 4, rank);
    }
  return out;
}

std::string mesh_picture(const RunStart& start) {
  constexpr int kMostRows = 16, kMostColumns = 16, kMostStages = 8;
  const Layout layout(start.tp, start.cp, start.dp, start.pp, start.order);
  const int all = start.tp * start.cp;
  const int rows = std::min(start.dp, kMostRows), columns = std::min(all, kMostColumns);
  const int stages =
      std::min(start.pp, std::max(1, std::min(kMostStages, 2 * kMostColumns / columns)));
  const double width = kLabels + stages * (columns * kCell + kGap), height = 46 + rows * kHigh;
  std::string out = fmt::format(
      "<svg class=mesh style=\"width:{:.0f}px\" viewBox=\"0 0 {:.0f} {:.0f}\" role=img "
      "aria-label=\"mesh of ranks\">",
      width, width, height);
  for (int row = 0; row < rows; ++row)
    out += fmt::format("<text x={} y={:.0f} class=\"e t\">dp {}</text>", kLabels - 8,
                       40 + row * kHigh + kHigh / 2 + 4, row);
  for (int stage = 0; stage < stages; ++stage) {
    const double left = kLabels + stage * (columns * kCell + kGap);
    for (int column = 0; column < columns && all > 1; ++column)
      out += fmt::format(
          "<text x={:.0f} y=33 class=\"m t\">{}</text>", left + (column + 0.5) * kCell,
          start.cp == 1   ? fmt::format("tp {}", column)
          : start.tp == 1 ? fmt::format("cp {}", column)
                          : fmt::format("t{} c{}", column % start.tp, column / start.tp));
    out += stage_cells(layout, start, stage, rows, columns, left);
  }
  out += "</svg>";
  if (rows * columns * stages < layout.ranks())
    out += fmt::format("<p class=note>{} of {} ranks are drawn.</p>", rows * columns * stages,
                       layout.ranks());
  return out;
}

std::string node_keys(const RunStart& start) {
  std::map<int, std::pair<std::string, int>> nodes;
  for (const RankPlace& place : start.ranks) {
    nodes[place.node].first = place.host;
    ++nodes[place.node].second;
  }
  std::string out = "<div class=keys>";
  for (const auto& [node, what] : nodes) {
    if (node == 8 && nodes.size() > 9) {
      out += fmt::format("<span class=key>and {} more nodes</span>", nodes.size() - 8);
      break;
    }
    out += legend_key(node % kColours, fmt::format("node {}: {}, {} rank{}", node, what.first,
                                                   what.second, what.second == 1 ? "" : "s"));
  }
  return out + "</div>";
}

}  // namespace

std::string phases_section(const std::vector<ReportedRun>& runs) {
  double longest = 0;
  for (const ReportedRun& run : runs) longest = std::max(longest, run.mean_over_steps("dt"));
  if (longest <= 0) return {};
  std::string rows;
  for (const ReportedRun& run : runs) {
    const double step = run.mean_over_steps("dt");
    if (step <= 0) continue;
    std::vector<BarPart> parts;
    for (const PhaseColumn& phase : kPhaseColumns) {
      const double seconds = run.mean_over_steps(phase.key);
      parts.push_back(
          {fmt::format("{}: {:.2f} ms, {:.1f} %", phase.name, 1e3 * seconds, 100 * seconds / step),
           phase.colour, seconds});
    }
    const std::string whole = fmt::format("{:.4g} ms a step", 1e3 * step);
    rows += runs.size() > 1 ? bar(run.name, whole, parts, longest) : bar(whole, "", parts, longest);
  }
  std::string body = "<div class=\"card thick\"><h3>Mean step</h3>" + rows +
                     "<div class=wide><table><tr><th>phase</th>";
  for (const ReportedRun& run : runs)
    body += "<th class=n>" + (runs.size() > 1 ? escape_html(run.name) : "ms") + "</th>" +
            (runs.size() > 1 ? "" : "<th class=n>share</th>");
  for (const PhaseColumn& phase : kPhaseColumns) {
    body += fmt::format("</tr><tr><td class=w><i class=\"chip f{}\"></i>{}</td>", phase.colour,
                        phase.name);
    for (const ReportedRun& run : runs) {
      const double seconds = run.mean_over_steps(phase.key);
      if (runs.size() == 1) body += fmt::format("<td class=n>{:.3g}</td>", 1e3 * seconds);
      body += fmt::format("<td class=n>{:.1f} %</td>",
                          100 * seconds / std::max(run.mean_over_steps("dt"), 1e-30));
    }
  }
  body +=
      "</tr></table></div><p class=note>The mean over all steps; the first one warms up.</p>"
      "</div>";
  if (runs.size() == 1) body += to_html(phase_chart(runs[0]));
  return section("Time per step", "<div class=grid>" + body + "</div>");
}

/// The layouts of the jobs of a run whose layout changed: "Its layout changed: from step 1 2 ranks
/// = dp 2 ..., from step 1521 4 ranks = ...". "" if it did not.
std::string changed_layouts(const ReportedRun& run) {
  constexpr std::size_t kMost = 12;  // a long chain of jobs
  std::vector<std::string> parts;
  const std::string* before = nullptr;
  for (const JobStart& job : run.starts) {
    if (job.layout.empty() || (before != nullptr && *before == job.layout)) continue;
    before = &job.layout;
    parts.push_back(fmt::format("from step {} {}", job.step + 1, job.layout));
  }
  if (parts.size() < 2) return {};
  const bool cut = parts.size() > kMost;
  if (cut) parts.erase(parts.begin(), parts.end() - static_cast<std::ptrdiff_t>(kMost));
  return fmt::format("<p class=note>Its layout changed{}: {}. The picture shows the last one.</p>",
                     cut ? ", lastly" : "", escape_html(join(parts, "; ")));
}

std::string layout_section(const std::vector<ReportedRun>& runs) {
  std::string body;
  for (const ReportedRun& run : runs) {
    if (!run.start.known) continue;
    const RunStart& s = run.start;
    body += fmt::format(
        "<div class=card><h3>{}{} rank{} = dp {} x tp {} x pp {} x cp {}</h3>{}{}{}<p class=note>"
        "Order {}, the first varies fastest. {}</p></div>",
        runs.size() > 1 ? escape_html(run.name) + ": " : "", s.ranks.size(),
        s.ranks.size() == 1 ? "" : "s", s.dp, s.tp, s.pp, s.cp, changed_layouts(run), node_keys(s),
        mesh_picture(s), escape_html(s.order), escape_html(s.device));
  }
  return body.empty() ? "" : section("Layout", "<div class=grid>" + body + "</div>");
}

namespace {

constexpr double kMiB = 1 << 20;

struct Planned {
  double device = 0, all = 0;
};

Planned planned_of(const ReportedRun& run) {
  Planned sum;
  for (const PlannedMemory& entry : run.start.memory) {
    sum.all += entry.bytes;
    if (entry.place == "device") sum.device += entry.bytes;
  }
  return sum;
}

Curve mebibytes(Curve curve) {
  for (double& y : curve.y) y /= kMiB;
  return curve;
}

/// A constant over the steps of `like`.
Curve level(double bytes, const Curve& like) {
  return {.x = {like.x.front(), like.x.back()}, .y = {bytes / kMiB, bytes / kMiB}};
}

/// The memory that the engine allocated on its device, by its own count. (Runs of older versions
/// have no such curve.)
std::string allocated_chart(const ReportedRun& run, double planned) {
  const Curve& allocated = run.curve("allocated");
  if (allocated.x.empty()) return {};
  const bool cpu = run.start.device.starts_with("cpu");
  const double most = *std::max_element(allocated.y.begin(), allocated.y.end());
  Chart chart{.title = "Allocated by the model and its training",
              .unit = "MiB, rank 0",
              .from_zero = true,
              .shown = Chart::Shown::last};
  chart.series.push_back({.label = "allocated", .colour = 0, .curve = mebibytes(allocated)});
  chart.series.push_back(
      {.label = "planned", .colour = 1, .curve = level(planned, allocated), .dashed = true});
  chart.note = fmt::format(
      "Parameters, gradients, moments, and activations at their peak{}: {:.4g} % of the plan.",
      cpu ? "" : " on the GPU, without the memory of its libraries",
      planned > 0 ? 100 * most / planned : 0);
  return to_html(chart);
}

std::string resident_chart(const ReportedRun& run) {
  const Curve& resident = run.curve("mem");
  if (resident.x.empty()) return {};
  Chart chart{.title = "Resident in host memory",
              .unit = "MiB, process of rank 0",
              .from_zero = true,
              .shown = Chart::Shown::last};
  chart.series.push_back({.label = "resident", .colour = 0, .curve = mebibytes(resident)});
  const double before = run.start.resident_before;
  if (before > 0)
    chart.series.push_back({.label = "before the model was built",
                            .colour = 7,
                            .curve = level(before, resident),
                            .dashed = true});
  chart.note =
      "All memory that the system counts for the process, including libraries, buffers of MPI and "
      "the pages of data files that were read, which it reclaims when needed.";
  return to_html(chart);
}

std::string plan_card(const ReportedRun& run, const Planned& planned, bool named) {
  std::vector<PlannedMemory> entries = run.start.memory;
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::string rows, small;
  double rest = 0;
  for (const PlannedMemory& entry : entries) {
    const std::string name = entry.name + (entry.place == "device" ? "" : " (" + entry.place + ")");
    if (entry.bytes < 0.002 * planned.all) {  // the bar would be invisible
      small += (small.empty() ? "" : ", ") + name;
      rest += entry.bytes;
      continue;
    }
    rows += bar(name, format_bytes(entry.bytes), {{name, 0, entry.bytes}}, entries[0].bytes);
  }
  if (!small.empty())
    rows += fmt::format("<p class=note>Another {} in total for {}.</p>", format_bytes(rest),
                        escape_html(small));
  const double host = planned.all - planned.device;
  const std::string whole = host > 0 ? fmt::format(" + {} in host memory = {}", format_bytes(host),
                                                   format_bytes(planned.all))
                                     : "";
  return fmt::format(
      "<div class=card style=align-self:start><h3>{}Planned for rank 0: {} on the "
      "device{}</h3>{}</div>",
      named ? escape_html(run.name) + ". " : "", format_bytes(planned.device), whole, rows);
}

}  // namespace

std::string memory_section(const std::vector<ReportedRun>& runs) {
  std::string body;
  for (const ReportedRun& run : runs) {
    const Planned planned = planned_of(run);
    if (planned.all <= 0) continue;
    body += "<div class=grid" + std::string(body.empty() ? "" : " style=margin-top:14px") + ">" +
            plan_card(run, planned, runs.size() > 1) + "<div class=stack>" +
            allocated_chart(run, planned.device) + resident_chart(run) + "</div></div>";
  }
  return body.empty() ? "" : section("Memory: plan and use", body);
}

}  // namespace choir::report
