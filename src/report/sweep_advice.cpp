// Advice about the batch from a sweep. Pure, except for target_of_run().
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/report/metric_lines.hpp"
#include "src/report/sweep.hpp"

namespace choir {
namespace {

using nlohmann::json;

/// The share of the best throughput above which more samples per step do not pay.
constexpr double kKnee = 0.9;
/// The efficiency below which more ranks cost more than they gain.
constexpr double kPays = 0.7;

std::vector<const SweepRow*> valid_rows(const Sweep& sweep, const char* kind) {
  std::vector<const SweepRow*> list;
  for (const SweepRow& row : sweep.rows)
    if (row.valid() && row.quiet() && row.point.sweep == kind) list.push_back(&row);
  return list;
}

using Series = std::vector<const SweepRow*>;

/// The batch sweep as one series, ordered by batch, for each number of ranks and layout.
std::vector<Series> batch_series(const Sweep& sweep) {
  std::map<std::pair<std::int64_t, std::string>, Series> series;
  for (const SweepRow* row : valid_rows(sweep, "batch"))
    series[{row->point.ranks, row->point.layout}].push_back(row);
  std::vector<Series> list;
  for (auto& [name, rows] : series) list.push_back(std::move(rows));
  return list;
}

const char* unit(const SweepRow& row) {
  return row.measures_audio() ? "x real time" : "tokens/s";
}

const SweepRow& fastest_of(const Series& series) {
  return **std::max_element(series.begin(), series.end(),
                            [](const auto* a, const auto* b) { return a->rate() < b->rate(); });
}

std::string ranks_text(std::int64_t ranks) {
  return fmt::format("{} {}", ranks, ranks == 1 ? "rank" : "ranks");
}

std::string knee(const Series& series) {
  if (series.size() == 1) return "A knee needs several batches (--micro).\n";
  const SweepRow& best = fastest_of(series);
  std::size_t k = 0;
  while (k + 1 < series.size() && series[k]->rate() < kKnee * best.rate()) ++k;
  const SweepRow& at = *series[k];
  if (k + 1 == series.size())
    return fmt::format(
        "No knee up to a batch of {}: throughput still rose by {:.0f} % to {:.0f} {}; sweep larger "
        "batches.\n",
        at.point.global, k > 0 ? 100 * (at.rate() / series[k - 1]->rate() - 1) : 0.0, at.rate(),
        unit(at));
  return fmt::format(
      "The knee is at a batch of {} ({} a rank and micro-batch): {:.0f} {} are {:.0f} % of the "
      "best "
      "({:.0f} at {}), and the next larger batch changes that by {:+.0f} %.\n",
      at.point.global, at.point.micro, at.rate(), unit(at), 100 * at.rate() / best.rate(),
      best.rate(), best.point.global, 100 * (series[k + 1]->rate() / at.rate() - 1));
}

/// The next number of ranks of a sweep above `ranks` if other work disturbed all of its rows; else
/// 0.
std::int64_t noisy_ranks_above(std::int64_t ranks, const Sweep& sweep, const char* kind) {
  std::int64_t fewest = 0;
  bool quiet = false;
  for (const SweepRow& row : sweep.rows) {
    if (!row.valid() || row.point.sweep != kind || row.point.ranks <= ranks) continue;
    if (fewest == 0 || row.point.ranks < fewest) fewest = row.point.ranks, quiet = false;
    if (row.point.ranks == fewest) quiet = quiet || row.quiet();
  }
  return quiet ? 0 : fewest;
}

std::string ranks_that_pay(const Sweep& sweep, const char* kind) {
  if (noisy_ranks_above(0, sweep, kind) > 0)
    return fmt::format(
        "No advice on {} scaling, because the row with the fewest ranks is NOISY, and every "
        "efficiency is relative to it.\n",
        kind);
  const SweepRow* most = nullptr;
  bool oversubscribed = false;
  for (const SweepRow* row : valid_rows(sweep, kind)) {
    if (row->run.at("oversubscribed").get<bool>()) {
      oversubscribed = true;
      continue;
    }
    if (row->efficiency.value_or(0) < kPays) continue;
    if (most == nullptr || row->point.ranks > most->point.ranks ||
        (row->point.ranks == most->point.ranks && row->rate() > most->rate()))
      most = row;
  }
  if (most == nullptr) return "";
  const std::int64_t ranks = most->point.ranks, noisy = noisy_ranks_above(ranks, sweep, kind);
  const bool first = std::ranges::none_of(
      valid_rows(sweep, kind), [&](const SweepRow* row) { return row->point.ranks < ranks; });
  if (first && noisy > 0)
    return fmt::format("No advice on {} scaling beyond {}, because the row of {} is NOISY.\n", kind,
                       ranks_text(ranks), ranks_text(noisy));
  return fmt::format("{} scaling pays up to {} ({}): efficiency {:.0f} %, {:.0f} {}{}{}.\n", kind,
                     ranks_text(ranks), most->point.layout, 100 * *most->efficiency, most->rate(),
                     unit(*most), oversubscribed ? "; oversubscribed rows are ignored" : "",
                     noisy > 0 ? "; no advice beyond, because the next row is NOISY" : "");
}

std::string bubbles(const Sweep& sweep) {
  std::string text;
  for (const SweepRow& row : sweep.rows) {
    if (!row.valid() || row.idle() == 0) continue;
    const json& p = row.run.at("pipeline");
    text += fmt::format(
        "Bubble of {} on {} ranks, micro-batches {}: (p-1)/(v m + p-1) = {:.1f} %, measured idle "
        "{:.1f} %; twice the micro-batches would leave {:.1f} %\n",
        row.point.layout, row.point.ranks, p.at("micro_batches").get<int>(), 100 * row.idle(),
        100 * p.at("idle").get<double>(), 100 * row.idle() / (2 - row.idle()));
  }
  return text;
}

/// The number of steps of `batch` that learn as much as one step of an infinite batch, at a noise
/// scale of `noise`.
double steps_of(double batch, double noise) {
  return 1 + noise / batch;
}

/// The number of steps of the row's batch to the target.
double steps_to(const Target& target, const SweepRow& row, double noise) {
  return static_cast<double>(target.steps) *
         steps_of(static_cast<double>(row.point.global), noise) /
         steps_of(static_cast<double>(target.batch), noise);
}

/// `first`: the reference batch of the learning rates.
std::string batch_table(const Series& series, std::int64_t first, double noise,
                        const std::optional<Target>& target) {
  std::string text = fmt::format("  {:>7} {:>10} {:>11} {:>9} {:>9}", "batch", "step ms",
                                 unit(*series[0]), "lr sqrt", "lr linear");
  if (noise > 0) text += fmt::format(" {:>12}", "of samples");
  if (noise > 0 && target)
    text += fmt::format(" {:>9} {:>11} {:>13}", "steps", "seconds", "GPU/core-s");
  text += "\n";
  for (const SweepRow* row : series) {
    const auto batch = static_cast<double>(row->point.global);
    const double times = batch / static_cast<double>(first);
    text += fmt::format("  {:>7} {:>10.3f} {:>11.0f} {:>8.3f}x {:>8.3f}x", row->point.global,
                        1e3 * row->median, row->rate(), std::sqrt(times), times);
    // The effect of a sample relative to a small batch; 50 % at the noise scale.
    if (noise > 0) text += fmt::format(" {:>10.0f} %", 100 / (1 + batch / noise));
    if (noise > 0 && target) {
      const double steps = steps_to(*target, *row, noise);
      text += fmt::format(" {:>9.0f} {:>11.1f} {:>13.1f}", steps, steps * row->median,
                          steps * row->median * row->processors());
    }
    text += "\n";
  }
  return text;
}

/// Names the best of several series: the fastest row, and the row that costs least. Rows with more
/// threads than cores count only if there are no others.
std::string choice(const std::vector<Series>& all, double noise,
                   const std::optional<Target>& target) {
  Series rows, crowded;
  for (const Series& series : all)
    for (const SweepRow* row : series)
      (row->run.at("oversubscribed").get<bool>() ? crowded : rows).push_back(row);
  if (rows.empty()) rows = crowded;
  const auto least = [&](auto value) {
    return *std::min_element(rows.begin(), rows.end(),
                             [&](const auto* a, const auto* b) { return value(*a) < value(*b); });
  };
  const auto named = [](const SweepRow& row) {
    return fmt::format("{} on {} at a batch of {}", row.point.layout, ranks_text(row.point.ranks),
                       row.point.global);
  };
  const SweepRow& fast = fastest_of(rows);
  const SweepRow& cheap = *least([](const SweepRow& row) { return row.cost(); });
  std::string text = fmt::format("The fastest of these {} series is {} ({:.0f} {})", all.size(),
                                 named(fast), fast.rate(), unit(fast));
  text += &fast == &cheap ? ", and no other row costs less"
                          : fmt::format("; {} costs {:.0f} % of that for the same work",
                                        named(cheap), 100 * cheap.cost() / fast.cost());
  if (noise > 0 && target) {
    const auto seconds = [&](const SweepRow& row) {
      return steps_to(*target, row, noise) * row.median;
    };
    const SweepRow& soon = *least(seconds);
    text += fmt::format("; {} reaches the target first, in {:.1f} s", named(soon), seconds(soon));
  }
  const bool left_out = !crowded.empty() && rows != crowded;
  return text + (left_out ? ". Oversubscribed rows are ignored.\n" : ".\n");
}

/// Tables and knees of all series of the batch sweep.
std::string batches(const Sweep& sweep, double noise, const std::optional<Target>& target) {
  const std::vector<Series> all = batch_series(sweep);
  if (all.empty()) return {};
  std::int64_t first = all[0][0]->point.global, largest = 0;
  for (const Series& series : all) {
    first = std::min(first, series.front()->point.global);
    largest = std::max(largest, series.back()->point.global);
  }
  if (target) first = target->batch;
  std::string text;
  for (const Series& series : all) {
    text += fmt::format("Batches on {} ({}).", ranks_text(series[0]->point.ranks),
                        series[0]->point.layout);
    if (&series == &all[0])
      text += fmt::format(
          " lr: factor for the learning rate tuned at a batch of {}; try the square root first "
          "with Adam and similar rules, the linear rule with SGD.",
          first);
    text += "\n" + batch_table(series, first, noise, target) + knee(series);
  }
  if (all.size() > 1) text += choice(all, noise, target);
  if (noise > 0 && noise < static_cast<double>(largest))
    text += fmt::format(
        "Beyond {:.3g} sequences, the noise scale at that time, larger batches gain little.\n",
        noise);
  return text;
}

}  // namespace

Target target_of_run(const std::string& run_directory, double loss) {
  for (const char* name : {"/metrics.jsonl", "/deck.json"}) require_regular(run_directory + name);
  constexpr std::size_t kMostMetricsMiB = 4096, kMostDeckMiB = 16;
  std::ifstream metrics(run_directory + "/metrics.jsonl");
  const CappedText deck = read_capped_file(run_directory + "/deck.json", kMostDeckMiB);
  if (const auto excess = file_excess(run_directory + "/metrics.jsonl", kMostMetricsMiB);
      !excess.empty())
    throw DataError(fmt::format("'{}/metrics.jsonl' {}", run_directory, excess));
  if (!metrics || !deck.fault.empty())
    throw DataError(fmt::format("'{}' has no metrics.jsonl or no deck.json", run_directory),
                    "give the directory of a training run");
  Target target{.loss = loss};
  double best = std::numeric_limits<double>::infinity();
  try {
    target.batch =
        read_json(deck.text, run_directory + "/deck.json").at("train").at("global_batch_size");
    for (std::string line; target.steps == 0 && std::getline(metrics, line);) {
      const json step = json_unless_broken(line);
      if (step.is_discarded() || !step.contains("val_loss")) continue;  // a line cut by a crash
      if (!step["val_loss"].is_number()) continue;
      best = std::min(best, step["val_loss"].get<double>());
      if (best <= loss) target.steps = report::clamped_integer(step.at("step").get<double>());
    }
  } catch (const json::exception& error) {
    throw DataError(fmt::format("'{}' cannot be read: {}", run_directory, plain_cause(error)));
  }
  if (target.steps == 0)
    throw DeckError(fmt::format("the run '{}' never reached a validation loss of {} (best: {:.4f})",
                                run_directory, loss, best),
                    "choose a loss that it reached");
  return target;
}

std::string advice(const Sweep& sweep, const std::optional<Target>& target) {
  std::string text;
  double noise = 0;
  if (sweep.noise) {
    const json& n = *sweep.noise;
    noise = n.at("scale");
    text +=
        noise > 0
            ? fmt::format(
                  "The gradient noise scale after {} steps is {:.3g} +- {:.1g} sequences: at this "
                  "batch each further sequence has half its effect. It grows as the loss falls.\n",
                  n.at("after_steps").get<int>(), noise, n.at("error").get<double>())
            : "The gradient noise scale could not be measured; use more pairs (--noise).\n";
  }
  const auto noisy = std::count_if(sweep.rows.begin(), sweep.rows.end(),
                                   [](const SweepRow& row) { return row.valid() && !row.quiet(); });
  if (noisy > 0)
    text += fmt::format(
        "{} of {} rows are NOISY and ignored: measure them again on idle cores, or longer "
        "(--seconds, --repeats).\n",
        noisy, sweep.rows.size());
  text += bubbles(sweep);
  text += ranks_that_pay(sweep, "weak") + ranks_that_pay(sweep, "strong");
  if (target)
    text += fmt::format(
        "Target: {} steps of {} sequences reach a validation loss of {}{}\n", target->steps,
        target->batch, target->loss,
        noise > 0 ? "" : "; for other batches a noise scale is needed (scaling.sh --noise)");
  return text + batches(sweep, noise, target);
}

}  // namespace choir
