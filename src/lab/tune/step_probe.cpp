#include "choir/lab/tune/step_probe.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "choir/comm/agreement.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/failure.hpp"
#include "choir/core/plural.hpp"
#include "choir/core/process.hpp"
#include "choir/device/cuda.hpp"
#include "choir/train/step/run_setup.hpp"

namespace choir {
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
               StepProbe& probe) {
  std::vector<std::unique_ptr<HostBatch>> batches;
  for (const BatchShape& shape : shapes_of(options))
    batches.push_back(std::make_unique<HostBatch>(options.model, shape));
  const double before = in_use(*place.device);
  Engine engine(options, *place.device, *place.mesh, plan.arena_bytes);
  engine.instance().initialise(options.seed);
  PhaseClock clock;
  std::int64_t step = 0;
  constexpr int kSteps = 2;  // the first one also starts threads and warms libraries
  for (int i = 0; i < kSteps; ++i)
    for (const auto& host : batches) {
      const double began = now_seconds();
      engine.step(
          step++, [&](std::int64_t) { return host->batch; },
          ByTerm(engine.instance().loss_terms().size(), 1), clock);
      engine.finish(clock);
      probe.seconds = now_seconds() - began;
    }
  probe.taken = in_use(*place.device) - before;
}

}  // namespace

double memory_left(const std::string& root) {
  const double left = std::min(left_of_system(root), left_of_groups(root));
  return left < kUnlimited ? std::max(left, 0.0) : 0;
}

StepProbe probe_step(const Deck& deck, const std::vector<BatchShape>& shapes,
                     const std::vector<BatchShape>& evaluation_shapes, Workplace& place) {
  Mesh& mesh = *place.mesh;
  Communicator& world = mesh.world();
  Device& device = *place.device;
  Deck resolved = deck;
  const BatchSizes batch = resolve_batch(resolved, mesh.along(Axis::data).size());
  EngineOptions options = engine_options(resolved, batch);
  options.shapes = shapes;
  options.evaluation_shapes = evaluation_shapes;
  const std::int64_t in_flight =
      std::int64_t{deck.parallel.pipeline} * std::max(1, deck.parallel.virtual_stages);
  options.micro_batches = std::min(batch.accum, 2 * in_flight);
  StepPlan plan;
  together(world, [&] {
    plan = plan_step(options, mesh.layout(), mesh.rank(), mesh.node().size(),
                     options.model.family().writes_samples(resolved), &device, false);
  });
  options.arena_requests = plan.arena_requests;
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
    run_steps(options, plan, place, probe);
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

}  // namespace choir
