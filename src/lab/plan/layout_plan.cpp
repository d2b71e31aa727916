#include "src/lab/plan/layout_plan.hpp"

#include <fmt/core.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <utility>

#include "choir/deck/deck.hpp"
#include "kernels/gemm/packing_memory.hpp"
#include "src/core/json_value.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/deck/deck_tables.hpp"
#include "src/device/cuda.hpp"
#include "src/device/null_device.hpp"
#include "src/parallel/pipeline/schedule_simulation.hpp"
#include "src/run/run_setup.hpp"
#include "src/train/loop/save_schedule.hpp"

namespace choir {

DeckVariants::DeckVariants(const FamilyTable& families, std::string text, std::string path,
                           std::vector<std::string> overrides, std::int64_t vocabulary)
    : families_(&families),
      text_(std::move(text)),
      path_(std::move(path)),
      overrides_(std::move(overrides)),
      vocabulary_(vocabulary) {}

Deck DeckVariants::with(const std::vector<std::string>& changes) const {
  std::vector<std::string> words = changes;
  for (const std::string& given : overrides_) {
    const std::string key = given.substr(0, given.find('=')) + "=";
    if (std::none_of(changes.begin(), changes.end(),
                     [&](const std::string& change) { return change.starts_with(key); }))
      words.push_back(given);
  }
  Deck deck = parse_deck(*families_, text_, path_, words);
  if (std::int64_t& size = deck.family().vocab_size(deck); size == 0) size = vocabulary_;
  return deck;
}

std::optional<Deck> DeckVariants::legal_with(const std::vector<std::string>& changes) const {
  try {
    return with(changes);
  } catch (const DeckError&) {
    return std::nullopt;
  }
}

std::string written_deck(const std::string& text, const Deck& deck) {
  using Json = nlohmann::ordered_json;
  Json root = parsed_commented_json(text);
  const Json resolved = parsed_ordered_json(resolved_json(deck));
  for (const auto& [key, origin] : deck.origins) {
    if (origin.source != KeySource::command) continue;
    const Json* from = &resolved;
    Json* to = &root;
    for (const std::string& part : split(key, '.')) {
      // A map with user-defined names is written as a whole.
      if (!from->is_object() || !from->contains(part)) break;
      from = &from->at(part);
      if (!to->is_object()) *to = Json::object();
      to = &(*to)[part];
    }
    *to = *from;
  }
  // The overrides are part of the new file, so keys that they left without effect are not.
  for (const std::string& key : deck::idle_keys(deck)) {
    Json* section = &root;
    std::vector<std::string> path = split(key, '.');
    const std::string name = path.back();
    path.pop_back();
    for (const std::string& part : path) section = &(*section)[part];
    section->erase(name);
  }
  return dumped(root, 2) + "\n";
}

namespace {

/// Coordinates along an axis of `size` ranks: all, or the two ends and the middle.
std::vector<int> places(int size, Detail detail) {
  std::vector<int> all;
  if (detail == Detail::exact) {
    for (int i = 0; i < size; ++i) all.push_back(i);
    return all;
  }
  all = {0, size / 2, size - 1};
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

bool alike(const RolePlan& a, const RolePlan& b) {
  return a.plan == b.plan && a.work == b.work;
}

/// Plans the tensor ranks of the stage and context rank `at` by `plan_of(coordinates)`. Shares of
/// weights and of the vocabulary only get smaller from rank to rank, and the first rank may have
/// more work: if the second and the last have equal plans, so have those between.
template <class PlanOf>
void add_tensor_ranks(std::vector<RolePlan>& roles, const Layout& layout, Coordinates at,
                      Detail detail, const PlanOf& plan_of) {
  const int size = layout.size(Axis::tensor);
  const auto plan_tensor = [&](int tensor) {
    at[Axis::tensor] = tensor;
    return plan_of(at);
  };
  std::optional<RolePlan> all_but_first;
  if (detail == Detail::exact && size > 3) {
    RolePlan second = plan_tensor(1);
    if (alike(second, plan_tensor(size - 1))) all_but_first = std::move(second);
  }
  for (const int tensor : places(size, detail)) {
    roles.push_back(all_but_first && tensor > 0 ? *all_but_first : plan_tensor(tensor));
    roles.back().at[Axis::tensor] = tensor;
    roles.back().rank = layout.rank(roles.back().at);
  }
}

/// Memory does not grow with the micro-batches of a step once the pipeline is full.
std::int64_t few_micro_batches(const Deck& deck, const BatchSizes& batch) {
  if (deck.train.reproducible) return batch.accum;  // the tree of sums grows with their number
  const std::int64_t in_flight =
      std::int64_t{deck.parallel.pipeline} * std::max(1, deck.parallel.virtual_stages);
  return std::min(batch.accum, 2 * in_flight);
}

/// FLOPs of the busiest rank of each stage; a stage that was not planned has the FLOPs of the one
/// before it.
std::vector<double> flops_of_stages(const LayoutPlan& plan) {
  std::vector<double> flops(static_cast<std::size_t>(plan.layout.size(Axis::pipeline)));
  for (const RolePlan& role : plan.roles) {
    double& most = flops[static_cast<std::size_t>(role.at[Axis::pipeline])];
    most = std::max(most, role.plan.flops);
  }
  for (std::size_t stage = 1; stage < flops.size(); ++stage)
    if (flops[stage] == 0) flops[stage] = flops[stage - 1];
  return flops;
}

// The data that a rank stores depends on more than its role (replicas are stored once, by one of
// them). Each role gets the largest amount, so that ranks that do the same work have one plan.
void add_snapshots(LayoutPlan& plan) {
  std::size_t most = 0;
  for (const RolePlan& role : plan.roles) most = std::max(most, role.plan.snapshot_bytes);
  const bool fitted = plan.fits();
  std::vector<RolePlan> without = plan.roles;
  for (RolePlan& role : plan.roles) {
    role.plan.snapshot_bytes = most;
    add_snapshot(role.plan.memory, role.plan);
  }
  // If only the copies do not fit, there are none unless the deck requires them, as in training.
  if (!fitted || plan.fits() || plan.deck.checkpoint.async == AsyncSaves::always) return;
  plan.roles = std::move(without);
  plan.waits_for_saves = true;
}

void add_time(LayoutPlan& plan, const Calibration& calibration, const EngineOptions& options) {
  std::vector<RoleWork> roles;
  for (const RolePlan& role : plan.roles) roles.push_back({.at = role.at, .record = &role.work});
  plan.time = predict_step(calibration, plan.deck, plan.layout, plan.ranks_per_node,
                           plan.batch.accum, roles);
  plan.bubble = plan.time->bubble;
  const BatchShape shape = shapes_of(options).front();
  const bool fixed = plan.deck.family().fixed_shape();
  plan.units = static_cast<double>(plan.batch.global) *
               (fixed ? static_cast<double>(shape.samples * shape.tokens / plan.batch.micro) : 1);
}

}  // namespace

const RolePlan& LayoutPlan::fullest() const {
  return *std::max_element(
      roles.begin(), roles.end(),
      [this](const RolePlan& a, const RolePlan& b) { return needs(a) < needs(b); });
}

double LayoutPlan::needs(const RolePlan& role) const {
  const MemoryPlan& memory = role.plan.memory;
  return static_cast<double>(memory.total() + (on_host ? memory.total(MemoryPlace::host) : 0));
}

double LayoutPlan::host_needs() const {
  std::size_t most = 0;
  for (const RolePlan& role : roles)
    most = std::max(most, role.plan.memory.total(MemoryPlace::host));
  return static_cast<double>(most);
}

double LayoutPlan::flops() const {
  double sum = 0;
  for (const RolePlan& role : roles) sum += role.plan.flops * ranks_of_role();
  return sum;
}

StepTraffic LayoutPlan::traffic() const {
  StepTraffic sum;
  for (const RolePlan& role : roles)
    for (std::size_t a = 0; a < kAxes; ++a) {
      sum[a].calls += role.plan.traffic[a].calls * ranks_of_role();
      sum[a].bytes += role.plan.traffic[a].bytes * ranks_of_role();
    }
  return sum;
}

LayoutPlan plan_layout(const PlanCase& request, Detail detail) {
  LayoutPlan plan{.deck = request.deck};
  plan.layout = layout_of(plan.deck, request.ranks);
  plan.batch = resolve_batch(plan.deck, plan.layout.size(Axis::data));
  plan.ranks_per_node = std::min(request.ranks, request.ranks_per_node);
  plan.memory_limit = request.target.memory_of_rank(plan.ranks_per_node);
  plan.on_host = request.target.kind != DeviceKind::cuda;
  if (!plan.on_host) plan.host_limit = request.target.host_memory / plan.ranks_per_node;
  EngineOptions options = engine_options(plan.deck, plan.batch);
  options.shapes = request.shapes;
  options.evaluation_shapes = request.evaluation_shapes;
  options.scorers = request.scorers;
  if (detail == Detail::outline) options.micro_batches = few_micro_batches(plan.deck, plan.batch);
  const NullDevice device(request.target.kind);
  cuda::Card card;
  card.multiprocessors = request.target.multiprocessors;
  card.major = request.target.compute_major;
  const bool samples = options.model.family().writes_samples(plan.deck);
  // Copies for saves are in the memory of a rank only if devices have no memory of their own. In
  // outline they are otherwise planned only if the deck requires them.
  const AsyncSaves async = plan.deck.checkpoint.async;
  const bool saves = plan.deck.checkpoint.on_the_way() &&
                     (detail == Detail::exact || plan.on_host ? async != AsyncSaves::never
                                                              : async == AsyncSaves::always);
  const auto role_of = [&](const Coordinates& at) {
    RolePlan role{.rank = plan.layout.rank(at), .at = at};
    role.plan = plan_step(options, plan.layout, role.rank, plan.ranks_per_node, samples, &device,
                          saves, request.calibration ? &role.work : nullptr);
    ops::add_packing(role.plan.memory, role.plan.products, device.plans_for());
    if (!plan.on_host)
      add_nccl(role.plan, *Mesh::planned(plan.layout, role.rank, plan.ranks_per_node),
               device_transport_of(plan.deck), card);
    return role;
  };
  do {
    plan.roles.clear();
    for (const int stage : places(plan.layout.size(Axis::pipeline), detail))
      for (const int context : places(plan.layout.size(Axis::context), detail)) {
        Coordinates at;
        at[Axis::context] = context, at[Axis::pipeline] = stage;
        add_tensor_ranks(plan.roles, plan.layout, at, detail, role_of);
      }
  } while (plan.needs() > plan.memory_limit &&
           halve_head_chunk(options, plan.needs() - plan.memory_limit, plan.layout));
  plan.head = head_memory(options, plan.layout);
  plan.tiles = tiles_text(options, plan.layout);
  std::sort(plan.roles.begin(), plan.roles.end(),
            [](const RolePlan& a, const RolePlan& b) { return a.rank < b.rank; });
  if (saves) add_snapshots(plan);
  plan.bubble = bubble_fraction(plan.deck, plan.batch.accum, flops_of_stages(plan));
  if (request.calibration) add_time(plan, *request.calibration, options);
  return plan;
}

double bubble_fraction(const Deck& deck, std::int64_t micro_batches,
                       const std::vector<double>& stage_flops) {
  if (stage_flops.size() < 2) return 0;
  const PipelineShape shape{.stages = static_cast<int>(stage_flops.size()),
                            .micro_batches = static_cast<int>(micro_batches),
                            .chunks = deck.parallel.virtual_stages};
  const double parts = deck.train.recompute == Recompute::full ? 4 : 3;
  PipelineCosts costs = uniform_costs(shape, {});
  for (int chunk = 0; chunk < shape.chunks; ++chunk)
    for (int stage = 0; stage < shape.stages; ++stage) {
      const double forward = stage_flops[static_cast<std::size_t>(stage)] /
                             (parts * shape.chunks * shape.micro_batches);
      costs.chunks[static_cast<std::size_t>(shape.virtual_stage(stage, chunk))] = {
          .forward = forward,
          .backward = (parts - 1) * forward,
          .backward_input = (parts - 2) * forward,
          .backward_weight = forward};
    }
  return simulate(make_schedule(pipeline_of(deck).schedule, shape), costs).bubble_fraction();
}

void require_nodes(int ranks, int ranks_per_node) {
  if (ranks_per_node < 1)
    throw DeckError(fmt::format("--gpus-per-node {} is below 1", ranks_per_node), "use 1 or more");
  if (ranks <= ranks_per_node || ranks % ranks_per_node == 0) return;
  int below = ranks_per_node, above = ranks_per_node;
  while (ranks % below != 0) --below;
  while (ranks % above != 0) ++above;
  throw DeckError(
      fmt::format("{} ranks do not fill nodes of --gpus-per-node {}", ranks, ranks_per_node),
      fmt::format("nearest legal: --gpus-per-node {} or {}; or --ranks {} or {}", below, above,
                  ranks / ranks_per_node * ranks_per_node,
                  (ranks / ranks_per_node + 1) * ranks_per_node));
}

int ranks_asked(const std::optional<int>& asked, const Deck& deck) {
  if (asked && *asked < 1)
    throw DeckError(fmt::format("--ranks {} is below 1", *asked), "use 1 or more");
  const ParallelSection& p = deck.parallel;
  return asked.value_or(std::max(1, p.data) * p.tensor * p.context * p.pipeline);
}

int ranks_per_node_asked(const std::optional<int>& asked, int ranks, const PlanTarget& target) {
  if (asked) {
    require_nodes(ranks, *asked);
    return *asked;
  }
  int usual = std::min(ranks, target.ranks_per_node);
  // More ranks than this machine has cores share it, as they would if they were started here.
  if (target.kind == DeviceKind::cpu && ranks % usual != 0) return ranks;
  while (ranks % usual != 0) --usual;
  return usual;
}

void take_threads_of(const PlanCase& request) {
  if (request.target.kind != DeviceKind::cpu || std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const int on_node = std::min(request.ranks, request.ranks_per_node);
  omp_set_num_threads(threads_of_rank(usable_cores(), on_node));
}

std::string memory_text(const MemoryPlan& plan) {
  std::vector<std::string> parts;
  for (const MemoryPlan::Entry& entry : plan.entries)
    if (entry.bytes > 0 && entry.place == MemoryPlace::device)
      parts.push_back(entry.name + " " + format_bytes(static_cast<double>(entry.bytes)));
  return join(parts, " + ");
}

double parameter_bytes(const MemoryPlan& plan) {
  double bytes = 0;
  for (const MemoryPlan::Entry& entry : plan.entries)
    if (entry.place == MemoryPlace::device && entry.name.starts_with("parameters"))
      bytes += static_cast<double>(entry.bytes);
  return bytes;
}

}  // namespace choir
