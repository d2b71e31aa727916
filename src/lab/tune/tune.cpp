#include "src/lab/tune/tune.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>

#include "choir/core/error.hpp"
#include "choir/deck/deck.hpp"
#include "choir/run/training_data.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/device/cuda.hpp"
#include "src/run/run_setup.hpp"
#include "src/train/step/engine.hpp"

namespace choir {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// Sets the ranks to those of this job, or of the requested one.
void take_ranks(const TunePlace& place, Mesh& mesh, PlanCase& to) {
  Communicator& world = mesh.world();
  const int here = world.size();
  together(world, [&] {
    if (here > 1 && (place.ranks || place.ranks_per_node))
      throw DeckError("--ranks and --gpus-per-node are for tuning on one process",
                      "omit them: under mpiexec the started ranks are used");
    to.ranks = here > 1 ? here : ranks_asked(place.ranks, to.deck);
    to.target = find_target(place.target, to.deck);
    if (here == 1)
      to.ranks_per_node = ranks_per_node_asked(place.ranks_per_node, to.ranks, to.target);
  });
  require_equal(world, static_cast<std::uint64_t>(to.target.kind), "the kind of device");
  if (here > 1) {
    std::int64_t on_node = mesh.node().size();
    world.all_reduce(&on_node, 1, DType::i64, ReduceOp::max);
    to.ranks_per_node = static_cast<int>(on_node);
  }
  choose_threads(mesh.node());
  if (here == 1) take_threads_of(to);
}

/// The number of ranks on one GPU of this machine, if they may share it.
int sharing_a_card(const TunePlace& place, const PlanCase& to) {
  const bool here = place.target.empty() || place.target == "here";
  if (!here || !to.deck.parallel.share_device) return 1;
  const int cards = std::max(1, to.target.ranks_per_node);
  return (std::min(to.ranks, to.ranks_per_node) + cards - 1) / cards;
}

/// Sets the least memory that any rank may use.
std::string take_memory(const TunePlace& place, Mesh& mesh, PlanCase& to) {
  std::string limit;
  const PlanTarget& target = to.target;
  double bytes = 0;
  together(mesh.world(), [&] {
    if (!place.memory.empty())
      bytes = memory_of_word(place.memory), limit = "--memory";
    else if (target.node_memory) {
      const double most = target.memory_of_rank(std::min(to.ranks, to.ranks_per_node));
      bytes = kTunedShareOfNode * most;
      limit = fmt::format(
          "{:.0f} % of the {} of a rank that choir plan and training allow, because the rest "
          "of the system needs memory, too; --memory for another limit",
          100 * kTunedShareOfNode, format_bytes(most));
    } else
      bytes = target.memory / sharing_a_card(place, to), limit = "of the card";
  });
  mesh.world().all_reduce(&bytes, 1, DType::f64, ReduceOp::min);
  to.target.memory = bytes;
  to.target.node_memory = false;
  return limit;
}

}  // namespace

double memory_of_word(const std::string& word) {
  static const std::map<std::string, double> kUnits{{"", kGiB},    {"B", 1},
                                                    {"KiB", 1024}, {"MiB", 1024.0 * 1024},
                                                    {"GiB", kGiB}, {"TiB", 1024 * kGiB}};
  double number = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, problem] = std::from_chars(word.data(), end, number);
  const auto unit = kUnits.find(std::string(trim(std::string_view(stop, end))));
  if (problem != std::errc() || unit == kUnits.end() || !(number > 0) || !std::isfinite(number))
    throw DeckError(
        fmt::format("--memory {} is not an amount of memory", word),
        "give the memory that one rank may use: a number of GiB, or 512MiB, 6GiB, 6442450944B");
  return number * unit->second;
}

std::string take_place(const TunePlace& place, Mesh& mesh, PlanCase& to) {
  take_ranks(place, mesh, to);
  return take_memory(place, mesh, to);
}

