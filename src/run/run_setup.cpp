#include "src/run/run_setup.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>

#include "choir/models/family.hpp"
#include "choir/parallel/pipeline/schedule.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/json_document.hpp"
#include "src/core/process.hpp"
#include "src/nn/axes/context_axis.hpp"

namespace choir {

std::string read_everywhere(Communicator& world, const std::string& path) {
  std::string text;
  together(world, [&] {
    if (world.rank() == 0) text = read_deck_with_includes(path);
  });
  broadcast_text(world, text);
  return text;
}

MeshOptions mesh_options_of(const Deck& deck) {
  MeshOptions options;
  if (deck.parallel.transport == RequestedTransport::mpi) options.transport = Transport::mpi;
  if (deck.parallel.transport == RequestedTransport::node) options.transport = Transport::node;
  constexpr double kLater = 30;
  const WatchSection& watch = deck.watch;
  const double longest = std::max(
      {deck.parallel.timeout, watch.start, watch.first_step, watch.save, watch.evaluation});
  options.timeout_seconds = longest + std::min(longest, kLater);
  return options;
}

ZeroOptions zero_of(const Deck& deck) {
  const ParallelSection& p = deck.parallel;
  const int group = p.zero_group == "all"    ? ZeroOptions::kAll
                    : p.zero_group == "node" ? ZeroOptions::kNode
                                             : std::stoi(p.zero_group);
  return {.stage = p.zero, .group = group, .prefetch = p.zero_prefetch};
}

OffloadOptions offload_of(const Deck& deck) {
  const ParallelSection& p = deck.parallel;
  if (p.offload == OffloadChoice::none) return {};
  const std::uint8_t sums = p.offload_gradients ? 1 : 0;
  if (p.offload != OffloadChoice::file)
    return {.place = MemoryPlace::host,
            .parameters = p.offload == OffloadChoice::all,
            .gradient_sums = sums};
  const char* const temporary = std::getenv("TMPDIR");
  const std::string usual = temporary != nullptr && *temporary != 0 ? temporary : "/tmp";
  return {.place = MemoryPlace::file,
          .gradient_sums = sums,
          .directory = p.offload_dir.empty() ? usual : p.offload_dir};
}

PipelineOptions pipeline_of(const Deck& deck) {
  return {.schedule = deck.parallel.schedule, .virtual_stages = deck.parallel.virtual_stages};
}

LrSchedule schedule_of(const Deck& deck, int data_parallel) {
  static const std::map<std::string, LrSchedule::Kind> kKinds{
      {"constant", LrSchedule::Kind::constant},
      {"cosine", LrSchedule::Kind::cosine},
      {"linear", LrSchedule::Kind::linear},
      {"inverse_sqrt", LrSchedule::Kind::inverse_sqrt},
      {"wsd", LrSchedule::Kind::wsd}};
  static const std::map<std::string, LrSchedule::Tail> kTails{
      {"linear", LrSchedule::Tail::linear},
      {"cosine", LrSchedule::Tail::cosine},
      {"exponential", LrSchedule::Tail::exponential},
      {"minus_sqrt", LrSchedule::Tail::minus_sqrt}};
  const OptimizerSection& o = deck.optimizer;
  double factor = 1;
  if (o.scale_lr == RateScaling::sqrt) factor = std::sqrt(data_parallel);
  if (o.scale_lr == RateScaling::linear) factor = data_parallel;
  return {.kind = kKinds.at(o.schedule),
          .tail = kTails.at(o.wsd_decay_shape),
          .peak = o.learning_rate * factor,
          .floor = o.min_lr * factor,
          .warmup_steps = o.warmup_steps,
          .decay_steps = o.decay_steps,
          .tail_steps = o.wsd_decay_steps};
}

UpdateSettings update_settings_of(const Deck& deck) {
  const OptimizerSection& o = deck.optimizer;
  const UpdateRule& rule = update_rule(o.name);
  const auto place = std::ranges::find(update_rules(), &rule) - update_rules().begin();
  return {.learning_rate = o.learning_rate,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .epsilon = o.epsilon,
          .weight_decay = o.weight_decay,
          .rule = &rule,
          .momentum = o.momentum,
          .trust_coefficient = o.trust_coefficient,
          .own = o.rules[static_cast<std::size_t>(place)].clone()};
}

ops::LossScaling loss_scaling_of(const Deck& deck) {
  constexpr double kFirstScale = 65536;
  const TrainSection& train = deck.train;
  if (train.precision != TrainPrecision::fp16_mixed) return {};
  if (train.loss_scale > 0) return {.start = static_cast<double>(train.loss_scale), .window = 0};
  return {.start = kFirstScale, .window = static_cast<double>(train.loss_scale_window)};
}

ModelConfig model_of(const Deck& deck) {
  ModelConfig model = deck.family().model(deck);
  model.set_recompute(deck.train.recompute);
  return model;
}

ContextWay context_way_of(const Deck& deck) {
  const ParallelSection& p = deck.parallel;
  return context_way_of(p.context_mode,
                        deck.family().query_heads(deck.family().model(deck)) / p.tensor, p.context);
}

Precision precision_of(const Deck& deck) {
  Precision precision = precision_of(name_of(deck.train.precision));
  if (deck.optimizer.moment_precision == MomentPrecision::bf16 &&
      deck.train.precision != TrainPrecision::fp64)
    precision = with_narrow_moments(precision);
  if (deck.train.frozen_precision == FrozenPrecision::bf16 ||
      (packing_of(deck) != Packing::none && precision.compute == DType::bf16))
    precision = with_narrow_frozen(precision);
  return with_packing(precision, packing_of(deck));
}

Packing packing_of(const Deck& deck) {
  switch (deck.train.frozen_precision) {
    case FrozenPrecision::nf4:
      return Packing::nf4;
    case FrozenPrecision::int8:
      return Packing::int8;
    default:
      return Packing::none;
  }
}

void resolve_vocabulary(Deck& deck, std::int64_t data_vocabulary, const std::string& data_name) {
  std::int64_t& size = deck.family().vocab_size(deck);
  const std::string key = deck.family().vocab_size_key();
  if (size == 0 && data_vocabulary == 0)
    throw DeckError(key + " is 0 and the data does not specify the size of its vocabulary",
                    fmt::format("set {} (GPT-2: 50257)", key));
  if (size == 0) {
    size = data_vocabulary;
    deck.mark_derived(key);
  }
  if (data_vocabulary > size)
    throw DataError(
        fmt::format("{} is {}, but {} has {} symbols", key, size, data_name, data_vocabulary),
        fmt::format("leave {} out to take it from the data", key));
}

namespace {

DeviceTransport::Way way_of(const Deck& deck) {
  const RequestedTransport transport = deck.parallel.transport;
  if (transport == RequestedTransport::automatic) return DeviceTransport::Way::automatic;
  if (transport == RequestedTransport::nccl) return DeviceTransport::Way::nccl;
  return DeviceTransport::Way::staged;  // with the host transport of that name
}

/// Number of communicators of replicas in addition to that of the axis: see Sharding.
int replica_groups_of(const ParallelSection& parallel) {
  const int gathers = parallel.zero > 0 ? 1 : 0;
  return gathers + (parallel.zero_group == "all" ? 0 : 2);
}

}  // namespace

DeviceTransport device_transport_of(const Deck& deck) {
  return {.way = way_of(deck),
          .shared_cards = deck.parallel.share_device,
          .replica_groups = replica_groups_of(deck.parallel),
          .stage_channels = kMessageChannels,
          .free_multiprocessors = deck.parallel.free_sms,
          .register_memory = deck.parallel.register_memory,
          .timeout_seconds = deck.parallel.timeout,
          .nccl_library = {}};
}

void open_device(Workplace& place, const Deck& deck) {
  Mesh& mesh = *place.mesh;
  const DeviceChoice choice =
      choose_device(mesh, {.device = deck.device,
                           .fp64 = deck.train.precision == TrainPrecision::fp64,
                           .share = deck.parallel.share_device});
  place.device_reason = choice.reason;
  together(mesh.world(), [&] {
    const RequestedTransport transport = deck.parallel.transport;
    if (choice.kind == DeviceKind::cpu && needs_gpu(transport))
      throw DeckError(fmt::format("parallel.transport is \"{}\", which needs GPU memory, but the "
                                  "device is the CPU ({})",
                                  name_of(transport), choice.reason),
                      "set parallel.transport to \"auto\"");
    place.device = make_device(choice.kind, choice.ordinal);
  });
  DeviceTransport transport = device_transport_of(deck);
  transport.shared_cards = choice.shared_cards;
  mesh.attach(*place.device, transport);
  if (deck.watch.calls) mesh.check_calls();
}

int choose_threads(Communicator& node) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return omp_get_max_threads();
  const cpu_set_t mine = own_cores();
  std::vector<cpu_set_t> all(static_cast<std::size_t>(node.size()));
  all[static_cast<std::size_t>(node.rank())] = mine;
  node.all_gather(all.data(), sizeof mine, DType::u8);
  const auto sharing = std::count_if(all.begin(), all.end(), [&](const cpu_set_t& other) {
    return CPU_EQUAL(&other, &mine) != 0;
  });
  const int threads = threads_of_rank(CPU_COUNT(&mine), static_cast<int>(sharing));
  omp_set_num_threads(threads);
  return threads;
}

}  // namespace choir
