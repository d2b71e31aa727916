#include "choir/train/bench_step.hpp"

#include <malloc.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "choir/comm/agreement.hpp"
#include "choir/core/error.hpp"
#include "choir/core/process.hpp"
#include "choir/device/cuda.hpp"
#include "choir/ops/ceiling.hpp"
#include "choir/train/run_setup.hpp"
#include "src/train/bench_batches.hpp"
#include "src/train/bench_gradients.hpp"
#include "src/train/bench_last_place.hpp"

namespace choir {
namespace {

/// Resident bytes where a page shared by n processes counts 1/n: windows are not counted twice.
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

/// Bytes/s (read + written) of changing `bytes` of host memory in place, the best of a few. A copy
/// also reads the lines it overwrites; an optimizer, which has them already, does not pay for that.
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

/// What the makers say the cards of a node's ranks reach together, by rank; 0 when they do not.
double nominal_rate(const Device& device, DType compute, int ranks_of_node) {
  if (device.kind() != DeviceKind::cuda || size_of(compute) != 2) return 0;
  const cuda::Availability seen = cuda::availability();
  if (seen.cards.empty()) return 0;
  const double cards = std::min(static_cast<double>(seen.cards.size()) / ranks_of_node, 1.0);
  return seen.cards[0].peak_bf16_flops * cards;
}

/// As `schedule` while it decays, and zero from decay_steps on.
LrSchedule standing_after(LrSchedule schedule) {
  using Kind = LrSchedule::Kind;
  if (schedule.kind == Kind::constant || schedule.kind == Kind::inverse_sqrt)
    schedule.kind = Kind::cosine;
  schedule.floor = 0;
  return schedule;
}

double max_over(Communicator& comm, double value) {
  comm.all_reduce(&value, 1, DType::f64, ReduceOp::max);
  return value;
}

/// The value of the rank where it is largest in absolute terms.
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

/// A run without its directory: everything between the deck and the numbers.
class Bench {
 public:
  Bench(Deck deck, Mesh& mesh, Device& device, Logger& log, const StepBenchOptions& options)
      : deck_(std::move(deck)), mesh_(mesh), device_(device), log_(log), options_(options) {}

