// The measurements of `choir bench step`: ceilings (products of matrices, and memory) on all ranks
// at once as in a step, the timed steps, and the gradient noise scale from pairs of batches after
// them.

#include "src/lab/bench/bench_step.hpp"

#include <malloc.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/error.hpp"
#include "choir/device/device.hpp"
#include "choir/nn/parameter_set.hpp"
#include "kernels/bench/op_bench.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/stats.hpp"
#include "src/device/cuda.hpp"
#include "src/lab/bench/bench_batches.hpp"
#include "src/lab/bench/bench_step.hpp"
#include "src/run/energy_meter.hpp"
#include "src/run/run_setup.hpp"
#include "src/train/step/memory_fit.hpp"
#include "src/train/step/product_timing.hpp"

namespace choir {

/// Measures the product of `bench.precision` and `bench.product_extent`. The better of this
/// measurement and of the earlier ones goes into `rates` (slowest rank) and `peak_flops` (sum of
/// all). Collective.
void measure_products(Mesh& mesh, Device& device, StepBench& bench);
/// Measures `copy_rate` and `update_rate`, and puts the better of the two into `rates`. Collective.
void measure_memory(Mesh& mesh, Device& device, StepBench& bench);

/// The maximum over the ranks. Collective.
double max_over(Communicator& comm, double value);

namespace {

/// Bytes/s (read + written) of updating `bytes` of host memory in place, the best of a few rounds.
/// A copy also reads the lines it overwrites; an optimizer has already read them and does not pay
/// for that.
double measure_update(Device& device, std::size_t bytes = std::size_t{512} << 20) {
  const Buffer memory(device, bytes);
  auto* values = static_cast<float*>(memory.data());
  const auto n = static_cast<std::int64_t>(bytes / sizeof(float));
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 1021);
  double best = 1e30;
  for (int round = 0; round < 5; ++round) {
    const double start = now_seconds();
#pragma omp parallel for simd schedule(static)
    for (std::int64_t i = 0; i < n; ++i) values[i] = 0.75f * values[i] + 1.0f;
    best = std::min(best, now_seconds() - start);
  }
  return 2.0 * static_cast<double>(bytes) / best;
}

/// The manufacturer's figure for the GPUs of a node, per rank; 0 if unknown.
double nominal_rate(const Device& device, DType compute, int ranks_of_node) {
  if (device.kind() != DeviceKind::cuda || size_of(compute) != 2) return 0;
  const cuda::Availability seen = cuda::availability();
  if (seen.cards.empty()) return 0;
  const double cards = std::min(static_cast<double>(seen.cards.size()) / ranks_of_node, 1.0);
  return seen.cards[0].peak_bf16_flops * cards;
}

}  // namespace

double max_over(Communicator& comm, double value) {
  comm.all_reduce(&value, 1, DType::f64, ReduceOp::max);
  return value;
}

void measure_products(Mesh& mesh, Device& device, StepBench& bench) {
  const Stream stream(device);
  Communicator& world = mesh.world();
  world.barrier();
  const DType compute = precision_of(bench.precision).compute;
  const double flops = ops::measure_gemm(stream, compute, bench.product_extent);
  bench.nominal_flops = nominal_rate(device, compute, mesh.node().size());
  world.all_reduce(&bench.nominal_flops, 1, DType::f64, ReduceOp::sum);
  double sum = flops;
  world.all_reduce(&sum, 1, DType::f64, ReduceOp::sum);
  bench.peak_flops = std::max(bench.peak_flops, sum);
  bench.rates.flops_per_second = std::max(bench.rates.flops_per_second, -max_over(world, -flops));
}

void measure_memory(Mesh& mesh, Device& device, StepBench& bench) {
  Communicator& world = mesh.world();
  world.barrier();
  bench.copy_rate = -max_over(world, -ops::measure_copy(Stream(device)));
  world.barrier();
  // On a GPU a store does not read its line first: a copy costs as much as an update.
  bench.update_rate =
      device.host_visible() ? -max_over(world, -measure_update(device)) : bench.copy_rate;
  bench.rates.bytes_per_second = std::max(bench.copy_rate, bench.update_rate);
}

/// Throws DeckError if there is nothing to compare.
void require_probes(const Deck& deck, const BatchSizes& batch, bool communicate);