namespace {

constexpr double kMiB = 1024.0 * 1024.0;
/// With fewer micro-batches a pipeline is idle more than necessary (the same number as in `choir
/// plan`).
constexpr std::int64_t kMicroBatchesPerStage = 4;

bool given(const Deck& deck, const char* key) {
  const auto origin = deck.origins.find(key);
  return origin != deck.origins.end() && origin->second.source != KeySource::derived;
}

std::vector<std::string> changes_to(const Deck& deck, std::int64_t micro, std::int64_t accum) {
  std::vector<std::string> changes{fmt::format("train.micro_batch_size={}", micro)};
  if (given(deck, "train.grad_accum")) changes.push_back(fmt::format("train.grad_accum={}", accum));
  return changes;
}

std::optional<LayoutPlan> planned(PlanCase request, const DeckVariants& variants,
                                  const std::vector<std::string>& changes) {
  const std::optional<Deck> deck = variants.legal_with(changes);
  if (!deck) return std::nullopt;
  request.deck = *deck;
  return plan_layout(request);
}

DeckError too_large(const LayoutPlan& plan, std::int64_t micro) {
  const MemoryPlan& memory = plan.fullest().plan.memory;
  const double parameters = parameter_bytes(memory);
  const bool alone = parameters > plan.memory_limit;
  return DeckError(
      fmt::format(
          "{}a micro-batch of {} needs {} a rank ({}), above the limit of {}",
          alone ? fmt::format("the parameters alone are {} a rank; ", format_bytes(parameters))
                : "",
          micro, format_bytes(static_cast<double>(memory.total())), memory_text(memory),
          format_bytes(plan.memory_limit)),
      "use more memory per rank; train.recompute=full; or parallel.zero, parallel.tensor or "
      "parallel.pipeline on more ranks; `choir plan` lists the layouts that fit");
}

}  // namespace

const std::vector<std::string>& TunedMicroBatch::changes() const {
  const auto largest =
      std::find_if(rows.rbegin(), rows.rend(), [](const Row& r) { return r.fits; });
  return largest->changes;
}

TunedMicroBatch tune_micro_batch(const PlanCase& request, const DeckVariants& variants) {
  if (request.deck.train.reproducible)
    throw DeckError(
        "train.reproducible = true: gradients are summed by micro-batches, so another "
        "train.micro_batch_size changes the result",
        "tune with train.reproducible=false, and set it again if the result may change");
  TunedMicroBatch tuned;
  Deck deck = request.deck;
  const int data = layout_of(deck, request.ranks).size(Axis::data);
  tuned.batch = tuned.was = resolve_batch(deck, data);
  const std::int64_t share = tuned.was.global / data;
  const int stages = deck.parallel.pipeline;
  tuned.limited_by = "train.global_batch_size";
  bool found = false;
  for (std::int64_t micro = 1; micro <= share; ++micro) {
    if (share % micro != 0) continue;
    const std::int64_t accum = share / micro;
    if (found && stages > 1 && accum < kMicroBatchesPerStage * stages) {
      tuned.limited_by = fmt::format("parallel.pipeline: {} stages need {} micro-batches", stages,
                                     kMicroBatchesPerStage * stages);
      break;
    }
    const std::vector<std::string> changes = changes_to(request.deck, micro, accum);
    const std::optional<LayoutPlan> plan = planned(request, variants, changes);
    if (!plan) continue;
    tuned.memory_limit = plan->memory_limit;
    tuned.rows.push_back({micro, accum, plan->needs(), plan->fits(), changes});
    if (!plan->fits()) {
      if (!found) throw too_large(*plan, micro);
      tuned.limited_by = "memory";
      break;
    }
    found = true;
    tuned.batch = plan->batch;
  }
  CHOIR_CHECK(found, "no micro-batch of {} is legal", share);
  return tuned;
}