  StepBench run() {
    prepare();
    measure_products();
    measure_memory();
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
  void measure_products();
  void measure_memory();
  void build();
  void warm_up();
  void measure();
  void gather();
  void gather_traffic();
  double timed_step();
  void check_probes() const;
  void probe_noise();
  double small_batch_norm(std::int64_t step);
  /// What the engine runs on.
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
  double last_loss_ = 0;
  std::int64_t step_ = 0, base_ = 0, heap_ = 0;
};

/// What a recogniser of word pieces usually has.
constexpr std::int64_t kSpokenUnits = 1024;

void Bench::prepare() {
  batch_ = resolve_batch(deck_, mesh_.along(Axis::data).size());
  if (deck_.model.speech() && deck_.model.gpt.vocab_size == 0) {
    deck_.model.gpt.vocab_size = kSpokenUnits;
    log_.info("model.vocab_size is not given, and synthetic speech has no labels of its own: {}",
              kSpokenUnits);
  }
  data_ = open_bench_batches(deck_, batch_, mesh_, log_, options_.speech);
  resolve_vocabulary(deck_, data_->vocab_size(), "the training data");
  result_.deck = deck_.source;
  result_.precision = deck_.train.precision;
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
  result_.nodes = mesh_.nodes();
  result_.cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  result_.oversubscribed =
      result_.cores > 0 && mesh_.node().size() * result_.threads > result_.cores;
  result_.first_losses.reserve(kFirstSteps);
  result_.first_norms.reserve(kFirstSteps);
  if (options_.noise_probes > 0) check_probes();
  if (options_.last_place_seed > 0 && result_.ranks > 1)
    throw DeckError("--last-place moves the weights of one rank, and here are several",
                    "start it without a launcher");
  if (options_.communicate) return;
  silent_ = Mesh::planned(mesh_.layout(), mesh_.rank(), mesh_.node().size());
  silent_->attach(device_);
}

void Bench::check_probes() const {
  const char* flag = "--gradient-noise compares a micro-batch with the global batch, and ";
  if (deck_.model.speech())
    throw DeckError(std::string(flag) + "the bench of a speech deck has synthetic utterances",
                    "measure it on a token deck");
  if (!options_.communicate)
    throw DeckError(std::string(flag) + "--no-comm leaves the ranks alone",
                    "leave one of the two out");
  if (batch_.global == batch_.micro)
    throw DeckError(std::string(flag) + "this step has one micro-batch only",
                    "set train.grad_accum to 2 or more, or start more ranks");
}

// All ranks at once, as they will compute. Called before the steps, which also starts the threads
// and warms the libraries, and again after them: the better of two moments.
void Bench::measure_products() {
  if (!options_.ceilings) return;
  const Stream stream(device_);
  world().barrier();
  const DType compute = precision_of(deck_.train.precision).compute;
  const double flops = ops::measure_gemm(stream, compute, result_.product_extent);
  result_.nominal_flops = nominal_rate(device_, compute, mesh_.node().size());
  world().all_reduce(&result_.nominal_flops, 1, DType::f64, ReduceOp::sum);
  double sum = flops;
  world().all_reduce(&sum, 1, DType::f64, ReduceOp::sum);
  result_.peak_flops = std::max(result_.peak_flops, sum);
  result_.rates.flops_per_second =
      std::max(result_.rates.flops_per_second, -max_over(world(), -flops));
}

void Bench::measure_memory() {
  if (!options_.ceilings) return;
  world().barrier();
  result_.copy_rate = -max_over(world(), -ops::measure_copy(Stream(device_)));
  world().barrier();
  // On a GPU a store does not read its line first: a copy costs what an update does.
  result_.update_rate =
      device_.host_visible() ? -max_over(world(), -measure_update(device_)) : result_.copy_rate;
  result_.rates.bytes_per_second = std::max(result_.copy_rate, result_.update_rate);
}

void Bench::build() {
  EngineOptions options = engine_options(deck_, batch_);
  options.shapes = data_->shapes();
  options.control = options_.control;
  // Inside a recorded graph events have no time.
  options.time_actions = options_.communicate && mesh_.layout().size(Axis::pipeline) > 1 &&
                         (device_.host_visible() || !options.cuda_graph);
  together(world(), [&] {
    plan_ = plan_step(options, mesh_.layout(), mesh_.rank(), mesh_.node().size(), false, &device_);
  });
  // Past its end the schedule stands still: there the probes are made.
  if (options_.noise_probes > 0) options.schedule = standing_after(options.schedule);
  data_->start(Sharding(mesh_, options.zero, device_));
  world().barrier();
  malloc_trim(0);
  base_ = own_bytes();
  world().barrier();
  engine_ = std::make_unique<Engine>(options, device_, step_mesh(), plan_.arena_bytes);
  engine_->instance().initialise(options.seed);
  if (options_.last_place_seed > 0) move_last_places(engine_->instance(), options_.last_place_seed);
  result_.parameters = engine_->instance().parameters().count();
  // The axes that part the work on a micro-batch, evenly if they can.
  const double parts = world().size() / mesh_.along(Axis::data).size();
  result_.work = data_->work(options, engine_->instance(), parts);
}

double Bench::timed_step() {
  clock_.begin();
  engine_->step(
      step_, [&](std::int64_t j) { return data_->micro_batch(step_, j); }, data_->targets(step_),
      clock_);
  const StepResult step = engine_->finish(clock_);
  clock_.end();
  ++step_;
  last_loss_ = step.loss;
  if (step_ <= kFirstSteps) {
    result_.first_losses.push_back(step.loss);
    result_.first_norms.push_back(step.grad_norm);
  }
  return max_over(world(), clock_.total());
}

void Bench::warm_up() {
  double spent = 0;
  while (step_ < kWarmupSteps || (step_ < 10 && spent < options_.warmup_seconds)) {
    spent += timed_step();
    // With communicators that send nothing there are no sums to look at.
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
  heap_ = heap_bytes();
  double spent = 0, targets = 0;
  std::size_t done = 0;
  const auto enough = [&] {
    if (options_.steps > 0) return done == static_cast<std::size_t>(options_.steps);
    if (done < 3) return false;
    if (spent >= options_.max_seconds || done == kMost) return true;
    return done >= kTimedSteps && spent >= options_.min_seconds;
  };
  for (; !enough(); ++done) {
    targets += data_->targets(step_);
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
  }
  heap_ = heap_bytes() - heap_;
  const auto steps = static_cast<double>(done);
  result_.tokens = std::llround(targets / steps);
  result_.audio_seconds /= steps;
  result_.step_flops /= steps;
}

void Bench::gather() {
  const std::int64_t grown = own_bytes() - base_;
  world().barrier();
  gather_traffic();
  measure_products();
  if (options_.ceilings) result_.floor_seconds = floor_seconds(result_.work, result_.rates);
  result_.median_seconds = median_of(result_.step_seconds);
  for (std::size_t p = 0; p < kPhases; ++p)
    result_.phases[p] = spread_over(world(), median_of(seconds_[p]));
  const double rate = result_.step_flops / result_.median_seconds;
  if (options_.ceilings) result_.mfu = rate / result_.peak_flops;
  result_.hfu_over_mfu = plan_.hfu_over_mfu();
  if (result_.nominal_flops > 0) result_.nominal_mfu = rate / result_.nominal_flops;
  result_.planned_arena = static_cast<std::int64_t>(plan_.arena_bytes);
  const auto peak = static_cast<std::int64_t>(engine_->instance().arena().peak());
  result_.peak_arena = result_.planned_arena + furthest(world(), peak - result_.planned_arena);
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

// Norm of the gradient of one micro-batch: every place of the step gets the same one.
double Bench::small_batch_norm(std::int64_t step) {
  std::array<std::vector<std::byte>, 2> kept;
  ModelBatch one;
  for (std::int64_t j = 0; j < batch_.accum; ++j) {  // all are taken, so that ranks stay abreast
    const ModelBatch batch = data_->micro_batch(step, j);
    if (j > 0) continue;
    one = batch;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      TensorView& view = i == 0 ? one.inputs : one.targets;
      kept[i].resize(view.bytes());
      std::memcpy(kept[i].data(), view.data, view.bytes());
      view.data = kept[i].data();
      mesh_.host_along(Axis::data).broadcast(view.data, view.bytes(), 0);
    }
  }
  engine_->step(
      step, [&](std::int64_t) { return one; }, data_->targets(step), clock_);
  return engine_->finish(clock_).grad_norm;
}

// The learning rate is zero, and so the parameters of all pairs are the same.
void Bench::probe_noise() {
  std::vector<NoiseProbe> probes;
  std::int64_t step = std::max(step_, engine_->options().schedule.decay_steps);
  CHOIR_CHECK(engine_->options().schedule.at(step) == 0, "the learning rate is not 0");
  for (int i = 0; i < options_.noise_probes; ++i) {
    const double small = small_batch_norm(step++);
    engine_->step(
        step, [&](std::int64_t j) { return data_->micro_batch(step, j); }, data_->targets(step),
        clock_);
    const double large = engine_->finish(clock_).grad_norm;
    ++step;
    probes.push_back({small * small, large * large});
  }
  result_.noise = estimate_noise(probes, batch_.micro, batch_.global);
  result_.noise.after_steps = step_;
}

}  // namespace

StepBench bench_step(Deck deck, Mesh& mesh, Device& device, Logger& log,
                     const StepBenchOptions& options) {
  return Bench(std::move(deck), mesh, device, log, options).run();
}

}  // namespace choir