/// Returns `schedule` up to decay_steps and zero afterwards. The probes run there, so that all
/// pairs have the same parameters.
LrSchedule standing_after(LrSchedule schedule);

struct NoiseProbes {
  Engine& engine;  ///< its lr_schedule comes from standing_after()
  BenchBatches& data;
  Mesh& mesh;
  PhaseClock& clock;
  BatchSizes batch;
  std::int64_t steps_before = 0;
  int pairs = 0;
};
/// Measures the pairs and estimates the noise scale. Collective.
GradientNoise probe_gradient_noise(const NoiseProbes& probes);

namespace {

// The gradient norm of one micro-batch: all micro-batches of the step are this one.
double small_batch_norm(const NoiseProbes& p, std::int64_t step) {
  std::array<std::vector<std::byte>, ModelBatch::kMostFields> kept;
  ModelBatch one;
  for (std::int64_t j = 0; j < p.batch.accum;
       ++j) {  // all are consumed, so that the ranks stay in step
    const ModelBatch batch = p.data.micro_batch(step, j);
    if (j > 0) continue;
    one = batch;
    for (std::size_t i = 0; i < one.fields().size(); ++i) {
      TensorView& view = one.fields()[i].view;
      kept[i].resize(view.bytes());
      std::memcpy(kept[i].data(), view.data, view.bytes());
      view.data = kept[i].data();
      p.mesh.host_along(Axis::data).broadcast(view.data, view.bytes(), 0);
    }
  }
  p.engine.step(
      step, [&](std::int64_t) { return one; }, p.data.repeated_targets(step, one), p.clock);
  return p.engine.finish(p.clock).grad_norm;
}

}  // namespace

void require_probes(const Deck& deck, const BatchSizes& batch, bool communicate) {
  const char* flag = "--gradient-noise compares a micro-batch with the global batch, but ";
  if (!deck.family().fixed_shape())
    throw DeckError(std::string(flag) + "the bench of a speech deck uses synthetic utterances",
                    "use a token deck");
  if (!communicate)
    throw DeckError(std::string(flag) + "--no-comm disables communication",
                    "omit one of the two options");
  if (batch.global == batch.micro)
    throw DeckError(std::string(flag) + "this step has only one micro-batch",
                    "set train.grad_accum to 2 or more, or start more ranks");
}

LrSchedule standing_after(LrSchedule schedule) {
  using Kind = LrSchedule::Kind;
  if (schedule.kind != Kind::linear) schedule.kind = Kind::cosine;
  schedule.floor = 0;
  return schedule;
}

GradientNoise probe_gradient_noise(const NoiseProbes& p) {
  std::vector<NoiseProbe> probes;
  const LrSchedule& schedule = p.engine.options().schedule;
  std::int64_t step = std::max(p.steps_before, schedule.decay_steps);
  CHOIR_CHECK(schedule.at(step) == 0, "the learning rate is not 0");
  for (int i = 0; i < p.pairs; ++i) {
    const double small = small_batch_norm(p, step++);
    p.engine.step(
        step, [&](std::int64_t j) { return p.data.micro_batch(step, j); }, p.data.targets(step),
        p.clock);
    const double large = p.engine.finish(p.clock).grad_norm;
    ++step;
    probes.push_back({small * small, large * large});
  }
  GradientNoise noise = estimate_noise(probes, p.batch.micro, p.batch.global);
  noise.after_steps = p.steps_before;
  return noise;
}

namespace {

/// Adapts the work of an update by AdamW to another rule.
void count_rule(const UpdateRule& rule, const Precision& precision, StepWork& work) {
  const UpdateRule::Traffic traffic = rule.traffic(precision);
  const StepWork usual = update_work(precision, 1);
  work.optimizer_bytes *= traffic.update / usual.optimizer_bytes;
  work.norm_bytes *= traffic.norms / usual.norm_bytes;
}

/// Resident bytes. A page shared by n processes counts 1/n, so that windows are not counted twice.
std::int64_t own_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  std::int64_t kib = 0;
  while (file >> word)
    if (word == "Pss:" && file >> kib) return kib * 1024;
  return resident_bytes();
}

std::int64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

/// The value with the largest magnitude over the ranks.
std::int64_t furthest(Communicator& comm, std::int64_t value) {
  std::array<std::int64_t, 2> extremes{value, -value};
  comm.all_reduce(extremes.data(), 2, DType::i64, ReduceOp::max);
  return extremes[0] >= extremes[1] ? extremes[0] : -extremes[1];
}

