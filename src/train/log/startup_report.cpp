#include "choir/train/log/startup_report.hpp"

#include <omp.h>

#include <array>
#include <cstdlib>

#include "choir/comm/axis_speed.hpp"
#include "choir/comm/mpi_session.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/plural.hpp"
#include "choir/core/text.hpp"
#include "choir/device/cuda.hpp"
#include "choir/ops/gemm.hpp"

namespace choir {
namespace {

/// The batch system that started us, by what it leaves in the environment.
std::string scheduler() {
  constexpr std::array<std::array<const char*, 2>, 4> kKnown{{{"PBS_JOBID", "PBS"},
                                                              {"SLURM_JOB_ID", "SLURM"},
                                                              {"LSB_JOBID", "LSF"},
                                                              {"FLUX_JOB_ID", "Flux"}}};
  for (const auto& [variable, name] : kKnown)
    if (const char* id = std::getenv(variable)) return fmt::format("{} {}", name, id);
  return "none";
}

// Enough to tell one card from another.
std::string describe(const cuda::Card& card) {
  constexpr std::size_t kTail = 12;
  const std::string tail =
      card.uuid.size() > kTail ? card.uuid.substr(card.uuid.size() - kTail) : card.uuid;
  const std::string numa = card.numa_node < 0 ? "?" : std::to_string(card.numa_node);
  return fmt::format(", {} {} at {}, NUMA node {}", card.name, tail, card.pci, numa);
}

}  // namespace

std::string who_am_i(Mesh& mesh, const Device& device) {
  const cuda::Card* card = cuda::card_of(device);
  return fmt::format("[device='{}'][rank={}/{}][local_rank={}/{}][node={}/{}] {} {}{}",
                     name_of(device.kind()), mesh.rank(), mesh.world().size() - 1,
                     mesh.node().rank(), mesh.node().size() - 1, mesh.node_index(),
                     mesh.nodes() - 1, host_name(), counted(omp_get_max_threads(), "thread"),
                     card == nullptr ? "" : describe(*card));
}

std::string dist_info(Mesh& mesh, const Device& device, const std::string& device_reason) {
  Communicator& data = mesh.along(Axis::data);
  const std::string why = device_reason.empty() ? "" : fmt::format(" (auto: {})", device_reason);
  return fmt::format(
      "dist_info:\n"
      "  DEVICE={}{}\n  DISTRIBUTED_BACKEND={}\n  HOSTNAME={}\n  MACHINE={}\n  NUM_NODES={}\n"
      "  RANKS_PER_NODE={}\n  THREADS_PER_RANK={}\n  SCHEDULER={}\n  WORLD_SIZE_TOTAL={}\n"
      "  LAYOUT={}\n  DATA_PARALLEL_TRANSPORT={}\n  MPI={}",
      device.description(), why, device.host_visible() ? "mpi" : data.transport(), host_name(),
      "linux", mesh.nodes(), mesh.node().size(), omp_get_max_threads(), scheduler(),
      mesh.world().size(), mesh.layout().to_string(), data.transport(),
      MpiSession::library_version());
}

std::string transport_report(Mesh& mesh, Device& device) {
  const std::size_t bytes = std::size_t{device.host_visible() ? 4u : 32u} << 20;
  std::string text;
  for (const AxisSpeed& axis : measure_axes(mesh, device, bytes))
    text +=
        fmt::format("\n  {}: {} ranks, transport {}, all-reduce of {}: {:.2f} GB/s bus bandwidth",
                    short_name(axis.axis), axis.ranks, axis.transport,
                    format_bytes(static_cast<double>(axis.bytes)), axis.bus_gb_per_s);
  if (text.empty()) return "axes: one rank, nothing travels";
  if (!mesh.transport_note().empty()) text += "\n  staged because " + mesh.transport_note();
  return "axes:" + text;
}

namespace {

/// What a step consists of.
std::string batch_report(Engine& engine, std::int64_t ranks) {
  const EngineOptions& o = engine.options();
  if (o.model.is_speech())
    return fmt::format("  micro-batches a step       {:>16} = {} x {}\n", o.micro_batches * ranks,
                       o.micro_batches, counted(ranks, "rank"));
  const std::int64_t sequences = o.micro_batch_size * o.micro_batches * ranks;
  return fmt::format(
      "  sequences per iteration    {:>16} = {} x {} micro-batches x {}\n"
      "  tokens per iteration       {:>16}\n",
      format_count(sequences), o.micro_batch_size, o.micro_batches, counted(ranks, "rank"),
      format_count(sequences * o.model.gpt().block_size));
}

/// Of a model of which a part is trained.
std::string frozen_report(const ParameterSet& parameters) {
  constexpr std::size_t kNamed = 3;
  std::vector<std::string> names;
  for (const Parameter* p : parameters.all())
    if (!p->trainable) names.push_back(p->name);
  if (names.empty()) return {};
  const std::size_t count = names.size();
  names.resize(std::min(count, kNamed));
  return fmt::format("  frozen                     {:>16} in {} tensors: {}{}\n",
                     format_count(parameters.count_frozen()), count, join(names, ", "),
                     count > kNamed ? ", ..." : "");
}

}  // namespace

std::string model_report(Engine& engine) {
  Model& model = engine.instance().model();
  const ParameterSet& parameters = engine.instance().parameters();
  const EngineOptions& o = engine.options();
  std::int64_t decayed_tensors = 0;
  for (const Parameter* p : parameters.all()) decayed_tensors += p->decay;
  const auto tensors = static_cast<std::int64_t>(parameters.all().size());
  const std::int64_t ranks = engine.mesh().along(Axis::data).size();
  const TensorSplit& split = parameters.tensor();
  const std::string divided =
      split.ranks == 1 ? "not divided"
                       : fmt::format("over {} ranks{}", split.ranks,
                                     split.sequence ? ", with sequence parallelism" : "");
  const std::string without_positions =
      o.model.is_speech()
          ? ""
          : fmt::format("  without positions          {:>16}\n",
                        format_count(engine.instance().gpt().parameters_without_positions()));
  return fmt::format(
      "model:\n{}"
      "  parameters                 {:>16}\n{}"
      "  decayed                    {:>16} in {} tensors\n"
      "  not decayed                {:>16} in {} tensors\n"
      "{}"
      "  tensor axis                {:>16}\n"
      "{}"
      "  GEMM                       {:>16}\n"
      "  results are read           {:>16}\n"
      "  train.cuda_graph           {}",
      model.describe(), format_count(parameters.count()), without_positions,
      format_count(parameters.count_decayed()), decayed_tensors,
      format_count(parameters.count() - parameters.count_decayed()), tensors - decayed_tensors,
      frozen_report(parameters), divided, batch_report(engine, ranks),
      ops::gemm_library(o.precision.compute),
      engine.lag() == 0 ? "after each step" : fmt::format("{} step(s) later", engine.lag()),
      engine.graph_use());
}

std::string zero_report(Engine& engine) {
  const EngineOptions& o = engine.options();
  const ParameterStorage& storage = engine.instance().storage();
  const Sharding& sharding = storage.sharding();
  const int ranks = sharding.group().size();
  constexpr std::array<const char*, 4> kSpread{"nothing is sharded", "moments",
                                               "moments and gradients",
                                               "moments, gradients and parameters"};
  std::string spread = kSpread[static_cast<std::size_t>(sharding.stage())];
  if (o.precision.has_copy() && (sharding.stage() == 1 || sharding.stage() == 2))
    spread = "masters, " + spread;
  std::string text = fmt::format("zero: stage {}: {}", sharding.stage(), spread);
  if (sharding.stage() > 0)
    text += fmt::format(" in {} slice(s), {} group(s) of {} rank(s)", ranks,
                        sharding.replica_count(), ranks);
  if (sharding.data().size() == 1) return text;
  const ParameterSet& all = storage.parameters();
  const auto trained = static_cast<double>(all.trained_size());
  const double gradients = trained * static_cast<double>(size_of(o.precision.gradient));
  // Frozen values stay where they are whole.
  const auto gathered = sharding.values_sharded() ? static_cast<double>(all.flat_size()) : trained;
  const double values = gathered * static_cast<double>(size_of(o.precision.compute));
  const auto passes = static_cast<double>(o.micro_batches);
  if (sharding.stage() == 0) return text + "; a step all-reduces " + format_bytes(gradients);
  text += fmt::format("; a step reduce-scatters {}, gathers {}{}",
                      format_bytes(gradients * (sharding.gradients_sharded() ? passes : 1)),
                      sharding.values_sharded() ? "at most " : "",
                      format_bytes(values * (sharding.values_sharded() ? 2 * passes : 1)));
  if (sharding.replicas() != nullptr)
    text += fmt::format(", all-reduces {} between the groups", format_bytes(gradients / ranks));
  return text;
}

std::string offload_report(Engine& engine) {
  const OffloadOptions& options = engine.options().offload;
  const ParameterStorage& storage = engine.instance().storage();
  const OffloadedState* state = storage.offloaded();
  if (!options.any()) return "offload: nothing";
  if (state == nullptr)
    return fmt::format(
        "offload: of no effect: the memory of the {} device is host memory; parallel.offload = "
        "\"file\" keeps the optimizer state on a disk",
        name_of(engine.instance().device().kind()));
  std::string what = state->has(OffloadedState::master) ? "masters and moments" : "moments";
  if (storage.values_outside()) what = "parameters and moments";
  const bool file = state->place() == MemoryPlace::file;
  const std::string bytes = format_bytes(static_cast<double>(state->memory().bytes()));
  std::string text =
      fmt::format("offload: {} of each rank ({}) in {}; a step fetches and writes back as much",
                  what, bytes, file ? "a file in " + options.directory : "host memory");
  if (file && is_memory_file_system(options.directory))
    text += fmt::format(
        "; {} is memory itself, which saves nothing: set parallel.offload_dir to a "
        "directory of a disk",
        options.directory);
  return text;
}

std::string memory_report(const StepPlan& plan, Communicator& world) {
  const std::string repeated =
      plan.repeated_flops > 0
          ? fmt::format(" (of it {:.2f} for train.recompute, which mfu does not count)",
                        plan.repeated_flops / 1e9)
          : "";
  const auto mine = static_cast<double>(plan.memory.total());
  double largest = mine, rank = world.rank();
  world.all_reduce(&largest, 1, DType::f64, ReduceOp::max);
  if (mine < largest) rank = world.size();
  world.all_reduce(&rank, 1, DType::f64, ReduceOp::min);
  const std::string fuller =
      largest > mine ? fmt::format("\n  fullest rank: {}, {}", rank, format_bytes(largest)) : "";
  return fmt::format("memory plan per rank:\n{}{}\n  work of one step: {:.2f} GFLOP{}, {} touched",
                     plan.memory.to_string(), fuller, plan.flops / 1e9, repeated,
                     format_bytes(plan.bytes));
}

}  // namespace choir
