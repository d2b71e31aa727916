// The curves of all runs, overlaid.
#include <algorithm>
#include <cmath>
#include <set>

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
      chart.note = "Pale: as logged. Bold: running mean.";
  }
  return chart;
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
  for (const Subject& subject :
       {Subject{"lr", "Learning rate", "", true},
        Subject{"grad_norm", "Gradient norm", "before clipping", false, true, true},
        Subject{"tps", "Throughput",
                speech ? "labels per second, all ranks" : "tokens per second, all ranks", true,
                false, true, Chart::Shown::median},
        Subject{"rtfx", "Throughput", "seconds of audio per second, all ranks", true, false, true,
                Chart::Shown::median},
        Subject{"mfu", "Model FLOPs utilisation", "% of the peak in the log", true, false, true,
                Chart::Shown::median},
        Subject{"loss_scale", "Loss scale", "", false, true}}) {
    if (speech && std::string(subject.key) == "tps") continue;
    body += to_html(chart_of(subject, runs));
  }
  return body.empty() ? "" : section("Curves", "<div class=grid>" + body + "</div>");
}

}  // namespace choir::report