std::string to_string(const TunedMicroBatch& tuned) {
  std::string text =
      fmt::format("  {:>12} {:>12} {:>14}\n", "micro-batch", "accumulated", "planned MiB");
  for (const TunedMicroBatch::Row& row : tuned.rows)
    text += fmt::format("  {:>12} {:>12} {:>14.1f}{}\n", row.micro, row.accum, row.bytes / kMiB,
                        row.fits ? "" : "  above the limit");
  return text + fmt::format(
                    "  limit {} a rank\n"
                    "train.micro_batch_size {} (was {}), limited by {}; global batch {} = {} x {} "
                    "x {}\n",
                    format_bytes(tuned.memory_limit), tuned.batch.micro, tuned.was.micro,
                    tuned.limited_by, tuned.batch.global, counted(tuned.batch.micro, "sequence"),
                    counted(tuned.batch.accum, "micro-batch"),
                    counted(tuned.batch.data_parallel, "data-parallel rank"));
}

namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

/// The number in a file of a control group; infinite if there is none ("max", or no file).
double number_in(const std::string& path) {
  std::ifstream file(path);
  double bytes = 0;
  return file >> bytes ? bytes : kUnlimited;
}

double left_of_system(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string word;
  double kib = 0;
  while (file >> word)
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  return kUnlimited;
}

/// The group and its parents may each have a limit. Cached memory can be reclaimed.
double left_of_group(const std::string& folder, std::string path, const char* limit,
                     const char* used) {
  double left = kUnlimited;
  for (;; path.resize(path.rfind('/'))) {
    const std::string group = folder + path + "/";
    const double most = number_in(group + limit);
    if (most < kUnlimited) {
      const double now = number_in(group + used);
      double cached = 0;
      std::ifstream statistics(group + "memory.stat");
      for (std::string key; statistics >> key;)
        if (double bytes = 0; statistics >> bytes && key == "inactive_file") cached = bytes;
      left = std::min(left, most - (now < kUnlimited ? now : 0) + cached);
    }
    if (path.rfind('/') == std::string::npos) return left;
  }
}

double left_of_groups(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  double left = kUnlimited;
  for (std::string line; std::getline(file, line);) {  // "4:memory:/path" or "0::/path"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers.empty())
      left = std::min(left,
                      left_of_group(root + "/sys/fs/cgroup", path, "memory.max", "memory.current"));
    else if (controllers == "memory")
      left = std::min(left, left_of_group(root + "/sys/fs/cgroup/memory", path,
                                          "memory.limit_in_bytes", "memory.usage_in_bytes"));
  }
  return left;
}

/// On the CPU the system promises more memory than it has and kills processes that use it, so the
/// available memory is checked before.
void require_left(double wanted_on_node) {
  const double left = memory_left();
  if (left > 0 && wanted_on_node > left)
    throw DeckError(
        fmt::format("out of memory: the ranks of this node need {}, but {} are available",
                    format_bytes(wanted_on_node), format_bytes(left)),
        "stop other programs here, or request more memory from the batch system");
}

/// Used bytes, which grow with the memory that this process takes.
double in_use(const Device& device) {
  const cuda::Card* card = cuda::card_of(device);
  return card == nullptr
             ? static_cast<double>(resident_bytes())
             : static_cast<double>(card->memory) - static_cast<double>(cuda::free_memory(device));
}

void run_steps(const EngineOptions& options, const StepPlan& plan, Workplace& place,
               TrainingData* data, StepProbe& probe) {
  std::vector<std::unique_ptr<HostBatch>> batches;
  for (const BatchShape& shape : shapes_of(options))
    batches.push_back(std::make_unique<HostBatch>(options.model, shape));
  const double before = in_use(*place.device);
  Engine engine(options, *place.device, *place.mesh, plan.arena_bytes);
  if (data != nullptr) data->load_scorers(*place.device);
  engine.instance().initialise(options.seed);
  PhaseClock clock;
  std::int64_t step = 0;
  constexpr int kSteps = 3;  // the first one also starts threads and warms libraries
  std::vector<double> seconds(batches.size(), std::numeric_limits<double>::infinity());
  for (int i = 0; i < kSteps; ++i)
    for (std::size_t b = 0; b < batches.size(); ++b) {
      const auto& host = batches[b];
      const double began = now_seconds();
      engine.step(
          step++, [&](std::int64_t) { return host->batch; },
          ByTerm(engine.instance().loss_terms().size(), 1), clock);
      engine.finish(clock);
      if (i > 0) seconds[b] = std::min(seconds[b], now_seconds() - began);
    }
  probe.seconds = seconds.back();
  probe.taken = in_use(*place.device) - before;
}

}  // namespace

