// Reading of a sweep from its folder, conversion of its runs to rows, and their verdict: a layout
// must compute the same as one rank.

#include "src/report/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/stats.hpp"
#include "src/lab/bench/bench_step.hpp"

namespace choir {
namespace {

using nlohmann::json;

constexpr double kMargin = 4;
constexpr double kSmall = 1e-3;  // of the largest gradient

double distance(const json& a, const json& b, double scale) {
  if (!a.is_number() || !b.is_number()) return std::numeric_limits<double>::infinity();
  const double apart = std::abs(a.get<double>() - b.get<double>());
  if (!std::isfinite(apart)) return std::numeric_limits<double>::infinity();
  return apart == 0 ? 0 : apart / scale;
}

std::string loss_text(const json& value) {
  const double is = value.is_number() ? value.get<double>() : std::nan("");
  return std::isfinite(is) ? fmt::format("{:.6g}", is) : "not finite";
}

double size_of(const json& value) {
  return value.is_number() ? std::abs(value.get<double>()) : 0;
}

void compare_steps(const json& mine, const json& reference, const char* name, double& worst,
                   std::string& at) {
  const std::size_t steps = std::min(mine.size(), reference.size());
  if (steps == 0) worst = std::numeric_limits<double>::infinity(), at = "no step to compare";
  for (std::size_t i = 0; i < steps; ++i) {
    const double off = distance(mine[i], reference[i], size_of(reference[i]));
    if (off <= worst) continue;
    worst = off;
    at = fmt::format("{} {} at step {}, of one rank {}", name, loss_text(mine[i]), i,
                     loss_text(reference[i]));
  }
}

void compare_tensors(const json& mine, const json& reference, double& worst, std::string& at) {
  double largest = 0;
  for (const auto& [name, norm] : reference.items()) largest = std::max(largest, size_of(norm));
  for (const auto& [name, norm] : reference.items()) {
    const json here = mine.contains(name) ? mine[name] : json();
    const double off = distance(here, norm, std::max(size_of(norm), kSmall * largest));
    if (off <= worst) continue;
    worst = off;
    at = fmt::format("the norm {} of {}, of one rank {}", loss_text(here), name, loss_text(norm));
  }
  for (const auto& [name, norm] : mine.items())
    if (!reference.contains(name))
      worst = std::numeric_limits<double>::infinity(), at = name + ": absent with one rank";
}

}  // namespace

Departure departure_of(const json& run, const json& reference) {
  Departure d;
  compare_steps(run.at("first_losses"), reference.at("first_losses"), "the loss", d.loss,
                d.loss_at);
  compare_steps(run.at("first_norms"), reference.at("first_norms"), "the norm of the gradient",
                d.norm, d.norm_at);
  compare_tensors(run.at("first_gradients"), reference.at("first_gradients"), d.gradient,
                  d.gradient_at);
  return d;
}

Departure allowed_departure(const json& reference, const std::vector<json>& moved) {
  Departure most;
  for (const json& run : moved) most = worst_of(most, departure_of(run, reference));
  const double rounding = std::ldexp(1, reference.at("precision") == "fp64" ? -53 : -24);
  for (double* value : {&most.loss, &most.norm, &most.gradient})
    *value = std::max(kMargin * *value, rounding);
  return most;
}

Departure worst_of(const Departure& a, const Departure& b) {
  Departure worst = a;
  if (b.loss > a.loss) worst.loss = b.loss, worst.loss_at = b.loss_at;
  if (b.norm > a.norm) worst.norm = b.norm, worst.norm_at = b.norm_at;
  if (b.gradient > a.gradient) worst.gradient = b.gradient, worst.gradient_at = b.gradient_at;
  return worst;
}

std::vector<std::string> complaints_about(const Departure& departure, const Departure& allowed) {
  std::vector<std::string> list;
  const auto see = [&](double off, double most, const std::string& at) {
    if (off > most) list.push_back(fmt::format("{} ({:.1e} off, allowed {:.1e})", at, off, most));
  };
  // If the reference is not finite, nothing is allowed.
  const auto bound = [](double most) { return std::isfinite(most) ? most : 0; };
  see(departure.loss, bound(allowed.loss), departure.loss_at);
  see(departure.norm, bound(allowed.norm), departure.norm_at);
  see(departure.gradient, bound(allowed.gradient), departure.gradient_at);
  return list;
}

namespace {

using nlohmann::json;

/// The quantile at `part`, 0 to 1, linear between neighbours.
double interpolated_quantile(std::vector<double> values, double part) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const double place = part * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

std::string run_note(const json& run, const char* name) {
  return run.at("notes").value(name, "");
}

SweepPoint point_of(const json& run) {
  return {run_note(run, "sweep"), run_note(run, "layout"), run.at("ranks"), run.at("micro_batch"),
          run.at("global_batch")};
}

class RowCollection {
 public:
  void add(const json& run) {
    const std::string sweep = run_note(run, "sweep");
    if (sweep == "reference") {
      references_[run.at("global_batch")] = run;
    } else if (sweep == "last place") {
      moved_[run.at("global_batch")].push_back(run);
    } else if (run.contains("gradient_noise")) {
      noise_ = run["gradient_noise"];
    } else if (!run.at("communicated").get<bool>()) {
      silent_[point_of(run)].push_back(run.at("median_seconds"));
    } else {
      runs_[point_of(run)].push_back(run);
    }
  }