Spread spread_over(Communicator& comm, double value) {
  std::vector<double> all(static_cast<std::size_t>(comm.size()));
  all[static_cast<std::size_t>(comm.rank())] = value;
  comm.all_gather(all.data(), 1, DType::f64);
  const auto [low, high] = std::minmax_element(all.begin(), all.end());
  return {*low, median_of(all), *high};
}

/// A run without a run directory, from the deck to the numbers.
class Bench {
 public:
  Bench(Deck deck, Mesh& mesh, Device& device, Logger& log, const StepBenchOptions& options)
      : deck_(std::move(deck)), mesh_(mesh), device_(device), log_(log), options_(options) {}

  StepBench run() {
    prepare();
    // Measured before the steps, which also starts the threads and warms up the libraries, and
    // after them.
    if (options_.ceilings) measure_products(mesh_, device_, result_);
    if (options_.ceilings) measure_memory(mesh_, device_, result_);
    build();
    warm_up();
    measure();
    gather();
    if (options_.noise_probes > 0) probe_noise();
    result_.complaints = complaints_of(result_);
    return result_;
  }

 private:
  Communicator& world() { return mesh_.world(); }
  void prepare();
  void build();
  void warm_up();
  void measure();
  void gather();
  void gather_traffic();
  void queue_step();
  void finish_step();
  double timed_step();
  void probe_noise();
  /// The mesh that the engine uses.
  Mesh& step_mesh() { return silent_ ? *silent_ : mesh_; }

  Deck deck_;
  Mesh& mesh_;
  std::unique_ptr<Mesh> silent_;  // the same layout with communicators that send nothing
  Device& device_;
  Logger& log_;
  StepBenchOptions options_;
  BatchSizes batch_;
  std::unique_ptr<BenchBatches> data_;
  std::unique_ptr<Engine> engine_;
  StepPlan plan_;
  PhaseClock clock_;
  StepBench result_;
  std::array<std::vector<double>, kPhases> seconds_;
  std::array<std::vector<double>, kAxes> exposed_;  // [axis][steps]
  std::unique_ptr<PipelineRecorder> recorder_;
  std::optional<EnergyMeter> energy_;
  std::optional<ContentionMeter> meter_;  // since the first timed step
  double last_loss_ = 0;
  std::int64_t step_ = 0, base_ = 0, heap_ = 0;
};

void Bench::prepare() {
  batch_ = resolve_batch(deck_, mesh_.along(Axis::data).size());
  const ModelFamily& family = deck_.family();
  const std::int64_t usual = family.usual_vocab_size();
  const bool unknown = usual > 0 && family.vocab_size(deck_) == 0;
  if (unknown) family.vocab_size(deck_) = usual;
  data_ = family.bench_batches(deck_, batch_, mesh_, log_, options_.audio);
  if (unknown && data_->vocab_size() > 0)
    family.vocab_size(deck_) = 0;
  else if (unknown)
    log_.info("{} is not given and synthetic content has no vocabulary of its own: using {}",
              family.vocab_size_key(), usual);
  resolve_vocabulary(deck_, data_->vocab_size(), "the training data");
  result_.deck = deck_.source;
  result_.precision = name_of(deck_.train.precision);
  result_.layout = mesh_.layout().to_string();
  result_.ranks = world().size();
  result_.device = name_of(device_.kind());
  result_.device_description = device_.description();
  result_.host_visible = device_.host_visible();
  result_.product_extent = ops::large_product(device_.kind());
  result_.threads = omp_get_max_threads();
  result_.micro = batch_.micro;
  result_.accum = batch_.accum;
  result_.global = batch_.global;
  result_.communicated = options_.communicate;
  result_.fixed_shape = family.fixed_shape();
  result_.nodes = mesh_.nodes();
  result_.cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  result_.oversubscribed =
      result_.cores > 0 && mesh_.node().size() * result_.threads > result_.cores;
  result_.first_losses.reserve(kFirstSteps);
  result_.first_norms.reserve(kFirstSteps);
  energy_.emplace(mesh_, device_);
  result_.energy_text = energy_->text();
  if (options_.noise_probes > 0) require_probes(deck_, batch_, options_.communicate);
  if (options_.last_place_seed > 0 && result_.ranks > 1)
    throw DeckError("--last-place moves the weights of one rank, but there are several",
                    "start the bench without a launcher");
  if (options_.communicate) return;
  silent_ = Mesh::planned(mesh_.layout(), mesh_.rank(), mesh_.node().size());
  silent_->attach(device_);
}

