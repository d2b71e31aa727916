#pragma once
// The bench of a training step: its time, memory and traffic; and tools to tell mistakes from
// rounding, the gradient norm of each tensor and, as a yardstick, runs with perturbed weights.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "choir/run/model_instance.hpp"
#include "src/lab/bench/bench_batches.hpp"
#include "src/lab/bench/bench_pipeline.hpp"
#include "src/run/step_plan.hpp"
#include "src/train/step/engine.hpp"
#include "src/train/step/gradient_noise.hpp"

namespace choir {

/// Moves every weight by one unit in the last place of the type that the matrix products read, up
/// or down at random by `seed` and the element; zeros stay. Called after
/// ModelInstance::initialise(), with a single rank.
void move_last_places(ModelInstance& instance, std::uint64_t seed);

/// `value` moved away from zero (`up`) or towards it by 2^(e + 1 - digits), 2^e <= |value| <
/// 2^(e+1).
double moved_last_place(double value, bool up, int digits);

/// Returns the gradient norm of each tensor in the last finished step, by name and over the whole
/// logical tensor. Collective over the mesh, with no step in flight. The norms are the same in
/// every layout except for rounding: a gradient that is lost, or is only a part of a sum, shows up
/// here even if its tensor adds next to nothing to the total norm.
std::map<std::string, double> gradient_norms(Engine& engine);

// Timing of a deck's training step with the Engine and Dataset that also train, but without
// evaluation, checkpoints or a run directory. The ceilings that it is compared with are measured in
// the same run.

struct StepBenchOptions {
  double warmup_seconds = 2;  ///< at least kWarmupSteps steps; at most 10 if they take longer
  double min_seconds = 5;     ///< of timed steps, of which there are at least kTimedSteps
  double max_seconds = 20;    ///< limit of the timing, but at least 3 steps are timed
  std::int64_t steps = 0;     ///< above 0: exactly this number of timed steps
  bool ceilings = true;  ///< measure products and copies; if false, there is no MFU and no floor
  /// If false, the same step runs with communicators that send nothing. The results of a rank are
  /// then wrong, but its computation takes the same time: the difference is the cost of
  /// communication.
  bool communicate = true;
  /// Above 0: every initial weight is moved by one unit in the last place, up or down at random
  /// with this seed; with one rank only. The change of the results shows the effect of rounding.
  std::uint64_t last_place_seed = 0;
  int noise_probes = 0;  ///< pairs of batches for the gradient noise scale, measured at the end
  BenchAudio audio{};    ///< the synthetic speech for speech families
};
inline constexpr int kWarmupSteps = 2;
inline constexpr int kTimedSteps = 10;
/// The number of first steps, in which a layout must reproduce what one rank computes.
inline constexpr int kFirstSteps = 5;

/// Spread over the ranks of one number per rank.
struct Spread {
  double min = 0, median = 0, max = 0;
};

/// Results of a bench; equal on every rank, except where a comment says "rank 0".
struct StepBench {
  std::string deck, precision, layout;
  std::string device, device_description;  ///< "cuda", "NVIDIA H200 ..."
  bool host_visible = true;                ///< device memory belongs to the memory of the process
  int ranks = 1, threads = 1;
  /// Sequences. With speech, micro-batches: 1, of a rank, of all ranks.
  std::int64_t micro = 0, accum = 0, global = 0;
  std::int64_t tokens = 0;  ///< targets of a step, all ranks; with speech, the mean over the steps
  /// Seconds of speech in a step of all ranks, without padding: the mean over the steps.
  double audio_seconds = 0;
  std::int64_t parameters = 0;
  std::int64_t warmup_steps = 0;
  /// The timed steps in order: the wall time of the slowest rank, and the loss.
  std::vector<double> step_seconds, losses;
  /// Loss and gradient norm of the first kFirstSteps steps, warm-up included.
  std::vector<double> first_losses, first_norms;
  /// The gradient norm of each tensor in the first step.
  std::map<std::string, double> first_gradients;
  bool fixed_shape = true;   ///< all micro-batches have the planned shape
  bool communicated = true;  ///< see StepBenchOptions::communicate
  int nodes = 1, cores = 0;  ///< number of processors of this node; 0: unknown
  /// The ranks of a node have together more threads than it has processors.
  bool oversubscribed = false;
  double median_seconds = 0;
  /// Spread of each rank's median over the steps; indexed by Phase.
  std::array<Spread, kPhases> phases{};