  Sweep finish(std::vector<SweepRow> refused) {
    Sweep sweep{.noise = noise_};
    for (const auto& [point, runs] : runs_) sweep.rows.push_back(row_of(point, runs));
    for (SweepRow& row : refused) sweep.rows.push_back(std::move(row));
    const auto place = [](const SweepRow& row) {
      const std::string& s = row.point.sweep;
      return std::tuple(s == "weak"     ? 0
                        : s == "strong" ? 1
                                        : 2,
                        row.point.ranks, row.point.layout, row.point.micro, row.point.global);
    };
    std::stable_sort(sweep.rows.begin(), sweep.rows.end(),
                     [&](const SweepRow& a, const SweepRow& b) { return place(a) < place(b); });
    for (SweepRow& row : sweep.rows) compare(row, sweep.rows);
    return sweep;
  }

 private:
  SweepRow row_of(const SweepPoint& point, const std::vector<json>& runs) const {
    SweepRow row{.point = point, .run = runs.front()};
    std::vector<double> medians, all;
    for (const json& run : runs) {
      row.step_seconds.push_back(run.at("step_seconds"));
      medians.push_back(run.at("median_seconds"));
      all.insert(all.end(), row.step_seconds.back().begin(), row.step_seconds.back().end());
      judge(row, run);
    }
    row.median = median_of(medians);
    row.p10 = interpolated_quantile(all, 0.1);
    row.p90 = interpolated_quantile(all, 0.9);
    const double audio = row.run.at("audio_seconds");
    row.work = audio > 0 ? audio : row.run.at("tokens").get<double>();
    const json& losses = runs.back().at("losses");
    const bool ends = losses.is_array() && !losses.empty() && losses.back().is_number();
    row.loss_end = ends ? losses.back().get<double>() : std::nan("");
    for (int p = 0; p < kPhases; ++p)
      row.phases[static_cast<std::size_t>(p)] = over(runs, [&](const json& run) {
        return run.at("phases").at(name_of(static_cast<Phase>(p))).at("median").get<double>();
      });
    for (int a = 0; a < kAxes; ++a)
      row.exposed[static_cast<std::size_t>(a)] = over(runs, [&](const json& run) {
        for (const json& axis : run.at("communication"))
          if (axis.at("axis") == std::string(short_name(static_cast<Axis>(a))))
            return axis.at("exposed_seconds").get<double>();
        return 0.0;
      });
    const auto silent = silent_.find(point);
    if (silent != silent_.end()) row.communication = 1 - median_of(silent->second) / row.median;
    row.noise = noise_of(row, medians, all.size());
    return row;
  }

