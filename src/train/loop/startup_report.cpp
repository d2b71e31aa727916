// The report of a run before its first step.

#include "src/train/loop/startup_report.hpp"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <numeric>
#include <unordered_set>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/models/family.hpp"
#include "kernels/gemm/gemm.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/mpi/mpi_session.hpp"
#include "src/core/build_info.hpp"
#include "src/core/json_value.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/deck/name_patterns.hpp"
#include "src/device/cuda.hpp"
#include "src/parallel/pipeline/schedule_simulation.hpp"
#include "src/store/state_file.hpp"
#include "src/train/step/memory_fit.hpp"
#include "src/train/step/train_checkpoint.hpp"

namespace choir {
namespace {

constexpr std::size_t kColumns = 100;
constexpr std::size_t kIndent = 13;  // columns of the labels

/// "vm", "n1, n2, n3 ... n64": each once, in the order of the ranks.
std::string hosts_text(const std::vector<std::string>& host_of_rank) {
  constexpr std::size_t kNamed = 4;
  std::vector<std::string> hosts;
  std::unordered_set<std::string_view> known;
  for (const std::string& host : host_of_rank)
    if (known.insert(host).second) hosts.push_back(host);
  if (hosts.size() <= kNamed) return join(hosts, ", ");
  const std::string last = hosts.back();
  hosts.resize(kNamed - 1);
  return join(hosts, ", ") + " ... " + last;
}

}  // namespace

void StartScreen::show(std::string_view label, std::string_view text) {
  std::string block;
  for (const std::string& line : split(text, '\n')) block += wrap(line, kColumns, kIndent);
  if (block.ends_with('\n')) block.pop_back();
  const std::string head = fmt::format("  {:<{}}", label, kIndent - 2);
  screen_ += (screen_.empty() ? "" : "\n") + head + block.substr(std::min(block.size(), kIndent));
}

void StartScreen::add(std::string_view text) {
  if (text.empty()) return;
  details_ += text;
  if (!text.ends_with('\n')) details_ += '\n';
}

std::string ranks_line(Mesh& mesh, const Device& device) {
  const std::vector<std::string> hosts = gather_texts(mesh.world(), host_name());
  return fmt::format("{} on {} ({}), {} each, {}", mesh.world().size(),
                     counted(mesh.nodes(), "node"), hosts_text(hosts),
                     counted(omp_get_max_threads(), "thread"), device.description());
}

std::string first_lines(const std::string& text, std::size_t most) {
  std::vector<std::string> lines = split(text, '\n');
  if (lines.size() <= most) return text;
  const std::size_t more = lines.size() - most;
  lines.resize(most);
  return join(lines, "\n") +
         fmt::format("\n(start.txt has {} more)", counted(static_cast<std::int64_t>(more), "line"));
}

/// " (6,476,005,376 in nf4)"
std::string packed_words(Engine& engine) {
  const Packing packing = engine.options().precision.packing;
  if (packing == Packing::none) return {};
  return fmt::format(" ({} in {})", format_count(engine.instance().parameters().count_packed()),
                     packing == Packing::nf4 ? "nf4" : "int8");
}

std::string model_line(Engine& engine) {
  const ModelConfig& config = engine.options().model;
  const ParameterSet& parameters = engine.instance().parameters();
  const ModelFamily& family = config.family();
  const std::string frozen =
      parameters.count_frozen() > 0
          ? fmt::format(", {} of them frozen{}", format_count(parameters.count_frozen()),
                        packed_words(engine))
          : "";
  return fmt::format("{}: {}\n{} parameters{}", family.name(), family.describe(config),
                     format_count(parameters.count()), frozen);
}

std::string batch_line(Engine& engine) {
  const EngineOptions& o = engine.options();
  const ModelFamily& family = o.model.family();
  const std::int64_t ranks = engine.mesh().along(Axis::data).size();
  if (!family.fixed_shape())
    return fmt::format("{} micro-batches a step = {} x {}", o.micro_batches * ranks,
                       o.micro_batches, counted(ranks, "data-parallel rank"));
  const std::int64_t sequences = o.micro_batch_size * o.micro_batches * ranks;
  return fmt::format("{} ({} tokens) = {} x {} x {}", counted(sequences, "sequence"),
                     format_count(sequences * family.shape(o.model, 1).tokens),
                     counted(o.micro_batch_size, "sequence"),
                     counted(o.micro_batches, "micro-batch"), counted(ranks, "data-parallel rank"));
}

std::string training_line(const Deck& deck, const EngineOptions& options, std::int64_t first_step) {
  return fmt::format("steps {} to {} in {}, {}, {} learning rate with peak {:.4g}, {}", first_step,
                     deck.train.max_steps, name_of(deck.train.precision), deck.optimizer.name,
                     deck.optimizer.schedule, options.schedule.peak,
                     counted(options.schedule.warmup_steps, "warm-up step"));
}

std::string decay_line(const Deck& deck, const LrSchedule& schedule) {
  return fmt::format("{}, from step {} to {}{}", deck.optimizer.wsd_decay_shape,
                     schedule.tail_begin(), schedule.decay_steps,
                     deck.checkpoint.on_the_way() ? "; the checkpoint before it is kept" : "");
}

std::string shared_cores_note(Communicator& node) {
  struct Use {
    cpu_set_t cores;
    std::int64_t threads;
  };
  const Use mine{own_cores(), omp_get_max_threads()};
  std::vector<Use> all(static_cast<std::size_t>(node.size()));
  all[static_cast<std::size_t>(node.rank())] = mine;
  node.all_gather(all.data(), sizeof mine, DType::u8);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  std::int64_t threads = 0;
  for (const Use& one : all) {
    CPU_OR(&cores, &cores, &one.cores);
    threads += one.threads;
  }
  if (threads <= CPU_COUNT(&cores)) return "";
  const std::int64_t most = CPU_COUNT(&cores), fit = most * node.size() / threads;
  return fmt::format(
      "{} with {} in all share {} of this host: steps are slow, and the result is the same; {}",
      counted(node.size(), "rank"), counted(threads, "thread"), counted(most, "core"),
      fit > 0
          ? fmt::format("{} with such threads fit (-n {} on one host)", counted(fit, "rank"), fit)
          : fmt::format("{} for a rank fit (OMP_NUM_THREADS={})", counted(most, "thread"), most));
}

std::string memory_line(const StepPlan& plan, Mesh& mesh, const Device& device) {
  const std::size_t beside =  // on a device without memory of its own, all of it is host memory
      device.kind() == DeviceKind::cuda ? 0 : plan.memory.total(MemoryPlace::host);
  auto largest = static_cast<double>(plan.memory.total() + beside);
  mesh.world().all_reduce(&largest, 1, DType::f64, ReduceOp::max);
  if (const cuda::Card* card = cuda::card_of(device))
    return fmt::format("{} on the fullest rank, of {} of its GPU", format_bytes(largest),
                       format_bytes(static_cast<double>(card->memory)));
  return fmt::format("{} on the fullest rank; the node has {} for {}", format_bytes(largest),
                     format_bytes(node_memory()), counted(mesh.node().size(), "rank"));
}

std::string transport_line(const std::vector<AxisSpeed>& speeds) {
  std::vector<std::string> texts;
  for (const AxisSpeed& axis : speeds)
    texts.push_back(fmt::format("{} by {}, {:.2f} GB/s", short_name(axis.axis), axis.transport,
                                axis.bus_gb_per_s));
  return texts.empty() ? "single rank, no communication" : join(texts, "; ");
}

/// "every step", "every 500 steps"
std::string every(std::int64_t steps) {
  return steps == 1 ? "every step" : fmt::format("every {}", counted(steps, "step"));
}

namespace {

/// "the newest 2 and the best are kept"
std::string kept_checkpoints(const CheckpointSection& c, bool best) {
  if (c.keep == 0) return "all are kept";
  std::vector<std::string> kept{c.keep == 1 ? "the newest" : fmt::format("the newest {}", c.keep)};
  if (c.keep_every > 0) kept.push_back(fmt::format("those at multiples of {}", c.keep_every));
  if (best) kept.emplace_back("the best");
  const std::string last = kept.back();
  kept.pop_back();
  if (!kept.empty()) return fmt::format("{} and {} are kept", join(kept, ", "), last);
  return fmt::format("{} {} kept", last, c.keep == 1 ? "is" : "are");
}

}  // namespace

std::string saves_line(const Deck& deck, bool validates) {
  const CheckpointSection& c = deck.checkpoint;
  const bool evaluates = validates && deck.eval.interval > 0;
  const std::string saves = c.interval == 0 ? "no checkpoints"
                            : c.interval == CheckpointSection::kAutoInterval
                                ? "checkpoints at the best interval"
                                : fmt::format("a checkpoint {}", every(c.interval));
  const bool best = c.interval != 0 && c.best && evaluates;
  std::string text = saves;
  if (best) text += " and after an evaluation that is the best so far";
  if (c.interval != 0) text += fmt::format(" ({})", kept_checkpoints(c, best));
  return text + (evaluates ? ", an evaluation " + every(deck.eval.interval) : ", no evaluation");
}

std::string unevaluated_note(const Deck& deck) {
  if (deck.eval.interval == 0 || deck.data.train.empty()) return "";
  std::string beside;
  for (const std::string& path : deck.data.train) {
    const std::filesystem::path train(path);
    std::string name = train.filename().string();
    const std::size_t at = name.find("train");
    if (at == std::string::npos) continue;
    const std::filesystem::path val =
        train.parent_path() / name.replace(at, std::string_view("train").size(), "val");
    std::error_code ignored;
    if (std::filesystem::exists(val, ignored)) beside = val.string();
  }
  return "there are no validation data, so nothing is evaluated during this run; " +
         (beside.empty()
              ? std::string("name some: data.val='[\"PATH\"]'")
              : fmt::format("'{0}' lies beside the training data: data.val='[\"{0}\"]'", beside));
}

std::string complete_line(std::int64_t step, const Deck& deck) {
  return fmt::format(
      "the run is complete, with {} for train.max_steps = {}; a larger number continues it",
      counted(step, "step"), deck.train.max_steps);
}

std::string CheckpointRoom::warning() const {
  const double all = reserved + beside * bytes;
  if (known && free >= reserved && free < all)
    return fmt::format(
        "{} has {} free, which is room for a save, but not for the {} that checkpoint.keep leaves "
        "beside it: later saves would fail, because together they need {}; lower checkpoint.keep, "
        "choose another run.dir or make room",
        folder, format_bytes(free), counted(beside, "checkpoint"), format_bytes(all));
  if (!known || free >= reserved) return "";
  return fmt::format(
      "a save reserves {} for a checkpoint of {}, but {} has only {} free: saves would fail; "
      "choose another run.dir or make room",
      format_bytes(reserved), format_bytes(bytes), folder, format_bytes(free));
}

CheckpointRoom checkpoint_room(const RunDirectory& directory, Engine& engine, const Deck& deck) {
  CheckpointRoom room;
  const bool saves = deck.checkpoint.interval > 0 || deck.run.walltime > 0;
  if (!saves || deck.parallel.pipeline > 1) return room;
  Progress progress;
  std::vector<StoredTensor> stored = tensors_to_load(engine, progress);
  // A quantised base is read, and not stored again.
  std::erase_if(stored, [](const StoredTensor& tensor) { return bool(tensor.consume); });
  for (const StoredTensor& tensor : stored)
    room.bytes +=
        static_cast<double>(tensor.shape.count()) * static_cast<double>(size_of(tensor.dtype));
  const CheckpointMeta meta{.json = resolved_json(deck)};
  room.reserved = static_cast<double>(state_file_estimate(meta, stored));
  std::filesystem::path folder = std::filesystem::absolute(directory.path());
  std::error_code failed;
  while (!std::filesystem::exists(folder, failed) && folder.has_relative_path())
    folder = folder.parent_path();
  const auto space = std::filesystem::space(folder, failed);
  room.known = !failed;
  room.folder = folder.string();
  int present = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory.checkpoints(), failed))
    present += entry.path().filename().string().starts_with("step_") ? 1 : 0;
  const std::int64_t interval = deck.checkpoint.interval;
  const std::int64_t to_come = interval > 0 ? (deck.train.max_steps + interval - 1) / interval : 1;
  room.beside = static_cast<int>(std::max<std::int64_t>(
      0, std::min<std::int64_t>(deck.checkpoint.keep, to_come - 1) - present));
  room.free = static_cast<double>(space.available);
  return room;
}

