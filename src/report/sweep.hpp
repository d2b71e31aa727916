#pragma once
// A scaling sweep: the runs of `choir bench step` that bench/scaling.sh wrote into a folder, with
// one row for each point (sweep, layout, ranks, batch). A row is valid if its layout computed the
// same as one rank: its first losses, gradient norms and gradients of single tensors equal those of
// a reference of the same global batch, within the effect of rounding. Pure, except for
// read_sweep() and target_of_run().
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "choir/comm/layout.hpp"
#include "src/core/json_value.hpp"
#include "src/train/step/phase_clock.hpp"

namespace choir {

/// Relative differences from a reference: the worst of the first steps (for `gradient`, of the
/// tensors); infinite for NaN. Gradients of tensors are relative to their norm, but at least to
/// 1/1000 of the largest: a gradient that is only rounding has no digits to compare.
struct Departure {
  double loss = 0, norm = 0, gradient = 0;
  std::string loss_at, norm_at, gradient_at;  ///< "the loss 4.2 at step 0, of one rank 4.1"
};

/// Compares two objects of `choir bench step --json`. Throws json::exception if fields are missing.
Departure departure_of(const nlohmann::json& run, const nlohmann::json& reference);

/// Returns four times the departure of the reference from itself when each of its weights is moved
/// by one unit in the last place (`moved`, runs of --last-place). The reason why this bounds a
/// layout: a layout only rounds the results of products and sums differently, each by at most half
/// such a unit and independently for each token, while a moved weight is moved for all tokens
/// alike. The minimum is the rounding of one sum, 2^-24 (fp64: 2^-53).
Departure allowed_departure(const nlohmann::json& reference,
                            const std::vector<nlohmann::json>& moved);

/// The larger of each difference, with its location.
Departure worst_of(const Departure& a, const Departure& b);

/// Sentences about the differences above the allowed ones.
std::vector<std::string> complaints_about(const Departure& departure, const Departure& allowed);

/// Advice depends on differences of a tenth (knee, efficiency), so each time must be known to half
/// of that.
inline constexpr double kQuiet = 0.05;

/// The identity of a point. Sweeps are weak (the batch grows with the ranks), strong (one global
/// batch) or batch (the batch grows at one number of ranks).
struct SweepPoint {
  std::string sweep, layout;  ///< "weak", "zero1"
  std::int64_t ranks = 0, micro = 0, global = 0;
  auto operator<=>(const SweepPoint&) const = default;
};

struct SweepRow {
  SweepPoint point;
  nlohmann::json run;  ///< the first repeat, as `choir bench step --json` wrote it
  std::vector<std::vector<double>> step_seconds;  ///< [repeat][step]
  double median = 0, p10 = 0,
         p90 = 0;   ///< seconds: median of the repeats' medians; quantiles of all steps
  double work = 0;  ///< tokens of a step; with speech, seconds of audio
  double loss_end = 0;
  std::array<double, kPhases> phases{};  ///< seconds, medians over the repeats
  std::array<double, kAxes> exposed{};   ///< seconds per step that a rank waits along an axis
  /// The share of the step that disappears if nothing is sent; unknown without a --no-comm run.
  std::optional<double> communication;
  /// Relative to the valid row of the sweep with the fewest ranks: S = t(N0)/t(N), in a weak sweep
  /// X(N)/X(N0); E = S N0/N; Karp-Flatt (1/S - 1/n)/(1 - 1/n), n = N/N0. In a batch sweep E is the
  /// throughput over the best with the same ranks and layout.
  std::optional<double> speedup, efficiency, serial_fraction;
  Departure departure, allowed;         ///< from the reference of its global batch
  std::vector<std::string> complaints;  ///< empty: VALID
  /// The reason why the times are unreliable, although the numbers may be right; empty: quiet.
  /// Either the median is not known to kQuiet, by the spread of its own steps or of its repeats, or
  /// the step got slower when nothing was sent.
  std::string noise;

  bool valid() const { return complaints.empty(); }
  bool quiet() const { return noise.empty(); }
  bool refused() const { return step_seconds.empty(); }
  bool measures_audio() const;
  bool gpu() const;
  double rate() const { return work / median; }  ///< tokens (seconds of audio) per second
  double share(Phase phase) const { return phases[static_cast<std::size_t>(phase)] / median; }
  double share(Axis axis) const { return exposed[static_cast<std::size_t>(axis)] / median; }
  double idle() const;        ///< idle share of a pipeline, (p - 1)/(v m + p - 1); 0 without one
  double processors() const;  ///< number of GPUs or cores of the ranks
  /// Processor seconds for 1e6 tokens (with speech, for an hour of audio).
  double cost() const;
};

struct Sweep {
  std::vector<SweepRow> rows;  ///< ordered by sweep (weak, strong, batch), ranks, layout and batch
  std::optional<nlohmann::json> noise;  ///< "gradient_noise" of a run that measured it
  bool valid() const;                   ///< true if some row is valid
};

/// Reads *.json (runs) and *.refused (four lines: sweep, layout, "ranks micro global", reason) of a
/// folder. Throws DataError if there are none, or one cannot be read.
Sweep read_sweep(const std::string& folder);
/// Makes a sweep from the objects of --json and rows for points that did not run.
Sweep make_sweep(const std::vector<nlohmann::json>& runs, std::vector<SweepRow> refused);

std::string to_table(const Sweep& sweep);
std::string to_csv(const Sweep& sweep);         ///< header and rows
std::string to_json_lines(const Sweep& sweep);  ///< a line per row, with the times of all steps

/// A number of steps of a batch that is known to reach a loss.
struct Target {
  double loss = 0;
  std::int64_t steps = 0, batch = 0;
};
/// Returns the first validation at or below `loss` in the metrics of a run. Throws DataError,
/// DeckError.
Target target_of_run(const std::string& run_directory, double loss);

/// Advice about the batch: knee, bubble, learning-rate rules, noise scale, time and cost to the
/// target. Each layout and number of ranks of a batch sweep gets its knee in a sentence; of
/// several, the best choice is named.
std::string advice(const Sweep& sweep, const std::optional<Target>& target);

}  // namespace choir
