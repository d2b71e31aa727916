// The check of a start without starting.

#include "src/train/loop/train.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "choir/core/error.hpp"
#include "choir/models/family.hpp"
#include "choir/run/training_data.hpp"
#include "kernels/gemm/packing_memory.hpp"
#include "src/core/quantities.hpp"
#include "src/device/cpu_device.hpp"
#include "src/device/cuda.hpp"
#include "src/run/null_instance.hpp"
#include "src/run/run_setup.hpp"
#include "src/run/stored_averages.hpp"
#include "src/store/open.hpp"
#include "src/train/loop/faults.hpp"
#include "src/train/loop/initial_state.hpp"
#include "src/train/loop/resume_point.hpp"
#include "src/train/loop/run_directory.hpp"
#include "src/train/loop/startup_report.hpp"
#include "src/train/step/engine.hpp"
#include "src/train/step/memory_fit.hpp"
#include "src/train/step/train_checkpoint.hpp"

namespace choir {
namespace {

/// The data-parallel size, as far as the deck determines it, if the ranks are unknown.
int data_parallel_of(const Deck& deck) {
  const TrainSection& train = deck.train;
  if (deck.parallel.data > 0) return deck.parallel.data;
  const std::int64_t of_rank = std::int64_t{train.micro_batch_size} * train.grad_accum;
  if (!deck.family().fixed_shape() || of_rank == 0 || train.global_batch_size == 0) return 1;
  return static_cast<int>(std::max<std::int64_t>(1, train.global_batch_size / of_rank));
}

/// The layout of the ranks, or the smallest one that the deck allows.
Layout layout_to_check(const Deck& deck, const CheckedRanks& ranks) {
  const ParallelSection& p = deck.parallel;
  if (ranks.all > 0) return layout_of(deck, ranks.all);
  return {p.tensor, p.context, data_parallel_of(deck), p.pipeline, p.order};
}

/// True if more ranks could not make the plan of a rank smaller.
bool is_smallest(const Deck& deck, const CheckedRanks& ranks) {
  return ranks.all > 0 || deck.parallel.data > 0 || deck.parallel.zero == 0;
}

/// The device on which the run would compute, here or on a card of another machine. A job for GPUs
/// is often checked on a node that has none: nullptr then, with a line in `facts`. Throws DeckError
/// if this build has no CUDA.
std::unique_ptr<Device> device_to_check(const Deck& deck, const CheckedRanks& ranks, Mesh& alone,
                                        std::string& facts) {
  if (ranks.card) return std::make_unique<NullDevice>(DeviceKind::cuda);
  const cuda::Availability found = cuda::availability();
  const bool elsewhere = found.cards.empty() && !found.toolkit.empty() &&
                         deck.train.precision != TrainPrecision::fp64 &&
                         deck.device == RequestedDevice::cuda;
  if (elsewhere) {
    facts += fmt::format(
        "device and memory were not checked, because this machine has no usable GPU: {}\n",
        found.reason);
    return nullptr;
  }
  const DeviceChoice choice =
      choose_device(alone, {.device = deck.device,
                            .fp64 = deck.train.precision == TrainPrecision::fp64,
                            .share = deck.parallel.share_device});
  return make_device(choice.kind, choice.ordinal);
}

/// Adds the memory of NCCL to the plan of a rank on this card.
void add_nccl_of(const CheckedRanks::Card& card, const Deck& deck, const Layout& layout,
                 int on_node, StepPlan& plan) {
  cuda::Card like;
  like.multiprocessors = card.multiprocessors;
  like.major = card.compute_major;
  add_nccl(plan, *Mesh::planned(layout, 0, on_node), device_transport_of(deck), like);
}

/// Compares a plan with the memory of a card, which may be in another machine.
std::string compare_with_card(const StepPlan& plan, const CheckedRanks& ranks,
                              const Layout& layout) {
  const auto needs = static_cast<double>(plan.memory.total());
  const std::string nodes =
      ranks.assumed_node
          ? fmt::format(" on {} of {} (assumed)",
                        counted((ranks.all + ranks.on_node - 1) / ranks.on_node, "node"),
                        ranks.on_node)
          : "";
  if (needs <= ranks.card->memory)
    return fmt::format("memory: {} for rank 0 of {}{}, of {} that one {} has for it\n",
                       format_bytes(needs), layout.to_string(), nodes,
                       format_bytes(ranks.card->memory), ranks.card->name);
  throw DeckError(fmt::format("out of memory: rank 0 of {}{} needs {}, and one {} has {} for it",
                              layout.to_string(), nodes, format_bytes(needs), ranks.card->name,
                              format_bytes(ranks.card->memory)),
                  "`choir plan` with the same deck, --ranks and --gpus lists the layouts that fit");
}

/// Plans a step as a start does, and refuses a plan that cannot fit.
void check_memory(EngineOptions& options, const Deck& deck, const Layout& layout,
                  const CheckedRanks& ranks, const Device* device, std::string& facts) {
  StepPlan plan;
  const bool copies = deck.checkpoint.on_the_way() && deck.checkpoint.async != AsyncSaves::never;
  for (;;) {
    plan = plan_step(options, layout, 0, ranks.on_node, deck.family().writes_samples(deck), device,
                     copies);
    ops::add_packing(plan.memory, plan.products,
                     device == nullptr ? DeviceKind::cpu : device->plans_for());
    if (device != nullptr && device->kind() == DeviceKind::cuda)
      add_nccl(plan, *Mesh::planned(layout, 0, ranks.on_node), device_transport_of(deck),
               *cuda::card_of(*device));
    if (ranks.card) add_nccl_of(*ranks.card, deck, layout, ranks.on_node, plan);
    const double excess =
        ranks.card ? std::max(0.0, static_cast<double>(plan.memory.total()) - ranks.card->memory)
        : device == nullptr || ranks.elsewhere ? 0
                                               : excess_bytes(plan, ranks.on_node, *device);
    if (excess == 0 || !halve_head_chunk(options, excess, layout)) break;
  }
  if (ranks.card) {
    facts += compare_with_card(plan, ranks, layout);
    return;
  }
  const bool compared = device != nullptr && !ranks.elsewhere && is_smallest(deck, ranks);
  const bool copied = copies && device != nullptr && device->kind() == DeviceKind::cpu &&
                      snapshot_fits(plan, ranks.on_node, *device);
  const std::size_t needs = plan.memory.total() + (copied ? plan.snapshot_bytes : 0);
  std::string text = fmt::format("memory: {} for rank 0 of {}",
                                 format_bytes(static_cast<double>(needs)), layout.to_string());
  if (device != nullptr && ranks.elsewhere)
    text += fmt::format(
        ", not compared with the {} of this machine, on which these ranks do not run: `choir plan` "
        "with the same deck and --gpus CARD compares",
        format_bytes(node_memory()));
  else if (device != nullptr && !compared)
    text += fmt::format(
        ", not compared with the {} of this machine, because more ranks need less each with "
        "parallel.zero = {}: `choir train --check --ranks N` compares",
        format_bytes(node_memory()), deck.parallel.zero);
  else if (compared && ranks.all == 0 && layout.ranks() > 1)
    text += fmt::format(
        "; the deck is for {}, and only one was compared with this machine: `choir train --check "
        "--ranks {}` compares all",
        counted(layout.ranks(), "rank"), layout.ranks());
  facts += text + "\n";
  if (compared) require_memory(plan, ranks.on_node, *device);
}

/// Compares the file system of the run with the size of a checkpoint. A save that finds no room
/// does not end a run, so this only warns.
std::string disk_fact(const CheckpointRoom& room) {
  const std::string warning = room.warning();
  if (!warning.empty()) return "warning: " + warning + "\n";
  if (!room.known) return "";
  return fmt::format("disk: a checkpoint has {} of tensors, and a save reserves {}; {} are free\n",
                     format_bytes(room.bytes), format_bytes(room.reserved),
                     format_bytes(room.free));
}

std::optional<Checkpoint> checkpoint_to_resume(const Deck& deck, const RunDirectory& directory,
                                               Communicator& world) {
  const std::string& resume = deck.checkpoint.resume;
  if (resume == "none") return std::nullopt;
  if (resume != "auto") return open_checkpoint(resume, world, Verify::sizes);
  return find_newest_valid(directory.checkpoints(), world, Verify::sizes);
}

/// Reads the integers of a checkpoint, but none of its tensors.
Progress progress_of(const Checkpoint& checkpoint, Communicator& world) {
  Progress progress;
  std::vector<StoredTensor> tensors;
  for (const State& state : progress.states(false))
    tensors.push_back({.name = "state/" + state.name,
                       .dtype = state.value.dtype,
                       .shape = state.value.shape,
                       .pieces = {{0, state.value.count(), state.value.data}}});
  load_checkpoint(checkpoint, tensors, world, "nothing else");
  return progress;
}

/// Compares a checkpoint with the state that the run would fill from it.
void check_tensors(Engine& engine, const Checkpoint& found) {
  Progress progress;
  std::vector<StoredTensor> tensors = tensors_to_load(engine, progress);
  const bool averaged = has_averages(found);
  if (!averaged) remove_averages(tensors);
  require_matching(engine.averages() != nullptr ? found : without_averages(found), tensors, "");
}

}  // namespace

std::string check_start(Deck deck, const CheckedRanks& ranks, Mesh& alone, Logger& log) {
  std::string facts;
  const RunDirectory directory(deck.run.dir);
  directory.require_writable();
  Communicator& world = alone.world();
  const Layout layout = layout_to_check(deck, ranks);
  const BatchSizes batch = resolve_batch(deck, layout.size(Axis::data));
  if (ranks.all > 0) Faults(deck, 0).require_ranks(ranks.all);
  const std::unique_ptr<Device> device = device_to_check(deck, ranks, alone, facts);
  const auto found = checkpoint_to_resume(deck, directory, world);
  std::optional<ResumePoint> from;
  if (found) from = resume_point_of(*found, deck);
  const auto data = deck.family().open_data(deck, batch, alone, log);
  resolve_vocabulary(deck, data->vocab_size(), "the training data");
  if (from) require_same_data(*from, deck, data->contents(), data->vocab_hash());

  EngineOptions options = engine_options(deck, batch);
  options.shapes = data->shapes();
  options.evaluation_shapes = data->validation_shapes();
  data->add_scorers(options.scorers, device.get());
  data->add_resident(options.scorers, device.get());
  check_memory(options, deck, layout, ranks, device.get(), facts);
  CpuDevice cpu;
  data->load_scorers(device && !ranks.card ? *device : cpu);
  NullDevice nowhere = null_device_for(device.get());
  const auto planned = Mesh::planned(layout, 0, ranks.on_node);
  Engine engine(options, nowhere, *planned, Arena::kUnbounded);
  Faults(deck, 0).require_parameters(engine.instance());
  // Last, because a warning belongs beside the verdict.
  const std::string disk = disk_fact(checkpoint_room(directory, engine, deck));
  facts += data->to_string() + "\n";
  if (!from) {
    for (const std::string& line :
         check_initial_state(engine.instance(), deck, data->vocabulary_json(), world))
      facts += line + "\n";
    return facts + disk;
  }
  check_tensors(engine, from->checkpoint);
  const Progress progress = progress_of(from->checkpoint, world);
  if (progress.step >= deck.train.max_steps)
    return facts + complete_line(progress.step, deck) + "\n" + disk;
  data->require_resumable(progress.consumed_samples);
  return facts + fmt::format("the run continues from {}\n", from->checkpoint.path) + disk;
}

}  // namespace choir