std::string run_line(const RunDirectory& directory) {
  return fmt::format(
      "{} (log.txt, metrics.jsonl, deck.json, checkpoints/)\n"
      "{}: every key, the module tree, hosts, the memory plan, the meaning of the lines below",
      directory.path(), directory.start());
}

namespace {

// Enough text to tell one card from another.
std::string describe(const cuda::Card& card) {
  constexpr std::size_t kTail = 12;
  const std::string tail =
      card.uuid.size() > kTail ? card.uuid.substr(card.uuid.size() - kTail) : card.uuid;
  const std::string numa = card.numa_node < 0 ? "?" : std::to_string(card.numa_node);
  return fmt::format(", {} {} at {}, NUMA node {}", card.name, tail, card.pci, numa);
}

/// "embedding, blocks 0 to 3"
std::string units_of(const UnitRange& piece, int layers, std::string_view input) {
  const int first = std::max(piece.first, 1), last = std::min(piece.end() - 1, layers);
  std::string text(piece.contains(0) ? input : "");
  const auto add = [&](const std::string& unit) { text += (text.empty() ? "" : ", ") + unit; };
  if (first == last) add(fmt::format("block {}", first - 1));
  if (first < last) add(fmt::format("blocks {} to {}", first - 1, last - 1));
  if (piece.contains(layers + 1)) add("head");
  return text;
}

double flops_of(const UnitRange& piece, const UnitCosts& costs) {
  return std::accumulate(costs.begin() + piece.first, costs.begin() + piece.end(), 0.0);
}

/// Costs of a piece: backward has two products for each of forward, and the recomputation.
ChunkCost chunk_cost(double forward, Recompute recompute) {
  const double again = recompute == Recompute::full ? forward : 0;
  return {.forward = forward,
          .backward = 2 * forward + again,
          .backward_input = forward + again,
          .backward_weight = forward};
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

std::string transport_report(const Mesh& mesh, const std::vector<AxisSpeed>& speeds) {
  std::string text;
  for (const AxisSpeed& axis : speeds)
    text +=
        fmt::format("\n  {}: {} ranks, transport {}, all-reduce of {}: {:.2f} GB/s bus bandwidth",
                    short_name(axis.axis), axis.ranks, axis.transport,
                    format_bytes(static_cast<double>(axis.bytes)), axis.bus_gb_per_s);
  if (text.empty()) return "axes: single rank, no communication";
  if (!mesh.registration_note().empty()) text += "\n  " + mesh.registration_note();
  if (!mesh.transport_note().empty()) text += "\n  staged because " + mesh.transport_note();
  return "axes:" + text;
}

namespace {

/// The contents of a step.
std::string batch_report(Engine& engine, std::int64_t ranks) {
  const EngineOptions& o = engine.options();
  const ModelFamily& family = o.model.family();
  if (!family.fixed_shape())
    return fmt::format("  micro-batches a step       {:>16} = {} x {}\n", o.micro_batches * ranks,
                       o.micro_batches, counted(ranks, "rank"));
  const std::int64_t sequences = o.micro_batch_size * o.micro_batches * ranks;
  return fmt::format(
      "  sequences per iteration    {:>16} = {} x {} x {}\n"
      "  tokens per iteration       {:>16}\n",
      format_count(sequences), counted(o.micro_batch_size, "sequence"),
      counted(o.micro_batches, "micro-batch"), counted(ranks, "data-parallel rank"),
      format_count(sequences * family.shape(o.model, 1).tokens));
}

/// The frozen parameters of a model.
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

/// The parameters that have their own learning rate.
std::string rates_report(const ParameterSet& parameters, const std::vector<RateScale>& scales) {
  std::string text;
  for (const RateScale& scale : scales) {
    std::int64_t tensors = 0, elements = 0;
    for (const Parameter* p : parameters.all()) {
      if (!p->trainable || !matches_pattern(scale.pattern, p->name)) continue;
      ++tensors, elements += p->count();
    }
    text += fmt::format("  {:<26} {:>16} in {} tensors: {}\n",
                        fmt::format("learning rate x {}", scale.factor), format_count(elements),
                        tensors, scale.pattern);
  }
  return text;
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
  std::string counts;
  for (const auto& [what, count] : model.further_counts())
    counts += fmt::format("  {:<26} {:>16}\n", what, format_count(count));
  return fmt::format(
      "model:\n{}"
      "  parameters                 {:>16}\n{}"
      "  decayed                    {:>16} in {} tensors\n"
      "  not decayed                {:>16} in {} tensors\n"
      "{}{}"
      "  tensor axis                {:>16}\n"
      "{}"
      "  GEMM                       {:>16}\n"
      "  host sync                  {:>16}\n"
      "  train.cuda_graph           {}",
      model.describe(), format_count(parameters.count()), counts,
      format_count(parameters.count_decayed()), decayed_tensors,
      format_count(parameters.count() - parameters.count_decayed()), tensors - decayed_tensors,
      frozen_report(parameters), rates_report(parameters, o.rate_scales), divided,
      batch_report(engine, ranks), ops::gemm_library(o.precision.compute),
      engine.lag() == 0 ? "every step" : fmt::format("{} step(s) later", engine.lag()),
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
    text += fmt::format(" in {}, {} of {}", counted(ranks, "slice"),
                        counted(sharding.replica_count(), "group"), counted(ranks, "rank"));
  if (sharding.data().size() == 1) return text;
  const ParameterSet& all = storage.parameters();
  const auto trained = static_cast<double>(all.trained_size());
  const double gradients = trained * static_cast<double>(size_of(o.precision.gradient));
  // Frozen values are not gathered where they are whole.
  const auto gathered = sharding.values_sharded()
                            ? static_cast<double>(all.flat_size() + all.packed_size())
                            : trained;
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
        "offload: ignored on {}, whose memory is host memory; parallel.offload = \"file\" keeps "
        "the optimizer state on a disk",
        name_of(engine.instance().device().kind()));
  std::string what = state->has(OffloadedState::master) ? "masters and moments" : "moments";
  if (storage.values_outside()) what = "parameters and moments";
  const bool file = state->place() == MemoryPlace::file;
  const std::string bytes = format_bytes(static_cast<double>(state->memory().bytes()));
  std::string text =
      fmt::format("offload: {} of each rank ({}) in {}; every step reads and writes all of it",
                  what, bytes, file ? "a file in " + options.directory : "host memory");
  if (const MemoryPlace gradients = storage.gradient_place(); gradients != MemoryPlace::device) {
    MemoryPlan memory;
    storage.add_to(memory);
    const std::size_t held =
        memory.bytes_of("gradients, slice") + memory.bytes_of("gradients, reproducible tree");
    text += fmt::format("; gradients ({}) are in {}, too, and every micro-batch is added there",
                        format_bytes(static_cast<double>(held)),
                        gradients == MemoryPlace::file ? "a file" : "host memory");
  }
  if (file && is_memory_file_system(options.directory))
    text += fmt::format(
        "; {} is a memory file system, which saves no memory: set parallel.offload_dir to a "
        "directory on a disk",
        options.directory);
  return text;
}

std::string memory_report(const StepPlan& plan, Engine& engine) {
  Communicator& world = engine.mesh().world();
  const std::string repeated =
      plan.repeated_flops > 0
          ? fmt::format(" ({:.2f} of it for train.recompute, which mfu does not count)",
                        plan.repeated_flops / 1e9)
          : "";
  const auto mine = static_cast<double>(plan.memory.total());
  double largest = mine, rank = world.rank();
  world.all_reduce(&largest, 1, DType::f64, ReduceOp::max);
  if (mine < largest) rank = world.size();
  world.all_reduce(&rank, 1, DType::f64, ReduceOp::min);
  const std::string fuller =
      largest > mine ? fmt::format("\n  fullest rank: {}, {}", rank, format_bytes(largest)) : "";
  const std::string head = head_memory(engine.options(), engine.mesh().layout()).to_string();
  const std::string tiles = tiles_text(engine.options(), engine.mesh().layout());
  return fmt::format(
      "memory plan per rank:\n{}{}{}{}\n  work of one step: {:.2f} GFLOP{}, {} touched",
      plan.memory.to_string(), head.empty() ? "" : "\n  " + head,
      tiles.empty() ? "" : "\n  " + tiles, fuller, plan.flops / 1e9, repeated,
      format_bytes(plan.bytes));
}

std::string pipeline_report(const EngineOptions& options, int stages) {
  if (stages == 1) return {};
  const auto layers = static_cast<int>(options.model.n_layer());
  const auto schedule = training_schedule(options.pipeline, stages,
                                          static_cast<int>(options.micro_batches), DeviceKind::cpu);
  const ModelFamily& family = options.model.family();
  const UnitCosts costs = family.unit_costs(options.model);
  const std::string_view input = family.words().input_layer;
  PipelineCosts times = uniform_costs(schedule->shape, {});
  std::string text;
  for (int stage = 0; stage < stages; ++stage) {
    std::string pieces;
    const ModelCut cut = cut_of(options.model, options.pipeline, stages, stage, false);
    for (int chunk = 0; chunk < schedule->shape.chunks; ++chunk) {
      const UnitRange& piece = cut.pieces[static_cast<std::size_t>(chunk)];
      pieces += (chunk == 0 ? "" : " | ") + units_of(piece, layers, input);
      times.chunks[static_cast<std::size_t>(schedule->shape.virtual_stage(stage, chunk))] =
          chunk_cost(flops_of(piece, costs), options.model.recompute());
    }
    text += fmt::format("\n  stage {:<3} {}", stage, pieces);
  }
  return fmt::format(
      "pipeline: {} over {} stages, {} micro-batches; by FLOPs {:.1f} % of the time "
      "is bubble{}",
      name_of(schedule->kind), stages, options.micro_batches,
      100 * simulate(*schedule, times).bubble_fraction(), text);
}

std::string start_record(const StartFacts& facts, Mesh& mesh, const StepPlan& plan) {
  const nlohmann::ordered_json mine{{"node", mesh.node_index()},
                                    {"host", host_name()},
                                    {"threads", omp_get_max_threads()},
                                    {"planned", plan.memory.total()}};
  const std::vector<std::string> ranks = gather_texts(mesh.world(), dumped(mine));
  if (mesh.rank() != 0) return {};
  const Layout& layout = mesh.layout();
  nlohmann::ordered_json record{{"event", "start"},
                                {"step", facts.step},
                                {"time", timestamp()},
                                {"device", facts.device},
                                {"parameters", facts.parameters},
                                {"resident_before", facts.resident_before},
                                {"mfu_peak", facts.mfu_peak},
                                {"flops", plan.flops}};
  record["dist_info"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : facts.dist_info) record["dist_info"][name] = value;
  record["work"] = nlohmann::ordered_json::array();
  for (const PhaseWork& work : plan.phases)
    record["work"].push_back({{"phase", work.phase}, {"flops", work.flops}, {"bytes", work.bytes}});
  record["layout"] = {{"order", layout.order()}};
  for (const Axis axis : {Axis::tensor, Axis::context, Axis::data, Axis::pipeline})
    record["layout"][std::string(short_name(axis))] = layout.size(axis);
  for (const std::string& rank : ranks) record["ranks"].push_back(parsed_ordered_json(rank));
  record["memory"] = nlohmann::ordered_json::array();
  for (const MemoryPlan::Entry& entry : plan.memory.entries)
    record["memory"].push_back({{"name", entry.name},
                                {"bytes", entry.bytes},
                                {"place", name_of(entry.place)},
                                {"shared", entry.shared}});
  record["provenance"] = parsed_ordered_json(build_provenance(MpiSession::library_version()));
  return dumped(record);
}

}  // namespace choir