void Bench::build() {
  EngineOptions options = engine_options(deck_, batch_);
  options.shapes = data_->shapes();
  options.compare_counts = options_.communicate;
  // Events inside a recorded graph have no time.
  options.time_actions = options_.communicate && mesh_.layout().size(Axis::pipeline) > 1 &&
                         (device_.host_visible() || !options.cuda_graph);
  plan_ = plan_in_memory(options, mesh_, false, device_);
  if (deck_.train.time_products && device_.kind() == DeviceKind::cuda)
    log_.info("{}", time_products(mesh_, device_, plan_.products, {}).report);
  // The learning rate is 0 after the end of the schedule; the probes run there.
  if (options_.noise_probes > 0) options.schedule = standing_after(options.schedule);
  data_->start(Sharding(mesh_, options.zero));
  world().barrier();
  malloc_trim(0);
  base_ = own_bytes();
  world().barrier();
  engine_ = std::make_unique<Engine>(options, device_, step_mesh(), plan_.arena_bytes);
  engine_->instance().initialise(options.seed);
  if (options_.last_place_seed > 0) move_last_places(engine_->instance(), options_.last_place_seed);
  result_.parameters = engine_->instance().parameters().count();
  // The axes that share a micro-batch divide its work evenly.
  const double parts = world().size() / mesh_.along(Axis::data).size();
  result_.work = data_->work(options, engine_->instance(), parts);
  count_rule(*options.optimizer.rule, options.precision, result_.work);
}

void Bench::queue_step() {
  const std::int64_t step = step_ + engine_->in_flight();
  engine_->step(
      step, [&](std::int64_t j) { return data_->micro_batch(step, j); }, data_->targets(step),
      clock_);
}

void Bench::finish_step() {
  const StepResult step = engine_->finish(clock_);
  ++step_;
  last_loss_ = step.loss;
  if (step_ <= kFirstSteps) {
    result_.first_losses.push_back(step.loss);
    result_.first_norms.push_back(step.grad_norm);
  }
}

/// The time from the end of a step to the end of the next. Steps that were queued before run in the
/// meantime.
double Bench::timed_step() {
  clock_.begin();
  queue_step();
  finish_step();
  clock_.end();
  return max_over(world(), clock_.total());
}

void Bench::warm_up() {
  double spent = 0;
  while (step_ < kWarmupSteps || (step_ < 10 && spent < options_.warmup_seconds)) {
    spent += timed_step();
    // With communicators that send nothing there are no sums to compare.
    if (step_ == 1 && options_.communicate) result_.first_gradients = gradient_norms(*engine_);
  }
  result_.warmup_steps = step_;
}

void Bench::measure() {
  constexpr std::size_t kMost = 1 << 16;  // reserved: the timed steps must not allocate
  result_.step_seconds.reserve(kMost);
  result_.losses.reserve(kMost);
  for (auto& list : seconds_) list.reserve(kMost);
  for (auto& list : exposed_) list.reserve(kMost);
  if (engine_->options().time_actions)
    recorder_ = std::make_unique<PipelineRecorder>(*engine_, kMost);
  const Sharding& sharding = engine_->instance().storage().sharding();
  reset_traffic(step_mesh(), sharding);
  StepTraffic before;
  meter_.emplace();
  heap_ = heap_bytes();
  double spent = 0, targets = 0;
  std::size_t done = 0;
  // The host prepares the next step while the device runs this one, as in training.
  if (!recorder_)
    while (engine_->in_flight() < engine_->lag()) queue_step();
  const auto enough = [&] {
    if (options_.steps > 0) return done == static_cast<std::size_t>(options_.steps);
    if (done < 3) return false;
    if (spent >= options_.max_seconds || done == kMost) return true;
    return done >= kTimedSteps && spent >= options_.min_seconds;
  };
  energy_->begin_steps();
  for (; !enough(); ++done) {
    targets += data_->targets(step_).first();
    result_.audio_seconds += data_->audio_seconds(step_);
    result_.step_flops += data_->flops(step_, engine_->instance());
    const double seconds = timed_step();
    spent += seconds;
    result_.step_seconds.push_back(seconds);
    result_.losses.push_back(last_loss_);
    for (int p = 0; p < kPhases; ++p)
      seconds_[static_cast<std::size_t>(p)].push_back(clock_.seconds(static_cast<Phase>(p)));
    const StepTraffic now = traffic_of(step_mesh(), sharding);
    for (std::size_t a = 0; a < kAxes; ++a)
      exposed_[a].push_back(now[a].seconds - before[a].seconds);
    before = now;
    if (recorder_) recorder_->record();
    energy_->keep_up();
  }
  energy_->end_steps();
  while (engine_->in_flight() > 0) finish_step();
  heap_ = heap_bytes() - heap_;
  const auto steps = static_cast<double>(done);
  result_.tokens = std::llround(targets / steps);
  result_.audio_seconds /= steps;
  result_.step_flops /= steps;
}