  static std::string noise_of(const SweepRow& row, const std::vector<double>& medians,
                              std::size_t steps) {
    // In a normal distribution p10 and p90 are 2.563 deviations apart, and the median of n has a
    // deviation of 1.2533 / sqrt(n) of one. Steps with speech differ by their data.
    const double deviation = row.measures_audio() ? 0 : (row.p90 - row.p10) / 2.563;
    const double of_steps = 1.2533 * deviation / std::sqrt(static_cast<double>(steps)) / row.median;
    if (of_steps > kQuiet)
      return fmt::format("its steps give the median only to {:.0f} %", 100 * of_steps);
    const auto [low, high] = std::minmax_element(medians.begin(), medians.end());
    const double of_repeats = (*high - *low) / 2 / row.median;
    if (of_repeats > kQuiet) return fmt::format("repeats differ by +-{:.0f} %", 100 * of_repeats);
    if (row.communication.value_or(0) < -kQuiet)
      return fmt::format("{:.0f} % slower when nothing is sent", -100 * *row.communication);
    return "";
  }

  template <class Of>
  static double over(const std::vector<json>& runs, const Of& of) {
    std::vector<double> values;
    for (const json& run : runs) values.push_back(of(run));
    return median_of(values);
  }

  /// Adds the objections against a repeat, each reason once.
  void judge(SweepRow& row, const json& run) const {
    std::vector<std::string> found = run.at("complaints");
    const std::int64_t global = run.at("global_batch");
    const auto reference = references_.find(global);
    const auto moved = moved_.find(global);
    if (reference == references_.end()) {
      found.push_back(fmt::format("no reference run of the global batch {}", global));
    } else if (moved == moved_.end()) {
      found.push_back(
          fmt::format("no reference with moved weights of the global batch {}: the effect of "
                      "rounding is unknown",
                      global));
    } else {
      row.departure = worst_of(row.departure, departure_of(run, reference->second));
      row.allowed = allowed_departure(reference->second, moved->second);
      for (std::string& text : complaints_about(row.departure, row.allowed))
        found.push_back(std::move(text));
    }
    for (const std::string& text : found)
      if (std::find(row.complaints.begin(), row.complaints.end(), text) == row.complaints.end())
        row.complaints.push_back(text);
  }

  static void compare(SweepRow& row, const std::vector<SweepRow>& rows) {
    if (!row.valid()) return;
    const SweepRow* base = nullptr;
    const bool batch = row.point.sweep == "batch";
    for (const SweepRow& other : rows) {
      if (!other.valid() || other.point.sweep != row.point.sweep) continue;
      if (batch) {
        const bool same =
            other.point.ranks == row.point.ranks && other.point.layout == row.point.layout;
        if (same && (base == nullptr || other.rate() > base->rate())) base = &other;
      } else if (base == nullptr || other.point.ranks < base->point.ranks) {
        base = &other;
      }
    }
    if (batch) {
      row.efficiency = row.rate() / base->rate();
      return;
    }
    const double n = static_cast<double>(row.point.ranks) / static_cast<double>(base->point.ranks);
    row.speedup = row.rate() / base->rate();  // at one global batch: t(N0) / t(N)
    row.efficiency = *row.speedup / n;
    if (n > 1) row.serial_fraction = (1 / *row.speedup - 1 / n) / (1 - 1 / n);
  }