  StepRates rates;                  ///< rates of the slowest rank, measured on all ranks at once
  std::int64_t product_extent = 0;  ///< n of the n x n x n product that gave `rates`
  double step_flops = 0;            ///< FLOPs of the model, mean over the steps
  double peak_flops = 0;            ///< rate of that product, sum over the ranks
  double mfu = 0;                   ///< step_flops per second over peak_flops
  double hfu_over_mfu = 1;          ///< above 1 with recomputation, which mfu does not count
  /// The manufacturer's figure for the GPUs in use, dense, 16-bit; 0: unknown, or the compute type
  /// is another.
  double nominal_flops = 0;
  double nominal_mfu = 0;                 ///< MFU relative to nominal_flops; 0 if that is 0
  double copy_rate = 0, update_rate = 0;  ///< bytes/s; `rates` has the better of the two
  StepWork work;                          ///< of one rank
  double floor_seconds = 0;

  /// Traffic of a step along one axis. `exposed_seconds` is the time in which the host waits for
  /// other ranks, be they or their messages slow: the median over the steps, of the rank that waits
  /// longest.
  struct AxisTraffic {
    std::string axis, transport;
    int ranks = 1;
    double calls = 0, bytes = 0, exposed_seconds = 0;
  };
  std::vector<AxisTraffic> traffic;  ///< axes of more than one rank
  /// Returns 0 for an axis that is not in `traffic`.
  double exposed_seconds(Axis axis) const;
  PipelineBench pipeline;  ///< empty with one stage, or if the step is a recorded graph

  std::int64_t planned_arena = 0, peak_arena = 0;  ///< of the rank with the largest difference
  std::int64_t planned_memory = 0;                 ///< the whole plan of a rank
  /// Growth of the resident memory (a page shared by n processes counts 1/n) from before the engine
  /// exists, when MPI, data and the libraries are warm, to after the timed steps; of the rank that
  /// differs most from its plan.
  std::int64_t grown_memory = 0;
  /// Growth of the memory allocated by malloc during the timed steps; of the worst rank.
  std::int64_t heap_growth = 0;

  /// Joules of a timed step, all devices; unknown where their counters cannot be read.
  std::optional<double> energy;
  std::string energy_text;  ///< EnergyMeter::text(); rank 0

  GradientNoise noise;      ///< empty without probes
  std::string disturbance;  ///< noise_among() the timed steps

  std::string provenance;                    ///< a JSON object; "": the provenance of the build
  std::map<std::string, std::string> notes;  ///< notes of the caller: the sweep, the repeat

  std::vector<std::string> complaints;  ///< empty: VALID
  bool valid() const { return complaints.empty(); }
  bool measures_audio() const { return audio_seconds > 0; }
  double tokens_per_second() const { return static_cast<double>(tokens) / median_seconds; }
  /// Seconds of audio per second.
  double real_time() const { return audio_seconds / median_seconds; }
  double energy_of_token() const { return *energy / static_cast<double>(tokens); }
  /// 6 N + 12 L H Q T, by nanoGPT's convention.
  double flops_per_token() const { return step_flops / static_cast<double>(tokens); }
  /// 0 if no ceilings were measured.
  double floor_ratio() const { return floor_seconds > 0 ? median_seconds / floor_seconds : 0; }
};

/// Runs the bench. Collective over the mesh. The deck's batch is resolved here. Throws DeckError,
/// DataError.
StepBench bench_step(Deck deck, Mesh& mesh, Device& device, Logger& log,
                     const StepBenchOptions& options = {});

/// The reasons why a bench is invalid, derived from its numbers. Pure.
std::vector<std::string> complaints_of(const StepBench& bench);

std::string to_string(const StepBench& bench);
std::string to_json(const StepBench& bench);  ///< one object, with provenance
std::string csv_header();
std::string to_csv(const StepBench& bench);

}  // namespace choir
