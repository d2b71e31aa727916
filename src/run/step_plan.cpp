// Traffic of a step, its fit into the memory of this machine, and its least time.

#include "src/run/step_plan.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "choir/core/error.hpp"
#include "choir/run/training_data.hpp"
#include "src/comm/nccl_needs.hpp"
#include "src/core/quantities.hpp"
#include "src/device/cuda.hpp"

namespace choir {

std::vector<StepCommunicator> step_communicators(Mesh& mesh, const Sharding& sharding) {
  std::vector<StepCommunicator> list;
  for (int a = 0; a < kAxes; ++a)
    list.push_back({static_cast<Axis>(a), &mesh.along(static_cast<Axis>(a))});
  for (const auto& channel : mesh.more_stage_channels())
    list.push_back({Axis::pipeline, channel.get()});
  for (Communicator* more :
       {&sharding.data(), &sharding.group(), &sharding.gathers(), sharding.replicas()}) {
    const bool known = std::any_of(list.begin(), list.end(), [&](const StepCommunicator& other) {
      return other.communicator == more;
    });
    if (more != nullptr && !known) list.push_back({Axis::data, more});
  }
  return list;
}

void reset_traffic(Mesh& mesh, const Sharding& sharding) {
  for (const StepCommunicator& c : step_communicators(mesh, sharding))
    c.communicator->reset_traffic();
}

StepTraffic traffic_of(Mesh& mesh, const Sharding& sharding) {
  StepTraffic sum;
  for (const StepCommunicator& c : step_communicators(mesh, sharding)) {
    const CommTraffic& traffic = c.communicator->traffic();
    CommTraffic& axis = sum[static_cast<std::size_t>(c.axis)];
    axis.calls += traffic.calls;
    axis.bytes += traffic.bytes;
    axis.seconds += traffic.seconds;
  }
  return sum;
}

namespace {

/// The three largest entries of one rank: "activations 12 GiB, gradients 1 GiB, ...".
std::string largest_entries(const MemoryPlan& plan) {
  std::vector<MemoryPlan::Entry> entries = plan.entries;
  std::erase_if(entries, [](const auto& entry) { return entry.place != MemoryPlace::device; });
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, entries.size()); ++i)
    text += fmt::format("{}{} {}", i ? ", " : "", entries[i].name,
                        format_bytes(static_cast<double>(entries[i].bytes)));
  return text;
}

}  // namespace

void add_nccl(StepPlan& plan, const Mesh& mesh, const DeviceTransport& transport,
              const cuda::Card& card) {
  if (transport.way == DeviceTransport::Way::staged || transport.shared_cards) return;
  std::size_t bytes = nccl_memory(mesh, transport, card.multiprocessors, card.major);
  if (bytes == 0) return;
  const Layout& layout = mesh.layout();
  const bool shares_activations = layout.size(Axis::tensor) > 1 || layout.size(Axis::context) > 1;
  const bool gathers = transport.replica_groups > 0;
  const auto registered = [&](const std::string& name) {
    if (name == "activations") return shares_activations;
    if (mesh.replica_ranks().size() == 1) return false;
    return name == "gradients" || name.ends_with(" whole buckets") ||
           (gathers && name == "parameters, compute copy");
  };
  for (const MemoryPlan::Entry& entry : plan.memory.entries)
    if (transport.register_memory && entry.place == MemoryPlace::device && registered(entry.name))
      bytes += nccl_rounding(entry.bytes, nccl_granularity(card.major));
  plan.memory.add("NCCL, about", bytes);
}

double node_memory() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double free_for_plans(const Device& device) {
  constexpr double kForLibraries = 768.0 * (1 << 20), kOfSmallCard = 0.1;
  const auto card = static_cast<double>(cuda::card_of(device)->memory);
  return std::max(0.0, static_cast<double>(cuda::free_memory(device)) -
                           std::min(kForLibraries, kOfSmallCard * card));
}

void require_memory(const StepPlan& plan, int ranks_per_node, const Device& device) {
  const cuda::Card* card = cuda::card_of(device);
  const double has = card ? free_for_plans(device) : node_memory();
  const int ranks = card ? 1 : ranks_per_node;
  const double wants = static_cast<double>(plan.memory.total()) * ranks;
  const double data = static_cast<double>(plan.memory.bytes_of(TrainingData::kResident)) * ranks;
  if (wants > has && wants - data <= has)
    throw DeckError(
        fmt::format(
            "data.preload = \"device\": {} rank(s) need {} for the training data on {}, but "
            "the rest of the plan leaves {} of {}",
            ranks, format_bytes(data), card ? card->name : "this node",
            format_bytes(has - (wants - data)), format_bytes(has)),
        "set data.preload to \"host\" or \"none\", use less data, or lower the memory of the "
        "model (`choir plan` shows it)");
  if (wants > has)
    throw DeckError(
        fmt::format("out of memory: {} rank(s) on {} need {}, but it has {} for them ({})", ranks,
                    card ? card->name : "this node", format_bytes(wants), format_bytes(has),
                    largest_entries(plan.memory)),
        fmt::format(
            "`choir plan` proposes layouts that fit. Try in this order: lower "
            "train.micro_batch_size; train.recompute=full; parallel.zero=1 to 3 (with 3 "
            "also model.tile=4, which divides the largest matrices); {}; lower "
            "model.block_size or the size of the model; or use {}",
            card ? "parallel.offload=optimizer or file (with zero=3: all; with zero=2 or 3 also "
                   "parallel.offload_gradients=true)"
                 : "parallel.offload=file",
            card ? "more GPUs or one with more memory" : "fewer ranks per node"));
  // The rest applies if host and device memory differ.
  const double host = static_cast<double>(plan.memory.total(MemoryPlace::host)) * ranks_per_node +
                      (card ? 0 : wants);
  if (host <= node_memory()) return;
  throw DeckError(fmt::format("out of host memory: {} rank(s) on this node need {} with "
                              "parallel.offload, but it has {}",
                              ranks_per_node, format_bytes(host), format_bytes(node_memory())),
                  "set parallel.offload to \"file\", spread the state over more ranks "
                  "(parallel.zero), or use fewer ranks per node");
}

bool snapshot_fits(const StepPlan& plan, int ranks_per_node, const Device& device) {
  const MemoryPlan& memory = plan.memory;
  const std::size_t bytes = (cuda::card_of(device) ? 0 : memory.total()) +
                            memory.total(MemoryPlace::host) + plan.snapshot_bytes;
  return static_cast<double>(bytes) * ranks_per_node <= node_memory();
}

StepWork update_work(const Precision& precision, std::int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  const auto master = static_cast<double>(size_of(precision.master));
  const auto word = static_cast<double>(size_of(precision.gradient));
  const auto moment = static_cast<double>(size_of(precision.moment));
  const auto copy = precision.has_copy() ? static_cast<double>(size_of(precision.compute)) : 0.0;
  return {.optimizer_bytes = (2 * master + word + 4 * moment + copy) * count,
          .norm_bytes = word * count};
}

double floor_seconds(const StepWork& work, const StepRates& rates) {
  return work.flops() / rates.flops_per_second + work.bytes() / rates.bytes_per_second;
}

}  // namespace choir