double memory_left(const std::string& root) {
  const double left = std::min(left_of_system(root), left_of_groups(root));
  return left < kUnlimited ? std::max(left, 0.0) : 0;
}

StepProbe probe_step(const Deck& deck, const std::vector<BatchShape>& shapes,
                     const std::vector<BatchShape>& evaluation_shapes, Workplace& place,
                     std::int64_t samples, TrainingData* data) {
  Mesh& mesh = *place.mesh;
  Communicator& world = mesh.world();
  Device& device = *place.device;
  Deck resolved = deck;
  const BatchSizes batch = resolve_batch(resolved, mesh.along(Axis::data).size());
  EngineOptions options = engine_options(resolved, batch);
  options.compare_counts = false;  // the batches of a probe are all alike
  options.shapes = shapes;
  options.evaluation_shapes = evaluation_shapes;
  if (data != nullptr) together(world, [&] { data->add_scorers(options.scorers, &device); });
  const std::int64_t in_flight =
      std::int64_t{deck.parallel.pipeline} * std::max(1, deck.parallel.virtual_stages);
  const std::int64_t for_samples = (samples + batch.micro - 1) / batch.micro;
  options.micro_batches = std::min(batch.accum, std::max(2 * in_flight, for_samples));
  const StepPlan plan =
      plan_in_memory(options, mesh, options.model.family().writes_samples(resolved), device, false);
  StepProbe probe{.micro_batches = options.micro_batches};
  const auto of_device = static_cast<double>(plan.memory.total());
  probe.planned = of_device;
  world.all_reduce(&probe.planned, 1, DType::f64, ReduceOp::max);
  double on_node = static_cast<double>(plan.memory.total(MemoryPlace::host));
  if (cuda::card_of(device) == nullptr) on_node += of_device;
  mesh.node().all_reduce(&on_node, 1, DType::f64, ReduceOp::sum);
  try {
    together(world, [&] {
      require_memory(plan, mesh.node().size(), device);  // as in training
      require_left(on_node);
      const Buffer trial(device, plan.memory.total());
    });
  } catch (const Error& error) {
    probe.why = error.what();
    return probe;
  }
  try {
    run_steps(options, plan, place, data, probe);
  } catch (const std::exception& error) {
    if (world.size() > 1) throw;
    probe.why = failure_of(error).text;
    return probe;
  }
  probe.ran = true;
  double most[2] = {probe.taken, probe.seconds};
  world.all_reduce(most, 2, DType::f64, ReduceOp::max);
  probe.taken = most[0], probe.seconds = most[1];
  return probe;
}

std::string to_string(const StepProbe& probe) {
  if (!probe.ran) return "did not run: " + probe.why;
  return fmt::format("ran, {} a step of {}; planned {} a rank, taken {}",
                     format_duration(probe.seconds), counted(probe.micro_batches, "micro-batch"),
                     format_bytes(probe.planned), format_bytes(std::max(0.0, probe.taken)));
}

std::size_t fastest_of(const std::vector<ProbedMicroBatch>& probed) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < probed.size(); ++i)
    if (probed[i].probe.ran &&
        probed[i].seconds_per_sequence() < probed[best].seconds_per_sequence())
      best = i;
  return best;
}

std::string choice_text(const std::vector<ProbedMicroBatch>& probed) {
  const ProbedMicroBatch& best = probed[fastest_of(probed)];
  const auto largest = std::find_if(probed.rbegin(), probed.rend(),
                                    [](const ProbedMicroBatch& one) { return one.probe.ran; });
  std::string text = fmt::format("the fastest that ran: train.micro_batch_size {} ({} a sequence",
                                 best.micro, format_duration(best.seconds_per_sequence()));
  if (largest != probed.rend() && largest->micro != best.micro)
    text += fmt::format("; the largest, {}: {}", largest->micro,
                        format_duration(largest->seconds_per_sequence()));
  return text + ")\n";
}

}  // namespace choir
