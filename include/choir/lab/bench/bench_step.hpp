#pragma once
// The step of a deck, timed: the same Engine and Dataset that train, without evaluation,
// checkpoints or a run directory. The ceilings it is held against are measured in the same run.
#include <array>
#include <map>
#include <string>
#include <vector>

#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "choir/lab/bench/bench_batches.hpp"
#include "choir/lab/bench/bench_pipeline.hpp"
#include "choir/train/step/gradient_noise.hpp"
#include "choir/train/step/phase_clock.hpp"
#include "choir/train/step/step_floor.hpp"
#include "choir/train/step/step_planner.hpp"

namespace choir {

struct StepBenchOptions {
  double warmup_seconds = 2;  ///< at least kWarmupSteps, at most 10 when they take longer
  double min_seconds = 5;     ///< of timed steps, and at least kTimedSteps of them
  double max_seconds = 20;    ///< ends the timing; at least 3 steps whatever they take
  std::int64_t steps = 0;     ///< above 0: so many timed steps, whatever they take
  bool ceilings = true;       ///< measure products and copies; without: no MFU, no floor
  /// Without: the same step with communicators that send nothing. What a rank computes is then
  /// wrong and takes as long as ever: the difference is what communication costs.
  bool communicate = true;
  /// Above 0: every initial weight is moved by one unit in its last place, up or down by the coins
  /// of this seed; of one rank only. What then changes is what rounding may change.
  std::uint64_t last_place_seed = 0;
  int noise_probes = 0;  ///< pairs of batches for the gradient noise scale, at the end
  BenchAudio audio{};    ///< what families that hear are fed
};
inline constexpr int kWarmupSteps = 2;
inline constexpr int kTimedSteps = 10;
/// The number of first steps, in which a layout must reproduce what one rank computes.
inline constexpr int kFirstSteps = 5;

/// Over the ranks, of one number a rank.
struct Spread {
  double min = 0, median = 0, max = 0;
};

/// Equal on every rank, except where it says "rank 0".
struct StepBench {
  std::string deck, precision, layout;
  std::string device, device_description;  ///< "cuda", "NVIDIA H200 ..."
  bool host_visible = true;                ///< device memory is memory of the process
  int ranks = 1, threads = 1;
  /// Sequences; of speech micro-batches: 1, of a rank, of all.
  std::int64_t micro = 0, accum = 0, global = 0;
  std::int64_t tokens = 0;   ///< targets of a step, all ranks; of speech the mean over the steps
  double audio_seconds = 0;  ///< of a step, all ranks, the mean, without padding; 0: no speech
  std::int64_t parameters = 0;
  std::int64_t warmup_steps = 0;
  /// Timed: for each step the slowest rank's wall time, in order, and the loss.
  std::vector<double> step_seconds, losses;
  /// Loss and norm of the gradient in the first kFirstSteps steps of all, in warm-up or not.
  std::vector<double> first_losses, first_norms;
  /// The norm of each tensor's gradient in the first step.
  std::map<std::string, double> first_gradients;
  bool fixed_shape = true;      ///< all micro-batches have the planned shape
  bool communicated = true;     ///< see StepBenchOptions::communicate
  int nodes = 1, cores = 0;     ///< processors of this node; 0: unknown
  bool oversubscribed = false;  ///< ranks of a node times threads are more than its processors
  double median_seconds = 0;
  std::array<Spread, kPhases> phases{};  ///< of each rank's median over the steps; index Phase

  StepRates rates;                  ///< per rank, all ranks at once; the slowest rank's
  std::int64_t product_extent = 0;  ///< n of the n x n x n product behind `rates`
  double step_flops = 0;            ///< of the model, the mean over the steps
  double peak_flops = 0;            ///< of that product, sum over ranks
  double mfu = 0;                   ///< FLOPs a second by that convention over peak_flops
  double hfu_over_mfu = 1;          ///< above 1 with recomputation, which mfu does not count
  /// The makers' figure for the cards in use, dense, 16-bit; 0: unknown, or another type computes.
  double nominal_flops = 0;
  double nominal_mfu = 0;                 ///< over nominal_flops; 0 without it
  double copy_rate = 0, update_rate = 0;  ///< bytes/s; the better of the two is in `rates`
  StepWork work;                          ///< of one rank
  double floor_seconds = 0;

  /// What a step sends. `exposed_seconds`: the host waits for others, be they slow or their
  /// messages; the median over the steps of the rank that waits longest.
  struct AxisTraffic {
    std::string axis, transport;
    int ranks = 1;
    double calls = 0, bytes = 0, exposed_seconds = 0;
  };
  std::vector<AxisTraffic> traffic;  ///< axes of more than one rank
  /// 0 for an axis that is not among them.
  double exposed_seconds(Axis axis) const;
  PipelineBench pipeline;  ///< empty with one stage, or where a step is a recorded graph

  std::int64_t planned_arena = 0, peak_arena = 0;  ///< of the rank with the largest difference
  std::int64_t planned_memory = 0;                 ///< everything in the plan, of a rank
  /// Resident memory (shared pages divided among their processes) after the timed steps, less that
  /// before the engine existed, when MPI, data and the libraries were warm; of the rank furthest
  /// from its plan.
  std::int64_t grown_memory = 0;
  /// Bytes that malloc holds more after the timed steps than before; worst rank.
  std::int64_t heap_growth = 0;

  GradientNoise noise;  ///< without probes: empty

  std::string provenance;                    ///< a JSON object; "": that of the build
  std::map<std::string, std::string> notes;  ///< of the caller: which sweep, which repeat

  std::vector<std::string> complaints;  ///< empty: VALID
  bool valid() const { return complaints.empty(); }
  bool measures_audio() const { return audio_seconds > 0; }
  double tokens_per_second() const { return static_cast<double>(tokens) / median_seconds; }
  /// Seconds of audio a second.
  double real_time() const { return audio_seconds / median_seconds; }
  /// 6 N + 12 L H Q T, the convention of nanoGPT.
  double flops_per_token() const { return step_flops / static_cast<double>(tokens); }
  /// 0 where no ceilings were measured.
  double floor_ratio() const { return floor_seconds > 0 ? median_seconds / floor_seconds : 0; }
};

/// Collective over the mesh. The deck's batch is resolved here. Throws DeckError, DataError.
StepBench bench_step(Deck deck, Mesh& mesh, Device& device, Logger& log,
                     const StepBenchOptions& options = {});

/// What makes a bench invalid, worked out from its numbers. Pure.
std::vector<std::string> complaints_of(const StepBench& bench);

std::string to_string(const StepBench& bench);
std::string to_json(const StepBench& bench);  ///< one object, with provenance
std::string csv_header();
std::string to_csv(const StepBench& bench);

}  // namespace choir