void Bench::gather() {
  result_.disturbance = noise_among(mesh_, *meter_);
  const std::int64_t grown = own_bytes() - base_;
  world().barrier();
  if (energy_->readable()) {
    const double joules = energy_->use().steps;
    if (energy_->readable())
      result_.energy = joules / static_cast<double>(result_.step_seconds.size());
  }
  gather_traffic();
  if (options_.ceilings) measure_products(mesh_, device_, result_);
  result_.median_seconds = median_of(result_.step_seconds);
  for (std::size_t p = 0; p < kPhases; ++p)
    result_.phases[p] = spread_over(world(), median_of(seconds_[p]));
  const double rate = result_.step_flops / result_.median_seconds;
  // No step can be faster than its products: another process used the cores while those were timed.
  for (int again = 0; options_.ceilings && again < 3 && rate > result_.peak_flops; ++again)
    measure_products(mesh_, device_, result_);
  if (options_.ceilings) result_.floor_seconds = floor_seconds(result_.work, result_.rates);
  if (options_.ceilings) result_.mfu = rate / result_.peak_flops;
  result_.hfu_over_mfu = plan_.hfu_over_mfu();
  if (result_.nominal_flops > 0) result_.nominal_mfu = rate / result_.nominal_flops;
  result_.planned_arena = static_cast<std::int64_t>(plan_.arena_bytes);
  auto over = static_cast<std::int64_t>(engine_->instance().arena().peak()) - result_.planned_arena;
  if (result_.fixed_shape)
    over = furthest(world(), over);
  else
    world().all_reduce(&over, 1, DType::i64, ReduceOp::max);
  result_.peak_arena = result_.planned_arena + over;
  result_.planned_memory = static_cast<std::int64_t>(plan_.memory.total());
  result_.grown_memory = result_.planned_memory + furthest(world(), grown - result_.planned_memory);
  result_.heap_growth = furthest(world(), heap_);
}

void Bench::gather_traffic() {
  const auto steps = static_cast<double>(result_.step_seconds.size());
  const Sharding& sharding = engine_->instance().storage().sharding();
  const StepTraffic traffic = traffic_of(step_mesh(), sharding);
  for (std::size_t a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    const Communicator& ranks = axis == Axis::data ? sharding.data() : step_mesh().along(axis);
    if (ranks.size() == 1) continue;
    result_.traffic.push_back({.axis = std::string(short_name(axis)),
                               .transport = ranks.transport(),
                               .ranks = ranks.size(),
                               .calls = static_cast<double>(traffic[a].calls) / steps,
                               .bytes = traffic[a].bytes / steps,
                               .exposed_seconds = max_over(world(), median_of(exposed_[a]))});
  }
  if (recorder_) result_.pipeline = recorder_->gather(mesh_);
}

void Bench::probe_noise() {
  result_.noise = probe_gradient_noise({.engine = *engine_,
                                        .data = *data_,
                                        .mesh = mesh_,
                                        .clock = clock_,
                                        .batch = batch_,
                                        .steps_before = step_,
                                        .pairs = options_.noise_probes});
}

}  // namespace

StepBench bench_step(Deck deck, Mesh& mesh, Device& device, Logger& log,
                     const StepBenchOptions& options) {
  return Bench(std::move(deck), mesh, device, log, options).run();
}

}  // namespace choir