  std::map<std::int64_t, json> references_;
  std::map<std::int64_t, std::vector<json>> moved_;  // references with moved weights
  std::map<SweepPoint, std::vector<double>> silent_;
  std::map<SweepPoint, std::vector<json>> runs_;
  std::optional<json> noise_;
};

std::string file_text(const std::filesystem::path& path) {
  constexpr std::size_t kMostMiB = 16;
  auto [text, fault] = read_capped_file(path.string(), kMostMiB);
  if (!fault.empty())
    throw DataError(fmt::format("'{}' {}", path.string(), fault), "run the sweep again");
  return text;
}

SweepRow refusal_of(const std::filesystem::path& path) {
  std::istringstream text(file_text(path));
  SweepRow row;
  std::string why;
  std::getline(text, row.point.sweep);
  std::getline(text, row.point.layout);
  text >> row.point.ranks >> row.point.micro >> row.point.global >> std::ws;
  std::getline(text, why);
  if (why.empty())
    throw DataError(fmt::format("'{}' is truncated", path.string()),
                    "remove it and run the sweep again");
  row.complaints.push_back("refused: " + why);
  return row;
}

}  // namespace

bool SweepRow::measures_audio() const {
  return !refused() && run.at("audio_seconds").get<double>() > 0;
}

bool SweepRow::gpu() const {
  return !refused() && run.at("device") == "cuda";
}

double SweepRow::idle() const {
  if (refused() || !run.contains("pipeline")) return 0;
  const json& p = run["pipeline"];
  const double behind = p.at("stages").get<double>() - 1;
  return behind /
         (p.at("virtual_stages").get<double>() * p.at("micro_batches").get<double>() + behind);
}

double SweepRow::processors() const {
  const auto ranks = static_cast<double>(point.ranks);
  if (gpu()) {
    const auto from = run.find("provenance");
    const std::size_t cards =
        from != run.end() && from->contains("gpus") ? (*from)["gpus"].size() : 0;
    return cards > 0 ? std::min(static_cast<double>(cards), ranks) : ranks;
  }
  const double threads = ranks * run.at("threads").get<double>();
  const double cores = run.at("cores").get<double>() * run.at("nodes").get<double>();
  return cores > 0 ? std::min(threads, cores) : threads;
}

double SweepRow::cost() const {
  return processors() * (measures_audio() ? 3600 : 1e6) / rate();
}

bool Sweep::valid() const {
  return std::any_of(rows.begin(), rows.end(), [](const SweepRow& row) { return row.valid(); });
}

Sweep make_sweep(const std::vector<json>& runs, std::vector<SweepRow> refused) {
  RowCollection rows;
  for (const json& run : runs) rows.add(run);
  return rows.finish(std::move(refused));
}

Sweep read_sweep(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    paths.push_back(entry.path());
  if (error)
    throw DataError(fmt::format("cannot read the folder '{}': {}", folder, error.message()),
                    "give the folder of a sweep; bench/scaling.sh prints it");
  std::sort(paths.begin(), paths.end());
  std::vector<json> runs;
  std::vector<SweepRow> refused;
  for (const auto& path : paths) {
    if (path.extension() == ".refused") refused.push_back(refusal_of(path));
    if (path.extension() != ".json") continue;
    try {
      runs.push_back(read_json(file_text(path), path.string()));
      (void)point_of(runs.back());
    } catch (const JsonError& problem) {
      throw DataError(fmt::format("'{}' is no run of a sweep: {}", path.string(), problem.what()),
                      "remove it and run the sweep again");
    } catch (const json::exception& problem) {
      throw DataError(
          fmt::format("'{}' is no run of a sweep: {}", path.string(), plain_cause(problem)),
          "remove it and run the sweep again");
    }
  }
  if (runs.empty() && refused.empty())
    throw DataError(fmt::format("'{}' contains no run of a sweep", folder),
                    "bench/scaling.sh keeps the runs of a sweep in build/scaling/NAME, and its "
                    "--results folder has only the tables: choir bench scaling build/scaling/NAME");
  try {
    return make_sweep(runs, std::move(refused));
  } catch (const json::exception& problem) {  // a field is missing or has another type
    throw DataError(fmt::format("'{}' contains a file that is not a run of a sweep: {}", folder,
                                plain_cause(problem)),
                    "start again with bench/scaling.sh --fresh");
  }
}

}  // namespace choir
