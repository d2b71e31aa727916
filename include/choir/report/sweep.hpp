#pragma once
// A scaling sweep: the runs of `choir bench step` that bench/scaling.sh left in a folder, as one
// row for each point (sweep, layout, ranks, batch). A row is valid where its layout computed what
// one rank computes: its first losses, norms of the gradient and gradients of single tensors equal
// those of a reference of the same global batch, within what rounding explains. Pure but for
// read_sweep() and target_of_run().
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "choir/comm/layout.hpp"
#include "choir/core/json_value.hpp"
#include "choir/train/step/phase_clock.hpp"

namespace choir {

/// Relative, the worst of the first steps (of the tensors); infinite where something is no number.
/// Gradients of tensors are relative to their norm, but not to less than 1/1000 of the largest: one
/// that is nothing but rounding has no digits to compare.
struct Departure {
  double loss = 0, norm = 0, gradient = 0;
  std::string loss_at, norm_at, gradient_at;  ///< "the loss 4.2 at step 0, of one rank 4.1"
};

/// For objects of `choir bench step --json`. Throws json::exception where fields are missing.
Departure departure_of(const nlohmann::json& run, const nlohmann::json& reference);

/// Four times what the reference departs from itself when each of its weights is moved by one unit
/// in the last place (`moved`, runs of --last-place). Why that bounds a layout: what it does
/// otherwise is to round, differently, what its products and sums give, each by at most half such a
/// unit and independently from token to token, while a weight that was moved is moved for all
/// tokens alike. Nothing is held to less than the rounding of one sum, 2^-24 (fp64: 2^-53).
Departure allowed_departure(const nlohmann::json& reference,
                            const std::vector<nlohmann::json>& moved);

/// The larger of each, with its place.
Departure worst_of(const Departure& a, const Departure& b);

/// What is further off than allowed, in words.
std::vector<std::string> complaints_about(const Departure& departure, const Departure& allowed);

/// Advice turns on differences of a tenth (knee, efficiency): each time must be known to half that.
inline constexpr double kQuiet = 0.05;

/// The name of a point: weak (the batch grows with the ranks), strong (one global batch), batch
/// (one number of ranks, the batch grows).
struct SweepPoint {
  std::string sweep, layout;  ///< "weak", "zero1"
  std::int64_t ranks = 0, micro = 0, global = 0;
  auto operator<=>(const SweepPoint&) const = default;
};

struct SweepRow {
  SweepPoint point;
  nlohmann::json run;  ///< the first repeat, as `choir bench step --json` wrote it
  std::vector<std::vector<double>> step_seconds;  ///< [repeat][step]
  double median = 0, p10 = 0, p90 = 0;  ///< seconds: of the repeats' medians; of all their steps
  double work = 0;                      ///< tokens of a step; of speech seconds of audio
  double loss_end = 0;
  std::array<double, kPhases> phases{};  ///< seconds, medians over the repeats
  std::array<double, kAxes> exposed{};   ///< seconds a step that a rank waits along an axis
  /// Share of the step that goes away when nothing is sent; unknown without a --no-comm run.
  std::optional<double> communication;
  /// Against the valid row of the sweep with the fewest ranks: S = t(N0)/t(N), of a weak sweep
  /// X(N)/X(N0); E = S N0/N; Karp-Flatt (1/S - 1/n)/(1 - 1/n), n = N/N0. Of a batch sweep E is the
  /// throughput over the best of the same ranks and layout.
  std::optional<double> speedup, efficiency, serial_fraction;
  Departure departure, allowed;         ///< from the reference of its global batch
  std::vector<std::string> complaints;  ///< empty: VALID
  /// Why its times say little, though its numbers may be right; empty: quiet. The median is not
  /// known to kQuiet of itself, by the spread of its own steps or of its repeats, or the step got
  /// slower when nothing was sent.
  std::string noise;

  bool valid() const { return complaints.empty(); }
  bool quiet() const { return noise.empty(); }
  bool refused() const { return step_seconds.empty(); }
  bool measures_audio() const;
  bool gpu() const;
  double rate() const { return work / median; }  ///< tokens (seconds of audio) a second
  double share(Phase phase) const { return phases[static_cast<std::size_t>(phase)] / median; }
  double share(Axis axis) const { return exposed[static_cast<std::size_t>(axis)] / median; }
  double idle() const;        ///< of a pipeline, (p - 1)/(v m + p - 1); 0 without one
  double processors() const;  ///< GPUs, or cores, that the ranks have
  /// Seconds of those for 1e6 tokens (of speech: for an hour of audio).
  double cost() const;
};

struct Sweep {
  std::vector<SweepRow> rows;           ///< in the order weak, strong, batch; ranks; layout; batch
  std::optional<nlohmann::json> noise;  ///< "gradient_noise" of a run that measured it
  bool valid() const;                   ///< some row is
};

/// *.json (runs) and *.refused (four lines: sweep, layout, "ranks micro global", why) of a folder.
/// Throws DataError when there is none, or one that cannot be read.
Sweep read_sweep(const std::string& folder);
/// From the objects of --json, and rows for points that did not run.
Sweep make_sweep(const std::vector<nlohmann::json>& runs, std::vector<SweepRow> refused);

std::string to_table(const Sweep& sweep);
std::string to_csv(const Sweep& sweep);         ///< header and rows
std::string to_json_lines(const Sweep& sweep);  ///< a row a line, with the times of every step

/// Steps of a batch that are known to reach a loss.
struct Target {
  double loss = 0;
  std::int64_t steps = 0, batch = 0;
};
/// The first validation at or below `loss` in the metrics of a run. Throws DataError, DeckError.
Target target_of_run(const std::string& run_directory, double loss);

/// What the sweep says about the batch: knee, bubble, learning-rate rules, noise scale, time and
/// cost to the target. For each layout and number of ranks of a batch sweep the knee in a sentence,
/// and of several which one to take.
std::string advice(const Sweep& sweep, const std::optional<Target>& target);

}  // namespace choir
